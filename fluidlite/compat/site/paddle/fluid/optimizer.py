"""``paddle.fluid.optimizer``."""

from typing import Any

from fluidlite.compat import left_out
from fluidlite.compat.dgc import DGCMomentumOptimizer
from fluidlite.optimizer import *


def __getattr__(name: str) -> Any:
    return left_out.find("fluid.optimizer", name)
