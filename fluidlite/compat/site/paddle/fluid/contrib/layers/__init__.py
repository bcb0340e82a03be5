"""``paddle.fluid.contrib.layers``."""

from typing import Any

from fluidlite.compat import left_out
from fluidlite.compat.contrib_layers import *


def __getattr__(name: str) -> Any:
    return left_out.find("fluid.contrib.layers", name)
