"""``paddle.fluid.incubate.fleet.parameter_server.pslib``."""

from fluidlite.compat.fleet.pslib import *
