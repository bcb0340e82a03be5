"""``paddle.fluid.compiler``."""

from fluidlite.compat.compiler import BuildStrategy, CompiledProgram, ExecutionStrategy
