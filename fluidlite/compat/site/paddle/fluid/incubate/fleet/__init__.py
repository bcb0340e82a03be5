"""``paddle.fluid.incubate.fleet``."""
