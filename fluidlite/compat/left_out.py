"""The names and modules of Fluid that are left out: `LEFT_OUT` and `MODULES` list each with its reason.

Such a name can be imported and asked for, so that a script that never uses it runs; calling it, subclassing it, or asking it
for an attribute raises NotSupported. A module can be imported, and so can every name of it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final, NoReturn

from fluidlite.errors import NotSupported
from fluidlite.layers import left_out as layers_left_out

_COLLECTIVE: Final = "trainers exchange gradients through parameter servers, not with each other"
_COMPLEX: Final = "complex numbers are left out"
_DECODER: Final = "decoders of fluid.contrib are left out; use layers.BeamSearchDecoder and dynamic_decode"
_DETECTION: Final = "operators of image detection are left out"
_DYGRAPH: Final = "imperative mode is left out; build a program"
_DRAWING: Final = "pictures of programs are left out; print(program) shows one, and Netron opens a saved model"
_LOCAL_TABLES: Final = "programs and files of distributed tables are local ones here: use fluid.io.load_persistables"
_INNER: Final = "it is an inner part of Fluid"
_MATCHING: Final = "this operator of text matching is left out"
_PIPELINE: Final = "one program on several devices is left out"
_PICTURES: Final = "it needs libraries that read pictures; read them by your own reader"
_PSLIB: Final = "it is an inner part of pslib; use fluid.incubate.fleet.parameter_server.pslib"
_PSLIB_FLEET: Final = "fluid.incubate.fleet.parameter_server.pslib.fleet"
_QUANTIZE: Final = "quantization and compression of models are left out"


def _each(module: str, names: str, reason: str) -> dict[str, str]:
    return dict.fromkeys((f"{module}.{name}".removeprefix(".") for name in names.split()), reason)


#: name -> why it is left out, and what to do. `fluidlite.layers.left_out` has the layers.
LEFT_OUT: Final[dict[str, str]] = {
    "fluid.ComplexVariable": _COMPLEX,
    "fluid.core.PSGPU": "tables on GPUs are left out; use parameter servers",
    **_each("fluid.core", "BoxPS VarBase Layer Tracer", _DYGRAPH),
    **_each(
        "fluid.core",
        "BlockDesc DeviceContext Executor Graph Node OpDesc Operator ParallelExecutor Pass PassBuilder ProgramDesc Reader "
        "Variable get_all_op_protos get_grad_op_desc get_pass globals init_devices init_gflags init_glog prune",
        _INNER,
    ),
    **_each("fluid.framework", "IrGraph OpProtoHolder ParamBase get_all_op_protos", _INNER),
    **_each(
        "fluid",
        "BCELoss BatchNorm BilinearTensorProduct Conv2D Conv2DTranspose Conv3D Conv3DTranspose Dropout Embedding GRUUnit "
        "GroupNorm InstanceNorm L1Loss Layer LayerNorm Linear MSELoss NCE NLLLoss PRelu Pool2D SpectralNorm TreeConv "
        "disable_dygraph disable_imperative enable_dygraph enable_imperative load_dygraph save_dygraph",
        _DYGRAPH,
    ),
    "fluid.WeightNormParamAttr": "weights apart in direction and length are left out; use layers.l2_normalize",
    **_each("fluid.contrib", "BeamSearchDecoder InitState StateCell TrainingDecoder", _DECODER),
    **_each("fluid.contrib", "Compressor QuantizeTranspiler", _QUANTIZE),
    **_each(
        "fluid.contrib",
        "convert_dist_to_sparse_program load_persistables_for_increment load_persistables_for_inference",
        _LOCAL_TABLES,
    ),
    "fluid.contrib.distributed_batch_reader": _COLLECTIVE,
    "fluid.contrib.extend_with_decoupled_weight_decay": "use fluidlite.optimizer.AdamW, or a regularizer",
    **_each(
        "fluid.contrib.layers",
        "rank_attention search_pyramid_hash",
        _MATCHING,
    ),
    "fluid.contrib.layers.multiclass_nms2": _DETECTION,
    "fluid.evaluator.DetectionMAP": _DETECTION,
    "fluid.metrics.DetectionMAP": _DETECTION,
    **_each("fluid.layers.collective", "_allreduce _allgather _broadcast _c_allreduce _c_broadcast", _COLLECTIVE),
    "fluid.layers.elementwise_add_with_weight": "no version of Fluid that is known has it",
    "fluid.load_op_library": "operators in shared libraries are left out; add a record to fluidlite.ops",
    "fluid.framework.load_op_library": "operators in shared libraries are left out; add a record to fluidlite.ops",
    "fluid.framework.ComplexVariable": _COMPLEX,
    "fluid.optimizer.PipelineOptimizer": _PIPELINE,
    **_each(
        _PSLIB_FLEET,
        "load_pslib_whitelist save_model_with_whitelist shrink_dense_table shrink_sparse_table",
        "rows of fluidlite's tables keep no shows and clicks to judge them by",
    ),
    f"{_PSLIB_FLEET}.save_cache_model": "servers keep no cache of rows; save_persistables saves all rows",
    **_each(
        _PSLIB_FLEET,
        "clear_one_table load_one_table print_table_stat save_one_table",
        "tables of fluidlite have names, not numbers; use fluid.io with the program",
    ),
    **_each(
        _PSLIB_FLEET,
        "confirm revert",
        "servers apply what comes; save and load checkpoints (fluid.io.save_checkpoint)",
    ),
    "fluid.io.default_collate_fn": _DYGRAPH,
    "fluid.reader.default_collate_fn": _DYGRAPH,
}

#: module -> why it and all below it are left out, and what to do
MODULES: Final[dict[str, str]] = {
    "fluid.dygraph": _DYGRAPH,
    **_each(
        "fluid", "annotations device_worker dygraph_utils layer_helper_base op trainer_desc wrapped_decorator", _INNER
    ),
    **_each("fluid", "debugger graphviz net_drawer", _DRAWING),
    **_each("fluid", "distribute_lookup_table distributed", _PSLIB),
    "fluid.core_noavx": _INNER,
    "fluid.default_scope_funcs": "use fluid.global_scope and fluid.scope_guard",
    **_each("fluid.contrib", "int8_inference quantize slim", _QUANTIZE),
    "fluid.contrib.mixed_precision": "half precision is for GPUs; train in float32",
    "fluid.contrib.decoder": _DECODER,
    "fluid.contrib.extend_optimizer": "use fluidlite.optimizer.AdamW, or a regularizer",
    "fluid.contrib.model_stat": "no table of a model's sizes is printed; print(program) shows all shapes",
    "fluid.contrib.reader": _COLLECTIVE,
    "fluid.contrib.utils.lookup_table_utils": _LOCAL_TABLES,
    **_each("fluid.incubate.fleet.parameter_server.pslib", "node optimizer_factory ps_pb2", _PSLIB),
    **_each("fluid.incubate.fleet.utils", "fleet_barrier_util http_server", _INNER),
    **_each("fluid.layers", "layer_function_generator math_op_patch", _INNER),
    "fluid.proto.data_feed_pb2": "use fluid.DataFeedDesc, which reads and writes its text",
    "fluid.transpiler.collective": _COLLECTIVE,
    "fluid.transpiler.geo_sgd_transpiler": "use DistributeTranspilerConfig.geo_sgd_mode",
    "dataset.mq2007": "its archive is a rar, which Python cannot read",
    **_each("dataset", "flowers image voc2012", _PICTURES),
    **_each("utils", "image_util preprocess_img", _PICTURES),
    **_each("distributed", "cloud_utils utils", _COLLECTIVE),
    **_each("", "complex", _COMPLEX),
    **_each("", "hapi imperative incubate jit", _DYGRAPH),
    **_each("", "libs proto sysconfig", _INNER),
    **_each("", "trainer trainer_config_helpers v2", "it is of Paddle before Fluid (0.10 and older)"),
    **_each("", "text vision", "data sets and models of Paddle 2 are left out"),
}


class LeftOut:
    """Stands for a name of Fluid that is left out; any use of it raises NotSupported."""

    def __init__(self, name: str, reason: str) -> None:
        self._name = name
        self._reason = reason

    def __call__(self, *arguments: object, **keywords: object) -> NoReturn:
        self._refuse()

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # asked by copy, inspect, import machinery
            raise AttributeError(name)
        self._refuse()

    def __mro_entries__(self, bases: tuple[Any, ...]) -> NoReturn:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise NotSupported(f"{self._name} is not supported by fluidlite: {self._reason}")

    def __instancecheck__(self, instance: object) -> bool:
        """Nothing is an instance of what there is not."""
        return False

    def __repr__(self) -> str:
        return f"<{self._name}: not supported>"


class _Modules(MetaPathFinder, Loader):
    """Makes the modules that are left out, and those below them."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, is_package=True) if _reason_of(fullname) else None

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        name = name.removeprefix("paddle.") if name.startswith("paddle.fluid.") else name
        module.__doc__ = f"``{module.__name__}``: not supported."

        def member(of: str) -> LeftOut:
            if of.startswith("__"):  # asked by import machinery
                raise AttributeError(f"module {module.__name__!r} has no attribute {of!r}")
            return LeftOut(f"{name}.{of}", _reason_of(module.__name__))

        module.__dict__["__getattr__"] = member
        module.__dict__["__all__"] = _names_of(name, _reason_of(module.__name__))


