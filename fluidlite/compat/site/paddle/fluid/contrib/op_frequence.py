"""``paddle.fluid.contrib.op_frequence``."""

from fluidlite.compat.statistics import op_freq_statistic
