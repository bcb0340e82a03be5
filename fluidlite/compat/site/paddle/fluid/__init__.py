"""``paddle.fluid`` as scripts for Fluid 1.x import it, over fluidlite."""

from typing import Any

from fluidlite import (
    CPUPlace,
    DataFeeder,
    DatasetFactory,
    DistributeTranspiler,
    DistributeTranspilerConfig,
    LoDTensor,
    ParamAttr,
    Program,
    Scope,
    SelectedRows,
    append_backward,
    cpu_places,
    create_lod_tensor,
    create_random_int_lodtensor,
    data,
    default_main_program,
    default_startup_program,
    device_guard,
    embedding,
    global_scope,
    gradients,
    name_scope,
    one_hot,
    program_guard,
    require_version,
    scope_guard,
)
from fluidlite.compat import left_out
from fluidlite.compat.async_executor import AsyncExecutor
from fluidlite.compat.compiler import BuildStrategy, CompiledProgram, ExecutionStrategy, ParallelExecutor
from fluidlite.compat.data_feed_desc import DataFeedDesc
from fluidlite.compat.events import BeginEpochEvent, BeginStepEvent, EndEpochEvent, EndStepEvent
from fluidlite.compat.fetched import Executor
from fluidlite.compat.legacy import (
    InferenceTranspiler,
    fetch_var,
    get_flags,
    get_var,
    in_dygraph_mode,
    memory_optimize,
    release_memory,
    set_flags,
)
from fluidlite.compat.legacy import get_var as _get_var
from fluidlite.compat.places import (
    CUDAPinnedPlace,
    CUDAPlace,
    cuda_pinned_places,
    cuda_places,
    is_compiled_with_cuda,
)
from fluidlite.compat.tensors import LoDTensorArray
from fluidlite.compat.trainer import CheckpointConfig, Inferencer, Trainer
from fluidlite.dataset import InMemoryDataset, QueueDataset
from fluidlite.framework.program import Block, Operator, Parameter, Variable
from fluidlite.values.lod import LoDTensor as Tensor

from paddle.fluid import (
    average,
    backward,
    clip,
    compiler,
    contrib,
    core,
    data_feeder,
    dataset,
    evaluator,
    executor,
    framework,
    incubate,
    initializer,
    io,
    layer_helper,
    layers,
    lod_tensor,
    log_helper,
    metrics,
    nets,
    optimizer,
    param_attr,
    profiler,
    reader,
    regularizer,
    transpiler,
    unique_name,
)
from paddle.fluid.io import *
from paddle.fluid.transpiler import HashName, RoundRobin

_Scope = Scope


def __getattr__(name: str) -> Any:
    return left_out.find("fluid", name)
