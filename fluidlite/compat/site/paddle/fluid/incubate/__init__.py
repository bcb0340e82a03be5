"""``paddle.fluid.incubate``."""

from paddle.fluid.incubate import data_generator
