"""``paddle.fluid.parallel_executor``."""

from fluidlite.compat.compiler import BuildStrategy, ExecutionStrategy, ParallelExecutor
