"""``paddle.fluid.framework``."""

from typing import Any

from fluidlite.compat import left_out
from fluidlite.compat.legacy import get_flags, get_var, in_dygraph_mode, set_flags
from fluidlite.compat.legacy import get_var as _get_var
from fluidlite.compat.places import cuda_pinned_places, cuda_places, is_compiled_with_cuda
from fluidlite.core.names import grad as grad_var_name
from fluidlite.executor import cpu_places
from fluidlite.framework import *
from fluidlite.framework.program import Block, Operator, Parameter, Variable


def __getattr__(name: str) -> Any:
    return left_out.find("fluid.framework", name)
