"""``paddle.fluid.incubate.fleet.utils``."""
