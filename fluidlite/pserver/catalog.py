"""What a pserver program offers to trainers, read off its ops, and whether a request fits it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import numpy as np

from fluidlite.core.ir import Block, Operator, Program
from fluidlite.core.verify import verify
from fluidlite.dtypes import Array, VarKind
from fluidlite.errors import ProgramError, RequestRefusedError, UninitializedError
from fluidlite.ops import registry
from fluidlite.protocol.messages import Declared, Gradient, RowRequest, Use
from fluidlite.runtime.scope import Scope
from fluidlite.values.lod import LoDTensor
from fluidlite.values.selected_rows import SelectedRows
from fluidlite.values.sparse_table import SparseTable, TableColumn

#: how many ops a program may hold: far above any real one, low enough to refuse one made to exhaust the server
MAX_OPS: Final = 1_000_000
#: of one job
MAX_TRAINERS: Final = 1 << 16
#: why a trainer does not fit: each names all that this server has
_MOST_REASONS: Final = 20


@dataclass(frozen=True, slots=True)
class GradientSpec:
    """A gradient that the server takes: the block that applies it, and the parameter whose shape and dtype it has.

    ``grows``: the parameter is a table, so any id is legal. ``sparse``: rows arrive, and a step without it is a step
    without rows.
    """

    name: str
    block: int
    param: str
    shape: tuple[int, ...]
    dtype: str
    grows: bool
    sparse: bool

    def empty(self) -> SelectedRows:
        """A gradient of no rows."""
        return SelectedRows(np.empty(0, np.int64), np.empty((0, *self.shape[1:]), self.dtype), self.shape[0])

    def check(self, gradient: Gradient) -> None:
        """RequestRefusedError unless the gradient can be applied."""
        value = gradient.value
        if value.dtype != self.dtype:
            raise RequestRefusedError(f"gradient {self.name!r} is {value.dtype}, parameter {self.param!r} {self.dtype}")
        if gradient.rows is not None:
            self._check_rows(value, gradient.rows)
            if not self.grows and gradient.height not in (0, self.shape[0]):
                raise RequestRefusedError(
                    f"gradient {self.name!r} is of {gradient.height} rows, parameter {self.param!r} has {self.shape[0]}"
                )
        elif self.grows:
            raise RequestRefusedError(f"gradient {self.name!r} is dense, but {self.param!r} is a table: send rows")
        elif value.shape != self.shape:
            raise RequestRefusedError(
                f"gradient {self.name!r} has shape {list(value.shape)}, parameter {self.param!r} {list(self.shape)}"
            )

    def _check_rows(self, value: Array, rows: Array) -> None:
        if value.shape != (len(rows), *self.shape[1:]):
            raise RequestRefusedError(
                f"gradient {self.name!r} has {len(rows)} ids and values of shape {list(value.shape)}, "
                f"but {self.param!r} has rows of {list(self.shape[1:])}"
            )
        outside = np.flatnonzero((rows < 0) | (rows >= self.shape[0])) if not self.grows else rows[:0]
        if len(outside):
            raise RequestRefusedError(
                f"gradient {self.name!r}: id {rows[outside[0]]} at position {outside[0]} is outside {self.param!r}, "
                f"which has {self.shape[0]} rows here"
            )


@dataclass(frozen=True, slots=True)
class LookupSpec:
    """A table, or a parameter that is fetched by row: the block that looks ids up, its input and its output."""

    table: str
    block: int
    ids: str
    out: str
    width: int
    dtype: str

    def check(self, request: RowRequest) -> None:
        """RequestRefusedError unless the rows can be given."""
        if (request.width, request.dtype) != (self.width, self.dtype):
            raise RequestRefusedError(
                f"rows of {self.table!r} are {self.width} {self.dtype}, not {request.width} {request.dtype}"
            )
        if request.ids.ndim != 1 or request.ids.dtype != np.int64:
            raise RequestRefusedError(
                f"ids of {self.table!r} must be [n] int64, not {list(request.ids.shape)} {request.ids.dtype}"
            )


class Catalog:
    """Everything that trainers may name. Reads the scope too: the startup program must have been run.

    Raises ProgramError for a program that contradicts itself, UninitializedError for parameters without a value.
    """

    def __init__(self, program: Program, listen: Operator, scope: Scope) -> None:
        self._program = program
        self._scope = scope
        self._sparse = dict(_pairs(listen, "sparse_grad_to_param"))
        self.gradients = {name: self._gradient(name, block) for name, block in self._blocks(listen, "grad_to_block_id")}
        lookups = self._blocks(listen, "prefetch_var_name_to_block_id")
        self.lookups = {table: self._lookup(table, block) for table, block in lookups}

    def check_declared(self, declared: Sequence[Declared]) -> None:
        """Refuse, with the first `_MOST_REASONS`, what a trainer will ask for or send and is not here, or differs."""
        problems = (problem for item in declared if (problem := self._mismatch(item)))
        if first := list(islice(problems, _MOST_REASONS)):
            raise RequestRefusedError("; ".join(first))

    def gradient(self, name: str) -> GradientSpec:
        """What is known of a gradient; RequestRefusedError for one that the server does not take."""
        if name not in self.gradients:
            raise RequestRefusedError(f"unknown gradient {name!r}; this server takes {_listed(self.gradients)}")
        return self.gradients[name]

    def lookup(self, table: str) -> LookupSpec:
        """What is known of a table; RequestRefusedError for one whose rows the server does not give."""
        if table not in self.lookups:
            raise RequestRefusedError(f"unknown table {table!r}; this server has rows of {_listed(self.lookups)}")
        return self.lookups[table]

    def value(self, name: str) -> Any:
        """What a variable of block 0 holds; RequestRefusedError for an unknown name, and where nothing was written."""
        if name not in self._program.root.vars:
            raise RequestRefusedError(f"unknown variable {name!r}")
        value = self._scope.get(name)
        if value is None:
            raise RequestRefusedError(f"variable {name!r} has no value yet")
        return value

    def dense(self, name: str) -> Array:
        """The array that a variable holds (not a copy); RequestRefusedError where it holds none."""
        value = self.value(name)
        array = value.array if isinstance(value, LoDTensor) else value
        if not isinstance(array, np.ndarray):
            raise RequestRefusedError(f"variable {name!r} holds {type(value).__name__}, not an array; ask for its rows")
        return array

    def offered(self, name: str, use: Use) -> Declared:
        """What a trainer could declare of a variable to match it; RequestRefusedError for an unknown name."""
        if use is Use.ROWS:
            lookup = self.lookup(name)
            return Declared(name, use, lookup.dtype, (lookup.width,))
        if use is Use.DENSE:
            array = self.dense(name)
            return Declared(name, use, array.dtype.name, array.shape)
        spec = self.gradient(name)
        return Declared(name, use, spec.dtype, spec.shape[1:] if use is Use.ROW_GRADIENT else spec.shape)

    def _mismatch(self, item: Declared) -> str:
        try:
            here = self.offered(item.name, item.use)
        except RequestRefusedError as error:
            return str(error)
        if here.dtype == item.dtype and _fits(item.shape, here.shape):
            return ""
        return f"{item.name!r} is {list(here.shape)} {here.dtype} here, not {list(item.shape)} {item.dtype}"

    def _blocks(self, listen: Operator, attr: str) -> Iterator[tuple[str, Block]]:
        for name, index in _pairs(listen, attr):
            if not re.fullmatch("[0-9]{1,9}", index) or not 0 < int(index) < len(self._program.blocks):
                raise ProgramError(f"listen_and_serv: {attr} names block {index!r} for {name!r}, which does not exist")
            yield name, self._program.blocks[int(index)]

    def _gradient(self, name: str, block: Block) -> GradientSpec:
        param = self._sparse.get(name) or _param_of(block, name)
        if param is None:
            raise ProgramError(f"block {block.idx} is to apply gradient {name!r}, but no op of it updates a parameter")
        value = self._initialized(param)
        var = self._program.find_var(name, block)
        sparse = var is not None and var.kind == VarKind.SELECTED_ROWS
        if isinstance(value, SparseTable):
            shape: tuple[int, ...] = (value.height, value.width)
            return GradientSpec(name, block.idx, param, shape, np.dtype(value.dtype).name, grows=True, sparse=True)
        array = self.dense(param)
        return GradientSpec(name, block.idx, param, array.shape, array.dtype.name, grows=False, sparse=sparse)

    def _lookup(self, table: str, block: Block) -> LookupSpec:
        op = next((op for op in block.ops if op.input("W") == table), None)
        if op is None:
            raise ProgramError(f"block {block.idx} is to look up rows of {table!r}, but no op of it does")
        ids, out = op.input("Ids"), op.output("Out")
        if ids is None or out is None:
            raise ProgramError(f"op {op.type!r} of block {block.idx} needs Ids and Out to look up rows of {table!r}")
        value = self._initialized(table)
        width = value.width if isinstance(value, SparseTable) else self.dense(table).shape[-1]
        return LookupSpec(table, block.idx, ids, out, width, np.dtype(value.dtype).name)

    def _initialized(self, name: str) -> Any:
        value = self._scope.get(name)
        if value is None:
            raise UninitializedError(
                f"parameter {name!r} has no value; run the pserver's startup program before its main program"
            )
        return value


def check_program(program: Program) -> None:
    """Refuse, before anything runs, a program that is too large or breaks an invariant (unknown ops, wrong attributes)."""
    ops = sum(len(block.ops) for block in program.blocks)
    if ops > MAX_OPS or len(program.blocks) > MAX_OPS:
        raise ProgramError(f"the program has {len(program.blocks)} blocks and {ops} ops; a server takes {MAX_OPS}")
    verify(program, registry.find)


def block_of(program: Program, number: int) -> Block:
    """A block that `listen_and_serv` names; ProgramError where there is none."""
    if not 0 < number < len(program.blocks):
        raise ProgramError(f"listen_and_serv names block {number} of a program of {len(program.blocks)} blocks")
    return program.blocks[number]


def is_rows(value: object) -> bool:
    """Whether a variable's value is held by row: a table or an accumulator of one."""
    return isinstance(value, (SparseTable, TableColumn))


def _pairs(listen: Operator, attr: str) -> Iterator[tuple[str, str]]:
    """The two parts of each ``"name:what"`` of a list attribute; names may hold colons themselves."""
    for text in listen.attr(attr, ()):
        name, _, what = text.rpartition(":")
        yield name, what


def _param_of(block: Block, gradient: str) -> str | None:
    """The parameter that a block updates by a gradient: what its ops say, else the parameter of its optimizer op."""
    for op in block.ops:
        for param, grad in zip(op.role_var[::2], op.role_var[1::2], strict=False):
            if grad == gradient:
                return param
    updates = (op.input("Param") for op in block.ops if (op_def := registry.find(op.type)) and op_def.is_optimizer)
    return next(updates, None)


def _fits(declared: tuple[int, ...], real: tuple[int, ...]) -> bool:
    return len(declared) == len(real) and all(d in (-1, r) for d, r in zip(declared, real, strict=True))


def _listed(names: Sequence[str] | dict[str, Any]) -> str:
    return ", ".join(repr(name) for name in names) or "none"
