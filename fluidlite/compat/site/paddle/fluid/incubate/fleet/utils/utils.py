"""``paddle.fluid.incubate.fleet.utils.utils``."""

from fluidlite.compat.fleet.utils import *
