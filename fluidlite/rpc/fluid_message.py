"""Fluid's own messages: variables as bytes, and back. Whatever comes is checked before anything is made of it.

Source of the format: docs/fluid_wire.md, proto/fluid.proto.
"""

from __future__ import annotations

from math import prod
from typing import Final

import numpy as np
from google.protobuf.message import DecodeError

from fluidlite.dtypes import DTYPE_NUMBERS, Array
from fluidlite.errors import RequestRefusedError
from fluidlite.proto_gen import fluid_pb2 as pb
from fluidlite.values.selected_rows import SelectedRows

SERVICE: Final = "sendrecv.SendRecvService"
BATCH_BARRIER: Final = "BATCH_BARRIER@RECV"
FETCH_BARRIER: Final = "FETCH_BARRIER@RECV"
COMPLETE: Final = "COMPLETE@RECV"
WITHOUT_BARRIER: Final = "@WITHOUT_BARRIER@RECV"
SAVE: Final = "SAVE@CHECKPOINTNOTIFY"
#: what one message holds at most
LARGEST: Final = (1 << 31) - 1
#: dimensions of a variable: Fluid's own bound
_MOST_DIMS: Final = 9

#: the numbers of Fluid's messages are those of its programs; these have one there
_DTYPES: Final = {
    number: np.dtype(name) for name, number in DTYPE_NUMBERS.items() if number <= DTYPE_NUMBERS["float64"]
}
_NUMBERS: Final = {dtype: number for number, dtype in _DTYPES.items()}


def parse(data: bytes | None) -> pb.VariableMessage:
    """A message; of none, which is how Fluid answers a barrier, an empty one. RequestRefusedError for what is none."""
    try:
        return pb.VariableMessage.FromString(data or b"")
    except DecodeError as error:
        raise RequestRefusedError(f"malformed message: {error}") from None
    except UnicodeDecodeError as error:  # protobuf in pure Python
        raise RequestRefusedError(f"malformed message: a name is no UTF-8 ({error})") from None


def message_of(name: str, value: Array | SelectedRows, **fields: int | str) -> pb.VariableMessage:
    """A variable on its way. ``fields``: of the message, besides those that describe the value.

    RequestRefusedError for a dtype that Fluid's messages have no number for, and for more than one message can hold.
    """
    array = value.value if isinstance(value, SelectedRows) else value
    if array.dtype not in _NUMBERS:
        raise RequestRefusedError(f"variable {name!r} is {array.dtype}, which Fluid's messages cannot carry")
    if array.nbytes >= LARGEST:
        raise RequestRefusedError(
            f"variable {name!r} has {array.nbytes} bytes; Fluid's messages hold {LARGEST} at most"
        )
    message = pb.VariableMessage(varname=name, data_type=_NUMBERS[array.dtype], dims=array.shape, **fields)  # type: ignore[arg-type]
    message.serialized = _little_endian(array)
    if isinstance(value, SelectedRows):
        message.type = pb.SELECTED_ROWS
        message.slr_height = value.height
        message.rows = _little_endian(value.rows)
    return message


def value_of(message: pb.VariableMessage) -> Array | SelectedRows:
    """The variable that a message carries; its arrays look at the bytes where they lie, and cannot be written.

    RequestRefusedError for a message that contradicts itself. No memory is taken by what it declares.
    """
    name = message.varname
    dtype = _DTYPES.get(message.data_type)
    if dtype is None:
        raise RequestRefusedError(f"variable {name!r} has dtype number {message.data_type}, which is none of Fluid's")
    shape = tuple(message.dims)
    if not 0 < len(shape) <= _MOST_DIMS or min(shape) < 0 or max(shape) > LARGEST:
        raise RequestRefusedError(f"variable {name!r} has shape {list(shape)}")
    if prod(shape) * dtype.itemsize != len(message.serialized):
        raise RequestRefusedError(
            f"variable {name!r} of shape {list(shape)} and dtype {dtype} comes with {len(message.serialized)} bytes"
        )
    array = np.frombuffer(message.serialized, dtype.newbyteorder("<")).reshape(shape)
    if message.type == pb.SELECTED_ROWS:
        return _rows_of(message, array)
    if message.type != pb.LOD_TENSOR:
        raise RequestRefusedError(f"variable {name!r} is of kind {message.type}; only tensors and rows are understood")
    _check_lod(message, shape[0])
    return array


def _rows_of(message: pb.VariableMessage, array: Array) -> SelectedRows:
    """Rows of a taller matrix; which rows there are is for whoever knows the matrix to check."""
    if array.ndim < 2 or len(message.rows) != 8 * len(array):
        raise RequestRefusedError(
            f"variable {message.varname!r} has values of shape {list(array.shape)} and {len(message.rows)} bytes of row "
            "numbers; rows need a matrix, and eight bytes each"
        )
    if message.slr_height < 0:
        raise RequestRefusedError(f"variable {message.varname!r} is of {message.slr_height} rows")
    return SelectedRows(np.frombuffer(message.rows, "<i8"), array, message.slr_height)


def _check_lod(message: pb.VariableMessage, rows: int) -> None:
    """Offsets ascend, and each level ends where the next one, or the value, does."""
    levels = [np.array(level.lod_data, np.int64) for level in message.lod]
    for level, end in zip(levels, [*(len(level) - 1 for level in levels[1:]), rows], strict=False):
        if len(level) < 1 or level[0] != 0 or level[-1] != end or bool((np.diff(level) < 0).any()):
            raise RequestRefusedError(f"variable {message.varname!r} has offsets that are no LoD of {rows} rows")


def _little_endian(array: Array) -> bytes:
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
