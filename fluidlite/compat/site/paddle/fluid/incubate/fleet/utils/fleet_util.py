"""``paddle.fluid.incubate.fleet.utils.fleet_util``."""

from fluidlite.compat.fleet.fleet_util import *
