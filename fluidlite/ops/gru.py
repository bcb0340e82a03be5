"""Gated recurrent units (Cho et al. 2014): `gru` over sequences whose input projection is done, `gru_unit` for one step."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import ProgramError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.examples import varied
from fluidlite.ops.grads import maker
from fluidlite.ops.infer import InferContext, grads_like_forward, grads_without_lod
from fluidlite.ops.recurrent import (
    ACTIVATIONS,
    Activation,
    check_activations,
    first_states,
    size,
    steps_of,
)
from fluidlite.ops.registry import Case, bool_attr, int_attr, register, string_attr
from fluidlite.ops.segments import array_of, sequences
from fluidlite.values.lod import LoDTensor

_ORIGIN_MODE: Final = bool_attr(
    default=False, doc="the update gate says how much of the old state stays (Cho et al. 2014), not how much is new"
)
_GRU_ATTRS: Final = {
    "activation": string_attr("tanh", "of the candidate: sigmoid, tanh, relu or identity"),
    "gate_activation": string_attr("sigmoid"),
    "is_reverse": bool_attr(default=False, doc="from the last row of each sequence to the first"),
    "origin_mode": _ORIGIN_MODE,
}
#: `gru_unit` numbers the activations
_NUMBERED: Final = tuple(ACTIVATIONS)
_UNIT_ATTRS: Final = {
    "activation": int_attr(_NUMBERED.index("tanh"), "of the candidate: 0 identity, 1 sigmoid, 2 tanh, 3 relu"),
    "gate_activation": int_attr(_NUMBERED.index("sigmoid")),
    "origin_mode": _ORIGIN_MODE,
}


class Unit(NamedTuple):
    """The recurrence: parameters, and the activations of its parts."""

    #: (width, 2 * width): from the state to the update and the reset gate
    to_gates: Array
    #: (width, width): from the reset state to the candidate
    to_candidate: Array
    candidate: Activation
    gate: Activation
    origin_mode: bool

    @property
    def width(self) -> int:
        """Units of the state."""
        return len(self.to_candidate)

    def step(self, gates: Array, hidden: Array) -> tuple[Array, Array]:
        """(hidden state after one step, reset state) (n, width); ``gates`` (n, 3 * width) holds the projected input
        and is overwritten by the activated gates update, reset and the candidate."""
        both, candidate = gates[:, : 2 * self.width], gates[:, 2 * self.width :]
        both[...] = self.gate.of(both + hidden @ self.to_gates)
        update, reset = np.split(both, 2, axis=1)
        kept = reset * hidden
        candidate[...] = self.candidate.of(candidate + kept @ self.to_candidate)
        old, new = (hidden, candidate) if self.origin_mode else (candidate, hidden)
        return new + update * (old - new), kept

    def step_back(self, gates: Array, hidden: Array, d_out: Array) -> tuple[Array, Array]:
        """(gradient of the gates before activation, of the hidden state before the step)."""
        update, reset, candidate = np.split(gates, 3, axis=1)
        share, sign = (1 - update, -1) if self.origin_mode else (update, 1)
        d_candidate = d_out * share * self.candidate.slope(candidate)
        d_update = d_out * (candidate - hidden) * sign * self.gate.slope(update)
        d_kept = d_candidate @ self.to_candidate.T
        d_reset = d_kept * hidden * self.gate.slope(reset)
        d_both = np.concatenate([d_update, d_reset], axis=1)
        d_hidden = d_out * (1 - share) + d_kept * reset + d_both @ self.to_gates.T
        return np.concatenate([d_both, d_candidate], axis=1), d_hidden

    def weight_grad(self, d_gates: Array, hidden: Array, kept: Array) -> Array:
        """The gradient of Weight from those of the gates (n, 3 * width) and the states that they saw."""
        parts = hidden.T @ d_gates[:, : 2 * self.width], kept.T @ d_gates[:, 2 * self.width :]
        return np.concatenate([part.reshape(-1) for part in parts]).reshape(self.width, 3 * self.width)


def unit_of(weight: Array, candidate: str, gate: str, origin_mode: bool) -> Unit:
    """The recurrence of an op. Weight (width, 3 * width) holds two matrices one after the other, not side by side."""
    width, flat = len(weight), weight.reshape(-1)
    to_gates, to_candidate = flat[: 2 * width * width], flat[2 * width * width :]
    return Unit(
        to_gates.reshape(width, 2 * width),
        to_candidate.reshape(width, width),
        ACTIVATIONS[candidate],
        ACTIVATIONS[gate],
        origin_mode,
    )


def gru(
    ctx: KernelContext,
    Input: Any,
    H0: Any,
    Weight: Any,
    Bias: Any,
    *,
    activation: str,
    gate_activation: str,
    is_reverse: bool,
    origin_mode: bool,
) -> dict[str, Array | LoDTensor]:
    bags = sequences(ctx, Input, "Input")
    steps = steps_of(bags, is_reverse=is_reverse)
    unit = unit_of(array_of(Weight), activation, gate_activation, origin_mode)
    hidden = first_states(ctx, "H0", H0, bags, unit.width)[steps.order]
    gates = bags.rows[steps.rows]
    if Bias is not None:
        gates += array_of(Bias).reshape(-1)
    hiddens, kept = (np.empty((len(gates), unit.width), gates.dtype) for _ in range(2))
    for part in steps.parts:
        hidden, kept[part] = unit.step(gates[part], hidden[: size(part)])
        hiddens[part] = hidden
    return {
        "Hidden": LoDTensor(steps.in_rows(hiddens), bags.lod),
        "BatchGate": gates,
        "BatchResetHiddenPrev": kept,
        "BatchHidden": hiddens,
    }


def gru_grad(
    ctx: KernelContext,
    Input: Any,
    H0: Any,
    Weight: Any,
    Bias: Any,
    BatchGate: Any,
    BatchResetHiddenPrev: Any,
    BatchHidden: Any,
    Hidden_GRAD: Any,
    *,
    activation: str,
    gate_activation: str,
    is_reverse: bool,
    origin_mode: bool,
) -> dict[str, Array | LoDTensor]:
    bags = sequences(ctx, Input, "Input")
    steps = steps_of(bags, is_reverse=is_reverse)
    unit = unit_of(array_of(Weight), activation, gate_activation, origin_mode)
    gates, upstream = array_of(BatchGate), array_of(Hidden_GRAD)[steps.rows]
    before = steps.before(first_states(ctx, "H0", H0, bags, unit.width), array_of(BatchHidden))
    d_gates = np.empty_like(gates)
    d_hidden = np.zeros((bags.count, unit.width), gates.dtype)
    for part in reversed(steps.parts):
        count = size(part)
        d_gates[part], d_hidden[:count] = unit.step_back(gates[part], before[part], upstream[part] + d_hidden[:count])
    grads: dict[str, Array | LoDTensor] = {
        "Input@GRAD": LoDTensor(steps.in_rows(d_gates), bags.lod),
        "Weight@GRAD": unit.weight_grad(d_gates, before, array_of(BatchResetHiddenPrev)),
        "H0@GRAD": steps.in_sequences(d_hidden),
    }
    if Bias is not None:
        grads["Bias@GRAD"] = d_gates.sum(axis=0).reshape(array_of(Bias).shape)
    return grads


def gru_unit(
    ctx: KernelContext,
    Input: Array,
    HiddenPrev: Array,
    Weight: Array,
    Bias: Array | None,
    *,
    activation: int,
    gate_activation: int,
    origin_mode: bool,
) -> dict[str, Array]:
    unit = unit_of(Weight, _NUMBERED[activation], _NUMBERED[gate_activation], origin_mode)
    gates = Input.copy() if Bias is None else Input + Bias.reshape(-1)
    hidden, kept = unit.step(gates, HiddenPrev)
    return {"Hidden": hidden, "Gate": gates, "ResetHiddenPrev": kept}


def gru_unit_grad(
    ctx: KernelContext,
    HiddenPrev: Array,
    Weight: Array,
    Bias: Array | None,
    Gate: Array,
    ResetHiddenPrev: Array,
    Hidden_GRAD: Array,
    *,
    activation: int,
    gate_activation: int,
    origin_mode: bool,
) -> dict[str, Array]:
    unit = unit_of(Weight, _NUMBERED[activation], _NUMBERED[gate_activation], origin_mode)
    d_gates, d_hidden = unit.step_back(Gate, HiddenPrev, Hidden_GRAD)
    grads = {
        "Input@GRAD": d_gates,
        "HiddenPrev@GRAD": d_hidden,
        "Weight@GRAD": unit.weight_grad(d_gates, HiddenPrev, ResetHiddenPrev),
    }
    if Bias is not None:
        grads["Bias@GRAD"] = d_gates.sum(axis=0).reshape(Bias.shape)
    return grads


def _width(ctx: InferContext) -> int:
    """The width of the state, from shapes that fit each other."""
    x, weight = ctx.shape("Input"), ctx.shape("Weight")
    width = weight[-1] // 3
    if len(x) != 2 or len(weight) != 2 or weight[1] != 3 * width or x[1] != weight[1] or weight[0] not in (width, -1):
        raise ctx.error(f"Input {list(x)} must have the columns of Weight {list(weight)}, [width, 3 * width]")
    if ctx.inputs("Bias") and ctx.shape("Bias")[-1] != 3 * width:
        raise ctx.error(f"Bias {list(ctx.shape('Bias'))} must hold {3 * width} numbers")
    return width


def _infer_gru(ctx: InferContext) -> None:
    check_activations(ctx, "activation", "gate_activation")
    x, width, rows = ctx.input("Input"), _width(ctx), ctx.shape("Input")[0]
    ctx.set("Hidden", (rows, width), x.dtype, lod_level=x.lod_level)
    for name in ("BatchHidden", "BatchResetHiddenPrev"):
        ctx.set(name, (rows, width), x.dtype)
    ctx.set("BatchGate", (rows, 3 * width), x.dtype)


def _infer_unit(ctx: InferContext) -> None:
    for name in ("activation", "gate_activation"):
        if not 0 <= ctx.attr(name) < len(_NUMBERED):
            raise ProgramError(f"op 'gru_unit': {name} {ctx.attr(name)} is not 0 to 3 ({ctx.op.origin})")
    x, width, rows = ctx.input("Input"), _width(ctx), ctx.shape("Input")[0]
    if ctx.shape("HiddenPrev")[1] != width:
        raise ctx.error(f"HiddenPrev {list(ctx.shape('HiddenPrev'))} must have {width} columns")
    for name in ("Hidden", "ResetHiddenPrev"):
        ctx.set(name, (rows, width), x.dtype)
    ctx.set("Gate", (rows, 3 * width), x.dtype)


_ROWS = varied(6, 6)
_X = LoDTensor(_ROWS, ((0, 2, 2, 5, 6),))
_PARAMETERS = {"Weight": varied(2, 6, start=100) / 2, "Bias": varied(1, 6, start=200) / 2}
_STATES = varied(4, 2, start=300)
_MORE_STATES = varied(6, 2, start=400)
#: update 1/2, reset 1/2, candidate tanh(log 3) = 0.8, from a weight of zeros
_PLAIN = {"Input": np.log([[1.0, 1.0, 3.0]]), "Weight": np.zeros((1, 3))}
_GRU_GRADS = ["Bias@GRAD", "H0@GRAD", "Input@GRAD", "Weight@GRAD"]
_UNIT_GRADS = ["Bias@GRAD", "HiddenPrev@GRAD", "Input@GRAD", "Weight@GRAD"]
_GRU_STATE = ["BatchGate", "BatchHidden", "BatchResetHiddenPrev"]

register(
    "gru",
    doc="Hidden [T, width] of each row of Input [T, 3 * width], which holds the projections of update gate, reset gate and "
    "candidate. Weight [width, 3 * width] holds a [width, 2 * width] matrix for the gates and after it a [width, "
    "width] one for the candidate; Bias [1, 3 * width]. H0 [sequences, width] are the states before the first rows.",
    inputs=["Input", "H0?", "Weight", "Bias?"],
    outputs=["BatchGate~", "BatchResetHiddenPrev~", "BatchHidden~", "Hidden"],
    attrs=_GRU_ATTRS,
    infer=_infer_gru,
    kernel=gru,
    grad=maker([*_GRU_STATE, "Bias", "H0", "Hidden", "Hidden@GRAD", "Input", "Weight"], _GRU_GRADS),
    takes_lod=True,
    cases=(
        Case(
            {**_PLAIN, "Input": LoDTensor(np.repeat(_PLAIN["Input"], 2, axis=0), ((0, 2),)), "H0": np.array([[1.0]])},
            {"origin_mode": True},
            {"Hidden": LoDTensor(np.array([[0.9], [0.85]]), ((0, 2),))},
            check_grad=("Input", "Weight", "H0"),
        ),
        Case({"Input": _X, **_PARAMETERS, "H0": _STATES}, {}, check_grad=("Input", "Weight", "Bias", "H0")),
        Case(
            {"Input": _X, **_PARAMETERS},
            {"is_reverse": True, "activation": "sigmoid", "gate_activation": "tanh"},
            check_grad=("Input", "Weight", "Bias"),
        ),
    ),
)
register(
    "gru_grad",
    doc="Gradient of gru.",
    inputs=[*_GRU_STATE, "Bias?", "H0?", "Hidden", "Hidden@GRAD", "Input", "Weight"],
    outputs=["Bias@GRAD?", "H0@GRAD?", "Input@GRAD", "Weight@GRAD"],
    attrs=_GRU_ATTRS,
    infer=grads_without_lod,
    kernel=gru_grad,
    takes_lod=True,
)
register(
    "gru_unit",
    doc="Hidden [N, width] after one step of a gru from HiddenPrev [N, width] on Input [N, 3 * width]. Gate holds the "
    "activated gates and the candidate, ResetHiddenPrev the old state times the reset gate.",
    inputs=["Input", "HiddenPrev", "Weight", "Bias?"],
    outputs=["Gate~", "ResetHiddenPrev~", "Hidden"],
    attrs=_UNIT_ATTRS,
    infer=_infer_unit,
    kernel=gru_unit,
    grad=maker(["Bias", "Gate", "Hidden@GRAD", "HiddenPrev", "Input", "ResetHiddenPrev", "Weight"], _UNIT_GRADS),
    cases=(
        Case(
            {**_PLAIN, "HiddenPrev": np.array([[1.0]])},
            {},
            {
                "Hidden": np.array([[0.9]]),
                "Gate": np.array([[0.5, 0.5, 0.8]]),
                "ResetHiddenPrev": np.array([[0.5]]),
            },
            check_grad=("Input", "HiddenPrev", "Weight"),
        ),
        *(
            Case(
                {"Input": _ROWS, "HiddenPrev": _MORE_STATES, **_PARAMETERS},
                {"origin_mode": origin_mode},
                check_grad=("Input", "HiddenPrev", "Weight", "Bias"),
            )
            for origin_mode in (False, True)
        ),
    ),
)
register(
    "gru_unit_grad",
    doc="Gradient of gru_unit.",
    inputs=["Bias?", "Gate", "Hidden@GRAD", "HiddenPrev", "Input", "ResetHiddenPrev", "Weight"],
    outputs=["Bias@GRAD?", "HiddenPrev@GRAD", "Input@GRAD", "Weight@GRAD"],
    attrs=_UNIT_ATTRS,
    infer=grads_like_forward,
    kernel=gru_unit_grad,
)
