"""Recurrent cells, and `rnn`, which runs one over padded sequences."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from fluidlite import unique_name
from fluidlite.errors import NotSupported, ProgramError
from fluidlite.framework import Parameter, Variable, user_line
from fluidlite.framework.dtypes import dtype_name
from fluidlite.layer_helper import LayerHelper
from fluidlite.layers import math, tensor
from fluidlite.layers.nest import flatten, map_structure, packed, require_same_structure
from fluidlite.layers.ops import sigmoid, tanh
from fluidlite.layers.sequence import sequence_mask
from fluidlite.layers.shape import shape as shape_of
from fluidlite.layers.shape import split, transpose
from fluidlite.layers.static_rnn import StaticRNN
from fluidlite.param_attr import AttrLike, ParamAttr

Activation = Callable[[Variable], Variable]


class RNNCell:
    """One step of a recurrent network: ``call(inputs, states)`` -> (outputs, new states).

    A subclass gives `call` and ``state_shape``: the shape of its states without the batch, nested like the states.
    """

    def call(self, inputs: Any, states: Any, **kwargs: Any) -> tuple[Any, Any]:
        """(outputs, new states) of one step."""
        raise NotSupported(f"{type(self).__name__} does not define call(inputs, states)")

    def __call__(self, inputs: Any, states: Any, **kwargs: Any) -> tuple[Any, Any]:
        return self.call(inputs, states, **kwargs)

    @property
    def state_shape(self) -> Any:
        """The shape of the states, without the batch."""
        raise NotSupported(f"{type(self).__name__} does not define state_shape")

    @property
    def state_dtype(self) -> Any:
        """The dtype of the states; float32 where a cell does not say."""
        return "float32"

    def get_initial_states(
        self,
        batch_ref: Any,
        shape: Any = None,
        dtype: object = "float32",
        init_value: float = 0.0,
        batch_dim_idx: int = 0,
    ) -> Any:
        """States of ``init_value``, as many as ``batch_ref`` has in dimension ``batch_dim_idx``; ``shape`` (nested, without
        the batch) and ``dtype`` are the cell's by default."""
        reference = flatten(batch_ref)[0]
        chosen = self.state_dtype if dtype is None else dtype

        def constant(dims: Sequence[int]) -> Variable:
            full = list(dims) if dims[0] == -1 else [-1, *dims]
            return tensor.fill_constant_batch_size_like(
                reference, full, chosen, init_value, input_dim_idx=batch_dim_idx
            )

        return _over_shapes(constant, self.state_shape if shape is None else shape)


def _over_shapes(function: Callable[[Sequence[int]], Variable], shapes: Any) -> Any:
    """``function`` of each shape (a list of integers) in a nest of them."""
    if isinstance(shapes, int):
        return function([shapes])
    if all(isinstance(dim, int) for dim in shapes):
        return function(list(shapes))
    return type(shapes)(_over_shapes(function, each) for each in shapes)


class _Unit:
    """The parameters of a cell: made when its first step shows how wide the input is."""

    def __init__(
        self, kind: str, name: str, width: int, param_attr: AttrLike, bias_attr: AttrLike, dtype: object
    ) -> None:
        self._helper = LayerHelper(kind, unique_name.generate(f"{name}/{kind}"))
        self.width = width
        self._param_attr, self._bias_attr = param_attr, bias_attr
        self._dtype = dtype_name(dtype)

    def parameters(
        self, rows: int, columns: Sequence[int], suffixes: Sequence[str]
    ) -> list[tuple[Parameter, Parameter]]:
        """A weight [rows, n] and a bias [n] for each n of ``columns``; a name of the user's gets the suffix."""
        weights = [
            self._helper.create_parameter(_suffixed(self._param_attr, suffix), [rows, n], self._dtype)
            for n, suffix in zip(columns, suffixes, strict=True)
        ]
        biases = [
            self._helper.create_parameter(_suffixed(self._bias_attr, suffix), [n], self._dtype, is_bias=True)
            for n, suffix in zip(columns, suffixes, strict=True)
        ]
        return list(zip(weights, biases, strict=True))


def _suffixed(attr: AttrLike, suffix: str) -> AttrLike:
    chosen = ParamAttr.of(attr)
    if chosen is None or chosen.name is None or not suffix:
        return attr
    chosen = copy.copy(chosen)
    chosen.name = f"{chosen.name}{suffix}"
    return chosen


class GRUCell(RNNCell):
    """A gated recurrent unit of ``hidden_size`` (Cho et al., 2014); its output is its state."""

    def __init__(
        self,
        hidden_size: int,
        param_attr: AttrLike = None,
        bias_attr: AttrLike = None,
        gate_activation: Activation | None = None,
        activation: Activation | None = None,
        dtype: object = "float32",
        name: str = "GRUCell",
    ) -> None:
        self.hidden_size = hidden_size
        self._unit = _Unit("BasicGRUUnit", name, hidden_size, param_attr, bias_attr, dtype)
        self._gate, self._activation = gate_activation or sigmoid, activation or tanh
        self._made: list[tuple[Parameter, Parameter]] = []

    def call(self, inputs: Any, states: Any, **kwargs: Any) -> tuple[Any, Any]:
        if not self._made:
            rows = inputs.shape[-1] + self.hidden_size
            self._made = self._unit.parameters(rows, [2 * self.hidden_size, self.hidden_size], ["_gate", "_candidate"])
        (gate_weight, gate_bias), (weight, bias) = self._made
        gates = math.elementwise_add(math.matmul(tensor.concat([inputs, states], 1), gate_weight), gate_bias)
        reset, update = split(self._gate(gates), num_or_sections=2, dim=1)
        joined = tensor.concat([inputs, reset * states], 1)
        candidate = self._activation(math.elementwise_add(math.matmul(joined, weight), bias))
        hidden = update * states + (1 - update) * candidate
        return hidden, hidden

    @property
    def state_shape(self) -> list[int]:
        return [self.hidden_size]


