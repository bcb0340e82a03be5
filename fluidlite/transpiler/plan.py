"""The plan of a distributed job: which server holds what. Frozen, and a pure function of the program and the cluster.

`planner.make_plan` makes it. Trainer and pserver programs are both derived from the untouched program by passes that
only carry the plan out; `io` reads from it where to find a parameter.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from fluidlite.core import names
from fluidlite.core.ir import Program
from fluidlite.ops.keeping import Keeping
from fluidlite.ops.modes import Settings, Wire
from fluidlite.transpiler.placement import Dispatcher, RoundRobin


@dataclass(frozen=True)
class Cluster:
    """Who takes part. ``trainer_id`` is the trainer that the trainer programs are for."""

    endpoints: tuple[str, ...]
    trainers: int
    trainer_id: int = 0
    sync: bool = True

    @property
    def trainer_attrs(self) -> dict[str, int]:
        """Who asks, on every op that commits or receives."""
        return {"trainer_id": self.trainer_id, "trainers": self.trainers}


@dataclass(frozen=True)
class Options:
    """How dense parameters are cut and spread: Fluid's ``slice_var_up``, ``min_block_size`` and ``split_method``.

    ``dense_on_trainer``: they are not; the only trainer keeps them. ``rows_wire_dtype``, ``gradients_wire_dtype``: in
    which rows, and gradients of rows, travel ("": as they are). ``keeping``: what servers keep on disk. ``two_phase``: a step
    counts on several servers once all have accepted it. ``training``: how pushes count; an asynchronous cluster
    makes sync async. ``geo_every``: steps from one exchange to the next in geo mode. ``wire``: what trainers and servers speak; with Fluid's,
    everything is cut and placed as Fluid does. ``contradictions`` and ``other_mode``: what else was asked for and is refused.
    """

    slice_var_up: bool = True
    min_block_size: int = 8192
    dispatcher: type[Dispatcher] = RoundRobin
    dense_on_trainer: bool = False
    rows_wire_dtype: str = ""
    gradients_wire_dtype: str = ""
    training: Settings = field(default_factory=Settings)
    keeping: Keeping = field(default_factory=Keeping)
    two_phase: bool = True
    geo_every: int = 100
    wire: Wire = Wire.OWN
    contradictions: tuple[str, ...] = ()
    other_mode: str = ""


@dataclass(frozen=True)
class Slice:
    """Rows ``first_row`` to ``first_row + rows`` of a dense parameter; elements when the parameter has one dimension."""

    param: str
    index: int
    first_row: int
    rows: int
    endpoint: str


class RowSource(NamedTuple):
    """Where lookups fetch their rows: per server its endpoint, the variable's name there and, when ids are routed by
    row section instead of by `shard_of`, its number of rows."""

    name: str
    height: int
    width: int
    dtype: str
    endpoints: tuple[str, ...]
    names: tuple[str, ...]
    sections: tuple[int, ...]


@dataclass(frozen=True)
class DenseParam:
    """A parameter of fixed height.

    ``gradient`` is the variable that travels: the raw gradient, or what the trainer made of it (a global-norm clip).
    ``fetched_by_row``: trainers hold no copy, lookups fetch rows. ``accumulators`` are cut like the parameter, each
    slice has its own copy of ``whole_accumulators``.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    gradient: str
    slices: tuple[Slice, ...]
    sparse_gradient: bool = False
    fetched_by_row: bool = False
    accumulators: tuple[str, ...] = ()
    whole_accumulators: tuple[str, ...] = ()

    def on_server(self, name: str, part: Slice) -> str:
        """What a slice's server calls the parameter, its gradient or an accumulator."""
        return names.slice_of(name, part.index) if len(self.slices) > 1 else name

    @property
    def parts(self) -> tuple[str, ...]:
        """What the servers call the parameter, slice by slice."""
        return tuple(self.on_server(self.name, part) for part in self.slices)

    @property
    def endpoints(self) -> tuple[str, ...]:
        return tuple(part.endpoint for part in self.slices)

    @property
    def sections(self) -> tuple[int, ...]:
        return tuple(part.rows for part in self.slices)

    @property
    def row_source(self) -> RowSource:
        return RowSource(self.name, self.shape[0], self.shape[1], self.dtype, self.endpoints, self.parts, self.sections)


@dataclass(frozen=True)
class Table:
    """A distributed embedding: an auto-grown table with a shard on every server. ``gradient`` is None when nothing
    trains it."""

    name: str
    height: int
    dim: int
    dtype: str
    shards: tuple[str, ...]
    gradient: str | None = None
    accumulators: tuple[str, ...] = ()
    whole_accumulators: tuple[str, ...] = ()

    @property
    def row_source(self) -> RowSource:
        everywhere = (self.name,) * len(self.shards)
        return RowSource(self.name, self.height, self.dim, self.dtype, self.shards, everywhere, ())


