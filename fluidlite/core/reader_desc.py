"""What a READER variable says of the batches that it gives: dtype, shape and LoD level of each item.

`ir.Variable` has no field for it; it is kept among the bytes that a variable carries along unread (``unknown``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fluidlite.dtypes import DTYPE_NAMES, UNKNOWN_DTYPE, dtype_number


class ReaderItem(NamedTuple):
    """One item of a batch; -1 in ``shape`` stands for any size."""

    dtype: str
    shape: tuple[int, ...]
    lod_level: int


def encode(items: Sequence[ReaderItem]) -> bytes:
    """The bytes for ``Variable.unknown``."""
    from fluidlite.proto_gen import framework_pb2 as pb

    desc = pb.VarDesc()
    for item in items:
        entry = desc.type.reader.lod_tensor.add(lod_level=item.lod_level)
        entry.tensor.data_type = dtype_number(item.dtype)  # type: ignore[assignment]
        entry.tensor.dims.extend(item.shape)
    return desc.SerializePartialToString()


def decode(unknown: bytes) -> list[ReaderItem]:
    """The items that such bytes describe; none where they describe no reader."""
    from fluidlite.proto_gen import framework_pb2 as pb

    desc = pb.VarDesc()
    desc.MergeFromString(unknown)
    return [
        ReaderItem(DTYPE_NAMES.get(entry.tensor.data_type, UNKNOWN_DTYPE), tuple(entry.tensor.dims), entry.lod_level)
        for entry in desc.type.reader.lod_tensor
    ]
