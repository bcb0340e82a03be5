"""``paddle.fluid.transpiler.details``."""

from fluidlite.compat.legacy import program_to_code
