"""Classes as rows of zeros with a single one: one_hot, one_hot_v2."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from fluidlite.dtypes import Array, dtype_name, numpy_dtype
from fluidlite.errors import OutOfRangeError, ShapeError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.infer import InferContext
from fluidlite.ops.registry import Case, Kernel, bool_attr, int_attr, register
from fluidlite.ops.shapes import Shape, scalar

_ATTRS: Final = {
    "depth": int_attr(-1, "number of classes, unless depth_tensor gives it"),
    "dtype": int_attr(5, "VarType number of Out"),
    "allow_out_of_range": bool_attr(default=False, doc="a class outside the depth gives a row of zeros, not an error"),
}


def _kernel(replaces_last: bool) -> Kernel:
    def one_hot(
        ctx: KernelContext,
        X: Array,
        depth_tensor: Array | None,
        *,
        depth: int,
        dtype: int,
        allow_out_of_range: bool,
    ) -> Array:
        classes = depth if depth_tensor is None else scalar(depth_tensor)
        flat = X.reshape(-1)
        inside = (flat >= 0) & (flat < classes)
        if not allow_out_of_range and not inside.all():
            first = int(np.flatnonzero(~inside)[0])
            raise OutOfRangeError(f"class {flat[first]} at position {first} is outside the depth {classes}")
        out = np.zeros((len(flat), classes), numpy_dtype(dtype))
        rows = np.flatnonzero(inside)
        out[rows, flat[rows]] = 1
        return out.reshape(*_kept(X.shape, replaces_last), classes)

    return one_hot


def _kept(shape: Shape, replaces_last: bool) -> Shape:
    if not replaces_last:
        return shape
    if not shape or shape[-1] not in (1, -1):
        raise ShapeError(f"the last dimension of X {list(shape)} must be 1")
    return shape[:-1]


def _infer(replaces_last: bool) -> Any:
    def infer(ctx: InferContext) -> None:
        x = ctx.input("X")
        depth = -1 if ctx.maybe_input("depth_tensor") is not None else ctx.attr("depth")
        try:
            kept = _kept(ctx.shape("X"), replaces_last)
        except ShapeError as error:
            raise ctx.error(str(error)) from None
        ctx.set("Out", (*kept, depth), dtype_name(ctx.attr("dtype")), lod_level=x.lod_level)

    return infer


_IDS: Final = np.array([1, 3, 0])
_OUT: Final = np.array([[0, 1, 0, 0], [0, 0, 0, 1], [1, 0, 0, 0]], np.float32)

for _type, _replaces_last, _ids in (("one_hot", True, _IDS[:, None]), ("one_hot_v2", False, _IDS)):
    register(
        _type,
        doc="Out = a row of `depth` zeros with a one at the class, "
        + ("in the place of X's last dimension of size 1." if _replaces_last else "as a new last dimension."),
        inputs=["X", "depth_tensor?"],
        outputs=["Out"],
        attrs=_ATTRS,
        infer=_infer(_replaces_last),
        kernel=_kernel(_replaces_last),
        share_lod="X",
        cases=(
            Case({"X": _ids}, {"depth": 4}, {"Out": _OUT}),
            Case({"X": _ids, "depth_tensor": np.array([4])}, {"dtype": 3}, {"Out": _OUT.astype(np.int64)}),
            Case({"X": _ids}, {"depth": 3, "allow_out_of_range": True}, {"Out": _OUT[:, :3]}),
            Case({"X": _ids[:0]}, {"depth": 4}, {"Out": _OUT[:0]}, note="an empty batch"),
        ),
    )
