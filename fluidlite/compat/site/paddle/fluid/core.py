"""``paddle.fluid.core``."""

from typing import Any

from fluidlite.compat import left_out
from fluidlite.compat.core import *


def __getattr__(name: str) -> Any:
    return left_out.find("fluid.core", name)
