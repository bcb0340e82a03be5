"""`hierarchical_sigmoid`: softmax over many classes as decisions along a path of a tree (Morin, Bengio 2005)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fluidlite.dtypes import Array, VarKind
from fluidlite.errors import ProgramError
from fluidlite.ops.binary_loss import softplus_of_negative_abs
from fluidlite.ops.context import KernelContext
from fluidlite.ops.grads import maker
from fluidlite.ops.ids import argument, flat_ids, out_of_range, outside
from fluidlite.ops.infer import InferContext, grads_like_forward
from fluidlite.ops.registry import Case, bool_attr, int_attr, longs_attr, register, strings_attr
from fluidlite.ops.shapes import check_one_each, check_rows
from fluidlite.values.selected_rows import SelectedRows, merge_rows, segment_sum

_ATTRS = {
    "num_classes": int_attr(2),
    "remote_prefetch": bool_attr(default=False),
    "trainer_id": int_attr(0),
    "height_sections": longs_attr(),
    "epmap": strings_attr(),
    "table_names": strings_attr(),
    "is_sparse": bool_attr(default=False, doc="the gradient of W is SelectedRows"),
}
#: pre-activations are limited to this
_LIMIT = 40.0


class _Paths(NamedTuple):
    """The decisions of each row, (N, longest path) each."""

    nodes: Array  # row of W, 0 where the path has ended
    bits: Array  # which way the path goes
    used: Array  # whether the path has not ended


def _paths(
    ctx: KernelContext, label: Array, table: Array | None, code: Array | None, classes: int, height: int
) -> _Paths:
    if table is not None and code is not None:
        used = table >= 0
        nodes, bits = np.where(used, table, 0), np.where(used, code, 0)
        name = "PathTable"
    else:
        check_one_each(ctx, "Label", label)
        labels = flat_ids(ctx, label, "Label")
        wrong = outside(labels, classes)
        if len(wrong):
            raise out_of_range(ctx, argument(ctx, "Label"), wrong[0], labels[wrong[0]], "the classes", classes)
        # the complete binary tree: class c is leaf c + classes, the bits behind the leading one are its path
        leaf, steps = labels[:, None] + classes, np.arange((classes - 1).bit_length())
        used = leaf >> (steps + 1) > 0
        nodes, bits = np.where(used, (leaf >> (steps + 1)) - 1, 0), (leaf >> steps) & used
        name = "Label"
    wrong = outside(nodes.reshape(-1), height)
    if len(wrong):
        raise out_of_range(ctx, argument(ctx, name), wrong[0], nodes.reshape(-1)[wrong[0]], argument(ctx, "W"), height)
    return _Paths(nodes, bits, used)


def hierarchical_sigmoid(
    ctx: KernelContext,
    X: Array,
    W: Array,
    Label: Array,
    PathTable: Array | None,
    PathCode: Array | None,
    Bias: Array | None,
    *,
    num_classes: int,
) -> dict[str, Array]:
    check_rows(ctx, "X", X, Label=Label, PathTable=PathTable, PathCode=PathCode)
    paths = _paths(ctx, Label, PathTable, PathCode, num_classes, len(W))
    activation = np.einsum("nd,nkd->nk", X, W[paths.nodes])
    if Bias is not None:
        activation = activation + Bias.reshape(-1)[paths.nodes]
    activation = np.clip(activation, -_LIMIT, _LIMIT)
    softplus = np.maximum(activation, 0) + softplus_of_negative_abs(activation)
    cost = np.where(paths.used, softplus - paths.bits * activation, 0).sum(axis=1, keepdims=True)
    return {"Out": cost.astype(X.dtype), "PreOut": np.where(paths.used, softplus, 0).astype(X.dtype)}


def hierarchical_sigmoid_grad(
    ctx: KernelContext,
    X: Array,
    W: Array,
    Label: Array,
    PathTable: Array | None,
    PathCode: Array | None,
    Bias: Array | None,
    PreOut: Array,
    Out_GRAD: Array,
    *,
    num_classes: int,
    is_sparse: bool,
) -> dict[str, Any]:
    check_rows(ctx, "X", X, Label=Label, PathTable=PathTable, PathCode=PathCode, Out_GRAD=Out_GRAD)
    paths = _paths(ctx, Label, PathTable, PathCode, num_classes, len(W))
    # PreOut = log(1 + exp(a)), so 1 - exp(-PreOut) is sigmoid(a), and 0 where the path has ended
    slope = ((-np.expm1(-PreOut) - paths.bits) * Out_GRAD).astype(X.dtype)
    grads: dict[str, Any] = {}
    if ctx.wants("X@GRAD"):
        grads["X@GRAD"] = np.einsum("nk,nkd->nd", slope, W[paths.nodes])
    used = paths.used
    if ctx.wants("W@GRAD"):
        rows = (slope[:, :, None] * X[:, None, :])[used]
        sparse = SelectedRows(paths.nodes[used], rows, len(W))
        grads["W@GRAD"] = merge_rows(sparse, always_sort=True) if is_sparse else segment_sum(rows, sparse.rows, len(W))
    if Bias is not None:
        grads["Bias@GRAD"] = segment_sum(slope[used], paths.nodes[used], Bias.size).reshape(Bias.shape)
    return grads


def _infer(ctx: InferContext) -> None:
    x = ctx.input("X")
    if ctx.attr("num_classes") < 2:
        raise ProgramError(f"op {ctx.op.type!r}: num_classes {ctx.attr('num_classes')} is below 2 ({ctx.op.origin})")
    if bool(ctx.inputs("PathTable")) != bool(ctx.inputs("PathCode")):
        raise ProgramError(f"op {ctx.op.type!r}: PathTable and PathCode go together ({ctx.op.origin})")
    ctx.set("Out", (ctx.shape("X")[0], 1), x.dtype, lod_level=x.lod_level)
    for var in ctx.outputs("PreOut"):
        var.dtype = x.dtype


def _infer_grad(ctx: InferContext) -> None:
    grads_like_forward(ctx)
    for var in ctx.outputs("W@GRAD"):
        var.kind = VarKind.SELECTED_ROWS if ctx.attr("is_sparse") else VarKind.LOD_TENSOR


_THREE = {
    "X": np.array([[0.5, -1.0], [2.0, 1.0], [1.0, 0.25]]),
    "W": np.array([[0.5, 0.25], [1.0, 1.0], [-0.5, 2.0], [0.25, -1.0]]),
    "Label": np.array([[0], [4], [2]]),
    "Bias": np.array([[0.5], [0.0], [-0.25], [1.0]]),
}
_TABLE = np.array([[3, 0], [1, -1], [-1, -1]])
_NOTHING = {"X": np.zeros((2, 2)), "W": np.zeros((4, 2)), "Label": np.array([[0], [4]])}

register(
    "hierarchical_sigmoid",
    doc="Out [N, 1]: the sum over the decisions on the path to Label of log(1 + exp(a)) - bit * a, with a = X . W[node] + "
    "Bias[node] limited to +-40. The tree is the complete binary one over `num_classes`, or given by PathTable (nodes) "
    "and PathCode (bits), [N, longest], -1 after the end of a path. PreOut keeps log(1 + exp(a)). W_Out is not written.",
    inputs=["X", "W", "Label", "PathTable?", "PathCode?", "Bias?"],
    outputs=["Out", "PreOut~", "W_Out~"],
    attrs=_ATTRS,
    infer=_infer,
    kernel=hierarchical_sigmoid,
    share_lod="X",
    grad=maker(
        ["Bias", "Label", "Out@GRAD", "PathCode", "PathTable", "PreOut", "W", "X"],
        ["Bias@GRAD", "W@GRAD", "X@GRAD"],
    ),
    cases=(
        Case(
            _NOTHING,
            {"num_classes": 5},
            {"Out": np.log([[4.0], [8.0]])},
            note="paths of two and of three decisions",
        ),
        Case(
            _THREE,
            {"num_classes": 5},
            {
                "Out": np.logaddexp(0, [[0.5, 0.5, -np.inf], [-0.5, 3.0, 1.75], [0.25, -1.0625, -np.inf]]).sum(
                    1, keepdims=True
                )
            },
            check_grad=("X", "W", "Bias"),
        ),
        Case(
            {**_THREE, "PathTable": _TABLE, "PathCode": np.array([[1, 0], [1, -1], [0, 0]])},
            {"num_classes": 5, "is_sparse": True},
            {"Out": np.logaddexp(0, [[-2.125, 0.5], [-3.0, -np.inf], [-np.inf, -np.inf]]).sum(1, keepdims=True)},
            check_grad=("X", "W", "Bias"),
            note="a tree of one's own",
        ),
    ),
)
register(
    "hierarchical_sigmoid_grad",
    doc="Gradient of hierarchical_sigmoid.",
    inputs=["X", "W", "Label", "PathTable?", "PathCode?", "Bias?", "PreOut", "Out@GRAD"],
    outputs=["Bias@GRAD", "W@GRAD", "X@GRAD"],
    attrs=_ATTRS,
    infer=_infer_grad,
    kernel=hierarchical_sigmoid_grad,
)
