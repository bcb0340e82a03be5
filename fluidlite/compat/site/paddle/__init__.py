"""``paddle`` as scripts for Fluid 1.x import it, over fluidlite."""

import importlib
from typing import Any

from fluidlite import CPUPlace, ParamAttr, Program, Variable
from fluidlite.compat.places import CUDAPinnedPlace, CUDAPlace
from fluidlite.compat.two.tensor import *
from fluidlite.compat import left_out
from fluidlite.compat.version import full_version as __version__
from fluidlite.reader import batch

left_out.install()

from paddle import compat, event, fluid, reader, utils, version

#: imported when they are first asked for
_LATER = ("dataset", "distributed", "nn", "optimizer", "regularizer", "static")


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return importlib.import_module(f"paddle.{name}")
    return left_out.find("", name)
