"""``paddle.static``: programs and how they are run and saved, with the arguments of Paddle 2.x."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fluidlite import (
    CPUPlace,
    ParamAttr,
    Program,
    Scope,
    Variable,
    append_backward,
    default_main_program,
    default_startup_program,
    global_scope,
    gradients,
    input,
    io,
    name_scope,
    program_guard,
    scope_guard,
)
from fluidlite.compat.compiler import BuildStrategy, CompiledProgram, ExecutionStrategy, ParallelExecutor
from fluidlite.compat.fetched import Executor
from fluidlite.framework import VarOrName
from fluidlite.io import load, load_program_state, save, set_program_state
from fluidlite.layers import accuracy, auc, create_global_var, create_parameter

__all__ = [
    "BuildStrategy",
    "CPUPlace",
    "CompiledProgram",
    "ExecutionStrategy",
    "Executor",
    "ParallelExecutor",
    "ParamAttr",
    "Program",
    "Scope",
    "Variable",
    "accuracy",
    "append_backward",
    "auc",
    "cpu_places",
    "create_global_var",
    "create_parameter",
    "data",
    "default_main_program",
    "default_startup_program",
    "global_scope",
    "gradients",
    "load",
    "load_inference_model",
    "load_program_state",
    "name_scope",
    "program_guard",
    "save",
    "save_inference_model",
    "scope_guard",
    "set_program_state",
]


def data(name: str, shape: Sequence[int | None], dtype: object = None, lod_level: int = 0) -> Variable:
    """Declare a variable that is fed; see `fluid.data`. By default float32."""
    return input.data(name, shape, dtype if dtype is not None else "float32", lod_level)


def cpu_places(device_count: int | None = None) -> list[CPUPlace]:
    """The one place there is, so many times; once by default."""
    return [CPUPlace() for _ in range(device_count or 1)]


def save_inference_model(
    path_prefix: str | Path,
    feed_vars: VarOrName | Sequence[VarOrName],
    fetch_vars: VarOrName | Sequence[VarOrName],
    executor: Any,
    program: Program | None = None,
    **unused: object,
) -> None:
    """Save what computes ``fetch_vars`` from ``feed_vars``: ``<path_prefix>.pdmodel`` and ``<path_prefix>.pdiparams``."""
    feeds = [feed_vars] if isinstance(feed_vars, (str, Variable)) else list(feed_vars)
    names = [feed if isinstance(feed, str) else feed.name for feed in feeds]
    folder, stem = Path(path_prefix).parent, Path(path_prefix).name
    io.save_inference_model(folder, names, fetch_vars, executor, program, f"{stem}.pdmodel", f"{stem}.pdiparams")


def load_inference_model(path_prefix: str | Path, executor: Any, **unused: object) -> list[Any]:
    """Load what `save_inference_model` wrote: [program, names to feed, variables to fetch]."""
    folder, stem = Path(path_prefix).parent, Path(path_prefix).name
    return io.load_inference_model(folder, executor, f"{stem}.pdmodel", f"{stem}.pdiparams")
