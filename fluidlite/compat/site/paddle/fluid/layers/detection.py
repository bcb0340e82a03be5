"""``paddle.fluid.layers.detection``: every layer can be had from here."""

from typing import Any

from fluidlite.compat import left_out
from fluidlite.layers import *


def __getattr__(name: str) -> Any:
    return left_out.find("fluid.layers", name)
