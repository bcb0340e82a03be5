"""``paddle.fluid.backward``."""

from fluidlite.backward import *
