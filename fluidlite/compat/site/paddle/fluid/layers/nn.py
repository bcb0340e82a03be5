"""``paddle.fluid.layers.nn``: every layer can be had from here, and what Fluid's module itself imports."""

from typing import Any

from fluidlite.compat import left_out
from fluidlite.framework import Variable, default_main_program
from fluidlite.layer_helper import LayerHelper
from fluidlite.layers import *
from fluidlite.param_attr import ParamAttr


def __getattr__(name: str) -> Any:
    return left_out.find("fluid.layers.nn", name)
