"""``paddle.fluid.incubate.fleet.parameter_server.distribute_transpiler.distributed_strategy``."""

from fluidlite.compat.fleet.strategy import *
from fluidlite.transpiler.distribute import DistributeTranspilerConfig
