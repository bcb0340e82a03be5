"""Regularisation that is a step of its own beside the optimizer's, and constraints: `decay_rows`, `lazy_momentum`,
`lazy_ftrl`, `constrain_rows`; and `table_rows`, for penalties on every row of a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

import numpy as np

from fluidlite.dtypes import Array, VarKind
from fluidlite.errors import ProgramError, TableError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.infer import InferContext
from fluidlite.ops.registry import AttrSpec, Case, bool_attr, float_attr, register, string_attr
from fluidlite.ops.updates import SPARSE, apply, number
from fluidlite.values.row_decay import Decay, Form, FtrlDecay, Shrinkage
from fluidlite.values.row_momentum import MomentumDecay
from fluidlite.values.selected_rows import SelectedRows
from fluidlite.values.sparse_table import SparseTable, TableColumn

_MODES: Final = ("touched", "lazy", "dense")
_FORMS: Final = ("gradient", "proximal", "multiplicative")


def decay_rows(
    ctx: KernelContext,
    Param: Any,
    Grad: Array | SelectedRows | None,
    LearningRate: Array,
    *,
    mode: str,
    form: str,
    l1: float,
    l2: float,
    by_row: bool,
) -> dict[str, Any]:
    rule = Shrinkage(l1, l2, _form(form), by_row)
    if mode == "lazy":
        return _tick(ctx, rule, Param, {}, LearningRate, Grad)
    if mode not in _MODES:
        raise ProgramError(f"op {ctx.op.type!r}: mode must be one of {', '.join(_MODES)}, not {mode!r}")
    rate = number(LearningRate)
    return _change_rows(ctx, Param, Grad if mode == "touched" else None, lambda value: rule.step(rate, value))


def lazy_momentum(
    ctx: KernelContext,
    Param: Any,
    Velocity: Any,
    Grad: SelectedRows,
    LearningRate: Array,
    *,
    mu: float,
    use_nesterov: bool,
    form: str,
    l2: float,
) -> dict[str, Any]:
    rule = MomentumDecay(mu, use_nesterov, l2, _form(form))
    return _tick(ctx, rule, Param, {"VelocityOut": Velocity}, LearningRate, Grad)


def lazy_ftrl(
    ctx: KernelContext,
    Param: Any,
    SquaredAccumulator: Any,
    LinearAccumulator: Any,
    Grad: SelectedRows,
    LearningRate: Array,
    *,
    l1: float,
    l2: float,
    lr_power: float,
) -> dict[str, Any]:
    state = {"SquaredAccumOut": SquaredAccumulator, "LinearAccumOut": LinearAccumulator}
    return _tick(ctx, FtrlDecay(l1, l2, lr_power), Param, state, LearningRate, Grad)


def constrain_rows(
    ctx: KernelContext, Param: Any, Grad: Array | SelectedRows, *, max_norm: float, low: float, high: float
) -> dict[str, Any]:
    def project(value: Array) -> None:
        np.clip(value, low, high, out=value)
        if max_norm < float("inf"):
            flat = value.reshape(len(value), -1)
            norm = np.sqrt(np.einsum("ij,ij->i", flat, flat))[:, None]
            flat *= np.divide(max_norm, norm, out=np.ones_like(norm), where=norm > max_norm)

    return _change_rows(ctx, Param, Grad, project)


def table_rows(ctx: KernelContext, W: SparseTable) -> SelectedRows:
    if not isinstance(W, SparseTable):
        raise TableError(f"op {ctx.op.type!r}: {ctx.op.input('W')!r} is {type(W).__name__}, not a table")
    return W.export()


def _form(text: str) -> Form:
    if text not in _FORMS:
        raise ProgramError(f"form must be one of {', '.join(_FORMS)}, not {text!r}")
    return cast(Form, text)


def _tick(
    ctx: KernelContext,
    rule: Decay,
    table: Any,
    state: dict[str, Any],
    rate: Array,
    grad: Array | SelectedRows | None,
) -> dict[str, Any]:
    """One step of the clock of a table."""
    if not isinstance(table, SparseTable) or not all(isinstance(column, TableColumn) for column in state.values()):
        raise TableError(
            f"op {ctx.op.type!r}: {ctx.op.input('Param')!r} must be a table, and the accumulators its own; only rows of "
            "tables are regularised lazily"
        )
    done = grad.rows if isinstance(grad, SelectedRows) else None
    table.tick(rule, list(state.values()), number(rate), done)
    return {"ParamOut": table, **state}


def _change_rows(
    ctx: KernelContext, param: Any, grad: Array | SelectedRows | None, change: Callable[[Array], None]
) -> dict[str, Any]:
    """``change(value)``, in float64, on the rows that ``grad`` names, on all where it is dense or None."""

    def step(value: Array, _gradient: Array) -> None:
        exact = value.astype(np.float64)
        change(exact)
        value[...] = exact

    if grad is None and isinstance(param, SparseTable):
        ids = param.ids
        grad = SelectedRows(ids, np.zeros((len(ids), param.width), param.dtype), param.height)
    return apply(ctx, step, param, param if grad is None else grad)


def _infer(ctx: InferContext) -> None:
    """Each output is like the input that it updates."""
    for output, source in ctx.op_def.inplace.items():
        var = ctx.input(source)
        ctx.set(output, var.shape, var.dtype, lod_level=var.lod_level, kind=var.kind)


def _infer_table_rows(ctx: InferContext) -> None:
    w = ctx.input("W")
    ctx.set("Out", w.shape, w.dtype, kind=VarKind.SELECTED_ROWS)


_FORM_ATTR: Final[dict[str, AttrSpec]] = {
    "form": string_attr("proximal", "gradient, proximal or multiplicative: how the penalty enters a step"),
}
_PENALTIES: Final[dict[str, AttrSpec]] = {"l1": float_attr(0.0), "l2": float_attr(0.0)}
_PARAM: Final = np.array([[1.0, -2.0], [0.25, 0.5]])
_ROWS: Final = SelectedRows(np.array([1]), np.array([[9.0, 9.0]]), 2)

register(
    "decay_rows",
    doc="""A step of regularisation beside that of the optimizer, with e = LearningRate. `form` proximal:
