"""``paddle.fluid.incubate.fleet.base.fleet_base``."""

from fluidlite.compat.fleet.fleet_base import *
