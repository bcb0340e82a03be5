"""``paddle.fluid.initializer``."""

from fluidlite.compat.legacy import force_init_on_cpu, init_on_cpu
from fluidlite.initializer import *
