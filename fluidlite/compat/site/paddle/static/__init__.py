"""``paddle.static``."""

from fluidlite.compat.two.static import *

from paddle.static import nn
