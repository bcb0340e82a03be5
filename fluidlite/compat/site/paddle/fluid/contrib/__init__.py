"""``paddle.fluid.contrib``."""

from typing import Any

from fluidlite.compat import left_out
from fluidlite.compat.contrib_files import *
from fluidlite.compat.contrib_layers import *
from fluidlite.compat.statistics import memory_usage, op_freq_statistic

from paddle.fluid.contrib import layers, utils


def __getattr__(name: str) -> Any:
    return left_out.find("fluid.contrib", name)
