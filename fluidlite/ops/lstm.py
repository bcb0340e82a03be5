"""`lstm`: long short-term memory over sequences whose input projection is done (Hochreiter, Schmidhuber 1997), with
peepholes from the cell to its gates (Gers, Schraudolph, Schmidhuber 2002).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import ProgramError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.examples import varied
from fluidlite.ops.grads import maker
from fluidlite.ops.infer import InferContext, grads_without_lod
from fluidlite.ops.recurrent import (
    ACTIVATIONS,
    Activation,
    check_activations,
    first_states,
    size,
    steps_of,
)
from fluidlite.ops.registry import Case, bool_attr, register, string_attr
from fluidlite.ops.segments import array_of, sequences
from fluidlite.values.lod import LoDTensor

_ATTRS: Final = {
    "use_peepholes": bool_attr(default=True, doc="Bias goes on with the weights from the cell to the three gates"),
    "is_reverse": bool_attr(default=False, doc="from the last row of each sequence to the first"),
    "gate_activation": string_attr("sigmoid", "sigmoid, tanh, relu or identity"),
    "cell_activation": string_attr("tanh", "of the cell on its way out"),
    "candidate_activation": string_attr("tanh", "of what may enter the cell"),
}


class Unit(NamedTuple):
    """The recurrence: parameters, and the activations of its parts."""

    #: (width, 4 * width), columns in the order candidate, input, forget, output
    weight: Array
    #: (4 * width,)
    bias: Array
    #: weights from the cell to the input, forget and output gate, (width,) each; zeros without peepholes
    peepholes: tuple[Array, Array, Array]
    gate: Activation
    state: Activation
    candidate: Activation
    #: the cell stays between -clip and clip; 0: anywhere
    clip: float = 0.0

    @property
    def width(self) -> int:
        """Units of the cell."""
        return len(self.weight)

    def step(self, gates: Array, hidden: Array, cell: Array) -> tuple[Array, Array, Array]:
        """(hidden, cell, activated cell) after one step (n, width); ``gates`` (n, 4 * width) holds the projected input
        and is overwritten by the activated gates."""
        to_input, to_forget, to_output = self.peepholes
        gates += hidden @ self.weight
        entering, opened, kept, out = np.split(gates, 4, axis=1)
        entering[...] = self.candidate.of(entering)
        opened[...] = self.gate.of(opened + cell * to_input)
        kept[...] = self.gate.of(kept + cell * to_forget)
        cell = entering * opened + cell * kept
        if self.clip:
            cell = np.clip(cell, -self.clip, self.clip)
        out[...] = self.gate.of(out + cell * to_output)
        shown = self.state.of(cell)
        return out * shown, cell, shown

    def step_back(
        self, gates: Array, before: Array, shown: Array, d_hidden: Array, d_cell: Array, clipped: Array | None = None
    ) -> tuple[Array, Array]:
        """(gradient of the gates before activation, of the cell before the step), from the gradients of hidden and
        cell after the step; ``before`` is the cell before it, ``clipped`` where the cell after it stood at the limit."""
        to_input, to_forget, to_output = self.peepholes
        entering, opened, kept, out = np.split(gates, 4, axis=1)
        d_out = d_hidden * shown * self.gate.slope(out)
        d_cell = d_cell + d_hidden * out * self.state.slope(shown) + d_out * to_output
        if clipped is not None:
            d_cell = np.where(clipped, 0, d_cell)
        d_entering = d_cell * opened * self.candidate.slope(entering)
        d_opened = d_cell * entering * self.gate.slope(opened)
        d_kept = d_cell * before * self.gate.slope(kept)
        d_gates = np.concatenate([d_entering, d_opened, d_kept, d_out], axis=1)
        return d_gates, d_cell * kept + d_opened * to_input + d_kept * to_forget


def unit_of(weight: Array, bias: Array, attrs: Mapping[str, Any]) -> Unit:
    """The recurrence of an op from its parameters and its attributes by name."""
    width, flat = len(weight), bias.reshape(-1)
    zero = np.zeros(width, weight.dtype)
    checks = flat[4 * width :].reshape(3, width) if attrs["use_peepholes"] else (zero, zero, zero)
    gate, state, candidate = (ACTIVATIONS[attrs[f"{part}_activation"]] for part in ("gate", "cell", "candidate"))
    return Unit(weight, flat[: 4 * width], (checks[0], checks[1], checks[2]), gate, state, candidate)


def lstm(
    ctx: KernelContext,
    Input: Any,
    H0: Any,
    C0: Any,
    Weight: Any,
    Bias: Any,
    *,
    is_reverse: bool,
    **attrs: Any,
) -> dict[str, Array | LoDTensor]:
    bags = sequences(ctx, Input, "Input")
    steps = steps_of(bags, is_reverse=is_reverse)
    unit = unit_of(array_of(Weight), array_of(Bias), attrs)
    hidden = first_states(ctx, "H0", H0, bags, unit.width)[steps.order]
    cell = first_states(ctx, "C0", C0, bags, unit.width)[steps.order]
    gates = bags.rows[steps.rows] + unit.bias
    hiddens, cells, shown = (np.empty((len(gates), unit.width), gates.dtype) for _ in range(3))
    for part in steps.parts:
        count = size(part)
        hidden, cell, shown[part] = unit.step(gates[part], hidden[:count], cell[:count])
        hiddens[part], cells[part] = hidden, cell
    return {
        "Hidden": LoDTensor(steps.in_rows(hiddens), bags.lod),
        "Cell": LoDTensor(steps.in_rows(cells), bags.lod),
        "BatchGate": gates,
        "BatchCellPreAct": shown,
    }


def lstm_grad(
    ctx: KernelContext,
    Input: Any,
    H0: Any,
    C0: Any,
    Weight: Any,
    Bias: Any,
    Hidden: Any,
    Cell: Any,
    BatchGate: Any,
    BatchCellPreAct: Any,
    Hidden_GRAD: Any,
    *,
    use_peepholes: bool,
    is_reverse: bool,
    **attrs: Any,
) -> dict[str, Array | LoDTensor]:
    bags = sequences(ctx, Input, "Input")
    steps = steps_of(bags, is_reverse=is_reverse)
    weight, bias = array_of(Weight), array_of(Bias)
    unit = unit_of(weight, bias, {**attrs, "use_peepholes": use_peepholes})
    gates, shown, upstream = array_of(BatchGate), array_of(BatchCellPreAct), array_of(Hidden_GRAD)[steps.rows]
    cells = array_of(Cell)[steps.rows]
    old_cells = steps.before(first_states(ctx, "C0", C0, bags, unit.width), cells)
    old_hiddens = steps.before(first_states(ctx, "H0", H0, bags, unit.width), array_of(Hidden)[steps.rows])
    d_gates = np.empty_like(gates)
    d_hidden, d_cell = (np.zeros((bags.count, unit.width), gates.dtype) for _ in range(2))
    for part in reversed(steps.parts):
        count = size(part)
        d_gates[part], d_cell[:count] = unit.step_back(
            gates[part], old_cells[part], shown[part], upstream[part] + d_hidden[:count], d_cell[:count]
        )
        d_hidden[:count] = d_gates[part] @ weight.T
    d_bias = [d_gates.sum(axis=0)]
    if use_peepholes:
        _, d_opened, d_kept, d_out = np.split(d_gates, 4, axis=1)
        d_bias += [(d_opened * old_cells).sum(axis=0), (d_kept * old_cells).sum(axis=0), (d_out * cells).sum(axis=0)]
    return {
        "Input@GRAD": LoDTensor(steps.in_rows(d_gates), bags.lod),
        "Weight@GRAD": old_hiddens.T @ d_gates,
        "Bias@GRAD": np.concatenate(d_bias).reshape(bias.shape),
        "H0@GRAD": steps.in_sequences(d_hidden),
        "C0@GRAD": steps.in_sequences(d_cell),
    }


def _infer(ctx: InferContext) -> None:
    check_activations(ctx, "gate_activation", "cell_activation", "candidate_activation")
    x, weight, bias = ctx.input("Input"), ctx.shape("Weight"), ctx.shape("Bias")
    width = weight[-1] // 4
    if len(ctx.shape("Input")) != 2 or len(weight) != 2 or ctx.shape("Input")[1] != 4 * width:
        raise ctx.error(f"Input {list(ctx.shape('Input'))} must have the 4 * {width} columns of Weight {list(weight)}")
    wanted = (7 if ctx.attr("use_peepholes") else 4) * width
    if bias[-1] != wanted:
        raise ctx.error(f"Bias {list(bias)} must hold {wanted} numbers with use_peepholes={ctx.attr('use_peepholes')}")
    if len(ctx.inputs("H0")) != len(ctx.inputs("C0")):
        raise ProgramError(f"op 'lstm': H0 and C0 are given together or not at all ({ctx.op.origin})")
    rows = ctx.shape("Input")[0]
    for name in ("Hidden", "Cell"):
        ctx.set(name, (rows, width), x.dtype, lod_level=x.lod_level)
    ctx.set("BatchGate", (rows, 4 * width), x.dtype)
    ctx.set("BatchCellPreAct", (rows, width), x.dtype)


def _cases() -> tuple[Case, ...]:
    x = LoDTensor(varied(6, 8), ((0, 2, 2, 5, 6),))
    weight, bias = varied(2, 8, start=100) / 2, varied(1, 14, start=200) / 2
    states = varied(2, 4, 2, start=300)
    first = {"H0": states[0], "C0": states[1]}
    given = ("Input", "Weight", "Bias")
    return (
        Case(
            {
                "Input": LoDTensor(np.log([[3.0, 1.0, 1.0, 1.0], [1.0, 1.0, 3.0, 1.0]]), ((0, 2),)),
                "Weight": np.zeros((1, 4)),
                "Bias": np.zeros((1, 4)),
            },
            {"use_peepholes": False, "cell_activation": "identity"},
            {
                "Hidden": LoDTensor(np.array([[0.2], [0.15]]), ((0, 2),)),
                "Cell": LoDTensor(np.array([[0.4], [0.3]]), ((0, 2),)),
            },
            check_grad=given,
            note="the first row lets tanh(log 3) = 0.8 in by half, the second keeps 3/4 of it",
        ),
        Case({"Input": x, "Weight": weight, "Bias": bias, **first}, {}, check_grad=(*given, "H0", "C0")),
        Case({"Input": x, "Weight": weight, "Bias": bias}, {"is_reverse": True}, check_grad=given),
        Case(
            {"Input": x, "Weight": weight, "Bias": bias[:, :8]},
            {"use_peepholes": False, "gate_activation": "tanh", "candidate_activation": "identity"},
            check_grad=given,
        ),
    )


_GRAD_INPUTS: Final = ["BatchCellPreAct", "BatchGate", "Bias", "C0", "Cell", "H0", "Hidden", "Hidden@GRAD"]
_GRAD_OUTPUTS: Final = ["Bias@GRAD", "C0@GRAD", "H0@GRAD", "Input@GRAD", "Weight@GRAD"]

register(
    "lstm",
    doc="Hidden and Cell [T, width] of each row of Input [T, 4 * width], which holds the projections of candidate, input, "
    "forget and output gate; Weight [width, 4 * width] adds those of the hidden state before, Bias [1, 4 * width]. With "
    "use_peepholes Bias goes on with the weights [3 * width] from the cell to the gates. H0 and C0 [sequences, width] "
    "are the states before the first rows. As in Fluid no gradient flows back through Cell.",
    inputs=["Input", "H0?", "C0?", "Weight", "Bias"],
    outputs=["Hidden", "Cell", "BatchGate~", "BatchCellPreAct~"],
    attrs=_ATTRS,
    infer=_infer,
    kernel=lstm,
    grad=maker([*_GRAD_INPUTS, "Input", "Weight"], _GRAD_OUTPUTS),
    takes_lod=True,
    cases=_cases(),
)
register(
    "lstm_grad",
    doc="Gradient of lstm.",
    inputs=[*(name + "?" if name in ("H0", "C0") else name for name in _GRAD_INPUTS), "Input", "Weight"],
    outputs=[name + "?" if name in ("H0@GRAD", "C0@GRAD") else name for name in _GRAD_OUTPUTS],
    attrs=_ATTRS,
    infer=grads_without_lod,
    kernel=lstm_grad,
    takes_lod=True,
)
