"""Attributes of types that came after Fluid 1.8 (Paddle 2.0 to 3), read as the types that ops here have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from fluidlite.core.ir import Attr, AttrType
from fluidlite.proto_gen import framework_pb2 as pb

_INT64: Final = AttrType.LONG, AttrType.LONGS
_FLOAT: Final = AttrType.FLOAT, AttrType.FLOATS
_BOOL: Final = AttrType.BOOLEAN, AttrType.BOOLEANS
#: type of a Scalar -> its field, and what a value and a list of such are read as
_SCALARS: Final = {pb.Scalar.BOOLEAN: ("b", _BOOL), pb.Scalar.LONG: ("i", _INT64), pb.Scalar.FLOAT64: ("r", _FLOAT)}


def read(desc: pb.OpDesc.Attr) -> Attr | None:
    """The attribute as one of the types of 1.8; None for what has no counterpart there (complex numbers, variables)."""
    reader = _READERS.get(desc.type) if desc.HasField("type") else None
    return None if reader is None else reader(desc)


def _float64(desc: pb.OpDesc.Attr) -> Attr:
    return Attr(AttrType.FLOAT, _as_float32(desc.float64))


def _float64s(desc: pb.OpDesc.Attr) -> Attr:
    return Attr(AttrType.FLOATS, tuple(map(_as_float32, desc.float64s)))


def _scalar(desc: pb.OpDesc.Attr) -> Attr | None:
    return _numbers([desc.scalar], lambda types, values: Attr(types[0], values[0]))


def _scalars(desc: pb.OpDesc.Attr) -> Attr | None:
    return _numbers(desc.scalars, lambda types, values: Attr(types[1], tuple(values)))


def _numbers(scalars: Sequence[pb.Scalar], make: Callable[[tuple[AttrType, AttrType], list[Any]], Attr]) -> Attr | None:
    """One type for all: that of the first. Paddle makes such lists from one array."""
    kinds = {scalar.type for scalar in scalars} or {pb.Scalar.FLOAT64}
    found = _SCALARS.get(kinds.pop()) if len(kinds) == 1 else None
    if found is None:
        return None
    field, types = found
    values = [getattr(scalar, field) for scalar in scalars]
    return make(types, [_as_float32(value) for value in values] if field == "r" else values)


def _as_float32(value: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.float32(value))


_READERS: Final[dict[int, Callable[[pb.OpDesc.Attr], Attr | None]]] = {
    pb.FLOAT64: _float64,
    pb.FLOAT64S: _float64s,
    pb.SCALAR: _scalar,
    pb.SCALARS: _scalars,
}
