"""The frozen types that trainers and servers exchange, whatever the transport.

A step of a trainer is a transaction: gradients are parts, they count at the commit. Used by the ports of kernels, the
wire, the in-process transport and the log.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from fluidlite.dtypes import Array
from fluidlite.values.selected_rows import SelectedRows

#: what travels as one value: an array, or rows of a taller matrix
Value: TypeAlias = Array | SelectedRows

#: version of the exchange; a server refuses a trainer with another one
PROTOCOL_VERSION = 1


#: the trainer number of who is none, and only reads what servers hold
READER: Final = -1


@dataclass(frozen=True, slots=True)
class Identity:
    """Who speaks. ``incarnation`` is new at every start of the trainer's process and grows (nanoseconds)."""

    job: str
    trainer: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class RowRequest:
    """Rows of a table or of a row-sliced dense parameter by id.

    ``ids`` (n,) int64. ``table`` is the variable's name on the server. A read-only request of an unknown id answers
    the declared default and makes no row. ``wire_dtype``: float16 or bfloat16, to which the rows are rounded on their way
    (see `protocol.narrow`); "": as they are. ``signature``: by which gradients to come may name the ids.
    """

    endpoint: str
    table: str
    ids: Array
    width: int
    dtype: str
    read_only: bool = False
    wire_dtype: str = ""
    signature: bytes = b""


@dataclass(frozen=True, slots=True)
class DenseRequest:
    """A whole variable of a server, by its name there.

    ``current``: as it is now. Otherwise the trainer's port may answer with what the last commit brought, and asks for the
    variable along with the next one.
    """

    endpoint: str
    name: str
    current: bool = False


@dataclass(frozen=True, slots=True)
class TableRequest:
    """Every row of one server's shard of a table (or of an accumulator of it): the answer is SelectedRows."""

    endpoint: str
    table: str


PullRequest = RowRequest | DenseRequest | TableRequest


@dataclass(frozen=True, slots=True)
class Gradient:
    """A gradient, or a piece of one, for one server.

    ``name`` is the variable's name on the server without the trainer's suffix. Dense: ``rows`` is None and ``value``
    has the slice's shape. Sparse: ``rows`` (n,) int64 and ``value`` (n, width); ``height`` of the whole matrix.
    ``wire_dtype``: as in a RowRequest, for the values of rows. ``signature``: on the wire, in place of rows that it names.
    """

    endpoint: str
    name: str
    value: Array
    rows: Array | None = None
    height: int = 0
    wire_dtype: str = ""
    signature: bytes = b""


@dataclass(frozen=True, slots=True)
class StepHeader:
    """What a commit says of its step. ``sequence`` numbers the steps of a trainer from 0; a new incarnation goes on where
    the one before it ended.

    ``version_seen`` is the server's version at the trainer's last pull or reply, ``parts`` the number of gradients
    sent for this step, ``learning_rate`` an explicit override of the server's own schedule (None: none). ``steps``: how
    many steps of the trainer are merged in this one.
    """

    identity: Identity
    sequence: int
    step: int
    version_seen: int
    parts: int
    learning_rate: float | None = None
    steps: int = 1


@dataclass(frozen=True, slots=True)
class Push:
    """A whole step as it comes to a server. ``wanted`` names dense variables whose values after the step the answer is to
    carry. Not ``decided``: the server only accepts it, a `Decision` follows."""

    header: StepHeader
    gradients: Sequence[Gradient]
    wanted: Sequence[str]
    decided: bool = True


@dataclass(frozen=True, slots=True)
class Decision:
    """What became of an accepted step of a trainer: every server accepted it, so it counts (``apply``), or it is forgotten.

    ``identity`` may be a newer incarnation than the one that sent the step.
    """

    identity: Identity
    sequence: int
    apply: bool
    wanted: Sequence[str] = ()


class Status(enum.IntEnum):
    """How a server answers. Everything but OK travels with a text and becomes a typed error."""

    OK = 0
    REFUSED = 1  # the request is wrong: unknown variable, width, dtype; do not repeat
    STALE = 2  # older incarnation
    FAILED = 3  # the update raised inside the server
    LEFT = 4  # the trainer is not registered, or its lease ran out; it must register again
    LOST = 5  # the job ends: the server stops, or another trainer died and the policy is to abort
    FORGOTTEN = 6  # a signature is not known, or no longer
    OUTDATED = 7  # a step was computed from too old a version


class Use(enum.IntEnum):
    """What a trainer does with a variable of a server."""

    ROWS = 0  # pulls rows by id
    DENSE = 1  # pulls it whole
    GRADIENT = 2  # pushes a dense gradient of this name
    ROW_GRADIENT = 3  # pushes rows of gradient


@dataclass(frozen=True, slots=True)
class Declared:
    """What a trainer will ask for or send, checked when it registers. ``shape`` is (width,) where rows travel."""

    name: str
    use: Use
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Registration:
    """First contact of a trainer with a server, and its return. ``trainers`` is the number it believes in
    (0: it does not know)."""

    identity: Identity
    trainers: int
    declared: tuple[Declared, ...] = ()
    protocol: int = PROTOCOL_VERSION


@dataclass(frozen=True, slots=True)
class Welcome:
    """Answer to a registration.

    ``version`` of the server (in sync mode also the number of the open round), ``next_sequence``: one above the last step
    of this trainer that counts, ``undecided``: a step that the server accepted and heard no more of, ``lease`` seconds of
    silence after which it gives the trainer up. ``history`` names what the server remembers: it is another one after a
    restart that lost it.
    """

    version: int
    next_sequence: int
    trainers: int
    sync: bool
    lease: float
    history: int
    undecided: int | None = None


@dataclass(frozen=True, slots=True)
class PullReply:
    """One server's answer to a pull: a value per request, and the version they were read at."""

    version: int
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class CommitReply:
    """One server's answer to a commit: its version after the step, and the variables that the commit asked for."""

    version: int
    dense: Mapping[str, Array] = field(default_factory=dict)


class Reply:
    """Answer to a commit over all servers. The new dense values wait in the port for `recv`."""

    def __init__(self, wait: Callable[[], Mapping[str, int]] = dict) -> None:
        self._wait = wait

    @property
    def versions(self) -> Mapping[str, int]:
        """By endpoint. Waits for them; raises what went wrong with the step."""
        return self._wait()
