"""Weight decay: penalties on parameters, added to their gradients by ops.

What decays, by kind of parameter:

- dense gradient: every element, every step;
- SelectedRows gradient of an ``is_sparse`` parameter: every row, every step, as in Fluid 1.8; the gradient becomes
  dense;
- distributed table (mode ``touched``): the rows of the step's ids, each once however often its id occurs. A row that
  no id names does not decay.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import TypeAlias

from fluidlite.core import names
from fluidlite.core.ir import OpRole
from fluidlite.dtypes import VarKind
from fluidlite.errors import ProgramError
from fluidlite.framework import Block, Parameter, Variable, name_scope, op_role

ParamGrads: TypeAlias = "Sequence[tuple[Parameter, Variable]]"

__all__ = [
    "L1Decay",
    "L1DecayRegularizer",
    "L2Decay",
    "L2DecayRegularizer",
    "WeightDecayRegularizer",
    "append_regularization_ops",
]


class WeightDecayRegularizer:
    """A penalty on the size of parameters. Subclasses append the ops of its derivative in `decay`."""

    def decay(self, value: Variable, block: Block) -> Variable:
        """Append the derivative of the penalty at ``value`` (of any shape); same shape and dtype."""
        raise NotImplementedError

    def __call__(self, param: Parameter, grad: Variable, block: Block) -> Variable:
        """Append what is added to the gradient of ``param``: the whole parameter's decay, or for a table the decay of
        the rows that ``grad`` names (SelectedRows)."""
        if param.is_distributed:
            return self._decay_touched_rows(param, grad, block)
        return self.decay(param, block)

    def _decay_touched_rows(self, table: Parameter, grad: Variable, block: Block) -> Variable:
        """The penalty reads rows like a lookup of the step's distinct ids, so its gradient is one of that lookup."""
        width = table.shape[-1]
        merged = block.create_var(dtype=table.dtype, shape=table.shape, type=VarKind.SELECTED_ROWS)
        ids = block.create_var(dtype="int64", shape=[-1, 1], stop_gradient=True)
        rows = block.create_var(dtype=table.dtype, shape=[-1, width])
        scattered = block.create_var(dtype=table.dtype, shape=table.shape, type=VarKind.SELECTED_ROWS)
        block.append_op("merge_selected_rows", {"X": grad}, {"Out": merged})
        block.append_op("extract_rows", {"X": merged}, {"Out": ids})
        block.append_op("lookup_sparse_table", {"W": table, "Ids": ids}, {"Out": rows})
        block.append_op(
            "lookup_table_grad",
            {"W": table, "Ids": ids, "Out@GRAD": self.decay(rows, block)},
            {"W@GRAD": scattered},
            {"is_sparse": True, "is_distributed": True},
        )
        return scattered


class L2DecayRegularizer(WeightDecayRegularizer):
    """Penalty ``coeff / 2 * sum(w^2)``: the gradient grows by ``coeff * w``."""

    def __init__(self, regularization_coeff: float = 0.0) -> None:
        self.coeff = _checked_coeff(regularization_coeff)

    def decay(self, value: Variable, block: Block) -> Variable:
        result = block.create_var(dtype=value.dtype, shape=value.shape)
        block.append_op("scale", {"X": value}, {"Out": result}, {"scale": self.coeff})
        return result

    def __str__(self) -> str:
        return f"L2Decay, regularization_coeff={self.coeff:f}"


class L1DecayRegularizer(WeightDecayRegularizer):
    """Penalty ``coeff * sum(|w|)``: the gradient grows by ``coeff * sign(w)``."""

    def __init__(self, regularization_coeff: float = 0.0) -> None:
        self.coeff = _checked_coeff(regularization_coeff)

    def decay(self, value: Variable, block: Block) -> Variable:
        result = block.create_var(dtype=value.dtype, shape=value.shape)
        block.append_op("sign", {"X": value}, {"Out": result})
        block.append_op("scale", {"X": result}, {"Out": result}, {"scale": self.coeff})
        return result

    def __str__(self) -> str:
        return f"L1Decay, regularization_coeff={self.coeff:f}"


L1Decay = L1DecayRegularizer
L2Decay = L2DecayRegularizer


def append_regularization_ops(
    parameters_and_grads: ParamGrads, regularization: WeightDecayRegularizer | None = None
) -> list[tuple[Parameter, Variable]]:
    """Add decay to each gradient; returns the pairs with the gradients to use from here on.

    A parameter's own regularizer (``ParamAttr(regularizer=)``) overrides ``regularization``.
    """
    result = []
    with name_scope("regularization"):
        for param, grad in parameters_and_grads:
            regularizer = param.regularizer or regularization
            with op_role(OpRole.OPTIMIZE, [param, grad]):
                result.append((param, _regularized(param, grad, regularizer) if regularizer is not None else grad))
    return result


def _regularized(param: Parameter, grad: Variable, regularizer: WeightDecayRegularizer) -> Variable:
    block = grad.block
    decay = regularizer(param, grad, block)
    total = grad
    if grad.type is VarKind.SELECTED_ROWS and not param.is_distributed:
        total = block.create_var(names.new_gradient(grad.name), dtype=param.dtype, shape=param.shape)
    block.append_op("sum", {"X": [grad, decay]}, {"Out": total})
    return total


def _checked_coeff(value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ProgramError(f"regularization_coeff must be a number, not {value!r}")
    return float(value)
