"""``paddle.fluid.clip``."""

from fluidlite.clip import *