class LSTMCell(RNNCell):
    """A long short-term memory of ``hidden_size``; its states are [hidden state, cell], its output is the hidden state.

    As in Fluid, ``gate_activation`` and ``activation`` are not used: gates are sigmoid, the rest is tanh.
    """

    def __init__(
        self,
        hidden_size: int,
        param_attr: AttrLike = None,
        bias_attr: AttrLike = None,
        gate_activation: Activation | None = None,
        activation: Activation | None = None,
        forget_bias: float = 1.0,
        dtype: object = "float32",
        name: str = "LSTMCell",
    ) -> None:
        self.hidden_size = hidden_size
        self._unit = _Unit("BasicLSTMUnit", name, hidden_size, param_attr, bias_attr, dtype)
        self._forget_bias = tensor.fill_constant([1], dtype, forget_bias)
        self._forget_bias.stop_gradient = False
        self._made: list[tuple[Parameter, Parameter]] = []

    def call(self, inputs: Any, states: Any, **kwargs: Any) -> tuple[Any, Any]:
        hidden, cell = states
        if not self._made:
            self._made = self._unit.parameters(inputs.shape[-1] + self.hidden_size, [4 * self.hidden_size], [""])
        ((weight, bias),) = self._made
        gates = math.elementwise_add(math.matmul(tensor.concat([inputs, hidden], 1), weight), bias)
        opened, entering, kept, out = split(gates, num_or_sections=4, dim=-1)
        old = math.elementwise_mul(cell, sigmoid(math.elementwise_add(kept, self._forget_bias)))
        new = math.elementwise_mul(sigmoid(opened), tanh(entering))
        cell = math.elementwise_add(old, new)
        hidden = tanh(cell) * sigmoid(out)
        return hidden, [hidden, cell]

    @property
    def state_shape(self) -> list[list[int]]:
        return [[self.hidden_size], [self.hidden_size]]


def rnn(
    cell: RNNCell,
    inputs: Any,
    initial_states: Any = None,
    sequence_length: Variable | None = None,
    time_major: bool = False,
    is_reverse: bool = False,
    **kwargs: Any,
) -> tuple[Any, Any]:
    """(outputs of all steps, last states) of a cell over ``inputs`` [batch, steps, ...] ([steps, batch, ...] with
    ``time_major``).

    Beyond ``sequence_length`` [batch] states stay as they are. ``is_reverse`` goes from the last step to the first.
    """
    if not callable(getattr(cell, "call", None)):
        raise ProgramError(f"rnn: {cell!r} is no RNNCell ({user_line()})")
    if initial_states is None:
        initial_states = cell.get_initial_states(inputs, batch_dim_idx=1 if time_major else 0)
    for state in flatten(initial_states):
        state.stop_gradient = False
    if not time_major:
        inputs = map_structure(turned, inputs)
    mask = None if sequence_length is None else _mask(sequence_length, inputs, initial_states)
    if is_reverse:
        inputs = map_structure(_backwards, inputs)
        mask = None if mask is None else _backwards(mask)
    network = StaticRNN()
    with network.step():
        step_inputs = map_structure(network.step_input, inputs)
        states = map_structure(network.memory, initial_states)
        outputs, new_states = cell.call(step_inputs, map_structure(lambda state: state, states), **kwargs)
        require_same_structure("rnn", states, new_states)
        if mask is not None:
            held = partial(_held, mask=network.step_input(mask))
            new_states = map_structure(held, states, new_states)
        map_structure(network.update_memory, states, new_states)
        map_structure(network.step_output, outputs)
        map_structure(network.step_output, new_states)
    made = network()
    if not isinstance(made, list):
        raise ProgramError(f"rnn: the cell has no state ({user_line()})")
    count = len(flatten(outputs))
    final_outputs = packed(outputs, made[:count])
    final_states = packed(new_states, [first_of(each, -1) for each in made[count:]])
    if is_reverse:
        final_outputs = map_structure(_backwards, final_outputs)
    if not time_major:
        final_outputs = map_structure(turned, final_outputs)
    return final_outputs, final_states


def _mask(lengths: Variable, inputs: Any, states: Any) -> Variable:
    """[steps, batch]: 1 where a sequence has the step, else 0."""
    steps = first_of(shape_of(flatten(inputs)[0]), 0)
    return transpose(sequence_mask(lengths, maxlen=steps, dtype=flatten(states)[0].dtype), [1, 0])


def first_of(x: Variable, index: int, axis: int = 0) -> Variable:
    """``x[index]``: an element of the first dimension (or of ``axis``), which goes."""
    block = LayerHelper("slice", "slice").block
    out = block.create_var(unique_name.generate(f"{x.name}_slice"), x.dtype)
    ends = index + 1 if index != -1 else 10_000_000
    attrs = {"axes": [axis], "starts": [index], "ends": [ends], "decrease_axis": [axis], "infer_flags": [1]}
    block.append_op("slice", {"Input": x}, {"Out": out}, attrs)
    return out


def _held(state: Variable, new_state: Variable, mask: Variable) -> Variable:
    """The new state where the mask is 1, else the old one."""
    return math.elementwise_mul(new_state, mask, axis=0) - math.elementwise_mul(state, mask - 1, axis=0)


def turned(x: Variable) -> Variable:
    """Batch and steps change places."""
    return transpose(x, [1, 0, *range(2, len(x.shape))])


def _backwards(x: Variable) -> Variable:
    return tensor.reverse(x, axis=[0])
