"""fluidlite: programs, a distribute transpiler and parameter servers. Use as ``import fluidlite as fluid``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fluidlite import (
    backward,
    clip,
    constraint,
    core,
    fusion,
    initializer,
    io,
    layers,
    metrics,
    nets,
    optimizer,
    reader,
    regularizer,
    transpiler,
    unique_name,
)
from fluidlite.backward import append_backward, gradients
from fluidlite.config import show_config
from fluidlite.data_feeder import DataFeeder
from fluidlite.dataset import DatasetFactory
from fluidlite.dataset_run import FetchHandler
from fluidlite.executor import CPUPlace, CUDAPlace, Executor, cpu_places, is_compiled_with_cuda
from fluidlite.framework import (
    Program,
    Variable,
    default_main_program,
    default_startup_program,
    device_guard,
    name_scope,
    program_guard,
    require_version,
)
from fluidlite.input import data, embedding, one_hot
from fluidlite.io import load, save
from fluidlite.lod_tensor import create_lod_tensor, create_random_int_lodtensor
from fluidlite.param_attr import ParamAttr
from fluidlite.runtime import profile as profiler
from fluidlite.runtime.scope import Scope, global_scope, scope_guard
from fluidlite.transpiler.distribute import DistributeTranspiler, DistributeTranspilerConfig
from fluidlite.values.lod import LoDTensor
from fluidlite.values.selected_rows import SelectedRows

if TYPE_CHECKING:
    from fluidlite.cluster import LocalCluster
    from fluidlite.ps_client import PSClient
else:

    def __getattr__(name: str) -> Any:
        """`LocalCluster` and `PSClient` bring the server and its protocol, so they are imported when they are first used."""
        if name == "LocalCluster":
            from fluidlite.cluster import LocalCluster

            return LocalCluster
        if name == "PSClient":
            from fluidlite.ps_client import PSClient

            return PSClient
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__version__ = "0.1.0"

__all__ = [
    "CPUPlace",
    "CUDAPlace",
    "DataFeeder",
    "DatasetFactory",
    "DistributeTranspiler",
    "DistributeTranspilerConfig",
    "Executor",
    "FetchHandler",
    "LoDTensor",
    "LocalCluster",
    "PSClient",
    "ParamAttr",
    "Program",
    "Scope",
    "SelectedRows",
    "Variable",
    "append_backward",
    "backward",
    "clip",
    "constraint",
    "core",
    "cpu_places",
    "create_lod_tensor",
    "create_random_int_lodtensor",
    "data",
    "default_main_program",
    "default_startup_program",
    "device_guard",
    "embedding",
    "fusion",
    "global_scope",
    "gradients",
    "initializer",
    "io",
    "is_compiled_with_cuda",
    "layers",
    "load",
    "metrics",
    "name_scope",
    "nets",
    "one_hot",
    "optimizer",
    "profiler",
    "program_guard",
    "reader",
    "regularizer",
    "require_version",
    "save",
    "scope_guard",
    "show_config",
    "transpiler",
    "unique_name",
]
