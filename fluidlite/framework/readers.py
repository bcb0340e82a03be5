"""Readers in programs: the variables and ops that say where a program takes its batches from (`ops.readers`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fluidlite.core import ir
from fluidlite.dtypes import VarKind, dtype_number
from fluidlite.framework.program import Block, Variable, VarOrName
from fluidlite.framework.state import NameGenerator

#: names of the readers that loaders make; Fluid counts them over all programs of a process
names = NameGenerator()


def declare(block: Block, name: str) -> Variable:
    """A READER variable."""
    var = block.create_var(name, None, persistable=True, type=VarKind.READER)
    var.stop_gradient = True
    return var


def append_create(block: Block, queue: str, name: str, items: Sequence[ir.Variable]) -> Variable:
    """A reader of batches of ``items``, from the queue ``queue``."""
    shapes = [list(item.shape or ()) for item in items]
    block.append_op(
        "create_py_reader",
        {"blocking_queue": [queue]},
        {"Out": [declare(block, name)]},
        {
            "shape_concat": [dim for shape in shapes for dim in shape],
            "ranks": [len(shape) for shape in shapes],
            "lod_levels": [item.lod_level for item in items],
            "dtypes": [dtype_number(item.dtype) for item in items],
            "need_check_feed": [int(item.need_check_feed) for item in items],
        },
    )
    return block.var(name)


def append_double_buffer(block: Block, reader: Variable, name: str, place: str | None = None) -> Variable:
    """A reader of the same batches."""
    attrs = {} if place is None else {"place": place}
    block.append_op(
        "create_double_buffer_reader", {"UnderlyingReader": [reader]}, {"Out": [declare(block, name)]}, attrs
    )
    return block.var(name)


def append_read(block: Block, reader: Variable, outputs: Sequence[VarOrName]) -> None:
    """Fill ``outputs`` from the reader's next batch."""
    block.append_op("read", {"Reader": [reader]}, {"Out": outputs})


def sources(program: ir.Program) -> dict[str, list[tuple[str, ...]]]:
    """Per reader at the root of a chain of readers: what each `read` op of block 0 fills from it."""
    below: dict[str, str] = {}
    found: dict[str, list[tuple[str, ...]]] = {}
    for op in program.root.ops:
        if op.type == "create_double_buffer_reader":
            below.update(zip(op.outputs.get("Out", ()), op.inputs.get("UnderlyingReader", ()), strict=False))
        elif op.type == "read":
            for name in op.inputs.get("Reader", ()):
                found.setdefault(_root(name, below), []).append(tuple(op.outputs.get("Out", ())))
    return found


def _root(name: str, below: Mapping[str, str]) -> str:
    passed = set()
    while name in below and name not in passed:
        passed.add(name)
        name = below[name]
    return name
