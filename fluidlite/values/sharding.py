"""Which server holds an id: the only sharding function."""

from __future__ import annotations

import numpy as np

from fluidlite.dtypes import Array


def shard_of(ids: Array, shards: int) -> Array:
    """Shard of each id, (n,) int64: *unsigned* modulo, so id -1 on 3 servers goes to shard 0.

    >>> shard_of(np.array([-1, 0, 5]), 3).tolist()
    [0, 0, 2]
    """
    unsigned = np.ascontiguousarray(ids, dtype=np.int64).view(np.uint64)
    return (unsigned % np.uint64(shards)).astype(np.int64)
