"""`rows_from_file`: rows of a parameter, or of a table, from a file."""

from __future__ import annotations

from fluidlite.dtypes import Array
from fluidlite.ops.context import KernelContext
from fluidlite.ops.infer import like
from fluidlite.ops.initial import TABLE_ATTRS
from fluidlite.ops.registry import REQUIRED, int_attr, register, string_attr
from fluidlite.values import rows_file
from fluidlite.values.rows_file import RowsFile
from fluidlite.values.sparse_table import SparseTable


def rows_from_file(
    ctx: KernelContext,
    X: Array | SparseTable,
    *,
    url: str,
    ids_url: str,
    words_url: str,
    shard: int,
    shards: int,
    auto_grown_table: bool,
) -> Array | SparseTable:
    file = RowsFile(url, ids_url, words_url)
    if isinstance(X, SparseTable):
        rows_file.into_table(X, file, shard, shards)
    else:
        rows_file.into_array(ctx.op.outputs["Out"][0], X, file)
    return X


register(
    "rows_from_file",
    doc="Out = X with the rows of a file: a .npy matrix, with the ids of its rows in `ids_url` or row i for id i; or word "
    "vectors as text, with ids by `words_url` or by line. Of a table a server takes the ids that `shards` servers leave to "
    "number `shard`. Ids that the file does not have stay as they were.",
    inputs=["X"],
    outputs=["Out"],
    attrs={
        **TABLE_ATTRS,
        "url": string_attr(REQUIRED, "a path, or a URL that fsspec knows"),
        "ids_url": string_attr("", "a .npy file of the ids, (rows,) integers"),
        "words_url": string_attr("", "a vocabulary: lines `word`, or `word<tab>id`"),
        "shard": int_attr(0),
        "shards": int_attr(1),
    },
    infer=like("X", "Out"),
    kernel=rows_from_file,
    inplace={"Out": "X"},
    sparse=("X",),
)
