"""fluidlite: programs, a distribute transpiler and parameter servers. Use as ``import fluidlite as fluid``."""

from __future__ import annotations

import fluidlite.ops as _ops
from fluidlite.executor import CPUPlace, CUDAPlace, Executor, is_compiled_with_cuda
from fluidlite.framework import (
    Program,
    Variable,
    default_main_program,
    default_startup_program,
    name_scope,
    program_guard,
)
from fluidlite.runtime.scope import Scope, global_scope, scope_guard
from fluidlite.values.lod import LoDTensor
from fluidlite.values.selected_rows import SelectedRows

__version__ = "0.1.0"
del _ops
