"""``paddle.nn.initializer``."""

from fluidlite.compat.two.initializer import *
