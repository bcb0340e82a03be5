"""``fluid.core``: the names of Fluid's C++ module that scripts use."""

from __future__ import annotations

import enum
from typing import Final

from fluidlite.compat.inference import (
    AnalysisConfig,
    NativeConfig,
    PaddleBuf,
    PaddleDType,
    PaddlePlace,
    PaddlePredictor,
    PaddleTensor,
    ZeroCopyTensor,
    create_paddle_predictor,
)
from fluidlite.compat.places import CUDAPinnedPlace, CUDAPlace, get_cuda_device_count, is_compiled_with_cuda
from fluidlite.compat.tensors import LoDTensorArray
from fluidlite.core.ir import OpRole
from fluidlite.dtypes import DTYPE_NUMBERS, VarKind
from fluidlite.errors import EOFException, FluidliteError
from fluidlite.executor import CPUPlace
from fluidlite.runtime.scope import Scope
from fluidlite.values.lod import LoDTensor
from fluidlite.values.selected_rows import SelectedRows

__all__ = [
    "AnalysisConfig",
    "AttrType",
    "CPUPlace",
    "CUDAPinnedPlace",
    "CUDAPlace",
    "EOFException",
    "EnforceNotMet",
    "LoDTensor",
    "LoDTensorArray",
    "NativeConfig",
    "PaddleBuf",
    "PaddleDType",
    "PaddlePlace",
    "PaddlePredictor",
    "PaddleTensor",
    "Scope",
    "SelectedRows",
    "Tensor",
    "VarDesc",
    "ZeroCopyTensor",
    "create_paddle_predictor",
    "empty_var_name",
    "get_cuda_device_count",
    "grad_var_suffix",
    "is_compiled_with_brpc",
    "is_compiled_with_cuda",
    "is_compiled_with_dist",
    "is_compiled_with_mkldnn",
    "kEmptyVarName",
    "kGradVarSuffix",
    "op_proto_and_checker_maker",
]

Tensor = LoDTensor
EnforceNotMet = FluidliteError


class DtypeName(str):
    """The name of a dtype, which is also its number of Fluid's enumeration: ``int(VarType.FP32)`` is 5."""

    __slots__ = ()

    def __int__(self) -> int:
        return DTYPE_NUMBERS[str(self)]

    __index__ = __int__


class VarType:
    """``core.VarDesc.VarType``: dtypes by their names, and kinds of variables. Variables have the same, so ``==`` works."""

    BOOL: Final = DtypeName("bool")
    INT8: Final = DtypeName("int8")
    UINT8: Final = DtypeName("uint8")
    INT16: Final = DtypeName("int16")
    INT32: Final = DtypeName("int32")
    INT64: Final = DtypeName("int64")
    FP16: Final = DtypeName("float16")
    FP32: Final = DtypeName("float32")
    FP64: Final = DtypeName("float64")
    LOD_TENSOR: Final = VarKind.LOD_TENSOR
    SELECTED_ROWS: Final = VarKind.SELECTED_ROWS
    FEED_MINIBATCH: Final = VarKind.FEED_MINIBATCH
    FETCH_LIST: Final = VarKind.FETCH_LIST
    STEP_SCOPES: Final = VarKind.STEP_SCOPES
    LOD_RANK_TABLE: Final = VarKind.LOD_RANK_TABLE
    LOD_TENSOR_ARRAY: Final = VarKind.LOD_TENSOR_ARRAY
    PLACE_LIST: Final = VarKind.PLACE_LIST
    READER: Final = VarKind.READER
    RAW: Final = VarKind.RAW


class VarDesc:
    """``core.VarDesc``; only its ``VarType``."""

    VarType = VarType


class AttrType(enum.IntEnum):
    """Types of attributes, by Fluid's numbers."""

    INT = 0
    FLOAT = 1
    STRING = 2
    INTS = 3
    FLOATS = 4
    STRINGS = 5
    BOOL = 6
    BOOLS = 7
    BLOCK = 8
    LONG = 9
    BLOCKS = 10
    LONGS = 11


class _Role:
    """Roles of ops, by Fluid's names."""

    Forward: Final = OpRole.FORWARD
    Backward: Final = OpRole.BACKWARD
    Optimize: Final = OpRole.OPTIMIZE
    RPC: Final = OpRole.RPC
    Dist: Final = OpRole.DIST
    LRSched: Final = OpRole.LR_SCHED
    Loss: Final = OpRole.LOSS


class op_proto_and_checker_maker:  # noqa: N801 (Fluid's name)
    """Roles of ops and the names of the attributes that every op has."""

    OpRole = _Role

    @staticmethod
    def kOpRoleAttrName() -> str:  # noqa: N802 (as all below: Fluid's name)
        return "op_role"

    @staticmethod
    def kOpRoleVarAttrName() -> str:  # noqa: N802
        return "op_role_var"

    @staticmethod
    def kOpNameScopeAttrName() -> str:  # noqa: N802
        return "op_namescope"

    @staticmethod
    def kOpCreationCallstackAttrName() -> str:  # noqa: N802
        return "op_callstack"

    @staticmethod
    def kOpDeviceAttrName() -> str:  # noqa: N802
        return "op_device"


def kEmptyVarName() -> str:  # noqa: N802
    return "@EMPTY@"


def kGradVarSuffix() -> str:  # noqa: N802
    return "@GRAD"


empty_var_name = kEmptyVarName
grad_var_suffix = kGradVarSuffix


def is_compiled_with_mkldnn() -> bool:
    """False."""
    return False


def is_compiled_with_brpc() -> bool:
    """False: gRPC."""
    return False


def is_compiled_with_dist() -> bool:
    """True: there are parameter servers."""
    return True
