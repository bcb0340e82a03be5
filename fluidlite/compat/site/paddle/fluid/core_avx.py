"""``paddle.fluid.core_avx``."""

from paddle.fluid.core import *
