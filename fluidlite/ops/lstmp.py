"""`lstmp`: long short-term memory with a projection between the hidden state and the recurrence (Sak, Senior, Beaufays
2014)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import ProgramError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.examples import varied
from fluidlite.ops.grads import maker
from fluidlite.ops.infer import InferContext, grads_without_lod
from fluidlite.ops.lstm import Unit
from fluidlite.ops.recurrent import ACTIVATIONS, check_activations, first_states, size, steps_of
from fluidlite.ops.registry import Case, bool_attr, float_attr, register, string_attr
from fluidlite.ops.segments import array_of, sequences
from fluidlite.values.lod import LoDTensor

_ATTRS: Final = {
    "use_peepholes": bool_attr(default=True, doc="Bias goes on with the weights from the cell to the three gates"),
    "is_reverse": bool_attr(default=False, doc="from the last row of each sequence to the first"),
    "cell_clip": float_attr(0.0, "the cell stays between -cell_clip and cell_clip; 0: anywhere"),
    "proj_clip": float_attr(0.0, "so does the projection"),
    "gate_activation": string_attr("sigmoid", "sigmoid, tanh, relu or identity"),
    "cell_activation": string_attr("tanh", "of the cell on its way out"),
    "candidate_activation": string_attr("tanh", "of what may enter the cell"),
    "proj_activation": string_attr("tanh", "of the projection"),
}


def _unit(weight: Array, bias: Array, attrs: Mapping[str, Any]) -> Unit:
    width, flat = weight.shape[1] // 4, bias.reshape(-1)
    zero = np.zeros(width, weight.dtype)
    checks = flat[4 * width :].reshape(3, width) if attrs["use_peepholes"] else (zero, zero, zero)
    gate, state, candidate = (ACTIVATIONS[attrs[f"{part}_activation"]] for part in ("gate", "cell", "candidate"))
    peepholes = (checks[0], checks[1], checks[2])
    return Unit(weight, flat[: 4 * width], peepholes, gate, state, candidate, attrs["cell_clip"])


def lstmp(
    ctx: KernelContext,
    Input: Any,
    H0: Any,
    C0: Any,
    Weight: Any,
    ProjWeight: Any,
    Bias: Any,
    *,
    is_reverse: bool,
    proj_activation: str,
    proj_clip: float,
    **attrs: Any,
) -> dict[str, Array | LoDTensor]:
    bags = sequences(ctx, Input, "Input")
    steps = steps_of(bags, is_reverse=is_reverse)
    unit, project = _unit(array_of(Weight), array_of(Bias), attrs), array_of(ProjWeight)
    width, columns = project.shape
    projection = first_states(ctx, "H0", H0, bags, columns)[steps.order]
    cell = first_states(ctx, "C0", C0, bags, width)[steps.order]
    gates = bags.rows[steps.rows] + unit.bias
    hiddens, cells, shown = (np.empty((len(gates), width), gates.dtype) for _ in range(3))
    projections = np.empty((len(gates), columns), gates.dtype)
    for part in steps.parts:
        count = size(part)
        hiddens[part], cell, shown[part] = unit.step(gates[part], projection[:count], cell[:count])
        projection = ACTIVATIONS[proj_activation].of(hiddens[part] @ project)
        if proj_clip:
            projection = np.clip(projection, -proj_clip, proj_clip)
        projections[part], cells[part] = projection, cell
    return {
        "Projection": LoDTensor(steps.in_rows(projections), bags.lod),
        "Cell": LoDTensor(steps.in_rows(cells), bags.lod),
        "BatchGate": gates,
        "BatchCellPreAct": shown,
        "BatchHidden": hiddens,
    }


def lstmp_grad(
    ctx: KernelContext,
    H0: Any,
    C0: Any,
    Weight: Any,
    ProjWeight: Any,
    Bias: Any,
    Projection: Any,
    Cell: Any,
    BatchGate: Any,
    BatchCellPreAct: Any,
    BatchHidden: Any,
    Projection_GRAD: Any,
    *,
    is_reverse: bool,
    proj_activation: str,
    proj_clip: float,
    **attrs: Any,
) -> dict[str, Array | LoDTensor]:
    bags = sequences(ctx, Projection, "Projection")
    steps = steps_of(bags, is_reverse=is_reverse)
    weight, bias, project = array_of(Weight), array_of(Bias), array_of(ProjWeight)
    unit = _unit(weight, bias, attrs)
    width, columns = project.shape
    gates, shown, hiddens = array_of(BatchGate), array_of(BatchCellPreAct), array_of(BatchHidden)
    cells, projections = array_of(Cell)[steps.rows], bags.rows[steps.rows]
    old_cells = steps.before(first_states(ctx, "C0", C0, bags, width), cells)
    old_projections = steps.before(first_states(ctx, "H0", H0, bags, columns), projections)
    slopes = ACTIVATIONS[proj_activation].slope(projections)
    if proj_clip:
        slopes = np.where(np.abs(projections) >= proj_clip, 0, slopes)
    upstream = array_of(Projection_GRAD)[steps.rows]
    clipped = np.abs(cells) >= unit.clip if unit.clip else None
    d_gates, d_projected = np.empty_like(gates), np.empty_like(projections)
    d_projection, d_cell = np.zeros((bags.count, columns), gates.dtype), np.zeros((bags.count, width), gates.dtype)
    for part in reversed(steps.parts):
        count = size(part)
        d_projected[part] = (upstream[part] + d_projection[:count]) * slopes[part]
        d_gates[part], d_cell[:count] = unit.step_back(
            gates[part],
            old_cells[part],
            shown[part],
            d_projected[part] @ project.T,
            d_cell[:count],
            None if clipped is None else clipped[part],
        )
        d_projection[:count] = d_gates[part] @ weight.T
    d_bias = [d_gates.sum(axis=0)]
    if attrs["use_peepholes"]:
        _, d_opened, d_kept, d_out = np.split(d_gates, 4, axis=1)
        d_bias += [(d_opened * old_cells).sum(axis=0), (d_kept * old_cells).sum(axis=0), (d_out * cells).sum(axis=0)]
    return {
        "Input@GRAD": LoDTensor(steps.in_rows(d_gates), bags.lod),
        "Weight@GRAD": old_projections.T @ d_gates,
        "ProjWeight@GRAD": hiddens.T @ d_projected,
        "Bias@GRAD": np.concatenate(d_bias).reshape(bias.shape),
        "H0@GRAD": steps.in_sequences(d_projection),
        "C0@GRAD": steps.in_sequences(d_cell),
    }


def _infer(ctx: InferContext) -> None:
    check_activations(ctx, "gate_activation", "cell_activation", "candidate_activation", "proj_activation")
    x, weight, project, bias = ctx.input("Input"), ctx.shape("Weight"), ctx.shape("ProjWeight"), ctx.shape("Bias")
    width, columns = weight[-1] // 4, project[-1]
    if len(ctx.shape("Input")) != 2 or ctx.shape("Input")[1] != 4 * width or -1 < weight[0] != columns:
        raise ctx.error(
            f"Input {list(ctx.shape('Input'))} and Weight {list(weight)} do not fit ProjWeight {list(project)}: they need "
            f"4 * {width} columns, Weight {columns} rows"
        )
    wanted = (7 if ctx.attr("use_peepholes") else 4) * width
    if bias[-1] != wanted:
        raise ctx.error(f"Bias {list(bias)} must hold {wanted} numbers with use_peepholes={ctx.attr('use_peepholes')}")
    if len(ctx.inputs("H0")) != len(ctx.inputs("C0")):
        raise ProgramError(f"op 'lstmp': H0 and C0 are given together or not at all ({ctx.op.origin})")
    rows = ctx.shape("Input")[0]
    ctx.set("Projection", (rows, columns), x.dtype, lod_level=x.lod_level)
    ctx.set("Cell", (rows, width), x.dtype, lod_level=x.lod_level)
    ctx.set("BatchGate", (rows, 4 * width), x.dtype)
    ctx.set("BatchCellPreAct", (rows, width), x.dtype)
    ctx.set("BatchHidden", (rows, width), x.dtype)


def _cases() -> tuple[Case, ...]:
    bias = varied(1, 14, start=200) / 2
    given: dict[str, Any] = {
        "Input": LoDTensor(varied(6, 8), ((0, 2, 2, 5, 6),)),
        "Weight": varied(3, 8, start=100) / 2,
        "ProjWeight": varied(2, 3, start=150) / 2,
        "Bias": bias,
    }
    states = {"H0": varied(4, 3, start=300), "C0": varied(4, 2, start=330)}
    plain = {"use_peepholes": False, "is_reverse": True, "proj_activation": "identity"}
    return (
        Case({**given, **states}, {}, check_grad=(*given, *states)),
        Case({**given, "Bias": bias[:, :8]}, plain, check_grad=tuple(given)),
        Case(given, {"cell_clip": 0.3, "proj_clip": 0.2}, check_grad=tuple(given), note="clipped"),
    )


_GRAD_INPUTS: Final = [
    "BatchCellPreAct",
    "BatchGate",
    "BatchHidden",
    "Bias",
    "C0",
    "Cell",
    "H0",
    "ProjWeight",
    "Projection",
    "Projection@GRAD",
    "Weight",
]
_GRAD_OUTPUTS: Final = ["Bias@GRAD", "C0@GRAD", "H0@GRAD", "Input@GRAD", "ProjWeight@GRAD", "Weight@GRAD"]

register(
    "lstmp",
    doc="As lstm, but a step starts from the Projection [T, columns] of the hidden state before: proj_activation(hidden x "
    "ProjWeight [width, columns]); Weight is [columns, 4 * width], H0 [sequences, columns]. No gradient flows back through "
    "Cell.",
    inputs=["Input", "H0?", "C0?", "Weight", "ProjWeight", "Bias"],
    outputs=["Projection", "Cell", "BatchGate~", "BatchCellPreAct~", "BatchHidden~"],
    attrs=_ATTRS,
    infer=_infer,
    kernel=lstmp,
    grad=maker(_GRAD_INPUTS, _GRAD_OUTPUTS),
    takes_lod=True,
    cases=_cases(),
)
register(
    "lstmp_grad",
    doc="Gradient of lstmp.",
    inputs=[name + "?" if name in ("H0", "C0") else name for name in _GRAD_INPUTS],
    outputs=[name + "?" if name in ("H0@GRAD", "C0@GRAD") else name for name in _GRAD_OUTPUTS],
    attrs=_ATTRS,
    infer=grads_without_lod,
    kernel=lstmp_grad,
    takes_lod=True,
)
