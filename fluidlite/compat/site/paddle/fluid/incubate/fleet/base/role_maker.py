"""``paddle.fluid.incubate.fleet.base.role_maker``."""

from fluidlite.compat.fleet.role_maker import *
