"""``paddle.fluid.contrib.memory_usage_calc``."""

from fluidlite.compat.statistics import memory_usage
