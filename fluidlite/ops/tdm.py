"""Retrieval by a tree of items (Zhu et al. 2018, "Learning Tree-based Deep Model"): tdm_child, tdm_sampler."""

from __future__ import annotations

from typing import Final

import numpy as np

from fluidlite.dtypes import Array, dtype_name, numpy_dtype
from fluidlite.errors import OutOfRangeError, ShapeError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.infer import InferContext
from fluidlite.ops.registry import REQUIRED, Case, bool_attr, int_attr, ints_attr, register

#: columns of TreeInfo before the children: the item of a leaf (else 0), the layer, the parent
_HEAD: Final = 3


def tdm_child(ctx: KernelContext, X: Array, TreeInfo: Array, *, child_nums: int, dtype: int) -> dict[str, Array]:
    _check_ids(ctx, X, len(TreeInfo))
    children = TreeInfo[X, _HEAD : _HEAD + child_nums]
    children = np.where((X[..., None] == 0) | (children[..., :1] == 0), 0, children)
    leaf = (TreeInfo[children, 0] != 0) & (children[..., :1] != 0)
    wanted = numpy_dtype(dtype)
    return {"Child": children.astype(wanted), "LeafMask": leaf.astype(wanted)}


def _check_ids(ctx: KernelContext, ids: Array, count: int) -> None:
    bad = np.flatnonzero((ids < 0) | (ids >= count))
    if len(bad):
        raise OutOfRangeError(
            f"op {ctx.op.type!r}: X {ctx.op.inputs['X'][0]!r} holds {ids.reshape(-1)[bad[0]]} at position {bad[0]}, not in [0, {count})"
        )


def _infer_child(ctx: InferContext) -> None:
    shape = (*ctx.shape("X"), ctx.attr("child_nums"))
    for name in ("Child", "LeafMask"):
        ctx.set(name, shape, dtype_name(ctx.attr("dtype")))


def tdm_sampler(
    ctx: KernelContext,
    X: Array,
    Travel: Array,
    Layer: Array,
    *,
    output_positive: bool,
    neg_samples_num_list: tuple[int, ...],
    layer_offset_lod: tuple[int, ...],
    seed: int,
    dtype: int,
) -> dict[str, Array]:
    ids = X.reshape(-1)
    _check_ids(ctx, ids, len(Travel))
    source, nodes = ctx.generator(seed), Layer.reshape(-1)
    parts = []
    for layer, wanted in enumerate(neg_samples_num_list):
        found = nodes[layer_offset_lod[layer] : layer_offset_lod[layer + 1]]
        positive = Travel[ids, layer]
        negative = _negatives(source, found, positive, wanted)
        row = np.concatenate([positive[:, None], negative], axis=1)
        row[positive == 0] = 0  # the way of this item ends above the layer
        parts.append(row if output_positive else row[:, 1:])
    out, labels, mask = (np.concatenate(group, axis=1) for group in zip(*map(_marked, parts), strict=True))
    if output_positive:
        labels = np.concatenate([_first_only(part) for part in parts], axis=1)
    result = numpy_dtype(dtype)
    return {name: value.astype(result) for name, value in (("Out", out), ("Labels", labels), ("Mask", mask))}


def _marked(part: Array) -> tuple[Array, Array, Array]:
    return part, np.zeros_like(part), (part != 0).astype(part.dtype)


def _first_only(part: Array) -> Array:
    """1 at the positive, where there is one."""
    labels = np.zeros_like(part)
    labels[:, 0] = part[:, 0] != 0
    return labels


def _negatives(source: np.random.Generator, nodes: Array, positive: Array, wanted: int) -> Array:
    """For each positive as many other nodes of its layer, no two equal; (n, wanted)."""
    if wanted > len(nodes) - 1:
        raise ShapeError(f"op 'tdm_sampler': {wanted} negatives of a layer of {len(nodes)} nodes")
    order = source.random((len(positive), len(nodes)))
    order[nodes[None, :] == positive[:, None]] = 2.0  # after every other
    chosen = np.argsort(order, axis=1)[:, :wanted]
    return nodes[chosen]


def _infer_sampler(ctx: InferContext) -> None:
    wanted, offsets = ctx.attr("neg_samples_num_list"), ctx.attr("layer_offset_lod")
    if len(offsets) != len(wanted) + 1:
        raise ctx.error(f"{len(wanted)} layers need {len(wanted) + 1} offsets, not {len(offsets)}")
    total = sum(wanted) + len(wanted) * bool(ctx.attr("output_positive"))
    for name in ("Out", "Labels", "Mask"):
        ctx.set(name, (ctx.shape("X")[0], total), dtype_name(ctx.attr("dtype")))


#: a tree of 7 nodes 1-7: 1 has 2 and 3, these have the items 10 to 13 of nodes 4 to 7
_TREE: Final = np.array(
    [
        [0, 0, 0, 0, 0],
        [0, 0, 0, 2, 3],
        [0, 1, 1, 4, 5],
        [0, 1, 1, 6, 0],
        [10, 2, 2, 0, 0],
        [11, 2, 2, 0, 0],
        [12, 2, 3, 0, 0],
    ],
    np.int32,
)
_TRAVEL: Final = np.array([[0, 0], [1, 3], [1, 4], [2, 5], [2, 6]], np.int32)

register(
    "tdm_child",
    doc="Child = the children of each node of X (0: none), LeafMask = 1 for those that are leaves. TreeInfo has a row per "
    "node: item, layer, parent, children.",
    inputs=["X", "TreeInfo"],
    outputs=["Child", "LeafMask"],
    attrs={"child_nums": int_attr(REQUIRED), "dtype": int_attr(2, "VarType number of the outputs")},
    infer=_infer_child,
    kernel=tdm_child,
    cases=(
        Case(
            {"X": np.array([[2], [3], [1], [0], [5]], np.int32), "TreeInfo": _TREE},
            {"child_nums": 2},
            {
                "Child": np.array([[[4, 5]], [[6, 0]], [[2, 3]], [[0, 0]], [[0, 0]]], np.int32),
                "LeafMask": np.array([[[1, 1]], [[1, 0]], [[0, 0]], [[0, 0]], [[0, 0]]], np.int32),
            },
        ),
    ),
)
register(
    "tdm_sampler",
    doc="For each item of X and layer of the tree: the node on the item's way (row of Travel; 0 where the way has ended) "
    "and `neg_samples_num_list` other nodes of that layer (part of Layer from `layer_offset_lod`). The generator is ours.",
    inputs=["X", "Travel", "Layer"],
    outputs=["Out", "Labels?", "Mask"],
    attrs={
        "output_positive": bool_attr(default=True, doc="the node on the way comes first, with label 1"),
        "neg_samples_num_list": ints_attr(),
        "layer_offset_lod": ints_attr(),
        "seed": int_attr(0),
        "dtype": int_attr(2, "VarType number of the outputs"),
    },
    infer=_infer_sampler,
    kernel=tdm_sampler,
    cases=(
        Case(
            {
                "X": np.array([[1], [0]], np.int32),
                "Travel": _TRAVEL,
                "Layer": np.array([[1], [2], [3], [4], [5], [6]], np.int32),
            },
            {"neg_samples_num_list": [1, 0], "layer_offset_lod": [0, 2, 6]},
            {
                "Out": np.array([[1, 2, 3], [0, 0, 0]], np.int32),
                "Labels": np.array([[1, 0, 1], [0, 0, 0]], np.int32),
                "Mask": np.array([[1, 1, 1], [0, 0, 0]], np.int32),
            },
        ),
    ),
)
