"""``paddle.fluid.layer_helper``."""

from fluidlite.layer_helper import LayerHelper
