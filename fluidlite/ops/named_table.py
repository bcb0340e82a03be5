"""The ops of Fluid 2.0 on tables that a server finds by name: `lookup_sparse_table_init`, `..._read`, `..._write` and others.

There a table was known to the process and not to the scope; here it is the value of the scope's variable of its name, and
an accumulator that of `core.names.table_value`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from fluidlite.core import names
from fluidlite.dtypes import Array, VarKind
from fluidlite.errors import ProgramError, TableError
from fluidlite.ops.adam import adam_rule
from fluidlite.ops.context import KernelContext
from fluidlite.ops.ids import flat_ids
from fluidlite.ops.infer import InferContext
from fluidlite.ops.registry import Case, bool_attr, float_attr, register, string_attr, strings_attr
from fluidlite.ops.sgd import sgd_rule
from fluidlite.ops.sum import sum_values
from fluidlite.ops.updates import apply
from fluidlite.values.initial import Constant, Normal, RowInit, TruncatedNormal, Uniform
from fluidlite.values.selected_rows import SelectedRows, merge_rows
from fluidlite.values.sparse_table import SparseTable, TableColumn

_PARAM: Final = "Param"
_TABLE = {"tablename": string_attr(doc="the table"), "value_names": strings_attr((_PARAM,), "Param, or accumulators")}
_ENTRY = {"is_entry": bool_attr(default=False, doc="refused: rows count from their first use on")}


def init(ctx: KernelContext, *, large_scale_metas: tuple[str, ...]) -> dict[str, Any]:
    for meta in large_scale_metas:
        _make(ctx, meta)
    return {}


def _make(ctx: KernelContext, meta: str) -> None:
    """One table from its description ``name:values:widths:mode:gradient:cached:initialisers:entry``."""
    fields = meta.split(":")
    if len(fields) != 8:
        raise ProgramError(f"op {ctx.op.type!r}: {meta!r} has {len(fields)} fields, not 8, separated by colons")
    name, values, widths, first, entry = fields[0], fields[1], fields[2], fields[6], fields[7]
    if entry not in ("none", ""):
        raise ProgramError(
            f"op {ctx.op.type!r}: table {name!r} has entry {entry!r}; rows count from their first use on"
        )
    parts = list(zip(values.split(","), map(int, widths.split(",")), first.split(","), strict=True))
    by_value = {value: (width, *_initial(ctx, text)) for value, width, text in parts}
    if _PARAM not in by_value:
        raise ProgramError(f"op {ctx.op.type!r}: table {name!r} has no value {_PARAM!r}, only {values}")
    width, rule, seed = by_value.pop(_PARAM)
    ctx.scope.set(name, SparseTable(name, width, "float32", rule, seed))
    for value, (width, rule, _) in by_value.items():
        if not isinstance(rule, Constant):
            raise ProgramError(f"op {ctx.op.type!r}: value {value!r} of table {name!r} must start with a constant")
        column = names.table_value(name, value)
        ctx.scope.set(column, TableColumn(column, width, rule.value, "float32"))


def _initial(ctx: KernelContext, text: str) -> tuple[RowInit, int]:
    """(rule, seed) of ``uniform_random&seed&min&max`` and its kin."""
    kind, *numbers = text.split("&")
    try:
        match kind, numbers:
            case "fill_constant", [value]:
                return Constant(float(value)), 0
            case "uniform_random", [seed, low, high]:
                return Uniform(float(low), float(high)), int(seed)
            case "gaussian_random", [seed, mean, std]:
                return Normal(float(mean), float(std)), int(seed)
            case "truncated_gaussian_random", [seed, mean, std]:
                return TruncatedNormal(float(mean), float(std)), int(seed)
    except ValueError as error:
        raise ProgramError(f"op {ctx.op.type!r}: initialiser {text!r}: {error}") from error
    raise ProgramError(f"op {ctx.op.type!r}: initialiser {text!r} is none that there is")


def read(
    ctx: KernelContext, Ids: Array, *, tablename: str, value_names: tuple[str, ...], init: bool
) -> dict[str, list[Array]]:
    table = _table(ctx, tablename)
    ids = flat_ids(ctx, Ids)
    rows = [_read(table, column, ids, make=init) for column in _columns(ctx, table, value_names)]
    return {"Out": rows}


def _read(table: SparseTable, column: TableColumn | None, ids: Array, *, make: bool) -> Array:
    if column is None:
        return table.lookup(ids, read_only=not make)
    if column.table is None:
        table.attach(column)
    positions = table.positions(ids, create=True)
    return table.read(positions, column)


def write(
    ctx: KernelContext, Ids: Array, In: list[Array], *, tablename: str, value_names: tuple[str, ...]
) -> dict[str, Any]:
    table = _table(ctx, tablename)
    positions = table.positions(flat_ids(ctx, Ids), create=True)
    for column, value in zip(_columns(ctx, table, value_names), In, strict=True):
        if column is not None and column.table is None:
            table.attach(column)
        table.write(positions, value, column)
    return {}


def merge(ctx: KernelContext, X: list[SelectedRows]) -> SelectedRows:
    return merge_rows(sum_values(X))


def grad_split(ctx: KernelContext, Grad: SelectedRows, *, is_entry: bool) -> dict[str, Array]:
    _refuse_entry(ctx, is_entry)
    merged = merge_rows(Grad)
    return {"Row": merged.rows, "Value": merged.value}


def fuse_sgd(
    ctx: KernelContext, Grad: SelectedRows, LearningRate: Array, *, tablename: str, is_entry: bool
) -> dict[str, Any]:
    _refuse_entry(ctx, is_entry)
    apply(ctx, sgd_rule(LearningRate), _table(ctx, tablename), Grad)
    return {}


def fuse_adam(
    ctx: KernelContext,
    Grad: SelectedRows,
    LearningRate: Array,
    Beta1Pow: Array,
    Beta2Pow: Array,
    *,
    beta1: float,
    beta2: float,
    epsilon: float,
    tablename: str,
    value_names: tuple[str, ...],
    is_entry: bool,
) -> dict[str, Any]:
    _refuse_entry(ctx, is_entry)
    table = _table(ctx, tablename)
    moments = [name for name in value_names if name != _PARAM]
    first, second = (_column(ctx, table, name) for name in moments)
    rule = adam_rule(LearningRate, Beta1Pow, Beta2Pow, beta1, beta2, epsilon)
    apply(ctx, rule, table, Grad, {"Moment1Out": first, "Moment2Out": second}, every_row=False)
    return {"Beta1PowOut": Beta1Pow * beta1, "Beta2PowOut": Beta2Pow * beta2}


def _refuse_entry(ctx: KernelContext, is_entry: bool) -> None:
    if is_entry:
        raise ProgramError(f"op {ctx.op.type!r}: is_entry is refused: rows count from their first use on")


def _table(ctx: KernelContext, name: str) -> SparseTable:
    found = ctx.scope.get(name)
    if not isinstance(found, SparseTable):
        raise TableError(f"op {ctx.op.type!r}: there is no table {name!r}; run the startup program first")
    return found


def _column(ctx: KernelContext, table: SparseTable, value: str) -> TableColumn:
    found = ctx.scope.get(names.table_value(table.name, value))
    if not isinstance(found, TableColumn):
        raise TableError(f"op {ctx.op.type!r}: table {table.name!r} has no value {value!r}")
    return found


def _columns(ctx: KernelContext, table: SparseTable, values: tuple[str, ...]) -> Iterator[TableColumn | None]:
    return (None if value == _PARAM else _column(ctx, table, value) for value in values)


def _infer_merge(ctx: InferContext) -> None:
    ctx.set("Out", ctx.shape("X"), ctx.input("X").dtype, kind=VarKind.SELECTED_ROWS)


def _infer_split(ctx: InferContext) -> None:
    ctx.set("Row", (-1,), "int64", kind=VarKind.LOD_TENSOR)
    ctx.set("Value", (-1, *ctx.shape("Grad")[1:]), ctx.input("Grad").dtype, kind=VarKind.LOD_TENSOR)


register(
    "lookup_sparse_table_init",
    doc="Makes tables, empty. Each description is ``name:values:widths:mode:gradient:cached:initialisers:entry``; of lists "
    "separated by commas the first value is Param, the others are accumulators, which start with a constant. Mode, gradient "
    "and cached names say nothing here; an entry other than none is refused.",
    attrs={"large_scale_metas": strings_attr()},
    kernel=init,
    side_effect=True,
)
register(
    "lookup_sparse_table_read",
    doc="Out[i] [n, width]: value value_names[i] of the rows Ids of a table. With `init` missing rows are made, else their "
    "Param reads zeros.",
    inputs=["Ids"],
    outputs=["Out*"],
    attrs={**_TABLE, "init": bool_attr(default=False)},
    kernel=read,
    side_effect=True,
)
register(
    "lookup_sparse_table_write",
    doc="Writes In[i] [n, width] as value value_names[i] of the rows Ids of a table; missing rows are made.",
    inputs=["Ids", "In*"],
    attrs=_TABLE,
    kernel=write,
    side_effect=True,
)
_TWO = SelectedRows(np.array([5, 1]), np.array([[1.0, 2.0], [3.0, 4.0]]), 6)
_ONE = SelectedRows(np.array([1]), np.array([[0.5, 0.5]]), 6)
_BOTH = SelectedRows(np.array([1, 5]), np.array([[3.5, 4.5], [1.0, 2.0]]), 6)
register(
    "lookup_sparse_table_merge",
    doc="Out: the rows of all X, those of equal ids summed.",
    inputs=["X*"],
    outputs=["Out"],
    infer=_infer_merge,
    kernel=merge,
    sparse=("X",),
    cases=(Case({"X": [_TWO, _ONE]}, {}, {"Out": _BOTH}),),
)
register(
    "lookup_sparse_table_grad_split",
    doc="Row [n] int64 and Value [n, width]: the ids of a gradient, each once, and their summed values.",
    inputs=["Grad"],
    outputs=["Row", "Value"],
    attrs={"tablename": string_attr(""), **_ENTRY},
    infer=_infer_split,
    kernel=grad_split,
    sparse=("Grad",),
    cases=(
        Case(
            {"Grad": SelectedRows(np.array([5, 1, 5]), np.array([[1.0], [3.0], [2.0]]), 6)},
            {"tablename": "t"},
            {"Row": np.array([1, 5]), "Value": np.array([[3.0], [3.0]])},
        ),
    ),
)
register(
    "lookup_sparse_table_fuse_sgd",
    doc="One step of `sgd` on the rows of a table that Grad names.",
    inputs=["Grad", "LearningRate"],
    attrs={**_TABLE, **_ENTRY},
    kernel=fuse_sgd,
    sparse=("Grad",),
    side_effect=True,
)
register(
    "lookup_sparse_table_fuse_adam",
    doc="One step of `adam` on the rows of a table that Grad names. value_names: Param and the two moments. The correction of "
    "the rate is that of this step, and the powers advance also without rows (Fluid: of the next one, and not).",
    inputs=["Grad", "LearningRate", "Beta1Pow", "Beta2Pow"],
    outputs=["Beta1PowOut", "Beta2PowOut"],
    attrs={
        "beta1": float_attr(0.9),
        "beta2": float_attr(0.999),
        "epsilon": float_attr(1e-8),
        **_TABLE,
        **_ENTRY,
    },
    kernel=fuse_adam,
    sparse=("Grad",),
    side_effect=True,
)
