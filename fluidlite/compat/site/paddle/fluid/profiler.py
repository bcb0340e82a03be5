"""``paddle.fluid.profiler``."""

from fluidlite.runtime.profile import *
