"""Decoding step by step: `dynamic_decode` runs a decoder until all its sentences are finished, `BeamSearchDecoder` keeps the
best beams of a cell, `BasicDecoder` goes on as a helper says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fluidlite import framework
from fluidlite.errors import NotSupported
from fluidlite.framework import Variable
from fluidlite.framework.dtypes import dtype_name
from fluidlite.layer_helper import require_variable
from fluidlite.layers import math, nn, shape, tensor
from fluidlite.layers.beam import gather_tree, tensor_array_to_tensor
from fluidlite.layers.compare import equal, less_equal, logical_and, logical_not, logical_or
from fluidlite.layers.control_flow import While, array_read, array_write, create_array, increment
from fluidlite.layers.nest import flatten, map_structure
from fluidlite.layers.ops import log
from fluidlite.layers.rnn_cells import RNNCell, first_of, turned

#: added to the score of what must not be chosen
_NEVER = 1e9


class Decoder:
    """What `dynamic_decode` runs. A subclass gives `initialize` and `step`, and `finalize` where it has something to add."""

    def initialize(self, inits: Any) -> tuple[Any, Any, Variable]:
        """(inputs of the first step, states, finished [batch, ...] bool)."""
        raise NotSupported(f"{type(self).__name__} does not define initialize(inits)")

    def step(self, time: Variable, inputs: Any, states: Any, **kwargs: Any) -> tuple[Any, Any, Any, Variable]:
        """(outputs, states, inputs of the next step, finished)."""
        raise NotSupported(f"{type(self).__name__} does not define step(time, inputs, states)")

    def finalize(self, outputs: Any, final_states: Any, sequence_lengths: Variable) -> tuple[Any, Any]:
        """(outputs, states) of the whole, from those of all steps [steps, batch, ...]."""
        return outputs, final_states


class BeamOutput(NamedTuple):
    """What a step chose, [batch, beam] each."""

    scores: Variable
    predicted_ids: Variable
    parent_ids: Variable


class BeamState(NamedTuple):
    """The beams [batch, beam, ...] between two steps."""

    cell_states: Any
    log_probs: Variable
    finished: Variable
    lengths: Variable


class BeamSearchDecoder(Decoder):
    """Beam search over a cell: each step keeps the ``beam_size`` most probable continuations of a sentence.

    ``embedding_fn`` makes the cell's input of ids [batch, beam], ``output_fn`` the scores of words of the cell's output.
    """

    OutputWrapper = BeamOutput
    StateWrapper = BeamState

    def __init__(
        self,
        cell: RNNCell,
        start_token: int,
        end_token: int,
        beam_size: int,
        embedding_fn: Callable[[Variable], Any] | None = None,
        output_fn: Callable[[Any], Any] | None = None,
    ) -> None:
        self.cell = cell
        self.start_token, self.end_token, self.beam_size = start_token, end_token, beam_size
        self.embedding_fn, self.output_fn = embedding_fn, output_fn
        self._batch: Variable | None = None
        self._end: Variable | None = None

    @staticmethod
    def tile_beam_merge_with_batch(x: Variable, beam_size: int) -> Variable:
        """[batch, ...] -> [batch * beam_size, ...], each row ``beam_size`` times."""
        rank = len(require_variable("tile_beam_merge_with_batch", "x", x).shape) + 1
        tiled = shape.expand(shape.unsqueeze(x, [1]), [1, beam_size, *[1] * (rank - 2)])
        back = shape.transpose(tiled, [*range(2, rank), 0, 1])
        flat = shape.reshape(back, [*[0] * (rank - 2), -1])
        return shape.transpose(flat, [rank - 2, *range(rank - 2)])

    def initialize(self, inits: Any) -> tuple[Any, BeamState, Variable]:
        state = flatten(inits)[0]
        self._batch = first_of(shape.shape(state), 0)
        self._batch.stop_gradient = True
        start = tensor.fill_constant([1], "int64", self.start_token)
        self._end = tensor.fill_constant([1], "int64", self.end_token)
        cell_states = map_structure(self._to_beams, inits)
        ids = shape.expand(shape.unsqueeze(shape.expand(start, [self._batch]), [1]), [1, self.beam_size])
        first = np.array([[0.0, *[-_NEVER] * (self.beam_size - 1)]], np.float32)
        log_probs = shape.expand(tensor.assign(first), [self._batch, 1])
        finished = tensor.fill_constant_batch_size_like(
            state, [-1, self.beam_size], "bool", value=False, force_cpu=True
        )
        lengths = tensor.zeros_like(ids)
        inputs = ids if self.embedding_fn is None else self.embedding_fn(ids)
        return inputs, BeamState(cell_states, log_probs, finished, lengths), finished

    def step(self, time: Variable, inputs: Any, states: BeamState, **kwargs: Any) -> tuple[Any, Any, Any, Variable]:
        outputs, cell_states = self.cell(
            map_structure(self._merged, inputs), map_structure(self._merged, states.cell_states), **kwargs
        )
        outputs, cell_states = map_structure(self._split, outputs), map_structure(self._split, cell_states)
        if self.output_fn is not None:
            outputs = self.output_fn(outputs)
        chosen, state = self._search(outputs, cell_states, states)
        chosen.predicted_ids.stop_gradient = True
        ids = chosen.predicted_ids
        return chosen, state, ids if self.embedding_fn is None else self.embedding_fn(ids), state.finished

    def finalize(self, outputs: BeamOutput, final_states: Any, sequence_lengths: Variable) -> tuple[Any, Any]:
        """The ids [steps, batch, beam] of each beam, followed back from its end."""
        return gather_tree(outputs.predicted_ids, outputs.parent_ids), final_states

    def _search(self, logits: Variable, cell_states: Any, before: BeamState) -> tuple[BeamOutput, BeamState]:
        """The best continuations of the beams of each sentence."""
        words = logits.shape[-1]
        count = tensor.fill_constant([1], "int64", words)
        only_end = np.full(words, -_NEVER, np.float32)
        only_end[self.end_token] = 0
        end_alone = tensor.assign(only_end)
        step = self._masked(log(nn.softmax(logits)), before.finished, end_alone)
        totals = math.elementwise_add(step, before.log_probs, axis=0)
        scores, places = math.topk(shape.reshape(totals, [-1, self.beam_size * words]), self.beam_size)
        beams, ids = math.elementwise_floordiv(places, count), math.elementwise_mod(places, count)
        log_probs = self._gathered(shape.reshape(totals, [-1, self.beam_size * words]), places)
        cell_states = map_structure(lambda x: self._gathered(x, beams), cell_states)
        finished, lengths = self._gathered(before.finished, beams), self._gathered(before.lengths, beams)
        lengths = lengths + tensor.cast(logical_not(finished), before.lengths.dtype)
        assert self._end is not None
        finished = logical_or(finished, equal(ids, self._end))
        return BeamOutput(scores, ids, beams), BeamState(cell_states, log_probs, finished, lengths)

    def _masked(self, probs: Variable, finished: Variable, only_end: Variable) -> Variable:
        """A finished beam goes on with its end mark alone, at no cost."""
        mask = tensor.cast(finished, probs.dtype)
        forced = math.elementwise_mul(
            shape.expand(shape.unsqueeze(mask, [2]), [1, 1, probs.shape[-1]]), only_end, axis=-1
        )
        return forced - math.elementwise_mul(probs, mask - 1, axis=0)

    def _gathered(self, x: Variable, places: Variable) -> Variable:
        """Of each sentence what ``places`` [batch, beam] name in the second dimension."""
        assert self._batch is not None
        batch = self._batch if self._batch.dtype == places.dtype else tensor.cast(self._batch, places.dtype)
        batch.stop_gradient = True
        rows = shape.unsqueeze(tensor.range(0, batch, 1, places.dtype), [1])
        coordinates = shape.stack([shape.expand(rows, [1, self.beam_size]), places], axis=2)
        coordinates.stop_gradient = True
        return shape.gather_nd(x, coordinates)

    def _to_beams(self, x: Variable) -> Variable:
        tiled = shape.unsqueeze(x, [1])
        return shape.expand(tiled, [1, self.beam_size, *[1] * (len(tiled.shape) - 2)])

    def _merged(self, x: Variable) -> Variable:
        return shape.reshape(x, [-1, *x.shape[2:]])

    def _split(self, x: Variable) -> Variable:
        return shape.reshape(x, [-1, self.beam_size, *x.shape[1:]])


def dynamic_decode(
    decoder: Decoder,
    inits: Any = None,
    max_step_num: int | None = None,
    output_time_major: bool = False,
    impute_finished: bool = False,
    is_test: bool = False,
    return_length: bool = False,
    **kwargs: Any,
) -> tuple[Any, ...]:
    """(outputs [batch, steps, ...], last states), and with ``return_length`` the lengths [batch, ...] int64, of a decoder run
    until everything is finished, or for ``max_step_num`` steps.

    ``impute_finished``: the states of what is finished stay as they are. ``is_test``: nothing is kept for a gradient.
    """
    inputs, states, finished = decoder.initialize(inits)
    finished.stop_gradient = True
    step_idx = tensor.fill_constant([1], "int64", 0)
    goes_on = logical_not(math.reduce_all(finished))
    limit = None if max_step_num is None else tensor.fill_constant([1], "int64", max_step_num)
    loop = While(goes_on, is_test=is_test)
    lengths = tensor.cast(tensor.zeros_like(finished), "int64")
    lengths.stop_gradient = True
    input_arrays = state_arrays = None
    if not is_test:
        input_arrays = map_structure(lambda x: array_write(x, step_idx), inputs)
        state_arrays = map_structure(lambda x: array_write(x, step_idx), states)
    with loop.block():
        now, held = inputs, states
        if not is_test:
            now = map_structure(lambda array: array_read(array, step_idx), input_arrays)
            held = map_structure(lambda array: array_read(array, step_idx), state_arrays)
        outputs, new_states, new_inputs, new_finished = decoder.step(step_idx, now, held, **kwargs)
        new_finished = logical_or(new_finished, finished)
        new_lengths = math.elementwise_add(lengths, tensor.cast(logical_not(finished), lengths.dtype))
        if impute_finished:
            new_states = map_structure(lambda old, new: _kept(old, new, finished), held, new_states)
        output_arrays = map_structure(_outer_array, outputs)
        map_structure(lambda x, array: array_write(x, step_idx, array), outputs, output_arrays)
        increment(step_idx, 1.0)
        if is_test:
            map_structure(tensor.assign, new_inputs, inputs)
            map_structure(tensor.assign, new_states, states)
        else:
            map_structure(lambda x, array: array_write(x, step_idx, array), new_inputs, input_arrays)
            map_structure(lambda x, array: array_write(x, step_idx, array), new_states, state_arrays)
        tensor.assign(new_finished, finished)
        tensor.assign(new_lengths, lengths)
        if limit is None:
            logical_not(math.reduce_all(finished), goes_on)
        else:
            logical_and(logical_not(math.reduce_all(finished)), less_equal(step_idx, limit), goes_on)
    final = map_structure(lambda array: tensor_array_to_tensor(array, axis=0, use_stack=True)[0], output_arrays)
    last = states if is_test else map_structure(lambda array: array_read(array, step_idx), state_arrays)
    final, last = decoder.finalize(final, last, lengths)
    if not output_time_major:
        final = map_structure(turned, final)
    return (final, last, lengths) if return_length else (final, last)


def _outer_array(x: Variable) -> Variable:
    """An array declared outside the loop."""
    with framework.default_main_program().outside():
        return create_array(x.dtype)


def _kept(old: Variable, new: Variable, finished: Variable) -> Variable:
    """The old state where a sentence is finished, else the new one."""
    dtype = old.dtype
    if dtype == "bool":
        old, new = tensor.cast(old, "float32"), tensor.cast(new, "float32")
    mask = finished
    if mask.dtype != old.dtype:
        mask = tensor.cast(mask, old.dtype)
        mask.stop_gradient = True
    state = math.elementwise_mul(old, mask, axis=0) - math.elementwise_mul(new, mask - 1, axis=0)
    return tensor.cast(state, dtype) if dtype == "bool" else state


class DecodeHelper:
    """How `BasicDecoder` goes on: the first inputs, what is sampled, and the next inputs."""

    def initialize(self) -> tuple[Any, Variable]:
        """(inputs of the first step, finished)."""
        raise NotSupported(f"{type(self).__name__} does not define initialize()")

    def sample(self, time: Variable, outputs: Any, states: Any) -> Variable:
        """The ids that a step's outputs stand for."""
        raise NotSupported(f"{type(self).__name__} does not define sample(time, outputs, states)")

    def next_inputs(self, time: Variable, outputs: Any, states: Any, sample_ids: Variable) -> tuple[Variable, Any, Any]:
        """(finished, inputs of the next step, states)."""
        raise NotSupported(f"{type(self).__name__} does not define next_inputs(time, outputs, states, sample_ids)")


