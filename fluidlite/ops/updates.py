"""What optimizer ops share: one formula per op, applied to whichever kind of value holds the parameter.

A formula is a function ``step(param, grad, *accumulators)`` over arrays of one shape that changes parameter and
accumulators in place; where it is a `Rule`, kernels in C may do the same in one pass. `apply` runs it on

- a dense parameter with a dense gradient: on the whole arrays;
- a dense parameter with a SelectedRows gradient (duplicates summed first): on the rows of the gradient, or, where
  skipped rows move as well (``every_row``: momentum, rmsprop, adam that is not lazy), on the whole arrays with zeros
  in the other rows;
- a SelectedRows parameter: on the rows of the gradient, each of which it must hold;
- an auto-grown table: on the records of the gradient's rows, which are made when missing. Skipped rows stay as they
  are, whatever the optimizer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fluidlite.core.ir import Variable
from fluidlite.dtypes import Array, VarKind
from fluidlite.errors import DtypeError, OutOfRangeError, ProgramError, ShapeError, TableError
from fluidlite.kernels.updates import RowStep, update_arrays
from fluidlite.ops import registry
from fluidlite.ops.context import KernelContext
from fluidlite.ops.infer import InferContext, numel
from fluidlite.values.selected_rows import SelectedRows, merge_rows
from fluidlite.values.sparse_table import SparseTable, TableColumn

#: inputs of an optimizer op that may hold something other than an array; accumulators come on top
SPARSE = ("Param", "Grad")


def apply(
    ctx: KernelContext,
    step: RowStep,
    param: Any,
    grad: Array | SelectedRows,
    state: Mapping[str, Any] | None = None,
    *,
    every_row: bool = False,
) -> dict[str, Any]:
    """Run ``step`` on a parameter and its accumulators; the values of ``ParamOut`` and of the accumulators' outputs.

    ``state`` maps output names to accumulators. An output whose variable is the input's is changed in place,
    any other gets a copy. Raises ShapeError, DtypeError, OutOfRangeError (a row outside a dense parameter) or
    TableError, all before anything is changed.
    """
    state = dict(state or {})
    if isinstance(param, SparseTable):
        _step_table(ctx, step, param, grad, state)
        return {"ParamOut": param, **state}
    for output, value in state.items():
        if not isinstance(value, np.ndarray):
            raise ProgramError(
                f"input {_source(ctx, output)} is {type(value).__name__}, but parameter {_name(ctx, 'Param')!r} is no table"
            )
    if isinstance(param, SelectedRows):
        return {"ParamOut": _step_selected_rows(ctx, step, param, grad, state)}
    return _step_dense(ctx, step, param, grad, state, every_row)


def number(value: Array, what: str = "LearningRate") -> float:
    """The only element of an input such as the learning rate; ShapeError when it has another number of elements."""
    if value.size != 1:
        raise ShapeError(f"{what} must have one element, not shape {list(value.shape)}")
    return float(value.reshape(-1)[0])


def refuse_table(ctx: KernelContext, param: Any) -> None:
    """Refuse a table as the parameter of an optimizer that needs the norm of the whole parameter."""
    if isinstance(param, SparseTable):
        raise TableError(
            f"optimizer {ctx.op.type!r} needs the norm of the whole parameter, which table {param.name!r} does not have; "
            "use another optimizer for distributed embeddings"
        )


def infer_update(ctx: InferContext) -> None:
    """Each output is like the input that it updates; one learning rate; a dense gradient as large as the parameter."""
    rate = ctx.maybe_input("LearningRate")
    if rate is not None and rate.shape is not None and numel(rate.shape) not in (1, -1):
        raise ctx.error(f"LearningRate={rate.name!r} must have one element, not shape {list(rate.shape)}")
    param, grad = ctx.input("Param"), ctx.input("Grad")
    if _is_dense(param) and _is_dense(grad) and not _compatible(param, grad):
        raise ctx.error(
            f"Param={param.name!r} has shape {list(param.shape or ())}, its gradient {grad.name!r} {list(grad.shape or ())}"
        )
    for output, source in ctx.op_def.inplace.items():
        var = ctx.maybe_input(source)
        if var is not None:
            ctx.set(output, var.shape, var.dtype, lod_level=var.lod_level, kind=var.kind)


def _step_table(
    ctx: KernelContext, step: RowStep, table: SparseTable, grad: Array | SelectedRows, state: Mapping[str, Any]
) -> None:
    if not isinstance(grad, SelectedRows):
        raise TableError(f"table {table.name!r} needs a SelectedRows gradient; {_name(ctx, 'Grad')!r} is dense")
    for output, column in state.items():
        if not isinstance(column, TableColumn):
            raise TableError(
                f"input {_source(ctx, output)} must be an accumulator of table {table.name!r}, not {type(column).__name__}"
            )
    table.update(grad, list(state.values()), step)


def _step_selected_rows(
    ctx: KernelContext, step: RowStep, param: SelectedRows, grad: Array | SelectedRows, state: Mapping[str, Any]
) -> SelectedRows:
    if state or not isinstance(grad, SelectedRows):
        raise ProgramError(
            f"optimizer {ctx.op.type!r} takes SelectedRows as parameter {_name(ctx, 'Param')!r} only with a SelectedRows "
            "gradient and without accumulators"
        )
    merged = _merged(grad, param.value)
    _check_like(ctx, "Grad", param.value, merged.value, rows=False)
    order = np.argsort(param.rows, kind="stable")
    at = np.searchsorted(param.rows, merged.rows, sorter=order)
    positions = order.take(at, mode="clip") if len(order) else np.zeros(len(at), np.int64)
    if len(order) < len(at) or not np.array_equal(param.rows[positions], merged.rows):
        held = np.isin(merged.rows, param.rows)
        position = int(np.argmin(held))
        raise OutOfRangeError(
            f"row {int(merged.rows[position])} (position {position} of {_name(ctx, 'Grad')!r}) is not in SelectedRows {_name(ctx, 'Param')!r}"
        )
    value = _own(ctx, "ParamOut", param.value)
    update_arrays(step, positions, merged.value, [value])
    return param if value is param.value else SelectedRows(param.rows.copy(), value, param.height)


def _step_dense(
    ctx: KernelContext,
    step: RowStep,
    param: Array,
    grad: Array | SelectedRows,
    state: Mapping[str, Array],
    every_row: bool,
) -> dict[str, Array]:
    rows: Array | None = None
    if isinstance(grad, SelectedRows):
        grad = _merged(grad, param)
        _check_rows(ctx, grad, param)
        rows, grad = grad.rows, grad.value
    _check_like(ctx, "Grad", param, grad, rows=rows is None)
    for output, value in state.items():
        _check_like(ctx, _source(ctx, output), param, value)
    outputs = {output: _own(ctx, output, value) for output, value in {"ParamOut": param, **state}.items()}
    if rows is not None and every_row:
        whole = np.zeros_like(param)
        whole[rows] = grad
        rows, grad = None, whole
    update_arrays(step, rows, grad, list(outputs.values()))
    return outputs


def _own(ctx: KernelContext, output: str, value: Array) -> Array:
    """The array that an output may change: the input's own when both are one variable, else a copy."""
    same = ctx.op.output(output) == ctx.op.input(_source(ctx, output))
    return value if same and value.flags.writeable else np.array(value)