class Storage(enum.Enum):
    """How servers hold a variable of the untouched program."""

    SLICES = "slices"  # concatenated along dimension 0 they are the value
    COPIES = "copies"  # every piece is the whole value
    ROWS = "rows"  # rows of a table, or of one of its accumulators, by id


class Piece(NamedTuple):
    """A variable of one server. ``first_row`` and ``rows`` only count for slices."""

    endpoint: str
    name: str
    first_row: int = 0
    rows: int = 0


class Held(NamedTuple):
    """A persistable variable of the untouched program that servers hold."""

    name: str
    storage: Storage
    pieces: tuple[Piece, ...]


class Note(NamedTuple):
    """What a pass leaves alone, and why."""

    pass_name: str
    subject: str
    reason: str

    def __str__(self) -> str:
        return f"{self.pass_name}: {self.subject}: {self.reason}"


class Geo(NamedTuple):
    """Trainers train by themselves. ``every``: steps from one exchange to the next; ``columns``: the row-wise accumulators
    of each table."""

    every: int
    columns: tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True)
class Plan:
    """Everything that the passes need to know.

    ``dense`` and ``tables`` are the parameters that servers hold, ``on_trainer`` names those that the only trainer
    updates itself. ``shared``: variables that every server holds (learning rates, schedule counters). ``server_only``:
    variables that the trainer no longer needs. ``endpoint`` is the server that pserver passes make the program of, see
    `at`. ``rows_wire_dtype``, ``gradients_wire_dtype``, ``training``, ``keeping``,
    ``two_phase``, ``wire``: see `Options`.
    ``geo``: how trainers exchange, in geo mode.
    """

    cluster: Cluster
    dense: tuple[DenseParam, ...] = ()
    tables: tuple[Table, ...] = ()
    on_trainer: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    server_only: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()
    endpoint: str | None = None
    rows_wire_dtype: str = ""
    gradients_wire_dtype: str = ""
    training: Settings = field(default_factory=Settings)
    keeping: Keeping = field(default_factory=Keeping)
    two_phase: bool = True
    geo: Geo | None = None
    wire: Wire = Wire.OWN

    @property
    def averages(self) -> bool:
        """Whether a step of the servers takes the mean, or the sum, of several gradients."""
        return self.training.rounds and (self.cluster.trainers > 1 or not self.training.distinct_trainers)

    @property
    def wire_attrs(self) -> dict[str, str]:
        """What ops that speak to others say of the wire; nothing where it is ours."""
        return {"wire": str(self.wire)} if self.wire else {}

    def at(self, endpoint: str) -> Plan:
        """The same plan, seen by one server."""
        return replace(self, endpoint=endpoint)

    @property
    def pserver_id(self) -> int:
        """Position of the server among the endpoints."""
        return self.cluster.endpoints.index(self.endpoint or "")

    @property
    def received(self) -> tuple[DenseParam, ...]:
        """Parameters of which trainers hold a copy."""
        return tuple(param for param in self.dense if self.geo is not None or not param.fetched_by_row)

    @property
    def row_sources(self) -> tuple[RowSource, ...]:
        """What lookups fetch by row: tables, then row-fetched parameters."""
        tables = [table.row_source for table in self.tables]
        return (*tables, *(param.row_source for param in self.dense if param.fetched_by_row))

    @property
    def owned_slices(self) -> tuple[tuple[DenseParam, Slice], ...]:
        """The slices of this server, in the order of its update blocks."""
        return tuple((p, s) for p in self.dense for s in p.slices if s.endpoint == self.endpoint)

    @property
    def trained_tables(self) -> tuple[Table, ...]:
        """Tables that have an update block."""
        return tuple(table for table in self.tables if table.gradient is not None)

    def held(self) -> Iterator[Held]:
        """Every persistable variable that lives on servers, for saving and loading."""
        for param in self.dense:
            for name in (param.name, *param.accumulators):
                pieces = (Piece(s.endpoint, param.on_server(name, s), s.first_row, s.rows) for s in param.slices)
                yield Held(name, Storage.SLICES, tuple(pieces))
            for name in param.whole_accumulators:
                pieces = (Piece(s.endpoint, param.on_server(name, s)) for s in param.slices)
                yield Held(name, Storage.COPIES, tuple(pieces))
        for table in self.tables:
            for name in (table.name, *table.accumulators):
                yield Held(name, Storage.ROWS, tuple(Piece(endpoint, name) for endpoint in table.shards))
            for name in table.whole_accumulators:
                yield Held(name, Storage.COPIES, tuple(Piece(endpoint, name) for endpoint in table.shards))
        for name in self.shared:
            yield Held(name, Storage.COPIES, tuple(Piece(endpoint, name) for endpoint in self.cluster.endpoints))


@dataclass(frozen=True)
class Distribution:
    """What a transpiled trainer program knows of its job: ``Program.distribution``."""

    plan: Plan
    main: Program = field(repr=False)
    startup: Program = field(repr=False)
