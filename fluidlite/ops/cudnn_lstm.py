"""`cudnn_lstm`: layers of LSTM over padded sequences (steps, batch, ...), in one direction or both, all weights in one vector.

The vector is laid out as cuDNN does: for each layer, and each direction in it, the matrices (width, inputs) of input, forget,
candidate and output gate, then those from the hidden state (width, width); after all matrices the biases in the same order,
those of the inputs and those of the hidden state apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.ops.context import KernelContext
from fluidlite.ops.examples import varied
from fluidlite.ops.grads import maker
from fluidlite.ops.infer import InferContext, grads_like_forward
from fluidlite.ops.registry import Case, bool_attr, float_attr, int_attr, register
from fluidlite.ops.special import sigmoid

_ATTRS: Final = {
    "max_len": int_attr(20, "accepted, without effect"),
    "dropout_prob": float_attr(0.0, "what share of a layer's outputs the next one does not see while training"),
    "is_bidirec": bool_attr(default=False, doc="each layer also runs backwards over the steps"),
    "input_size": int_attr(10),
    "hidden_size": int_attr(100),
    "num_layers": int_attr(1),
    "is_test": bool_attr(default=False),
    "seed": int_attr(-1, "of the dropout; -1: the program's"),
}


class _Weights(NamedTuple):
    """One direction of a layer: (4 * width, inputs), (4 * width, width), (4 * width,), gates in the vector's order."""

    inputs: Array
    hidden: Array
    bias: Array


class _Shape(NamedTuple):
    """How many numbers of which kind the vector holds."""

    inputs: int
    width: int
    layers: int
    directions: int

    def matrices(self) -> Iterator[tuple[int, int]]:
        """(rows, columns) of each matrix of four gates, in order."""
        for layer in range(self.layers):
            columns = self.inputs if layer == 0 else self.width * self.directions
            for _ in range(self.directions):
                yield 4 * self.width, columns
                yield 4 * self.width, self.width

    def size(self) -> int:
        biases = 8 * self.width * self.layers * self.directions
        return sum(rows * columns for rows, columns in self.matrices()) + biases

    def cut(self, vector: Array) -> list[_Weights]:
        """The weights of each direction of each layer: views of the vector."""
        matrices, start = [], 0
        for rows, columns in self.matrices():
            matrices.append(vector[start : start + rows * columns].reshape(rows, columns))
            start += rows * columns
        biases = vector[start:].reshape(-1, 2, 4 * self.width)
        return [_Weights(i, h, b.sum(axis=0)) for i, h, b in zip(matrices[::2], matrices[1::2], biases, strict=True)]


class _Pass(NamedTuple):
    """One direction of a layer after it ran; everything is in the order of running."""

    x: Array
    gates: Array
    hidden: Array
    cells: Array
    first_hidden: Array
    first_cell: Array


def _run(weights: _Weights, x: Array, hidden: Array, cell: Array) -> _Pass:
    gates = x @ weights.inputs.T + weights.bias
    hiddens, cells = (np.empty((len(x), *hidden.shape), x.dtype) for _ in range(2))
    first_hidden, first_cell = hidden, cell
    for step in range(len(x)):
        gates[step] += hidden @ weights.hidden.T
        opened, kept, entering, out = np.split(gates[step], 4, axis=-1)
        for gate in (opened, kept, out):
            gate[...] = sigmoid(gate)
        entering[...] = np.tanh(entering)
        cell = cells[step] = kept * cell + opened * entering
        hidden = hiddens[step] = out * np.tanh(cell)
    return _Pass(x, gates, hiddens, cells, first_hidden, first_cell)


