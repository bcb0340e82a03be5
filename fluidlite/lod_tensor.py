"""Make LoDTensors: `create_lod_tensor`, `create_random_int_lodtensor`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fluidlite.dtypes import exact_array
from fluidlite.errors import ShapeError
from fluidlite.values.lod import LoDTensor, check_lod, lod_from_lengths


def create_lod_tensor(data: Any, recursive_seq_lens: Sequence[Sequence[int]], place: object = None) -> LoDTensor:
    """A LoDTensor from an array, or from nested lists of integers.

    ``data``: an array (or LoDTensor) whose rows are those of all sequences one after the other, or a list with a list of
    ids per sequence, which becomes int64 [rows, 1]. ``recursive_seq_lens``: sequence lengths per level, the coarsest
    first. ``place`` is Fluid's and not used. Raises ShapeError when lengths and rows do not agree.
    """
    if isinstance(data, (list, tuple)):
        return _from_lists(data, recursive_seq_lens)
    array = np.array(data)
    lod = lod_from_lengths(recursive_seq_lens)
    check_lod(lod, len(array), "the data")
    return LoDTensor(array, lod)


def create_random_int_lodtensor(
    recursive_seq_lens: Sequence[Sequence[int]], base_shape: Sequence[int], place: object, low: int, high: int
) -> LoDTensor:
    """Random int64 in [low, high], both included: one row of ``base_shape`` per unit of the finest level.

    Drawn from numpy's global generator, which scripts seed by ``np.random.seed``.
    """
    shape = (sum(recursive_seq_lens[-1]), *base_shape)
    values = np.random.randint(low, high + 1, shape, dtype=np.int64)  # noqa: NPY002 (scripts seed this one)
    return create_lod_tensor(values, recursive_seq_lens, place)


def _from_lists(data: Sequence[Any], recursive_seq_lens: Sequence[Sequence[int]]) -> LoDTensor:
    lengths = [len(sequence) for sequence in data]
    if not recursive_seq_lens or list(recursive_seq_lens[-1]) != lengths:
        raise ShapeError(
            f"the lists have lengths {lengths}, but recursive_seq_lens ends with {recursive_seq_lens[-1:]}"
        )
    flat = exact_array([item for sequence in data for item in sequence], "int64")
    return create_lod_tensor(flat.reshape(-1, 1), recursive_seq_lens)
