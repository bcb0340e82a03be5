"""`DynamicRNN`: a network that is run once for each step of sequences of different lengths, without padding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from fluidlite import unique_name
from fluidlite.dtypes import VarKind
from fluidlite.errors import ProgramError
from fluidlite.framework import Block, Variable, user_line
from fluidlite.framework.dtypes import dtype_number
from fluidlite.layer_helper import LayerHelper, require_variable
from fluidlite.layers.compare import less_than
from fluidlite.layers.control_flow import While, array_read, array_write, increment
from fluidlite.layers.lod_arrays import array_to_lod_tensor, shrink_memory
from fluidlite.layers.tensor import fill_constant


class DynamicRNN:
    """Runs a block for each step of sequences with LoD::

    rnn = layers.DynamicRNN()
    with rnn.block():
        word = rnn.step_input(words)                   # the rows of one step, the longest sequence first
        before = rnn.memory(shape=[width], value=0.0)
        state = layers.fc([word, before], width, act="tanh")
        rnn.update_memory(before, state)
        rnn.output(state)
    states = rnn()                                     # rows and LoD of words
    """

    BEFORE_RNN = 0
    IN_RNN = 1
    AFTER_RNN = 2

    def __init__(self, name: str | None = None) -> None:
        self.helper = LayerHelper("dynamic_rnn", name)
        self.status = self.BEFORE_RNN
        self.lod_rank_table: Variable | None = None
        self.max_seq_len: Variable | None = None
        self.step_idx: Variable | None = None
        self.zero_idx: Variable | None = None
        self.cond = self.helper.create_variable_for_type_inference("bool")
        self.while_op = While(self.cond)
        #: arrays of step inputs
        self._inputs: list[Variable] = []
        self._output_arrays: list[Variable] = []
        self._outputs: list[Variable] = []
        #: name of a memory inside a step -> the array that holds it for all steps
        self._memories: dict[str, Variable] = {}
        self._updates: list[tuple[Variable, Variable]] = []

    def step_input(self, x: Variable, level: int = 0) -> Variable:
        """The units of one step of the sequences of LoD ``level`` of ``x``; all inputs have sequences of equal lengths."""
        parent = self._parent("step_input")
        require_variable("DynamicRNN.step_input", "x", x)
        if self.lod_rank_table is None:
            self._start(parent, x, level)
        array = parent.create_var(
            unique_name.generate("dynamic_rnn_input_array"), x.dtype, type=VarKind.LOD_TENSOR_ARRAY
        )
        self._inputs.append(array)
        parent.append_op("lod_tensor_to_array", {"X": x, "RankTable": self.lod_rank_table}, {"Out": array})
        return array_read(array, self._step)

    def _start(self, parent: Block, x: Variable, level: int) -> None:
        """The first step input says which sequences there are, and how many steps."""
        table = parent.create_var(
            unique_name.generate("lod_rank_table"), type=VarKind.LOD_RANK_TABLE, stop_gradient=True
        )
        parent.append_op("lod_rank_table", {"X": x}, {"Out": table}, {"level": level})
        steps = parent.create_var(unique_name.generate("dynamic_rnn_max_seq_len"), "int64")
        parent.append_op("max_sequence_len", {"RankTable": table}, {"Out": steps})
        self.cond.stop_gradient = True
        parent.append_op("less_than", {"X": self._step, "Y": steps}, {"Out": self.cond}, {"force_cpu": True})
        self.lod_rank_table, self.max_seq_len = table, steps

    def static_input(self, x: Variable) -> Variable:
        """All of ``x``, one sequence (or row) for each sequence that the step has; call after `step_input`."""
        parent = self._parent("static_input")
        require_variable("DynamicRNN.static_input", "x", x)
        table = self._table("static_input")
        reordered = self._reordered(parent, x, "dynamic_rnn_static_input_reordered")
        return shrink_memory(reordered, self._step, table)

    @contextmanager
    def block(self) -> Iterator[None]:
        """Ops appended inside the ``with`` are run for each step."""
        if self.status != self.BEFORE_RNN:
            raise ProgramError(f"DynamicRNN: block() can be entered once ({user_line()})")
        self.step_idx = fill_constant([1], "int64", 0, force_cpu=True)
        self.step_idx.stop_gradient = False
        self.status = self.IN_RNN
        with self.while_op.block():
            yield
            table = self._table("block")
            increment(self.step_idx, 1.0)
            for memory, array in self._updates:
                array_write(memory, self.step_idx, array)
            assert self.max_seq_len is not None
            less_than(self.step_idx, self.max_seq_len, force_cpu=True, cond=self.cond)
        self.status = self.AFTER_RNN
        self._outputs = [array_to_lod_tensor(array, table) for array in self._output_arrays]

    def __call__(self) -> Variable | list[Variable]:
        """The outputs, with the LoD of the first step input; a single one is not in a list."""
        if self.status != self.AFTER_RNN:
            raise ProgramError(f"DynamicRNN: its outputs are there after its block ({user_line()})")
        return self._outputs[0] if len(self._outputs) == 1 else self._outputs

    def memory(
        self,
        init: Variable | None = None,
        shape: Sequence[int] | None = None,
        value: float = 0.0,
        need_reorder: bool = False,
        dtype: object = "float32",
    ) -> Variable:
        """What the step before left, one row for each sequence that the step has.

        At first the rows of ``init`` (in the order of the batch with ``need_reorder``, else in that of the lengths), or
        ``value`` everywhere in [sequences, *shape].
        """
        parent = self._parent("memory")
        zero = self._zero(parent)
        if init is None:
            init = self._constant(parent, zero, shape, value, dtype)
        elif need_reorder:
            self._table("memory(need_reorder=True)")
            init = self._reordered(parent, init, "dynamic_rnn_mem_init_reordered")
        array = parent.create_var(
            unique_name.generate("dynamic_rnn_mem_array"), init.dtype, type=VarKind.LOD_TENSOR_ARRAY
        )
        parent.append_op("write_to_array", {"X": init, "I": zero}, {"Out": array})
        memory = shrink_memory(array_read(array, self._step), self._step, self._table("memory"))
        self._memories[memory.name] = array
        return memory

    def update_memory(self, ex_mem: Variable, new_mem: Variable) -> None:
        """The next step finds ``new_mem`` in the memory ``ex_mem``."""
        self._parent("update_memory")
        require_variable("DynamicRNN.update_memory", "new_mem", new_mem)
        array = self._memories.get(require_variable("DynamicRNN.update_memory", "ex_mem", ex_mem).name)
        if array is None:
            raise ProgramError(
                f"DynamicRNN.update_memory: {ex_mem.name!r} is no memory of this network ({user_line()})"
            )
        self._updates.append((new_mem, array))

    def output(self, *outputs: Variable) -> None:
        """Variables of each step that become results."""
        parent = self._parent("output")
        for each in outputs:
            name = unique_name.generate(f"{self.helper.name}_output_array_{each.name}")
            array = parent.create_var(name, each.dtype, type=VarKind.LOD_TENSOR_ARRAY)
            array_write(each, self._step, array)
            self._output_arrays.append(array)

    @property
    def _step(self) -> Variable:
        assert self.step_idx is not None
        return self.step_idx

    def _table(self, method: str) -> Variable:
        if self.lod_rank_table is None:
            raise ProgramError(
                f"DynamicRNN.{method} comes after step_input, which says what the sequences are ({user_line()})"
            )
        return self.lod_rank_table

    def _zero(self, parent: Block) -> Variable:
        if self.zero_idx is None:
            self.zero_idx = parent.create_var(unique_name.generate("zero_idx"), "int64")
            attrs = {"shape": [1], "dtype": dtype_number("int64"), "value": 0.0, "force_cpu": True}
            parent.append_op("fill_constant", {}, {"Out": [self.zero_idx]}, attrs)
        return self.zero_idx

    def _constant(
        self, parent: Block, zero: Variable, shape: Sequence[int] | None, value: float, dtype: object
    ) -> Variable:
        """A memory's first value: as many rows as the first step has."""
        if not self._inputs:
            raise ProgramError(f"DynamicRNN.memory(shape=...) comes after step_input ({user_line()})")
        if shape is None:
            raise ProgramError(f"DynamicRNN.memory needs init or shape ({user_line()})")
        init = parent.create_var(unique_name.generate("mem_init"), dtype)
        first = parent.create_var(unique_name.generate("in0"), self._inputs[0].dtype)
        parent.append_op("read_from_array", {"X": [self._inputs[0]], "I": [zero]}, {"Out": [first]})
        attrs = {"shape": [-1, *shape], "value": float(value), "dtype": dtype_number(init.dtype)}
        parent.append_op("fill_constant_batch_size_like", {"Input": [first]}, {"Out": [init]}, attrs)
        return init

    def _reordered(self, parent: Block, x: Variable, name: str) -> Variable:
        out = parent.create_var(unique_name.generate(name), x.dtype)
        inputs = {"X": [x], "RankTable": [self._table("memory")]}
        parent.append_op("reorder_lod_tensor_by_rank", inputs, {"Out": [out]})
        return out

    def _parent(self, method: str) -> Block:
        if self.status != self.IN_RNN:
            raise ProgramError(f"DynamicRNN.{method} belongs inside block() ({user_line()})")
        return self.helper.main_program.block(self.helper.block.parent_idx)
