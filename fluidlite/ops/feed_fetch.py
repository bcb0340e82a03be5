"""`feed` and `fetch`: how a saved inference program says what goes in and what comes out.

The executor feeds and fetches by name; the ops matter for programs that were read from files as they are.
"""

from __future__ import annotations

from typing import Any

from fluidlite.errors import FeedError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.registry import int_attr, register


def feed(ctx: KernelContext, X: list[Any] | None, *, col: int) -> Any:
    if X is None:  # the executor has fed the variable itself
        return None
    if col >= len(X):
        raise FeedError(f"op 'feed': {ctx.op.inputs['X'][0]!r} holds {len(X)} values, column {col} is asked for")
    return X[col]


def fetch(ctx: KernelContext, X: Any, *, col: int) -> dict[str, Any]:
    kept = ctx.scope.get(ctx.op.outputs["Out"][0]) if ctx.scope is not None else None
    fetched = list(kept) if isinstance(kept, list) else []
    fetched += [None] * (col + 1 - len(fetched))
    fetched[col] = X
    return {"Out": fetched}


register(
    "feed",
    doc="Out = X[col], where X is the list of fed values; nothing when there is none, because Out was fed by name.",
    inputs=["X?"],
    outputs=["Out"],
    attrs={"col": int_attr(doc="position among the fed variables")},
    kernel=feed,
    takes_lod=True,
)
register(
    "fetch",
    doc="Put X, any kind of value, into position `col` of the list Out.",
    inputs=["X"],
    outputs=["Out"],
    attrs={"col": int_attr(doc="position among the fetched variables")},
    kernel=fetch,
    takes_lod=True,
    sparse=("X",),
)
