"""``paddle.optimizer``."""

from fluidlite.compat.two.optimizer import *
