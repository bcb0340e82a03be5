"""``fluid.contrib.layers.basic_lstm`` and ``basic_gru``: stacked recurrent layers over padded batches, of plain layers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from fluidlite import layers
from fluidlite.framework import Variable
from fluidlite.layers.rnn_cells import Activation, GRUCell, LSTMCell
from fluidlite.param_attr import ParamAttr


class BasicLSTMUnit:
    """``unit(input, pre_hidden, pre_cell)`` gives hidden and cell of a step: [N, hidden_size] each.

    i, j, f, o = split([input, pre_hidden] W + b); cell = pre_cell sigmoid(f + forget_bias) + sigmoid(i) tanh(j); hidden =
    tanh(cell) sigmoid(o). As in Fluid, ``gate_activation`` and ``activation`` are not used.
    """

    def __init__(
        self,
        name_scope: str,
        hidden_size: int,
        param_attr: ParamAttr | None = None,
        bias_attr: ParamAttr | None = None,
        gate_activation: Activation | None = None,
        activation: Activation | None = None,
        forget_bias: float = 1.0,
        dtype: str = "float32",
    ) -> None:
        self._cell = LSTMCell(
            hidden_size, param_attr, bias_attr, gate_activation, activation, forget_bias, dtype, name_scope
        )

    def __call__(self, input: Variable, pre_hidden: Variable, pre_cell: Variable) -> tuple[Variable, Variable]:
        hidden, (_, cell) = self._cell.call(input, [pre_hidden, pre_cell])
        return hidden, cell


class BasicGRUUnit:
    """``unit(input, pre_hidden)`` gives the hidden state of a step: [N, hidden_size].

    r, u = split(gate([input, pre_hidden] W + b)); c = activation([input, r pre_hidden] V + d); hidden = u pre_hidden +
    (1 - u) c. ``gate_activation``: sigmoid, ``activation``: tanh unless given.
    """

    def __init__(
        self,
        name_scope: str,
        hidden_size: int,
        param_attr: ParamAttr | None = None,
        bias_attr: ParamAttr | None = None,
        gate_activation: Activation | None = None,
        activation: Activation | None = None,
        dtype: str = "float32",
    ) -> None:
        self._cell = GRUCell(hidden_size, param_attr, bias_attr, gate_activation, activation, dtype, name_scope)

    def __call__(self, input: Variable, pre_hidden: Variable) -> Variable:
        hidden: Variable = self._cell.call(input, pre_hidden)[0]
        return hidden


def basic_lstm(
    input: Variable,
    init_hidden: Variable | None,
    init_cell: Variable | None,
    hidden_size: int,
    num_layers: int = 1,
    sequence_length: Variable | None = None,
    dropout_prob: float = 0.0,
    bidirectional: bool = False,
    batch_first: bool = True,
    param_attr: ParamAttr | None = None,
    bias_attr: ParamAttr | None = None,
    gate_activation: Activation | None = None,
    activation: Activation | None = None,
    forget_bias: float = 1.0,
    dtype: str = "float32",
    name: str = "basic_lstm",
) -> tuple[Variable, Variable, Variable]:
    """Stacked LSTMs over ``input`` [N, T, D] (or [T, N, D] without ``batch_first``).

    ``init_hidden``, ``init_cell``: [layers * directions, N, hidden_size], zeros if None; ``sequence_length`` [N]: the steps
    of each row that count. Returns all outputs [N, T, directions * hidden_size], and the last hidden and cell states,
    shaped like the first ones. Without ``bidirectional`` there is one direction.
    """

    def unit(scope: str, attrs: tuple[ParamAttr | None, ParamAttr | None]) -> BasicLSTMUnit:
        return BasicLSTMUnit(scope, hidden_size, *attrs, gate_activation, activation, forget_bias, dtype)

    stack = _Stack(unit, name, hidden_size, num_layers, dropout_prob, bidirectional, (param_attr, bias_attr))
    out, (hidden, cell) = stack.over(input, [init_hidden, init_cell], sequence_length, batch_first)
    return out, hidden, cell


def basic_gru(
    input: Variable,
    init_hidden: Variable | None,
    hidden_size: int,
    num_layers: int = 1,
    sequence_length: Variable | None = None,
    dropout_prob: float = 0.0,
    bidirectional: bool = False,
    batch_first: bool = True,
    param_attr: ParamAttr | None = None,
    bias_attr: ParamAttr | None = None,
    gate_activation: Activation | None = None,
    activation: Activation | None = None,
    dtype: str = "float32",
    name: str = "basic_gru",
) -> tuple[Variable, Variable]:
    """Stacked GRUs over ``input`` [N, T, D]; as `basic_lstm`, without cells."""

    def unit(scope: str, attrs: tuple[ParamAttr | None, ParamAttr | None]) -> BasicGRUUnit:
        return BasicGRUUnit(scope, hidden_size, *attrs, gate_activation, activation, dtype)

    stack = _Stack(unit, name, hidden_size, num_layers, dropout_prob, bidirectional, (param_attr, bias_attr))
    out, (hidden,) = stack.over(input, [init_hidden], sequence_length, batch_first)
    return out, hidden


Attrs: TypeAlias = "tuple[ParamAttr | None, ParamAttr | None]"


class _Stack:
    """Units above each other, in one direction or two."""

    def __init__(
        self,
        unit: Callable[[str, Attrs], Callable[..., Any]],
        name: str,
        size: int,
        layers_: int,
        dropout: float,
        bidirectional: bool,
        attrs: Attrs,
    ) -> None:
        self._size = size
        self._layers = layers_
        self._dropout = dropout
        self._directions = [[unit(f"{name}_layers_{at}", _attrs_of(attrs, "fw", at)) for at in range(layers_)]]
        if bidirectional:
            reverse = [unit(f"{name}_reverse_layers_{at}", _attrs_of(attrs, "bw", at)) for at in range(layers_)]
            self._directions.append(reverse)

    def over(
        self, input: Variable, states: Sequence[Variable | None], lengths: Variable | None, batch_first: bool
    ) -> tuple[Variable, list[Variable]]:
        """All outputs, and the last value of each state."""
        if batch_first:
            input = layers.transpose(input, [1, 0, 2])
        mask = None
        if lengths is not None:
            mask = layers.sequence_mask(lengths, maxlen=layers.shape(input)[0], dtype="float32")
            mask = layers.transpose(mask, [1, 0])
        count = len(self._directions)
        shape = [self._layers, count, -1, self._size]
        first = [None if state is None else layers.reshape(state, shape) for state in states]
        out, last = self._one_way(input, mask, first, 0)
        if count > 1:
            back = layers.reverse(input, [0]), None if mask is None else layers.reverse(mask, [0])
            other, other_last = self._one_way(*back, first, 1)
            out = layers.concat([out, layers.reverse(other, [0])], axis=2)
            last = [
                layers.reshape(layers.concat([a, b], axis=1), [self._layers * count, -1, self._size])
                for a, b in zip(last, other_last, strict=True)
            ]
        return (layers.transpose(out, [1, 0, 2]) if batch_first else out), last

    def _one_way(
        self, input: Variable, mask: Variable | None, first: Sequence[Variable | None], direction: int
    ) -> tuple[Variable, list[Variable]]:
        rnn = layers.StaticRNN()
        with rnn.step():
            x = rnn.step_input(input)
            step_mask = rnn.step_input(mask) if mask is not None else None
            for at, unit in enumerate(self._directions[direction]):
                before = [
                    rnn.memory(batch_ref=input, shape=[-1, self._size])
                    if value is None
                    else rnn.memory(init=value[at, direction])
                    for value in first
                ]
                after = unit(x, *before)
                after = list(after) if isinstance(after, tuple) else [after]
                if step_mask is not None:
                    after = [_where_masked(step_mask, new, old) for new, old in zip(after, before, strict=True)]
                for old, new in zip(before, after, strict=True):
                    rnn.update_memory(old, new)
                for new in after:
                    rnn.step_output(new)
                x = after[0]
                if self._dropout:
                    x = layers.dropout(x, self._dropout, dropout_implementation="upscale_in_train")
            rnn.step_output(x)
        given = rnn()
        outputs = [given] if isinstance(given, Variable) else given
        kinds = len(first)
        last = [output[-1] for output in outputs[: kinds * self._layers]]
        shape = [self._layers, -1, self._size]
        return outputs[-1], [layers.reshape(layers.concat(last[kind::kinds], axis=0), shape) for kind in range(kinds)]


def _where_masked(mask: Variable, new: Variable, old: Variable) -> Variable:
    """``new`` where the mask is 1, ``old`` where it is 0."""
    taken = layers.elementwise_mul(new, mask, axis=0)
    return taken - layers.elementwise_mul(old, mask - 1, axis=0)


def _attrs_of(attrs: Attrs, way: str, at: int) -> Attrs:
    return _named(attrs[0], f"_{way}_w_{at}"), _named(attrs[1], f"_{way}_b_{at}")


def _named(attr: ParamAttr | None, suffix: str) -> ParamAttr | None:
    """The attributes, with a name of its own for each of the parameters that they are for."""
    if attr is None or not suffix or not isinstance(attr, ParamAttr) or attr.name is None:
        return attr
    made = copy.deepcopy(attr)
    made.name = f"{attr.name}{suffix}"
    return made
