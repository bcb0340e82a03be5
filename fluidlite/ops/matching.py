"""Text matching: match_matrix_tensor, var_conv_2d, sequence_topk_avg_pooling (Pang et al. 2016, "Text Matching as Image
Recognition"; Wan et al. 2016), and convolutions of vectors and trees: conv_shift, tree_conv.

The first three work on a batch of matrices of different sizes, row by row in one column with the LoD of their numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import ShapeError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.conv_nd import Grid
from fluidlite.ops.examples import varied
from fluidlite.ops.infer import InferContext
from fluidlite.ops.pairs import with_gradient
from fluidlite.ops.registry import REQUIRED, Case, int_attr, ints_attr
from fluidlite.ops.segments import array_of, level, offsets_of, sequences
from fluidlite.ops.windows import Windows
from fluidlite.values.lod import LoDTensor


def match_matrix_tensor(ctx: KernelContext, X: Any, Y: Any, W: Any, *, dim_t: int) -> dict[str, Any]:
    x, y, w = sequences(ctx, X, "X"), sequences(ctx, Y, "Y"), array_of(W)
    moved = x.rows @ w.reshape(len(w), -1)
    parts = [
        (moved[a:b].reshape(b - a, dim_t, -1).swapaxes(0, 1) @ y.rows[c:d].T).reshape(-1)
        for a, b, c, d in _pairs(x.offsets, y.offsets)
    ]
    out = np.concatenate(parts).reshape(-1, 1)
    return {"Out": LoDTensor(out, (level(offsets_of(np.array([len(p) for p in parts]))),)), "Tmp": moved.reshape(-1, 1)}


def _pairs(first: Array, second: Array) -> Iterator[tuple[int, int, int, int]]:
    """(start, end) in one and the other of each sequence."""
    if len(first) != len(second):
        raise ShapeError(f"{len(first) - 1} sequences cannot match {len(second) - 1}")
    return zip(*(map(int, ends) for ends in (first[:-1], first[1:], second[:-1], second[1:])), strict=True)


def match_matrix_tensor_grad(
    ctx: KernelContext, X: Any, Y: Any, W: Any, Tmp: Any, Out_GRAD: Any, *, dim_t: int
) -> dict[str, Any]:
    x, y, w = sequences(ctx, X, "X"), sequences(ctx, Y, "Y"), array_of(W)
    moved = array_of(Tmp).reshape(len(x.rows), -1)
    upstream = array_of(Out_GRAD).reshape(-1)
    moved_grad, y_grad = np.zeros_like(moved), np.zeros_like(y.rows)
    start = 0
    for a, b, c, d in _pairs(x.offsets, y.offsets):
        count = dim_t * (b - a) * (d - c)
        grad = upstream[start : start + count].reshape(dim_t, b - a, d - c)
        start += count
        moved_grad[a:b] = (grad @ y.rows[c:d]).swapaxes(0, 1).reshape(b - a, -1)
        y_grad[c:d] = np.einsum("tij,itk->jk", grad, moved[a:b].reshape(b - a, dim_t, -1))
    return {
        "X@GRAD": LoDTensor(moved_grad @ w.reshape(len(w), -1).T, x.lod),
        "Y@GRAD": LoDTensor(y_grad, y.lod),
        "W@GRAD": (x.rows.T @ moved_grad).reshape(w.shape),
    }


def _infer_match(ctx: InferContext) -> None:
    x, w = ctx.input("X"), ctx.shape("W")
    widths = (ctx.shape("X")[-1], ctx.attr("dim_t"), ctx.shape("Y")[-1])
    if len(w) != 3 or any(a != b and min(a, b) >= 0 for a, b in zip(w, widths, strict=True)):
        raise ctx.error(f"W {list(w)} must be {list(widths)}: the width of X, dim_t, and the width of Y")
    ctx.set("Out", (-1, 1), x.dtype, lod_level=1)
    ctx.set("Tmp", (-1, 1), x.dtype)


def _matrices(values: Any, row: Any, column: Any, channels: int, ctx: KernelContext) -> list[Array]:
    """The batch as one array (channels, height, width) per item, views of ``values``."""
    heights, widths = sequences(ctx, row, "ROW").lengths, sequences(ctx, column, "COLUMN").lengths
    sizes = channels * heights * widths
    flat = array_of(values).reshape(-1)
    if sizes.sum() != len(flat):
        raise ShapeError(f"op {ctx.op.type!r}: {len(flat)} numbers do not fill matrices of {sizes.tolist()}")
    starts = offsets_of(sizes)
    return [
        flat[start : start + size].reshape(channels, height, width)
        for start, size, height, width in zip(starts[:-1], sizes, heights, widths, strict=True)
    ]


def _filter_grid(image: Array, attrs: dict[str, Any]) -> Grid:
    """Windows around every cell that the strides reach, reaching beyond the border."""
    rows, columns = (
        Windows(size, length, stride, before=length // 2, after=length - 1 - length // 2)
        for size, length, stride in zip(
            image.shape[1:],
            (attrs["KernelH"], attrs["KernelW"]),
            (attrs["StrideH"], attrs["StrideW"]),
            strict=True,
        )
    )
    return Grid((rows, columns), 1, attrs["OutputChannel"], attrs["InputChannel"])


def var_conv_2d(ctx: KernelContext, X: Any, ROW: Any, COLUMN: Any, W: Any, **attrs: Any) -> dict[str, Any]:
    outs, columns = [], []
    for image in _matrices(X, ROW, COLUMN, attrs["InputChannel"], ctx):
        unfolded = _filter_grid(image, attrs).unfolded(image[None])[0] if image.size else np.zeros((0, 0), image.dtype)
        columns.append(unfolded.reshape(-1))
        outs.append((array_of(W) @ unfolded).reshape(-1) if image.size else columns[-1])
    lod = (level(offsets_of(np.array([len(out) for out in outs]))),)
    col_lod = (level(offsets_of(np.array([len(part) for part in columns]))),)
    return {
        "Out": LoDTensor(np.concatenate(outs).reshape(-1, 1), lod),
        "Col": LoDTensor(np.concatenate(columns).reshape(-1, 1), col_lod),
    }


def var_conv_2d_grad(
    ctx: KernelContext, X: Any, ROW: Any, COLUMN: Any, W: Any, Out_GRAD: Any, **attrs: Any
) -> dict[str, Any]:
    w, upstream = array_of(W), array_of(Out_GRAD).reshape(-1)
    w_grad, parts, start = np.zeros_like(w), [], 0
    for image in _matrices(X, ROW, COLUMN, attrs["InputChannel"], ctx):
        if not image.size:
            continue
        grid = _filter_grid(image, attrs)
        count = len(w) * grid.counts[0] * grid.counts[1]
        grad = upstream[start : start + count].reshape(len(w), -1)
        start += count
        w_grad += grad @ grid.unfolded(image[None])[0].T
        parts.append(grid.folded(w.T @ grad, 1).reshape(-1))
    rows = np.concatenate(parts) if parts else np.zeros(0, w.dtype)
    return {"X@GRAD": LoDTensor(rows.reshape(array_of(X).shape), X.lod), "W@GRAD": w_grad}


def _infer_var_conv(ctx: InferContext) -> None:
    cells = ctx.attr("InputChannel") * ctx.attr("KernelH") * ctx.attr("KernelW")
    if ctx.shape("W")[1:] != (cells,) or ctx.shape("W")[0] not in (-1, ctx.attr("OutputChannel")):
        raise ctx.error(f"W must be [{ctx.attr('OutputChannel')}, {cells}], not {list(ctx.shape('W'))}")
    for name in ("Out", "Col"):
        ctx.set(name, (-1, 1), ctx.input("X").dtype, lod_level=1)


def sequence_topk_avg_pooling(
    ctx: KernelContext, X: Any, ROW: Any, COLUMN: Any, *, topks: tuple[int, ...], channel_num: int
) -> dict[str, Any]:
    largest = max(topks)
    rows, places = [], []
    for image in _matrices(X, ROW, COLUMN, channel_num, ctx):
        channels, height, _ = image.shape
        order = np.argsort(-image, axis=2, kind="stable")[:, :, :largest]
        found = np.take_along_axis(image, order, 2)
        missing = largest - order.shape[2]
        found = np.pad(found, ((0, 0), (0, 0), (0, missing)))
        order = np.pad(order, ((0, 0), (0, 0), (0, missing)), constant_values=-1)
        sums = np.cumsum(found, axis=2, dtype=image.dtype)
        means = np.stack([sums[:, :, k - 1] / image.dtype.type(k) for k in topks], axis=2)
        rows.append(means.swapaxes(0, 1).reshape(height, channels * len(topks)))
        places.append(order.swapaxes(0, 1).reshape(-1))
    return {
        "Out": LoDTensor(np.concatenate(rows), sequences(ctx, ROW, "ROW").lod),
        "pos": np.concatenate(places).astype(np.int32),
    }


def sequence_topk_avg_pooling_grad(
    ctx: KernelContext,
    X: Any,
    ROW: Any,
    COLUMN: Any,
    pos: Any,
    Out_GRAD: Any,
    *,
    topks: tuple[int, ...],
    channel_num: int,
) -> Any:
    largest, upstream, order = max(topks), array_of(Out_GRAD), array_of(pos).reshape(-1, channel_num, max(topks))
    # the i-th largest is part of the mean of every k above i
    shares = np.array([[1 / k if i < k else 0.0 for k in topks] for i in range(largest)], upstream.dtype)
    parts, start = [], 0
    for image in _matrices(X, ROW, COLUMN, channel_num, ctx):
        channels, height, _ = image.shape
        grad = upstream[start : start + height].reshape(height, channels, len(topks)) @ shares.T
        own = order[start : start + height]
        start += height
        out = np.zeros_like(image)
        r, c, k = np.nonzero(own >= 0)
        np.add.at(out, (c, r, own[r, c, k]), grad[r, c, k])
        parts.append(out.reshape(-1))
    return LoDTensor(np.concatenate(parts).reshape(array_of(X).shape), X.lod)


def _infer_topk_pooling(ctx: InferContext) -> None:
    topks, rows = ctx.attr("topks"), ctx.input("ROW")
    if not topks or min(topks) < 1 or ctx.attr("channel_num") < 1:
        raise ctx.error(f"topks {list(topks)} and channel_num {ctx.attr('channel_num')} must be positive")
    ctx.set(
        "Out",
        (ctx.shape("ROW")[0], ctx.attr("channel_num") * len(topks)),
        ctx.input("X").dtype,
        lod_level=rows.lod_level,
    )
    ctx.set("pos", None, "int32")


def _turned(length: int, width: int) -> Array:
    """(length, width): the places of X that Y's numbers meet at each place, going round."""
    return np.asarray((np.arange(length)[:, None] + np.arange(width) - (width - 1) // 2) % length)


def conv_shift(ctx: KernelContext, X: Array, Y: Array) -> Array:
    return np.asarray(np.einsum("nij,nj->ni", X[:, _turned(X.shape[1], Y.shape[1])], Y))


def conv_shift_grad(ctx: KernelContext, X: Array, Y: Array, Out_GRAD: Array) -> dict[str, Array]:
    places = _turned(X.shape[1], Y.shape[1])
    x_grad = np.zeros_like(X)
    np.add.at(x_grad, (np.arange(len(X))[:, None, None], places), Out_GRAD[:, :, None] * Y[:, None, :])
    return {"X@GRAD": x_grad, "Y@GRAD": np.einsum("nij,ni->nj", X[:, places], Out_GRAD)}


def _infer_conv_shift(ctx: InferContext) -> None:
    x, y = ctx.shape("X"), ctx.shape("Y")
    if len(x) != 2 or len(y) != 2 or (y[1] >= 0 and (y[1] % 2 == 0 or 0 <= x[1] < y[1])):
        raise ctx.error(f"Y {list(y)} must have an odd number of columns, no more than X {list(x)}")
    ctx.set("Out", x, ctx.input("X").dtype)


def _patches(edges: Array, nodes: int, max_depth: int) -> Array:
    """(nodes, nodes, 3): how much of each node's features each node's patch takes, for the filters of the top, the left
    and the right (Mou et al. 2016, section 3.2). Nodes count from 1; edges go from parent to child, 0 ends them."""
    children: dict[int, list[int]] = {}
    for parent, child in edges.tolist():
        if parent == 0 or child == 0:
            break
        children.setdefault(parent, []).append(child)
    shares = np.zeros((nodes, nodes, 3))
    for root in range(1, min(len(edges) + 1, nodes) + 1):
        for node, index, siblings, depth in _within(root, children, max_depth):
            top = (max_depth - depth) / max_depth
            left = (1 - top) * (0.5 if siblings == 1 else (index - 1) / (siblings - 1))
            shares[root - 1, node - 1] += (left, (1 - top) * (1 - left), top)
    return shares


def _within(root: int, children: dict[int, list[int]], max_depth: int) -> Iterator[tuple[int, int, int, int]]:
    """(node, its place among its siblings, their number, depth) of all nodes less than ``max_depth`` below the root."""
    yield root, 1, 1, 0
    waiting = [(root, 0)]
    while waiting:
        parent, depth = waiting.pop()
        if depth + 1 >= max_depth:
            continue
        found = children.get(parent, [])
        for index, child in enumerate(found, start=1):
            yield child, index, len(found), depth + 1
            waiting.append((child, depth + 1))


def tree_conv(ctx: KernelContext, NodesVector: Array, EdgeSet: Array, Filter: Array, *, max_depth: int) -> Array:
    shares = _all_patches(NodesVector, EdgeSet, max_depth)
    return np.asarray(np.einsum("bnmk,bmf,fkoc->bnoc", shares, NodesVector, Filter, optimize=True))


def _all_patches(nodes: Array, edges: Array, max_depth: int) -> Array:
    return np.stack([_patches(own, nodes.shape[1], max_depth) for own in edges]).astype(nodes.dtype)


def tree_conv_grad(
    ctx: KernelContext, NodesVector: Array, EdgeSet: Array, Filter: Array, Out_GRAD: Array, *, max_depth: int
) -> dict[str, Array]:
    shares = _all_patches(NodesVector, EdgeSet, max_depth)
    return {
        "NodesVector@GRAD": np.einsum("bnmk,bnoc,fkoc->bmf", shares, Out_GRAD, Filter, optimize=True),
        "Filter@GRAD": np.einsum("bnmk,bmf,bnoc->fkoc", shares, NodesVector, Out_GRAD, optimize=True),
    }


def _infer_tree_conv(ctx: InferContext) -> None:
    nodes, edges, filters = ctx.shape("NodesVector"), ctx.shape("EdgeSet"), ctx.shape("Filter")
    if len(nodes) != 3 or edges[2:] != (2,) or len(filters) != 4 or filters[1] != 3:
        raise ctx.error(
            f"NodesVector {list(nodes)}, EdgeSet {list(edges)} and Filter {list(filters)} must be [n, nodes, features], "
            "[n, edges, 2] and [features, 3, size, filters]"
        )
    ctx.set("Out", (*nodes[:2], *filters[2:]), ctx.input("NodesVector").dtype)


def _lod(array: Array, *lengths: int) -> LoDTensor:
    return LoDTensor(array, ((0, *np.cumsum(lengths).tolist()),))


def _sides(*lengths: int) -> LoDTensor:
    """A sequence for each side, whose lengths alone count."""
    return _lod(np.ones((sum(lengths), 1)), *lengths)


with_gradient(
    "match_matrix_tensor",
    doc="Out = for each pair of sequences the `dim_t` matrices x @ W[:, t] @ y of all their rows; Tmp = X @ W.",
    inputs=["X", "Y", "W"],
    outputs=["Out", "Tmp"],
    attrs={"dim_t": int_attr(1)},
    infer=_infer_match,
    kernel=match_matrix_tensor,
    gradient=match_matrix_tensor_grad,
    reads=["Tmp", "W", "X", "Y", "Out@GRAD"],
    writes=["W@GRAD", "X@GRAD", "Y@GRAD"],
    takes_lod=True,
    cases=(
        Case(
            {"X": _lod(varied(3, 2), 1, 2), "Y": _lod(varied(4, 2, start=20), 3, 1), "W": varied(2, 2, 2, start=50)},
            {"dim_t": 2},
        ),
    ),
)
with_gradient(
    "var_conv_2d",
    doc="Out = the convolution of each matrix (`InputChannel` of them, ROW by COLUMN) with W, with zeros around; Col = the "
    "windows.",
    inputs=["X", "ROW", "COLUMN", "W"],
    outputs=["Out", "Col"],
    attrs={name: int_attr(1) for name in ("InputChannel", "OutputChannel", "StrideH", "StrideW", "KernelH", "KernelW")},
    infer=_infer_var_conv,
    kernel=var_conv_2d,
    gradient=var_conv_2d_grad,
    reads=["COLUMN", "Col", "Out", "ROW", "W", "X", "Out@GRAD"],
    writes=["W@GRAD", "X@GRAD"],
    takes_lod=True,
    cases=(
        Case(
            {
                "X": _lod(varied(22, 1), 12, 10),
                "ROW": _sides(2, 5),
                "COLUMN": _sides(3, 1),
                "W": varied(3, 12, start=60),
            },
            {"InputChannel": 2, "OutputChannel": 3, "StrideH": 2, "KernelH": 3, "KernelW": 2},
        ),
    ),
)
with_gradient(
    "sequence_topk_avg_pooling",
    doc="Out = for each row of each matrix and channel the mean of its k largest numbers, for each k of `topks`; missing "
    "numbers count as 0. pos = where these are.",
    inputs=["X", "ROW", "COLUMN"],
    outputs=["Out", "pos~"],
    attrs={"topks": ints_attr(REQUIRED), "channel_num": int_attr(REQUIRED)},
    infer=_infer_topk_pooling,
    kernel=sequence_topk_avg_pooling,
    gradient=sequence_topk_avg_pooling_grad,
    reads=["COLUMN", "ROW", "X", "pos", "Out@GRAD"],
    writes=["X@GRAD"],
    takes_lod=True,
    cases=(
        Case(
            {"X": _lod(varied(22, 1), 12, 10), "ROW": _sides(2, 5), "COLUMN": _sides(3, 1)},
            {"topks": [1, 3], "channel_num": 2},
        ),
    ),
)
with_gradient(
    "conv_shift",
    doc="Out = each row of X convolved with that of Y, centred and going round (Graves et al. 2014).",
    inputs=["X", "Y"],
    outputs=["Out"],
    infer=_infer_conv_shift,
    kernel=conv_shift,
    gradient=conv_shift_grad,
    reads=["X", "Y", "Out@GRAD"],
    writes=["X@GRAD", "Y@GRAD"],
    cases=(Case({"X": varied(2, 4), "Y": varied(2, 3, start=30)}, check_grad=("X", "Y")),),
)
with_gradient(
    "tree_conv",
    doc="Out = the tree-based convolution of Mou et al. 2016: for each node the features of those less than `max_depth` below "
    "it times filters of the top, the left and the right.",
    inputs=["NodesVector", "EdgeSet", "Filter"],
    outputs=["Out"],
    attrs={"max_depth": int_attr(2)},
    infer=_infer_tree_conv,
    kernel=tree_conv,
    gradient=tree_conv_grad,
    reads=["EdgeSet", "Filter", "NodesVector", "Out@GRAD"],
    writes=["Filter@GRAD", "NodesVector@GRAD"],
    cases=(
        Case(
            {
                "NodesVector": varied(1, 6, 2),
                "EdgeSet": np.array([[[1, 2], [1, 3], [2, 4], [2, 5], [2, 6]]], np.int32),
                "Filter": varied(2, 3, 2, 2, start=40),
            },
            {"max_depth": 2},
            check_grad=("NodesVector", "Filter"),
        ),
        Case(
            {
                "NodesVector": varied(1, 4, 2),
                "EdgeSet": np.array([[[1, 2], [2, 3], [3, 4], [0, 0]]], np.int32),
                "Filter": varied(2, 3, 1, 2, start=40),
            },
            {"max_depth": 3},
            check_grad=("NodesVector", "Filter"),
        ),
    ),
)
