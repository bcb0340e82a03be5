"""Weight decay: penalties on parameters, and which rows they decay when.

A ``mode`` says which rows of a table, or of an ``is_sparse`` parameter, decay in a step; other parameters decay whole:

- ``touched``: the rows of the step's ids, each once however often its id occurs (the default of tables);
- ``dense``: every row (the default of ``is_sparse`` parameters, as in Fluid 1.8; their gradient becomes dense);
- ``lazy``: every row, at the cost of the touched ones: a row catches up when it is next used, exactly. An ``is_sparse``
  parameter becomes a table for that. Optimizers for which that is not exact refuse it.

A ``form`` says how the penalty enters a step with learning rate e:

- ``gradient``: its derivative is added to the gradient (the default of L1Decay and L2Decay, except with ``lazy``);
- ``proximal``: behind the update, ``|w| <- max(0, |w| - e l1) / (1 + e l2)``, which gives exact zeros and never changes a
  sign (the default of the others, and with ``lazy``);
- ``multiplicative`` (L2 only): before the update, ``w <- (1 - e l2) w``.

What is exact, and what refused: docs/regularisation.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import ClassVar, Final, Literal, TypeAlias

import numpy as np

from fluidlite.core import names
from fluidlite.core.ir import OpRole
from fluidlite.dtypes import VarKind
from fluidlite.errors import ProgramError
from fluidlite.framework import Block, Parameter, Variable, name_scope, op_role

ParamGrads: TypeAlias = "Sequence[tuple[Parameter, Variable]]"
Mode: TypeAlias = Literal["touched", "lazy", "dense"]
Form: TypeAlias = Literal["gradient", "proximal", "multiplicative"]

__all__ = [
    "ElasticNet",
    "ElasticNetRegularizer",
    "GroupL1",
    "GroupL1Regularizer",
    "L1Decay",
    "L1DecayRegularizer",
    "L2Decay",
    "L2DecayRegularizer",
    "WeightDecayRegularizer",
    "append_regularization_ops",
]


class WeightDecayRegularizer:
    """A penalty on the size of parameters. Subclasses append the ops of its derivative in `decay`.

    ``mode`` and ``form``: see the module; None stands for the default.
    """

    #: the forms of the penalty, the default first
    forms: ClassVar[tuple[Form, ...]] = ("gradient",)
    mode: Mode | None = None
    form: Form = "gradient"
    #: the penalty ``l1 |w| + l2 w^2 / 2``; with ``by_row`` the first ``|w|`` is the norm of a row
    l1: float = 0.0
    l2: float = 0.0
    by_row: ClassVar[bool] = False

    def __init__(self, mode: Mode | None = None, form: Form | None = None) -> None:
        if mode not in (None, "touched", "lazy", "dense"):
            raise ProgramError(f"{type(self).__name__}: mode must be 'touched', 'lazy' or 'dense', not {mode!r}")
        if form is not None and form not in self.forms:
            raise ProgramError(f"{type(self).__name__}: form must be one of {', '.join(self.forms)}, not {form!r}")
        self.mode = mode
        default: Form = "proximal" if mode == "lazy" and "proximal" in self.forms else self.forms[0]
        self.form = form or default

    def decay(self, value: Variable, block: Block) -> Variable:
        """Append the derivative of the penalty at ``value`` (of any shape); same shape and dtype."""
        raise NotImplementedError

    def mode_for(self, param: Parameter, grad: Variable) -> Mode:
        """Which rows of a parameter decay."""
        if grad.type is not VarKind.SELECTED_ROWS:
            return "dense"
        return self.mode or ("touched" if param.is_distributed else "dense")

    def __call__(self, param: Parameter, grad: Variable, block: Block) -> Variable:
        """Append what is added to the gradient of ``param``: the decay of all its rows, or of those that ``grad`` names
        (SelectedRows)."""
        if self.mode_for(param, grad) != "dense":
            return self._decay_touched_rows(param, grad, block)
        return self.decay(every_row(param, block) if param.is_distributed else param, block)

    def _decay_touched_rows(self, param: Parameter, grad: Variable, block: Block) -> Variable:
        """The penalty reads rows like a lookup of the step's distinct ids, so its gradient is one of that lookup."""
        merged = block.create_var(dtype=param.dtype, shape=param.shape, type=VarKind.SELECTED_ROWS)
        ids = block.create_var(dtype="int64", shape=[-1, 1], stop_gradient=True)
        rows = block.create_var(dtype=param.dtype, shape=[-1, param.shape[-1]])
        scattered = block.create_var(dtype=param.dtype, shape=param.shape, type=VarKind.SELECTED_ROWS)
        block.append_op("merge_selected_rows", {"X": grad}, {"Out": merged})
        block.append_op("extract_rows", {"X": merged}, {"Out": ids})
        lookup = "lookup_sparse_table" if param.is_distributed else "lookup_table"
        block.append_op(lookup, {"W": param, "Ids": ids}, {"Out": rows})
        block.append_op(
            "lookup_table_grad",
            {"W": param, "Ids": ids, "Out@GRAD": self.decay(rows, block)},
            {"W@GRAD": scattered},
            {"is_sparse": True, "is_distributed": param.is_distributed},
        )
        return scattered


