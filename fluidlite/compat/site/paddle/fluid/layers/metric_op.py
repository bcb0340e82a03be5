"""``paddle.fluid.layers.metric_op``: every layer can be had from here, and what Fluid's module itself imports."""

from fluidlite.framework import Variable, default_main_program
from fluidlite.layer_helper import LayerHelper
from fluidlite.layers import *
from fluidlite.param_attr import ParamAttr
