"""What clients hand over: arrays of numpy, PyTorch or TensorFlow 2, as arrays of numpy that fit what servers hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import FeedError, OutOfRangeError
from fluidlite.values.selected_rows import SelectedRows, merge_rows, segment_sum


class Tensor(NamedTuple):
    """A named value or gradient. ``indices``: the ids of its rows, where it has not all of them."""

    name: str
    values: Any
    indices: Any = None


class TensorLike(Protocol):
    """What is taken for a `Tensor`: anything with these attributes, such as ElasticDL's own."""

    @property
    def name(self) -> str: ...
    @property
    def values(self) -> Any: ...
    @property
    def indices(self) -> Any: ...


def as_array(value: Any, what: str) -> Array:
    """The numpy array of a numpy array, a list, a tensor of PyTorch or TensorFlow (shares its memory where it can).

    FeedError for what holds no numbers; ``what`` names it there.
    """
    try:
        if hasattr(value, "detach"):
            value = value.detach().cpu()
        array = np.asarray(value.numpy() if hasattr(value, "numpy") else value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise FeedError(f"{what} is no array of numbers: {error}") from None
    if array.dtype.kind not in "fiu":
        raise FeedError(f"{what} is no array of numbers but of {array.dtype}")
    return array


def as_ids(value: Any, what: str) -> Array:
    """Ids as int64, of any shape; unsigned ones are taken bit by bit. FeedError for what is not whole."""
    array = as_array(value, what)
    if array.dtype.kind not in "iu" and array.size:
        raise FeedError(f"{what} must be integers, not {array.dtype}")
    return np.asarray(array.astype(np.int64, copy=False), order="C")


def as_values(value: Any, dtype: str, shape: Sequence[int], what: str) -> Array:
    """Values of exactly this dtype and shape, contiguous; FeedError for others."""
    array = as_array(value, what)
    if array.dtype != dtype:
        raise FeedError(f"{what} is {array.dtype}, on the servers it is {dtype}; convert it")
    if array.shape != tuple(shape):
        raise FeedError(f"{what} is {list(array.shape)}, on the servers it is {list(shape)}")
    return np.asarray(array, order="C")


def dense_gradient(given: Iterable[TensorLike], dtype: str, shape: Sequence[int], what: str) -> Array:
    """The sum of gradients of a dense parameter. Those with ``indices`` are zero but for these rows.

    Raises FeedError, and OutOfRangeError for a row that the parameter does not have.
    """
    total: Array | None = None
    for tensor in given:
        if tensor.indices is None:
            value = as_values(tensor.values, dtype, shape, what)
        else:
            rows = row_gradient([tensor], dtype, shape[1:], what)
            outside = rows.rows[(rows.rows < 0) | (rows.rows >= shape[0])]
            if len(outside):
                raise OutOfRangeError(f"{what}: there is no row {outside[0]} among {shape[0]}")
            value = segment_sum(rows.value, rows.rows, shape[0])
        total = value if total is None else total + value
    return np.zeros(tuple(shape), dtype) if total is None else total


def row_gradient(given: Iterable[TensorLike], dtype: str, row: Sequence[int], what: str) -> SelectedRows:
    """The sum of gradients of rows, by ascending id; ``row``: the shape of one. Raises FeedError."""
    ids, values = [np.empty(0, np.int64)], [np.empty((0, *row), dtype)]
    for tensor in given:
        if tensor.indices is None:
            raise FeedError(f"{what} has no indices: say which rows its values are for")
        rows = as_ids(tensor.indices, f"the indices of {what}")
        ids.append(rows.reshape(-1))
        values.append(as_values(tensor.values, dtype, (*rows.shape, *row), what).reshape(-1, *row))
    return merge_rows(SelectedRows(np.concatenate(ids), np.concatenate(values), 0), always_sort=True)
