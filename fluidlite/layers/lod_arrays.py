"""Sequences as arrays of steps, batches in two parts, and what is made of them: rank tables, `IfElse`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final

from fluidlite import unique_name
from fluidlite.dtypes import VarKind
from fluidlite.errors import ProgramError
from fluidlite.framework import Block, Variable, user_line
from fluidlite.layer_helper import LayerHelper, require_dtype, require_variable
from fluidlite.layers.control_flow import ConditionalBlock
from fluidlite.layers.tensor import assign


def lod_rank_table(x: Variable, level: int = 0) -> Variable:
    """The sequences of LoD ``level`` of ``x`` in the order of their lengths, the longest first."""
    helper = LayerHelper("lod_rank_table")
    table = helper.create_variable(type=VarKind.LOD_RANK_TABLE, name=unique_name.generate("lod_rank_table"))
    helper.append_op(
        "lod_rank_table", {"X": require_variable("lod_rank_table", "x", x)}, {"Out": table}, {"level": level}
    )
    return table


def max_sequence_len(rank_table: Variable) -> Variable:
    """The length of the longest sequence of a rank table; [1] int64."""
    helper = LayerHelper("max_seqence_len")  # Fluid's spelling: names follow from it
    return helper.one("max_sequence_len", {"RankTable": _table("max_sequence_len", rank_table)}, dtype="int64")


def lod_tensor_to_array(x: Variable, table: Variable) -> Variable:
    """An array whose entry t holds unit t of each sequence of ``x`` that is longer than t, in the order of ``table``."""
    helper = LayerHelper("lod_tensor_to_array")
    name = unique_name.generate("lod_tensor_to_array")
    array = helper.create_variable(name=name, type=VarKind.LOD_TENSOR_ARRAY, dtype=x.dtype)
    inputs = {"X": x, "RankTable": _table("lod_tensor_to_array", table)}
    helper.append_op("lod_tensor_to_array", inputs, {"Out": array})
    return array


def array_to_lod_tensor(x: Variable, table: Variable) -> Variable:
    """The sequences whose steps an array holds: the inverse of `lod_tensor_to_array`."""
    inputs = {"X": x, "RankTable": _table("array_to_lod_tensor", table)}
    return LayerHelper("array_to_lod_tensor").one("array_to_lod_tensor", inputs, dtype=x.dtype)


def shrink_memory(x: Variable, i: Variable, table: Variable) -> Variable:
    """The first rows of ``x``: one for each sequence of ``table`` with more than ``i`` units."""
    inputs = {"X": x, "I": i, "RankTable": table}
    return LayerHelper("shrink_memory").one("shrink_rnn_memory", inputs, dtype=x.dtype)


def reorder_lod_tensor_by_rank(x: Variable, rank_table: Variable) -> Variable:
    """The sequences of ``x`` (its rows, where it has no LoD) in the order of ``rank_table``."""
    inputs = {
        "X": require_variable("reorder_lod_tensor_by_rank", "x", x),
        "RankTable": _table("reorder_lod_tensor_by_rank", rank_table),
    }
    return LayerHelper("reorder_lod_tensor_by_rank").one("reorder_lod_tensor_by_rank", inputs, dtype=x.dtype)


def _table(layer: str, table: Variable) -> Variable:
    if require_variable(layer, "rank_table", table).type is not VarKind.LOD_RANK_TABLE:
        raise ProgramError(f"{layer}: {table.name!r} is no rank table; make one by lod_rank_table ({user_line()})")
    return table


def split_lod_tensor(input: Variable, mask: Variable, level: int = 0) -> tuple[Variable, Variable]:
    """(sequences of ``input`` for which ``mask`` [n, 1] bool is true, the others); rows where it has no LoD."""
    helper = LayerHelper("split_lod_tensor")
    true, false = helper.temporaries(2, input.dtype)
    outputs = {"OutTrue": true, "OutFalse": false}
    helper.append_op("split_lod_tensor", {"X": input, "Mask": mask}, outputs, {"level": level})
    return true, false


def merge_lod_tensor(in_true: Variable, in_false: Variable, x: Variable, mask: Variable, level: int = 0) -> Variable:
    """What `split_lod_tensor` took apart; ``x`` gives the LoD levels above ``level``."""
    inputs = {"X": x, "Mask": mask, "InTrue": in_true, "InFalse": in_false}
    return LayerHelper("merge_lod_tensor").one("merge_lod_tensor", inputs, {"level": level}, dtype=in_true.dtype)


class IfElse:
    """Computes one thing on the rows for which a condition holds, and another on the rest::

    branch = layers.IfElse(condition)          # [n, 1] bool
    with branch.true_block():
        branch.output(layers.fc(branch.input(x), 1))
    with branch.false_block():
        branch.output(layers.scale(branch.input(x), -1.0))
    (merged,) = branch()                       # rows in the order of x
    """

    OUT_IF_ELSE_BLOCKS: Final = 0
    IN_IF_ELSE_TRUE_BLOCKS: Final = 1
    IN_IF_ELSE_FALSE_BLOCKS: Final = 2

    def __init__(self, cond: Variable, name: str | None = None) -> None:
        require_dtype("IfElse", require_variable("IfElse", "cond", cond), ("bool",))
        self.helper = LayerHelper("ifelse", name)
        self.cond = cond
        self.status = self.OUT_IF_ELSE_BLOCKS
        self._inputs: dict[str, tuple[Variable, Variable]] = {}
        self._blocks = (self._conditional(), self._conditional())
        #: results of the false block, and of the true one
        self.output_table: tuple[list[Variable], list[Variable]] = ([], [])

    def _conditional(self) -> ConditionalBlock:
        return ConditionalBlock([self.cond], is_scalar_condition=False)

    def true_block(self) -> AbstractContextManager[None]:
        """The block for the rows where the condition is true."""
        return self._branch(is_true=True)

    def false_block(self) -> AbstractContextManager[None]:
        """The block for the other rows."""
        return self._branch(is_true=False)

    @contextmanager
    def _branch(self, *, is_true: bool) -> Iterator[None]:
        if self.status != self.OUT_IF_ELSE_BLOCKS:
            raise ProgramError(f"IfElse: one block may not stand inside another ({user_line()})")
        self.status = self.IN_IF_ELSE_TRUE_BLOCKS if is_true else self.IN_IF_ELSE_FALSE_BLOCKS
        try:
            with self._blocks[0 if is_true else 1].block():
                yield
        finally:
            self.status = self.OUT_IF_ELSE_BLOCKS
        if not self.output_table[is_true]:
            raise ProgramError(f"IfElse: a block must say what it gives by output() ({user_line()})")

    def input(self, x: Variable) -> Variable:
        """The rows of ``x`` that the block computes on."""
        parent = self._parent("input")
        if x.name not in self._inputs:
            names = [unique_name.generate(f"ifelse_input{self.helper.name}") for _ in range(2)]
            true, false = (parent.create_var(name=name, dtype=x.dtype) for name in names)
            outputs = {"OutTrue": true, "OutFalse": false}
            parent.append_op("split_lod_tensor", {"X": x, "Mask": self.cond}, outputs, {"level": 0})
            self._inputs[x.name] = (true, false)
        return self._inputs[x.name][0 if self.status == self.IN_IF_ELSE_TRUE_BLOCKS else 1]

    def output(self, *outs: Variable) -> None:
        """What the block gives; both blocks give as many."""
        parent = self._parent("output")
        for out in outs:
            require_variable("IfElse.output", "outs", out)
            name = unique_name.generate(f"{self.helper.name}_output")
            outside = parent.create_var(name=name, dtype=out.dtype)
            self.output_table[self.status == self.IN_IF_ELSE_TRUE_BLOCKS].append(outside)
            assign(out, outside)

    def _parent(self, method: str) -> Block:
        if self.status == self.OUT_IF_ELSE_BLOCKS:
            raise ProgramError(f"IfElse.{method} belongs inside true_block or false_block ({user_line()})")
        return self.helper.main_program.block(self.helper.block.parent_idx)

    def __call__(self) -> list[Variable]:
        """The results, rows of both blocks in the order of the condition; of the only block, its own."""
        if self.status != self.OUT_IF_ELSE_BLOCKS:
            raise ProgramError(f"IfElse: its results are there after its blocks ({user_line()})")
        false, true = self.output_table
        if not false and not true:
            raise ProgramError(f"IfElse: call true_block or false_block first ({user_line()})")
        if not false or not true:
            return false or true
        if len(false) != len(true):
            raise ProgramError(
                f"IfElse: true_block gives {len(true)} outputs and false_block {len(false)} ({user_line()})"
            )
        return [merge_lod_tensor(t, f, self.cond, self.cond) for f, t in zip(false, true, strict=True)]