_FINDER: Final = _Modules()


def install() -> None:
    """Let the modules that are left out be imported."""
    if _FINDER not in sys.meta_path:
        sys.meta_path.append(_FINDER)


def _reason_of(module: str) -> str:
    """Why ``paddle.<...>`` is left out; empty where it is not."""
    head, _, name = module.partition(".")
    while head == "paddle" and name:
        if name in MODULES:
            return MODULES[name]
        name = name.rpartition(".")[0]
    return ""


def _names_of(module: str, reason: str) -> list[str]:
    """What ``from module import *`` brings: the names of packages above it that are left out for the same reason."""
    split = [(name.rpartition("."), why) for name, why in LEFT_OUT.items()]
    return [name for (package, _, name), why in split if why == reason and module.startswith(f"{package}.")]


def find(module: str, name: str) -> LeftOut:
    """The stand-in for ``name`` of ``module`` (such as ``fluid.layers``); AttributeError where the tables have none.

    A name is also that of the packages above, as Fluid imports its functions there.
    """
    whole = f"{module}.{name}".removeprefix(".")
    reason, above = LEFT_OUT.get(whole) or MODULES.get(whole), module
    if reason is None and module == "fluid.contrib":
        reason = LEFT_OUT.get(f"fluid.contrib.layers.{name}")
    while reason is None and above:
        reason = layers_left_out.LEFT_OUT.get(name) if above == "fluid.layers" else LEFT_OUT.get(f"{above}.{name}")
        above = above.rpartition(".")[0]
    if reason is None:
        raise AttributeError(f"module {'.'.join(filter(None, ('paddle', module)))!r} has no attribute {name!r}")
    return LeftOut(whole if module else f"paddle.{name}", reason)
