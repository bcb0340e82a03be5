"""``paddle.fluid.transpiler``."""

from fluidlite.compat.legacy import InferenceTranspiler, memory_optimize, release_memory
from fluidlite.transpiler import *

from paddle.fluid.transpiler import distribute_transpiler, ps_dispatcher
