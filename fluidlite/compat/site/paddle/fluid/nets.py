"""``paddle.fluid.nets``."""

from fluidlite.nets import *
