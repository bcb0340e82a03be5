"""``fluid.evaluator``: metrics whose sums are variables of the program."""

from __future__ import annotations

import warnings
from typing import Any, Protocol

import numpy as np

from fluidlite import layers, unique_name
from fluidlite.dtypes import Array
from fluidlite.errors import ProgramError
from fluidlite.framework import Program, Variable, program_guard
from fluidlite.layer_helper import LayerHelper


class Runner(Protocol):
    """The part of an executor that is used."""

    def run(self, program: Program, *, fetch_list: list[Any]) -> list[Any]:
        """One step."""


class Evaluator:
    """States in the program, summed over its runs until `reset`; ``metrics`` are those of the batch."""

    def __init__(self, name: str) -> None:
        instead = type(self).__name__
        warnings.warn(f"fluid.evaluator.{instead} is old: use fluid.metrics.{instead}", UserWarning, stacklevel=3)
        self.states: list[Variable] = []
        self.metrics: list[Variable] = []
        self.helper = LayerHelper(name)
        if self.helper.main_program.current_block().idx:
            raise ProgramError("an evaluator belongs into the root block of a program")

    def reset(self, executor: Runner, reset_program: Program | None = None) -> None:
        """Make all states zero."""
        program = reset_program if reset_program is not None else Program()
        with program_guard(program):
            for state in self.states:
                layers.fill_constant(state.shape, state.dtype, 0, out=_twin(program, state))
        executor.run(program, fetch_list=[])

    def _create_state(self, suffix: str, dtype: str, shape: list[int]) -> Variable:
        """A variable of the program that is zero when a startup program has run, and kept."""
        name = f"{unique_name.generate(self.helper.name)}_{suffix}"
        state = self.helper.create_variable(name=name, persistable=True, dtype=dtype, shape=shape)
        self.states.append(state)
        return state

    def _add(self, state: Variable, value: Variable) -> None:
        layers.sums([state, value], out=state)

    def _values(self, executor: Runner, program: Program | None) -> list[float]:
        program = program if program is not None else Program()
        fetched = executor.run(program, fetch_list=[_twin(program, state) for state in self.states])
        return [value.item() for value in fetched]


def _twin(program: Program, var: Variable) -> Variable:
    """The same variable in another program."""
    return program.global_block().create_var(var.name, var.dtype, var.shape, var.lod_level, persistable=True)


def _one(value: float) -> Array:
    return np.array([value], np.float32)


class ChunkEvaluator(Evaluator):
    """Precision, recall and F1 of chunks over all batches; see `layers.chunk_eval`."""

    def __init__(
        self,
        input: Variable,
        label: Variable,
        chunk_scheme: str,
        num_chunk_types: int,
        excluded_chunk_types: list[int] | None = None,
    ) -> None:
        super().__init__("chunk_eval")
        names = ("num_infer_chunks", "num_label_chunks", "num_correct_chunks")
        states = [self._create_state(name, "int64", [1]) for name in names]
        found = layers.chunk_eval(input, label, chunk_scheme, num_chunk_types, excluded_chunk_types)
        for state, value in zip(states, found[3:], strict=True):
            self._add(state, value)
        self.metrics += found[:3]

    def eval(self, executor: Runner, eval_program: Program | None = None) -> tuple[Array, Array, Array]:
        """Precision, recall, F1, each float32 [1]."""
        inferred, labelled, correct = self._values(executor, eval_program)
        precision = correct / inferred if inferred else 0.0
        recall = correct / labelled if labelled else 0.0
        f1 = 2 * precision * recall / (precision + recall) if correct else 0.0
        return _one(precision), _one(recall), _one(f1)


class EditDistance(Evaluator):
    """Mean edit distance of sequences, and the share of those that differ, over all batches."""

    def __init__(
        self, input: Variable, label: Variable, ignored_tokens: list[int] | None = None, **kwargs: object
    ) -> None:
        super().__init__("edit_distance")
        total = self._create_state("total_distance", "float32", [1])
        count = self._create_state("seq_num", "int64", [1])
        wrong = self._create_state("instance_error", "int64", [1])
        distances, sequences = layers.edit_distance(input, label, ignored_tokens=ignored_tokens)
        zero = layers.fill_constant([1], "float32", 0.0)
        right = layers.reduce_sum(layers.cast(layers.equal(distances, zero), "int64"))
        errors = layers.elementwise_sub(sequences, right)
        distance = layers.reduce_sum(distances)
        for state, value in ((total, distance), (count, sequences), (wrong, errors)):
            self._add(state, value)
        self.metrics += [distance, errors]

    def eval(self, executor: Runner, eval_program: Program | None = None) -> tuple[Array, Array]:
        """Mean distance and share of wrong sequences, each float32 [1]; NaN before any sequence."""
        total, count, wrong = self._values(executor, eval_program)
        found = [total / count, wrong / count] if count else [np.nan, np.nan]
        return _one(found[0]), _one(found[1])
