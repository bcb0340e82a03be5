"""What a program is fed: values in the form that scopes hold, checked against what the variable declares."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fluidlite.dtypes import Array, exact_array, numpy_dtype
from fluidlite.errors import DtypeError, FeedError
from fluidlite.values.lod import LoDTensor, check_lod


def checked(
    name: str, value: Any, dtype: str, shape: tuple[int, ...] | None, lod_level: int, *, exact: bool = True
) -> Array | LoDTensor:
    """The value of variable ``name``: a LoDTensor where it has LoD, else an array. ``shape``: -1 fits any size, None any
    shape. Not ``exact``, as for ``layers.data``: only the rows count, any number of them fits, and rows of as many numbers
    in another form (labels of shape [N] for [N, 1]) take the declared one.

    Raises FeedError for another dtype, rank or size, and for levels of LoD that are missing; ShapeError for LoD that does
    not fit the rows.
    """
    lod = value.lod if isinstance(value, LoDTensor) else ()
    if not isinstance(lod, tuple):
        raise FeedError(f"the LoD of fed {name!r} must be a tuple of levels, not {lod!r}")
    wanted = numpy_dtype(dtype)
    array = _as_array(name, value.array if isinstance(value, LoDTensor) else value, dtype)
    if array.dtype != wanted:
        array = _converted(name, array, wanted)
    if shape is not None:
        array = array if exact else _in_rank(array, shape[1:])
        check_shape(name, array, shape if exact else any_batch(shape) or ())
    if lod_level and len(lod) < lod_level:
        raise FeedError(
            f"{name!r} has lod_level {lod_level} but the fed value has {len(lod)} levels of LoD; use fluid.create_lod_tensor"
        )
    if lod:
        check_lod(lod, len(array), f"the feed of {name!r}")
        return LoDTensor(array, lod)
    return array


def any_batch(shape: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """The shape of a variable of which only the rows count, as ``layers.data`` declares it: any number of them fits."""
    return (-1, *shape[1:]) if shape else shape


def _in_rank(array: Array, row: tuple[int, ...]) -> Array:
    """The array, in the declared form where it has another rank and its rows have as many numbers."""
    if array.ndim in (0, len(row) + 1) or min(row, default=0) < 0 or array.size != len(array) * math.prod(row):
        return array
    return array.reshape(len(array), *row)


def check_shape(name: str, array: Array, shape: tuple[int, ...]) -> None:
    """Raise FeedError unless the array has the declared rank and sizes; -1 fits any size."""
    fits = array.ndim == len(shape) and all(d < 0 or d == a for d, a in zip(shape, array.shape, strict=True))
    if not fits:
        raise FeedError(f"the shape of fed {name!r} must be {list(shape)} (-1: any), but it is {list(array.shape)}")


def _as_array(name: str, value: Any, dtype: str) -> Array:
    """Arrays keep their dtype (checked later), not their byte order; Python numbers and lists of numbers take the
    declared dtype."""
    if isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(value)
        return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
    try:
        return exact_array(value, dtype)
    except DtypeError as error:
        raise FeedError(f"the feed of {name!r} is {error}; use fluid.create_lod_tensor for sequences") from error


def _converted(name: str, array: Array, wanted: np.dtype[Any]) -> Array:
    if array.dtype == np.uint64 and wanted == np.int64:
        return array.view(np.int64)
    raise FeedError(f"the dtype of fed {name!r} must be {wanted.name!r}, but it is {array.dtype.name!r}")
