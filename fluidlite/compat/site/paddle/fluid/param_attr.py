"""``paddle.fluid.param_attr``."""

from typing import Any

from fluidlite.compat import left_out
from fluidlite.param_attr import ParamAttr


def __getattr__(name: str) -> Any:
    return left_out.find("fluid.param_attr", name)
