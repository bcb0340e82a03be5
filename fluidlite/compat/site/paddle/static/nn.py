"""``paddle.static.nn``."""

from fluidlite.compat.two.static_nn import *