def _merged(grad: SelectedRows, param: Array) -> SelectedRows:
    """The gradient with duplicates summed. Without rows, the width of its values does not matter."""
    if not len(grad.rows):
        return SelectedRows(np.empty(0, np.int64), np.empty((0, *param.shape[1:]), param.dtype), grad.height)
    return merge_rows(grad)


def _check_rows(ctx: KernelContext, grad: SelectedRows, param: Array) -> None:
    if grad.height not in (0, len(param)):
        raise ShapeError(
            f"the height {grad.height} of gradient {_name(ctx, 'Grad')!r} must be the rows {len(param)} of parameter {_name(ctx, 'Param')!r}"
        )
    outside = (grad.rows < 0) | (grad.rows >= len(param))
    if outside.any():
        position = int(np.argmax(outside))
        raise OutOfRangeError(
            f"row {int(grad.rows[position])} (position {position} of {_name(ctx, 'Grad')!r}) is outside parameter "
            f"{_name(ctx, 'Param')!r} of {len(param)} rows"
        )


def _check_like(ctx: KernelContext, source: str, param: Array, value: Array, *, rows: bool = True) -> None:
    """Refuse a value whose shape (beside the number of rows, unless ``rows``) or dtype is not the parameter's."""
    skip = 0 if rows else 1
    if value.shape[skip:] != param.shape[skip:]:
        raise ShapeError(
            f"{source}={_name(ctx, source)!r} has shape {list(value.shape)}, parameter {_name(ctx, 'Param')!r} {list(param.shape)}"
        )
    if value.dtype != param.dtype:
        raise DtypeError(
            f"{source}={_name(ctx, source)!r} is {value.dtype}, parameter {_name(ctx, 'Param')!r} is {param.dtype}"
        )


def _source(ctx: KernelContext, output: str) -> str:
    """The input that an output updates."""
    return registry.get(ctx.op.type).inplace[output]


def _name(ctx: KernelContext, source: str) -> str:
    """The variable given to an input, for messages."""
    return ctx.op.input(source) or "?"


def _is_dense(var: Variable) -> bool:
    return var.kind is VarKind.LOD_TENSOR and var.shape is not None


def _compatible(param: Variable, grad: Variable) -> bool:
    """Whether the shapes can be equal once unknown dimensions are known."""
    a, b = param.shape or (), grad.shape or ()
    return len(a) == len(b) and all(x == y or x < 0 or y < 0 for x, y in zip(a, b, strict=True))
