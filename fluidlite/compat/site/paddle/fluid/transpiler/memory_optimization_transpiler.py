"""``paddle.fluid.transpiler.memory_optimization_transpiler``."""

from fluidlite.compat.legacy import memory_optimize, release_memory
