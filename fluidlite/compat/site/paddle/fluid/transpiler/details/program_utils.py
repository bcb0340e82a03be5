"""``paddle.fluid.transpiler.details.program_utils``."""

from fluidlite.compat.legacy import program_to_code
