"""What `verify` and `dataflow` must know of an op type. They are given a lookup function, so that core needs no ops.

The records of `fluidlite.ops.registry` are of this form; its ``find`` is the lookup function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol, TypeAlias

from fluidlite.core.ir import AttrType

#: attributes that any op may carry, whether its declaration says so or not
EVERY_OP: Final[dict[str, AttrType]] = {
    "op_role": AttrType.INT,
    "op_role_var": AttrType.STRINGS,
    "op_namescope": AttrType.STRING,
    "op_callstack": AttrType.STRINGS,
    "op_device": AttrType.STRING,
}


class ArgumentDeclaration(Protocol):
    """One input or output name."""

    @property
    def name(self) -> str: ...

    @property
    def many(self) -> bool: ...

    @property
    def optional(self) -> bool: ...

    @property
    def intermediate(self) -> bool: ...


class AttrDeclaration(Protocol):
    """One attribute."""

    @property
    def type(self) -> AttrType: ...

    @property
    def required(self) -> bool: ...


class OpDeclaration(Protocol):
    """One op type."""

    @property
    def inputs(self) -> Sequence[ArgumentDeclaration]: ...

    @property
    def outputs(self) -> Sequence[ArgumentDeclaration]: ...

    @property
    def attrs(self) -> Mapping[str, AttrDeclaration]: ...

    @property
    def inplace(self) -> Mapping[str, str]: ...

    @property
    def side_effect(self) -> bool: ...


#: op type -> its declaration, None when there is no such op
Defs: TypeAlias = Callable[[str], OpDeclaration | None]
