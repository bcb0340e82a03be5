"""The program as plain data: Program, Block, Operator, Variable, Parameter.

Nothing here computes or checks. `fluidlite.core.edit` holds the only functions that change a block, `verify` the
invariants, `serde` and `text` the two written forms.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fluidlite.dtypes import VarKind

#: What Fluid 1.8.5 writes into ``ProgramDesc.version``: major * 1 000 000 + minor * 1000 + patch.
PROGRAM_VERSION: Final = 1008005
#: Stands for "no variable" in an argument list, as in Fluid.
EMPTY: Final = "@EMPTY@"


class OpRole(enum.IntFlag):
    """What an op is for; the attribute ``op_role`` that every op carries."""

    FORWARD = 0x0000
    BACKWARD = 0x0001
    OPTIMIZE = 0x0002
    RPC = 0x0004
    DIST = 0x0008
    LR_SCHED = 0x0010
    LOSS = 0x0100
    NOT_SPECIFIED = 0x1000


class AttrType(enum.IntEnum):
    """``AttrType`` of ``framework.proto``."""

    INT = 0
    FLOAT = 1
    STRING = 2
    INTS = 3
    FLOATS = 4
    STRINGS = 5
    BOOLEAN = 6
    BOOLEANS = 7
    BLOCK = 8
    LONG = 9
    BLOCKS = 10
    LONGS = 11


class Attr(NamedTuple):
    """An attribute: its type and its value.

    ``value`` is an int, float (rounded to float32: the form that files keep), str, bool or a tuple of these; of a
    BLOCK or BLOCKS attribute the block index or a tuple of them.
    """

    type: AttrType
    value: Any


@dataclass
class Variable:
    """A variable's declaration. ``shape`` is None where it has none; -1 marks a dimension known only at run time."""

    name: str
    kind: VarKind = VarKind.LOD_TENSOR
    dtype: str = "float32"
    shape: tuple[int, ...] | None = None
    lod_level: int = 0
    persistable: bool = False
    stop_gradient: bool = False
    is_data: bool = False
    need_check_feed: bool = False
    #: bytes of proto fields that this version does not know; written back unchanged
    unknown: bytes = b""
    #: which defaults the file that this was read from spelled out (`serde.VarForm`); no part of the content
    form: Any = field(default=None, compare=False, repr=False)


@dataclass
class Parameter(Variable):
    """A variable that training changes.

    ``is_distributed`` marks a parameter held as an auto-grown table; ``regularizer``, ``gradient_clip`` and
    ``constraint`` are the front end's objects and live only in memory.
    """

    trainable: bool = True
    learning_rate: float = 1.0
    is_distributed: bool = False
    do_model_average: bool = True
    regularizer: Any = field(default=None, compare=False)
    gradient_clip: Any = field(default=None, compare=False)
    constraint: Any = field(default=None, compare=False)


@dataclass
class Operator:
    """An op: argument lists by input and output name, and attributes.

    ``origin`` says where it comes from: the user's ``file:line``, or the pass that made it. Every error shows it; it is
    no part of the program's content: neither compared nor written to files.
    """

    type: str
    inputs: dict[str, list[str]] = field(default_factory=dict)
    outputs: dict[str, list[str]] = field(default_factory=dict)
    attrs: dict[str, Attr] = field(default_factory=dict)
    origin: str = field(default="", compare=False)
    is_target: bool = False
    unknown: bytes = b""
    #: how the file that this was read from wrote it (`serde.OpForm`); no part of the content
    form: Any = field(default=None, compare=False, repr=False)

    def input(self, name: str) -> str | None:
        """The first argument of an input, None when it is absent or empty."""
        return next(iter(self.inputs.get(name, ())), None)

    def output(self, name: str) -> str | None:
        """The first argument of an output, None when it is absent or empty."""
        return next(iter(self.outputs.get(name, ())), None)

    def attr(self, name: str, default: Any = None) -> Any:
        """The value of an attribute."""
        found = self.attrs.get(name)
        return default if found is None else found.value

    def input_arguments(self) -> Iterator[str]:
        """Every variable the op reads, in order, with repetitions, without ``@EMPTY@``."""
        return (name for names in self.inputs.values() for name in names if name != EMPTY)

    def output_arguments(self) -> Iterator[str]:
        """Every variable the op writes, in order, without ``@EMPTY@``."""
        return (name for names in self.outputs.values() for name in names if name != EMPTY)

    @property
    def role(self) -> OpRole:
        return OpRole(self.attr("op_role", OpRole.FORWARD))

    @property
    def role_var(self) -> tuple[str, ...]:
        """``op_role_var``: (parameter, gradient) pairs, flattened."""
        return tuple(self.attr("op_role_var", ()))


@dataclass
class Block:
    """An ordered list of ops and the variables they name; block 0 is the root (``parent`` -1)."""

    idx: int = 0
    parent: int = -1
    forward: int = -1
    vars: dict[str, Variable] = field(default_factory=dict)
    ops: list[Operator] = field(default_factory=list)
    unknown: bytes = b""


_uids = itertools.count(1)


@dataclass
class Program:
    """A list of blocks. ``uid`` and ``edits`` identify one state of one program for caches, ``backward_passes`` counts the
    passes appended so far (their gradients' names tell); all three stay in memory."""

    blocks: list[Block] = field(default_factory=lambda: [Block()])
    version: int = PROGRAM_VERSION
    random_seed: int = 0
    unknown: bytes = b""
    uid: int = field(default_factory=lambda: next(_uids), compare=False)
    edits: int = field(default=0, compare=False)
    backward_passes: int = field(default=0, compare=False)

    @property
    def root(self) -> Block:
        return self.blocks[0]

    def find_var(self, name: str, block: Block) -> Variable | None:
        """The variable that ``name`` means inside ``block``: its own or the nearest ancestor's."""
        owner = self.owner(name, block)
        return None if owner is None else owner.vars[name]

    def owner(self, name: str, block: Block) -> Block | None:
        """The block whose declaration ``name`` means inside ``block``: itself, or the nearest one that it falls back to.

        A gradient block (``forward`` names the block whose gradient it is) sees the variables of that block before those
        of its parent.
        """
        if name in block.vars:
            return block
        waiting, seen = [block], {block.idx}
        for current in waiting:
            if name in current.vars:
                return current
            for idx in (current.forward, current.parent):
                if 0 <= idx < len(self.blocks) and idx not in seen:
                    seen.add(idx)
                    waiting.append(self.blocks[idx])
        return None

    def all_ops(self) -> Iterator[tuple[Block, Operator]]:
        """Every op of every block, in order."""
        return ((block, op) for block in self.blocks for op in block.ops)

    def parameters(self) -> list[Parameter]:
        """The parameters of block 0, in order of creation."""
        return [var for var in self.root.vars.values() if isinstance(var, Parameter)]

    if TYPE_CHECKING:  # installed by `framework.program`: the name by which scripts ask ``program.desc`` for its bytes

        def serialize_to_string(self) -> bytes: ...