def _run_back(
    weights: _Weights, ran: _Pass, d_out: Array, d_hidden: Array, d_cell: Array
) -> tuple[Array, _Weights, Array, Array]:
    """(gradient of x, of the weights, of the first hidden state and cell), from those of the outputs and last states."""
    d_gates = np.empty_like(ran.gates)
    for step in reversed(range(len(ran.x))):
        opened, kept, entering, out = np.split(ran.gates[step], 4, axis=-1)
        before = ran.cells[step - 1] if step else ran.first_cell
        shown, d_hidden = np.tanh(ran.cells[step]), d_hidden + d_out[step]
        d_cell = d_cell + d_hidden * out * (1 - shown * shown)
        d_gates[step] = np.concatenate(
            [
                d_cell * entering * opened * (1 - opened),
                d_cell * before * kept * (1 - kept),
                d_cell * opened * (1 - entering * entering),
                d_hidden * shown * out * (1 - out),
            ],
            axis=-1,
        )
        d_hidden, d_cell = d_gates[step] @ weights.hidden, d_cell * kept
    flat = d_gates.reshape(-1, d_gates.shape[-1])
    old = np.concatenate([ran.first_hidden[None], ran.hidden[:-1]]).reshape(len(flat), -1)
    gradients = _Weights(flat.T @ ran.x.reshape(len(flat), -1), flat.T @ old, flat.sum(axis=0))
    return d_gates @ weights.inputs, gradients, d_hidden, d_cell


class _Network(NamedTuple):
    """A run of all layers: the passes by layer and direction, the kept parts of the inputs of later layers, the output."""

    passes: list[_Pass]
    masks: list[Array | None]
    out: Array


def _forward(ctx: KernelContext, x: Array, h: Array, c: Array, weights: Sequence[_Weights], attrs: Any) -> _Network:
    directions = 2 if attrs["is_bidirec"] else 1
    passes: list[_Pass] = []
    masks: list[Array | None] = []
    for layer in range(attrs["num_layers"]):
        mask = _mask(ctx, x, layer, attrs)
        x = x if mask is None else x * mask
        masks.append(mask)
        for direction in range(directions):
            at = layer * directions + direction
            passes.append(_run(weights[at], x[::-1] if direction else x, h[at], c[at]))
        x = np.concatenate([_turned(ran.hidden, at) for at, ran in enumerate(passes[-directions:])], axis=-1)
    return _Network(passes, masks, x)


def _turned(steps: Array, direction: int) -> Array:
    return steps[::-1] if direction else steps


def _mask(ctx: KernelContext, x: Array, layer: int, attrs: Any) -> Array | None:
    """What a layer sees of the one before, by W and the run alone, so that the gradient finds the same."""
    if layer == 0 or attrs["is_test"] or not attrs["dropout_prob"]:
        return None
    generator = ctx.generator(max(attrs["seed"], 0), f"{ctx.op.inputs['W'][0]}.{layer}")
    kept: Array = generator.random(x.shape) >= attrs["dropout_prob"]
    mask: Array = (kept / (1 - attrs["dropout_prob"])).astype(x.dtype)
    return mask


def cudnn_lstm(
    ctx: KernelContext, Input: Array, InitH: Array, InitC: Array, W: Array, **attrs: Any
) -> dict[str, Array]:
    ran = _forward(ctx, Input, InitH, InitC, _shape(attrs).cut(W), attrs)
    return {
        "Out": ran.out,
        "last_h": np.stack([each.hidden[-1] for each in ran.passes]),
        "last_c": np.stack([each.cells[-1] for each in ran.passes]),
    }


def cudnn_lstm_grad(
    ctx: KernelContext,
    Input: Array,
    InitH: Array,
    InitC: Array,
    W: Array,
    Out_GRAD: Array | None,
    last_h_GRAD: Array | None,
    last_c_GRAD: Array | None,
    **attrs: Any,
) -> dict[str, Array]:
    weights = _shape(attrs).cut(W)
    ran = _forward(ctx, Input, InitH, InitC, weights, attrs)
    directions = 2 if attrs["is_bidirec"] else 1
    d_x = np.zeros_like(ran.out) if Out_GRAD is None else Out_GRAD
    d_h = np.zeros_like(InitH) if last_h_GRAD is None else last_h_GRAD.copy()
    d_c = np.zeros_like(InitC) if last_c_GRAD is None else last_c_GRAD.copy()
    d_weights: list[_Weights] = []
    for layer in reversed(range(attrs["num_layers"])):
        parts = np.split(d_x, directions, axis=-1)
        found = []
        for direction, part in enumerate(parts):
            at = layer * directions + direction
            back = _run_back(weights[at], ran.passes[at], _turned(part, direction), d_h[at], d_c[at])
            d_x, gradients, d_h[at], d_c[at] = _turned(back[0], direction), *back[1:]
            found.append((d_x, gradients))
        d_x = np.sum([each for each, _ in found], axis=0)
        mask = ran.masks[layer]
        d_x = d_x if mask is None else d_x * mask
        d_weights[:0] = [gradients for _, gradients in found]
    matrices = [matrix.reshape(-1) for each in d_weights for matrix in (each.inputs, each.hidden)]
    biases = [each.bias for each in d_weights for _ in range(2)]
    return {"Input@GRAD": d_x, "InitH@GRAD": d_h, "InitC@GRAD": d_c, "W@GRAD": np.concatenate([*matrices, *biases])}


