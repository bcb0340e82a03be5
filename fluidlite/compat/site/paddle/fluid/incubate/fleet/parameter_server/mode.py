"""``paddle.fluid.incubate.fleet.parameter_server.mode``."""

from fluidlite.compat.fleet.strategy import DistributedMode
