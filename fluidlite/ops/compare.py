"""Comparisons and logic of two operands, and `allclose`; `is_empty`, `isfinite`, `isinf`, `isnan` of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.ops.broadcast import infer_broadcast, operands
from fluidlite.ops.context import KernelContext
from fluidlite.ops.infer import InferContext, like
from fluidlite.ops.registry import Case, Kernel, bool_attr, float_attr, int_attr, register
from fluidlite.values.selected_rows import SelectedRows

_ATTRS: Final = {
    "axis": int_attr(-1, "where the smaller operand starts in the larger one; -1: last dimensions aligned"),
    "force_cpu": bool_attr(default=False),
}
Predicate = Callable[[Array, Array], Array]


def _infer_bool(ctx: InferContext) -> None:
    infer_broadcast(ctx, "bool")


def _infer_one_bool(ctx: InferContext) -> None:
    ctx.set("Out", (1,), "bool", lod_level=0)


def _comparison(predicate: Predicate) -> Kernel:
    def kernel(ctx: KernelContext, X: Array, Y: Array, *, axis: int) -> Array:
        return predicate(*operands(X, Y, axis))

    return kernel


def _connective(predicate: Predicate) -> Kernel:
    def kernel(ctx: KernelContext, X: Array, Y: Array) -> Array:
        return predicate(*operands(X, Y, -1))

    return kernel


def equal(x: Array, y: Array) -> Array:
    """Floats are equal when they differ by less than 1e-8 (Fluid's rule); equal infinities are equal, NaN is not."""
    if x.dtype.kind != "f":
        return np.equal(x, y)
    return np.asarray(np.equal(x, y) | (np.abs(x - y) < 1e-8))


def not_equal(x: Array, y: Array) -> Array:
    return np.logical_not(equal(x, y))


COMPARISONS: Final[tuple[tuple[str, str, Predicate, list[bool]], ...]] = (
    ("less_than", "<", np.less, [True, False, False]),
    ("less_equal", "<=", np.less_equal, [True, True, False]),
    ("greater_than", ">", np.greater, [False, False, True]),
    ("greater_equal", ">=", np.greater_equal, [False, True, True]),
    ("equal", "==", equal, [False, True, False]),
    ("not_equal", "!=", not_equal, [True, False, True]),
)
CONNECTIVES: Final[tuple[tuple[str, str, Predicate, list[bool]], ...]] = (
    ("logical_and", "and", np.logical_and, [False, False, False, True]),
    ("logical_or", "or", np.logical_or, [False, True, True, True]),
    ("logical_xor", "xor", np.logical_xor, [False, True, True, False]),
)

for _type, _sign, _predicate, _expected in COMPARISONS:
    register(
        _type,
        doc=f"Out = X {_sign} Y, elementwise with broadcasting; bool.",
        inputs=["X", "Y"],
        outputs=["Out"],
        attrs=_ATTRS,
        infer=_infer_bool,
        kernel=_comparison(_predicate),
        share_lod="X",
        cases=(
            Case({"X": np.array([1.0, 2.0, 3.0]), "Y": np.array([2.0])}, {}, {"Out": np.array(_expected)}),
            Case({"X": np.array([1, 2, 3]), "Y": np.array([2, 2, 2])}, {}, {"Out": np.array(_expected)}),
        ),
    )

for _type, _sign, _predicate, _expected in CONNECTIVES:
    register(
        _type,
        doc=f"Out = X {_sign} Y of bools, elementwise with broadcasting.",
        inputs=["X", "Y"],
        outputs=["Out"],
        infer=_infer_bool,
        kernel=_connective(_predicate),
        share_lod="X",
        cases=(
            Case(
                {"X": np.array([False, False, True, True]), "Y": np.array([False, True, False, True])},
                {},
                {"Out": np.array(_expected)},
            ),
        ),
    )


def logical_not(ctx: KernelContext, X: Array) -> Array:
    return np.logical_not(X)


def is_empty(ctx: KernelContext, X: Any) -> Array:
    return np.array([(X.value if isinstance(X, SelectedRows) else X).size == 0])


def isfinite(ctx: KernelContext, X: Any) -> Array:
    return np.array([np.isfinite(X.value if isinstance(X, SelectedRows) else X).all()])


def isinf(ctx: KernelContext, X: Any) -> Array:
    return np.array([np.isinf(X.value if isinstance(X, SelectedRows) else X).any()])


def isnan(ctx: KernelContext, X: Any) -> Array:
    return np.array([np.isnan(X.value if isinstance(X, SelectedRows) else X).any()])


def allclose(ctx: KernelContext, Input: Array, Other: Array, *, rtol: float, atol: float, equal_nan: bool) -> Array:
    return np.array([np.allclose(Input, Other, rtol, atol, equal_nan)])


register(
    "logical_not",
    doc="Out = not X of bools, elementwise.",
    inputs=["X"],
    outputs=["Out"],
    infer=like("X", "Out", dtype="bool"),
    kernel=logical_not,
    share_lod="X",
    cases=(Case({"X": np.array([True, False])}, {}, {"Out": np.array([False, True])}),),
)
register(
    "is_empty",
    doc="Out (1,) bool: whether X has no elements.",
    inputs=["X"],
    outputs=["Out"],
    infer=_infer_one_bool,
    kernel=is_empty,
    sparse=("X",),
    cases=(
        Case({"X": np.zeros((0, 2))}, {}, {"Out": np.array([True])}),
        Case({"X": np.zeros((1, 2))}, {}, {"Out": np.array([False])}),
    ),
)
register(
    "isfinite",
    doc="Out (1,) bool: whether every element of X is finite.",
    inputs=["X"],
    outputs=["Out"],
    infer=_infer_one_bool,
    kernel=isfinite,
    sparse=("X",),
    cases=(
        Case({"X": np.array([1.0, 2.0])}, {}, {"Out": np.array([True])}),
        Case({"X": np.array([1.0, np.inf])}, {}, {"Out": np.array([False])}),
    ),
)
for _type, _kernel, _word in (("isinf", isinf, "infinite"), ("isnan", isnan, "NaN")):
    register(
        _type,
        doc=f"Out (1,) bool: whether any element of X is {_word}.",
        inputs=["X"],
        outputs=["Out"],
        infer=_infer_one_bool,
        kernel=_kernel,
        sparse=("X",),
        cases=(
            Case({"X": np.array([1.0, np.inf if _type == "isinf" else np.nan])}, {}, {"Out": np.array([True])}),
            Case({"X": np.array([1.0, np.nan if _type == "isinf" else np.inf])}, {}, {"Out": np.array([False])}),
        ),
    )
register(
    "allclose",
    doc="Out (1,) bool: whether all |Input - Other| are at most `atol` + `rtol` * |Other|.",
    inputs=["Input", "Other"],
    outputs=["Out"],
    attrs={"rtol": float_attr(1e-5), "atol": float_attr(1e-8), "equal_nan": bool_attr(default=False)},
    infer=_infer_one_bool,
    kernel=allclose,
    cases=(
        Case({"Input": np.array([1.0, 2.0]), "Other": np.array([1.0, 2.000001])}, {}, {"Out": np.array([True])}),
        Case({"Input": np.array([1.0, np.nan]), "Other": np.array([1.0, np.nan])}, {}, {"Out": np.array([False])}),
        Case(
            {"Input": np.array([1.0, np.nan]), "Other": np.array([1.0, np.nan])},
            {"equal_nan": True},
            {"Out": np.array([True])},
        ),
    ),
)