def _shape(attrs: Any) -> _Shape:
    return _Shape(attrs["input_size"], attrs["hidden_size"], attrs["num_layers"], 2 if attrs["is_bidirec"] else 1)


def _infer(ctx: InferContext) -> None:
    x, weights, states = ctx.input("Input"), ctx.shape("W"), ctx.shape("InitH")
    shape = _shape({name: ctx.attr(name) for name in _ATTRS})
    if len(ctx.shape("Input")) != 3 or ctx.shape("Input")[2] not in (-1, shape.inputs):
        raise ctx.error(f"Input {list(ctx.shape('Input'))} must be (steps, batch, {shape.inputs})")
    if weights not in ((-1,), (shape.size(),)):
        raise ctx.error(f"W {list(weights)} must hold {shape.size()} numbers")
    if len(states) != 3 or states[0] not in (-1, shape.layers * shape.directions) or states[2] not in (-1, shape.width):
        raise ctx.error(f"InitH {list(states)} must be ({shape.layers * shape.directions}, batch, {shape.width})")
    steps, batch, _ = ctx.shape("Input")
    ctx.set("Out", (steps, batch, shape.width * shape.directions), x.dtype)
    for name in ("last_h", "last_c"):
        ctx.set(name, states, x.dtype)


def _case(layers: int, *, both: bool) -> Case:
    shape = _Shape(2, 3, layers, 2 if both else 1)
    states = layers * shape.directions
    inputs = {
        "Input": varied(4, 2, 2),
        "InitH": varied(states, 2, 3, start=50),
        "InitC": varied(states, 2, 3, start=90),
        "W": varied(shape.size(), start=200) / 2,
    }
    attrs = {"input_size": 2, "hidden_size": 3, "num_layers": layers, "is_bidirec": both}
    return Case(inputs, attrs, check_grad=tuple(inputs))


_LOG3 = np.log(3.0)

register(
    "cudnn_lstm",
    doc="Out (steps, batch, directions * hidden_size), last_h and last_c (layers * directions, batch, hidden_size) of an LSTM "
    "over Input (steps, batch, input_size) from the states InitH and InitC; W holds all weights, laid out as cuDNN does.",
    inputs=["Input", "InitH", "InitC", "W", "Cache?"],
    outputs=["Out", "last_h", "last_c"],
    attrs=_ATTRS,
    infer=_infer,
    kernel=cudnn_lstm,
    grad=maker(
        ["Cache", "InitC", "InitH", "Input", "Out", "Out@GRAD", "W", "last_c@GRAD", "last_h@GRAD"],
        ["InitC@GRAD", "InitH@GRAD", "Input@GRAD", "W@GRAD"],
    ),
    cases=(
        Case(
            {
                "Input": np.array([[[_LOG3]]]),
                "InitH": np.zeros((1, 1, 1)),
                "InitC": np.ones((1, 1, 1)),
                "W": np.array([0.0, 1.0, 1.0, 0.0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            },
            {"input_size": 1, "hidden_size": 1},
            {"last_c": np.array([[[0.75 + 0.5 * 0.8]]]), "Out": np.array([[[0.5 * np.tanh(1.15)]]])},
            note="the forget gate keeps 3/4 of the cell, the input gate lets half of tanh(log 3) = 0.8 in",
        ),
        _case(1, both=False),
        _case(2, both=True),
    ),
)
register(
    "cudnn_lstm_grad",
    doc="Gradient of cudnn_lstm; it runs the network again.",
    inputs=["Cache?", "InitC", "InitH", "Input", "Out", "Out@GRAD", "W", "last_c@GRAD", "last_h@GRAD"],
    outputs=["InitC@GRAD", "InitH@GRAD", "Input@GRAD", "W@GRAD"],
    attrs=_ATTRS,
    infer=grads_like_forward,
    kernel=cudnn_lstm_grad,
)
