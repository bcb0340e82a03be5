"""``paddle.fluid.average``."""

from fluidlite.compat.average import WeightedAverage
