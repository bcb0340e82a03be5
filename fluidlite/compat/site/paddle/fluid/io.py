"""``paddle.fluid.io``."""

from typing import Any

from fluidlite.compat import left_out
from fluidlite.compat.legacy import get_inference_program
from fluidlite.io import *


def __getattr__(name: str) -> Any:
    return left_out.find("fluid.io", name)
