"""``paddle.reader``."""

from fluidlite.reader import *

from paddle.reader import decorator
