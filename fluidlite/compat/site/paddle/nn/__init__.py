"""``paddle.nn``."""

from fluidlite.compat.two.nn import *

from paddle.nn import functional, initializer
