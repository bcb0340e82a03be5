"""``paddle.fluid.metrics``."""

from typing import Any

from fluidlite.compat import left_out
from fluidlite.metrics import *


def __getattr__(name: str) -> Any:
    return left_out.find("fluid.metrics", name)
