"""``paddle.utils``."""

from fluidlite.compat.plot import Ploter

from paddle.utils import plot
