"""``paddle.fluid.regularizer``."""

from fluidlite.regularizer import *
