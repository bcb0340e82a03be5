"""``paddle.version``."""

from fluidlite.compat.version import *
