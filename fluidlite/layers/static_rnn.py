"""`StaticRNN`: a network that is run once for each step of sequences of equal length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from fluidlite import unique_name
from fluidlite.dtypes import VarKind
from fluidlite.errors import ProgramError, ShapeError
from fluidlite.framework import Block, Variable, user_line
from fluidlite.framework.dtypes import dtype_number
from fluidlite.layer_helper import LayerHelper, require_variable
from fluidlite.layers.control_flow import sub_block


@dataclass
class _Memory:
    """What one step hands to the next: its value before the first step, inside a step, and after it."""

    init: Variable
    before: Variable
    after: Variable | None = None


class StaticRNN:
    """Runs a block for each step of sequences (steps, batch, ...)::

    rnn = layers.StaticRNN()
    with rnn.step():
        word = rnn.step_input(words)                    # [batch, ...]
        before = rnn.memory(shape=[-1, width], batch_ref=word)
        state = layers.fc([word, before], width, act="tanh")
        rnn.update_memory(before, state)
        rnn.step_output(state)
    states = rnn()                                      # [steps, batch, width]
    """

    BEFORE_RNN_BLOCK = 0
    IN_RNN_BLOCK = 1
    AFTER_RNN_BLOCK = 2

    def __init__(self, name: str | None = None) -> None:
        self.helper = LayerHelper("static_rnn", name)
        self.status = self.BEFORE_RNN_BLOCK
        self.seq_len: int | None = None
        self._memories: dict[str, _Memory] = {}
        self._inputs: list[Variable] = []
        self._outputs: list[Variable] = []

    @contextmanager
    def step(self) -> Iterator[None]:
        """Ops appended inside the ``with`` are run for each step."""
        if self.status != self.BEFORE_RNN_BLOCK:
            raise ProgramError(f"StaticRNN: step() can be entered once ({user_line()})")
        parent = self.helper.block
        self.status = self.IN_RNN_BLOCK
        with sub_block(self.helper) as inside:
            yield
            states = self._states(inside)
        self.status = self.AFTER_RNN_BLOCK
        self._append(parent, inside, states)

    def memory(
        self,
        init: Variable | None = None,
        shape: Sequence[int] | None = None,
        batch_ref: Variable | None = None,
        init_value: float = 0.0,
        init_batch_dim_idx: int = 0,
        ref_batch_dim_idx: int = 1,
    ) -> Variable:
        """What the step before left, at first ``init``; without it ``init_value`` everywhere in ``shape``, whose dimension
        ``init_batch_dim_idx`` is dimension ``ref_batch_dim_idx`` of the whole sequence ``batch_ref``."""
        parent = self._parent("memory")
        if init is None:
            if shape is None or batch_ref is None:
                raise ProgramError(f"StaticRNN.memory needs init, or shape and batch_ref ({user_line()})")
            name = unique_name.generate(f"{self.helper.name}@memory_boot")
            init = parent.create_var(name=name, shape=list(shape), dtype=batch_ref.dtype)
            attrs = {
                "value": init_value,
                "shape": list(shape),
                "dtype": dtype_number(init.dtype),
                "input_dim_idx": ref_batch_dim_idx,
                "output_dim_idx": init_batch_dim_idx,
            }
            parent.append_op("fill_constant_batch_size_like", {"Input": [batch_ref]}, {"Out": [init]}, attrs)
        name = unique_name.generate(f"{self.helper.name}@mem")
        before = self.helper.create_variable(name=name, dtype=init.dtype, shape=init.shape)
        self._memories[before.name] = _Memory(init, before)
        return before

    def step_input(self, x: Variable) -> Variable:
        """One step of a sequence ``x`` [steps, ...]."""
        self._parent("step_input")
        require_variable("StaticRNN.step_input", "x", x)
        if self.seq_len is None:
            self.seq_len = x.shape[0]
        elif x.shape[0] != -1 and self.seq_len != x.shape[0]:
            raise ShapeError(
                f"StaticRNN: {x.name!r} has {x.shape[0]} steps, an earlier input {self.seq_len} ({user_line()})"
            )
        step = self.helper.create_variable(name=x.name, dtype=x.dtype, shape=list(x.shape[1:]), type=x.type)
        self._inputs.append(step)
        return step

    def step_output(self, o: Variable) -> None:
        """``o`` of each step becomes part of a result."""
        parent = self._parent("step_output")
        require_variable("StaticRNN.step_output", "o", o)
        inside = self.helper.one("rnn_memory_helper", {"X": o}, {"dtype": dtype_number(o.dtype)}, dtype=o.dtype)
        shape = [-1 if self.seq_len is None else self.seq_len, *inside.shape]
        self._outputs.append(parent.create_var(name=inside.name, shape=shape, dtype=inside.dtype))

    def output(self, *outputs: Variable) -> None:
        """Several step outputs."""
        for each in outputs:
            self.step_output(each)

    def update_memory(self, mem: Variable, var: Variable) -> None:
        """The next step finds ``var`` in the memory ``mem``."""
        self._parent("update_memory")
        if require_variable("StaticRNN.update_memory", "mem", mem).name not in self._memories:
            raise ProgramError(f"StaticRNN.update_memory: {mem.name!r} is no memory of this network ({user_line()})")
        self._memories[mem.name].after = require_variable("StaticRNN.update_memory", "var", var)

    def __call__(self) -> Variable | list[Variable]:
        """The outputs, [steps, ...] each; a single one is not in a list."""
        if self.status != self.AFTER_RNN_BLOCK:
            raise ProgramError(f"StaticRNN: its outputs are there after its block ({user_line()})")
        if not self._outputs:
            raise ProgramError(f"StaticRNN: the block must say what it gives by step_output ({user_line()})")
        return self._outputs[0] if len(self._outputs) == 1 else self._outputs

    def _parent(self, method: str) -> Block:
        if self.status != self.IN_RNN_BLOCK:
            raise ProgramError(f"StaticRNN.{method} belongs inside step() ({user_line()})")
        return self.helper.main_program.block(self.helper.block.parent_idx)

    def _states(self, inside: Block) -> list[str]:
        """Mark what each memory becomes; the names under which the next step takes it."""
        found = []
        for memory in self._memories.values():
            if memory.after is None:
                raise ProgramError(
                    f"StaticRNN: the memory that starts with {memory.init.name!r} is never updated ({user_line()})"
                )
            value = inside.var(memory.after.name)
            attrs = {"dtype": dtype_number(value.dtype)}
            found.append(self.helper.one("rnn_memory_helper", {"X": value}, attrs, dtype=value.dtype).name)
        return found

    def _append(self, parent: Block, inside: Block, states: list[str]) -> None:
        """The op that runs the block."""
        own = {name for op in inside.desc.ops for name in op.output_arguments()}
        own |= {var.name for var in self._inputs} | set(self._memories)
        read = {name for op in inside.desc.ops for name in op.input_arguments()}
        parent.append_op(
            "recurrent",
            {
                "inputs": [var.name for var in self._inputs],
                "initial_states": [memory.init for memory in self._memories.values()],
                "parameters": sorted(read - own),
            },
            {"outputs": self._outputs, "step_scopes": [parent.create_var(type=VarKind.STEP_SCOPES)]},
            {
                "has_states": bool(self._memories),
                "ex_states": list(self._memories),
                "states": states,
                "sub_block": inside.idx,
            },
        )
