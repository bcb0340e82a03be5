"""``paddle.fluid.transpiler.distribute_transpiler``."""

import importlib
from typing import Any

from fluidlite.transpiler import DistributeTranspiler, DistributeTranspilerConfig


def __getattr__(name: str) -> Any:
    if name == "distributed_strategy":  # some scripts look for it here
        return importlib.import_module("fluidlite.compat.fleet.strategy")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
