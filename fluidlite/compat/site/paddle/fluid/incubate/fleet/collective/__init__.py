"""``paddle.fluid.incubate.fleet.collective``."""

from fluidlite.compat.fleet.collective import *
