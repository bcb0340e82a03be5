"""``paddle.utils.plot``."""

from fluidlite.compat.plot import PlotData, Ploter
