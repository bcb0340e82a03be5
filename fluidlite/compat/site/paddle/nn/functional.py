"""``paddle.nn.functional``."""

from fluidlite.compat.two.functional import *