class L2DecayRegularizer(WeightDecayRegularizer):
    """Penalty ``coeff / 2 * sum(w^2)``: the gradient grows by ``coeff * w``."""

    forms = ("gradient", "proximal", "multiplicative")

    def __init__(self, regularization_coeff: float = 0.0, mode: Mode | None = None, form: Form | None = None) -> None:
        super().__init__(mode, form)
        self.coeff = self.l2 = _checked_coeff(regularization_coeff)

    def decay(self, value: Variable, block: Block) -> Variable:
        result = block.create_var(dtype=value.dtype, shape=value.shape, type=value.type)
        block.append_op("scale", {"X": value}, {"Out": result}, {"scale": self.coeff})
        return result

    def __str__(self) -> str:
        return f"L2Decay, regularization_coeff={self.coeff:f}"


class L1DecayRegularizer(WeightDecayRegularizer):
    """Penalty ``coeff * sum(|w|)``: the gradient grows by ``coeff * sign(w)``."""

    forms = ("gradient", "proximal")

    def __init__(self, regularization_coeff: float = 0.0, mode: Mode | None = None, form: Form | None = None) -> None:
        super().__init__(mode, form)
        self.coeff = self.l1 = _checked_coeff(regularization_coeff)

    def decay(self, value: Variable, block: Block) -> Variable:
        result = block.create_var(dtype=value.dtype, shape=value.shape, type=value.type)
        block.append_op("sign", {"X": value}, {"Out": result})
        block.append_op("scale", {"X": result}, {"Out": result}, {"scale": self.coeff})
        return result

    def __str__(self) -> str:
        return f"L1Decay, regularization_coeff={self.coeff:f}"


class ElasticNetRegularizer(WeightDecayRegularizer):
    """Penalty ``l1 * sum(|w|) + l2 / 2 * sum(w^2)``, as a proximal step. Source: Zou and Hastie, JRSS B 67 (2005)."""

    forms = ("proximal",)

    def __init__(self, l1: float = 0.0, l2: float = 0.0, mode: Mode | None = None) -> None:
        super().__init__(mode)
        self.l1 = _not_negative(l1, "l1")
        self.l2 = _not_negative(l2, "l2")

    def __str__(self) -> str:
        return f"ElasticNet, l1={self.l1:f}, l2={self.l2:f}"


class GroupL1Regularizer(WeightDecayRegularizer):
    """Penalty ``coeff * sum(|row|)`` with the norms of rows, as a proximal step: a row gets shorter, or zero as a whole.

    Source: Yuan and Lin, JRSS B 68 (2006).
    """

    forms = ("proximal",)
    by_row = True

    def __init__(self, regularization_coeff: float = 0.0, mode: Mode | None = None) -> None:
        super().__init__(mode)
        self.coeff = self.l1 = _not_negative(regularization_coeff)

    def __str__(self) -> str:
        return f"GroupL1, regularization_coeff={self.coeff:f}"


L1Decay = L1DecayRegularizer
L2Decay = L2DecayRegularizer
ElasticNet = ElasticNetRegularizer
GroupL1 = GroupL1Regularizer


def every_row(table: Parameter, block: Block) -> Variable:
    """Append what reads every row of a table, as SelectedRows."""
    rows = block.create_var(dtype=table.dtype, shape=table.shape, type=VarKind.SELECTED_ROWS)
    block.append_op("table_rows", {"W": table}, {"Out": rows})
    return rows


def append_regularization_ops(
    parameters_and_grads: ParamGrads, regularization: WeightDecayRegularizer | None = None
) -> list[tuple[Parameter, Variable]]:
    """Add decay of the form ``gradient`` to each gradient; returns the pairs with the gradients to use from here on.

    A parameter's own regularizer (``ParamAttr(regularizer=)``) overrides ``regularization``.
    """
    result = []
    with name_scope("regularization"):
        for param, grad in parameters_and_grads:
            regularizer: WeightDecayRegularizer | None = param.regularizer or regularization
            with op_role(OpRole.OPTIMIZE, [param, grad]):
                result.append((param, _regularized(param, grad, regularizer)))
    return result


def _regularized(param: Parameter, grad: Variable, regularizer: WeightDecayRegularizer | None) -> Variable:
    if regularizer is None or regularizer.form != "gradient":
        return grad
    block = grad.block
    decay = regularizer(param, grad, block)
    total = grad
    if grad.type is VarKind.SELECTED_ROWS and decay.type is not VarKind.SELECTED_ROWS:
        total = block.create_var(names.new_gradient(grad.name), dtype=param.dtype, shape=param.shape)
    block.append_op("sum", {"X": [grad, decay]}, {"Out": total})
    return total


#: attributes of ops are float32
_MOST: Final = float(np.finfo(np.float32).max)


def _checked_coeff(value: float, name: str = "regularization_coeff") -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ProgramError(f"{name} must be a number, not {value!r}")
    if not abs(value) <= _MOST:
        raise ProgramError(f"{name} must be finite, in float32 too, not {value!r}")
    return float(value)


def _not_negative(value: float, name: str = "regularization_coeff") -> float:
    coeff = _checked_coeff(value, name)
    if coeff < 0:
        raise ProgramError(f"{name} must be at least 0, not {value!r}: a proximal step only shrinks")
    return coeff
