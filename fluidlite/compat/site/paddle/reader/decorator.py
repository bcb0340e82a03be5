"""``paddle.reader.decorator``."""

from fluidlite.reader.decorators import *
