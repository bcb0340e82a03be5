"""Which server holds an id: the only place that says so."""

from __future__ import annotations

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.kernels import group_ids


def shard_of(ids: Array, shards: int) -> Array:
    """Shard of each id, (n,) int64: *unsigned* modulo, so id -1 on 3 servers goes to shard 0.

    >>> shard_of(np.array([-1, 0, 5]), 3).tolist()
    [0, 0, 2]
    """
    unsigned = np.ascontiguousarray(ids, dtype=np.int64).view(np.uint64)
    return (unsigned % np.uint64(shards)).astype(np.int64)


def by_shard(ids: Array, shards: int) -> tuple[Array, Array, Array]:
    """``ids`` (n,) int64 put in the order of their shards, each shard's in the order in which they are.

    (order (n,): positions in ``ids``; place (n,): where each of ``ids`` stands in that order; counts (shards,): ids of
    each shard), all int64.

    >>> [part.tolist() for part in by_shard(np.array([-1, 1, 5, 3]), 3)]
    [[0, 3, 1, 2], [0, 2, 3, 1], [2, 1, 1]]
    """
    return group_ids(ids, shards)