ParamOut = sign(Param) * max(|Param| - e * l1, 0) / (1 + e * l2), with `by_row` |.| is the norm of a row, whose direction
stays; multiplicative: ParamOut = (1 - e * l2) * Param.

`mode` touched: the rows that Grad names (all, where it is dense). dense: every row. lazy: every row of a table, each when
it is next used; Grad then names the rows whose share of the step is done. See docs/regularisation.md.
""",
    inputs=["Param", "Grad?", "LearningRate"],
    outputs=["ParamOut"],
    attrs={
        "mode": string_attr("dense", "touched, lazy or dense"),
        **_FORM_ATTR,
        **_PENALTIES,
        "by_row": bool_attr(default=False, doc="l1 is on the norm of each row"),
    },
    infer=_infer,
    kernel=decay_rows,
    sparse=SPARSE,
    inplace={"ParamOut": "Param"},
    cases=(
        Case(
            {"Param": _PARAM, "LearningRate": np.array([0.5])},
            {"l1": 1.0, "l2": 2.0},
            {"ParamOut": np.array([[0.25, -0.75], [0.0, 0.0]])},
        ),
        Case(
            {"Param": _PARAM, "Grad": _ROWS, "LearningRate": np.array([0.5])},
            {"mode": "touched", "form": "multiplicative", "l2": 1.0},
            {"ParamOut": np.array([[1.0, -2.0], [0.125, 0.25]])},
        ),
        Case(
            {"Param": np.array([[3.0, -4.0], [0.0, 0.0]]), "LearningRate": np.array([0.5])},
            {"l1": 5.0, "by_row": True},
            {"ParamOut": np.array([[1.5, -2.0], [0.0, 0.0]])},
        ),
    ),
)
register(
    "lazy_momentum",
    doc="""Every row of table Param moves by its velocity as `momentum` moves a row without gradient, and decays by `l2`
(`form` gradient or proximal), when it is next used. Stands behind the `momentum` op; the rows that Grad names have had
their step. See docs/regularisation.md.
""",
    inputs=["Param", "Velocity", "Grad", "LearningRate"],
    outputs=["ParamOut", "VelocityOut"],
    attrs={"mu": float_attr(), "use_nesterov": bool_attr(default=False), **_FORM_ATTR, "l2": float_attr(0.0)},
    infer=_infer,
    kernel=lazy_momentum,
    sparse=(*SPARSE, "Velocity"),
    inplace={"ParamOut": "Param", "VelocityOut": "Velocity"},
)
register(
    "lazy_ftrl",
    doc="""Every row of table Param becomes what `ftrl` makes of a row without gradient at this learning rate, when it is
next used. Stands behind the `ftrl` op; the rows that Grad names have had their step. See docs/regularisation.md.
""",
    inputs=["Param", "SquaredAccumulator", "LinearAccumulator", "Grad", "LearningRate"],
    outputs=["ParamOut", "SquaredAccumOut", "LinearAccumOut"],
    attrs={**_PENALTIES, "lr_power": float_attr(-0.5)},
    infer=_infer,
    kernel=lazy_ftrl,
    sparse=(*SPARSE, "SquaredAccumulator", "LinearAccumulator"),
    inplace={
        "ParamOut": "Param",
        "SquaredAccumOut": "SquaredAccumulator",
        "LinearAccumOut": "LinearAccumulator",
    },
)
register(
    "constrain_rows",
    doc="ParamOut: the rows of Param that Grad names (all, where it is dense) with each element brought into [`low`, `high`] "
    "and then the norm of each row to at most `max_norm`; other rows as they are.",
    inputs=["Param", "Grad"],
    outputs=["ParamOut"],
    attrs={"max_norm": float_attr(float("inf")), "low": float_attr(float("-inf")), "high": float_attr(float("inf"))},
    infer=_infer,
    kernel=constrain_rows,
    sparse=SPARSE,
    inplace={"ParamOut": "Param"},
    cases=(
        Case(
            {"Param": np.array([[3.0, -4.0], [0.3, -0.4]]), "Grad": np.zeros((2, 2))},
            {"max_norm": 1.0},
            {"ParamOut": np.array([[0.6, -0.8], [0.3, -0.4]])},
        ),
        Case(
            {"Param": _PARAM, "Grad": _ROWS},
            {"low": 0.0, "high": 0.25},
            {"ParamOut": np.array([[1.0, -2.0], [0.25, 0.25]])},
        ),
    ),
)
register(
    "table_rows",
    doc="Out: every id of table W with its row.",
    inputs=["W"],
    outputs=["Out"],
    infer=_infer_table_rows,
    kernel=table_rows,
    sparse=("W",),
)
