"""``paddle.fluid.incubate.fleet.parameter_server.distribute_transpiler``."""

from fluidlite.compat.fleet.distribute_transpiler import *

from paddle.fluid.incubate.fleet.parameter_server.distribute_transpiler import distributed_strategy
