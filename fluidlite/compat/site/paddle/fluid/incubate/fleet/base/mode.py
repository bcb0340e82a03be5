"""``paddle.fluid.incubate.fleet.base.mode``."""

from fluidlite.compat.fleet.mode import *