class GreedyEmbeddingHelper(DecodeHelper):
    """The next input is the embedding of the best word."""

    def __init__(self, embedding_fn: Callable[[Variable], Any], start_tokens: Variable, end_token: int) -> None:
        self.embedding_fn, self.start_tokens = embedding_fn, start_tokens
        self.end_token = tensor.fill_constant([1], "int64", end_token)

    def initialize(self) -> tuple[Any, Variable]:
        finished = tensor.fill_constant_batch_size_like(self.start_tokens, [-1], "bool", value=False, force_cpu=True)
        return self.embedding_fn(self.start_tokens), finished

    def sample(self, time: Variable, outputs: Any, states: Any) -> Variable:
        return tensor.argmax(outputs, axis=-1)

    def next_inputs(self, time: Variable, outputs: Any, states: Any, sample_ids: Variable) -> tuple[Variable, Any, Any]:
        return equal(sample_ids, self.end_token), self.embedding_fn(sample_ids), states


class SampleEmbeddingHelper(GreedyEmbeddingHelper):
    """The next input is the embedding of a word drawn by its probability."""

    def __init__(
        self,
        embedding_fn: Callable[[Variable], Any],
        start_tokens: Variable,
        end_token: int,
        softmax_temperature: float | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(embedding_fn, start_tokens, end_token)
        given = softmax_temperature
        self.softmax_temperature = None if given is None else tensor.fill_constant([1], "float32", given)
        self.seed = seed

    def sample(self, time: Variable, outputs: Any, states: Any) -> Variable:
        logits = outputs if self.softmax_temperature is None else outputs / self.softmax_temperature
        probs = nn.softmax(logits)
        probs.stop_gradient = True
        return tensor.sampling_id(probs, seed=self.seed or 0, dtype=dtype_name(self.start_tokens.dtype))


class TrainingHelper(DecodeHelper):
    """The next input is the next step of ``inputs`` [batch, steps, ...] ([steps, batch, ...] with ``time_major``)."""

    def __init__(self, inputs: Any, sequence_length: Variable, time_major: bool = False) -> None:
        self.inputs, self.sequence_length, self.time_major = inputs, sequence_length, time_major
        self._padded = map_structure(self._with_one_more, inputs)

    def _with_one_more(self, x: Variable) -> Variable:
        before = [] if self.time_major else [0, 0]
        return shape.pad(x, [*before, 0, 1, *[0] * (2 * len(x.shape) - len(before) - 2)])

    def initialize(self) -> tuple[Any, Variable]:
        finished = equal(self.sequence_length, tensor.fill_constant([1], self.sequence_length.dtype, 0))
        return map_structure(lambda x: first_of(x, 0, 0 if self.time_major else 1), self.inputs), finished

    def sample(self, time: Variable, outputs: Any, states: Any) -> Variable:
        return tensor.argmax(outputs, axis=-1)

    def next_inputs(self, time: Variable, outputs: Any, states: Any, sample_ids: Variable) -> tuple[Variable, Any, Any]:
        time = time if time.dtype == "int32" else tensor.cast(time, "int32")
        if self.sequence_length.dtype != time.dtype:
            self.sequence_length = tensor.cast(self.sequence_length, time.dtype)
        following = time + 1
        finished = less_equal(self.sequence_length, following)
        axes = [0 if self.time_major else 1]

        def part(x: Variable) -> Variable:
            return shape.squeeze(shape.slice(x, axes=axes, starts=[following], ends=[following + 1]), axes=axes)

        return finished, map_structure(part, self._padded), states


class BasicOutput(NamedTuple):
    """What a step of `BasicDecoder` gives."""

    cell_outputs: Any
    sample_ids: Variable


class BasicDecoder(Decoder):
    """A cell whose inputs a helper chooses."""

    OutputWrapper = BasicOutput

    def __init__(self, cell: RNNCell, helper: DecodeHelper, output_fn: Callable[[Any], Any] | None = None) -> None:
        self.cell, self.helper, self.output_fn = cell, helper, output_fn

    def initialize(self, inits: Any) -> tuple[Any, Any, Variable]:
        inputs, finished = self.helper.initialize()
        return inputs, inits, finished

    def step(self, time: Variable, inputs: Any, states: Any, **kwargs: Any) -> tuple[Any, Any, Any, Variable]:
        outputs, states = self.cell(inputs, states, **kwargs)
        if self.output_fn is not None:
            outputs = self.output_fn(outputs)
        ids = self.helper.sample(time=time, outputs=outputs, states=states)
        ids.stop_gradient = True
        finished, following, states = self.helper.next_inputs(time=time, outputs=outputs, states=states, sample_ids=ids)
        return BasicOutput(outputs, ids), states, following, finished
