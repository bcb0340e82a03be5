"""``paddle.fluid.layers.device``."""

from fluidlite.compat.parallel_do import get_places
