"""Runs the blocks of a pserver program: lookups, updates, learning-rate schedule. Owns version and lock.

Lock policy: one lock per server. A step and a list of pulls exclude each other, so a pull never sees half a step.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from fluidlite.checkpoint.cut import PieceOf
from fluidlite.core import edit, names
from fluidlite.core.ir import Attr, AttrType, Operator, Program
from fluidlite.dtypes import Array
from fluidlite.errors import DtypeError, OutOfRangeError, ProgramError, RequestRefusedError, ShapeError, TableError
from fluidlite.ops import registry
from fluidlite.ops.modes import Mode, Settings
from fluidlite.protocol.messages import Declared, DenseRequest, Gradient, PullRequest, RowRequest, Use, Value
from fluidlite.pserver.catalog import MAX_TRAINERS, Catalog, GradientSpec, LookupSpec, block_of, check_program, is_rows
from fluidlite.pserver.finite import NanPolicy
from fluidlite.pserver.keeper import Keeper
from fluidlite.pserver.policy import Step, make_policy
from fluidlite.pserver.rates import Rate, Rates, rates_of
from fluidlite.pserver.service import PServer, ServiceOptions
from fluidlite.runtime.plan import Plan
from fluidlite.runtime.scope import Scope
from fluidlite.values import files
from fluidlite.values.lod import LoDTensor
from fluidlite.values.selected_rows import SelectedRows
from fluidlite.values.sparse_table import SparseTable

#: what a request, and not the server, has done wrong
_USER_ERRORS = (OutOfRangeError, TableError, ShapeError, DtypeError)


class Host:
    """Implements `pserver.service.Store` by a program and the scope that its startup program filled.

    ``listen`` is the program's `listen_and_serv` op. Everything is checked and compiled here: ProgramError and
    UnknownOpError for a program that cannot be served, UninitializedError when the startup program was not run.
    """

    def __init__(self, program: Program, listen: Operator, scope: Scope) -> None:
        check_program(program)
        self.trainers = _trainers(listen)
        self.settings = settings = Settings.read(listen)
        self._scope = scope
        self._catalog = Catalog(program, listen, scope)
        # Fluid leaves the blocks of tables out of optimize_blocks, and never runs them.
        bound = [spec.block for spec in self._catalog.gradients.values()]
        blocks = dict.fromkeys(
            [*(block_of(program, number).idx for number in listen.attr("optimize_blocks", ())), *bound]
        )
        together = _summed_together(settings, self.trainers)
        self._updates = [_Update(program, block, self._catalog, together, settings) for block in blocks]
        self._backups = _backups(program, blocks, self.trainers)
        self._rates = Rates(program, settings)
        self._nan_policy = NanPolicy(settings.nan_policy)
        self._lookups = {name: _Lookup(program, spec) for name, spec in self._catalog.lookups.items()}
        schedule = listen.attr("lr_decay_block_id", -1)
        self._schedule = Plan(program, None, block=block_of(program, schedule).idx) if schedule > 0 else None
        #: what of the variables are pieces of something larger
        self.pieces = _pieces(listen, self._backups)
        self._lock = threading.Lock()
        self._version = 0

    @property
    def version(self) -> int:
        """How many steps were applied."""
        return self._version

    @property
    def sync(self) -> bool:
        """Whether a trainer may ask for nothing before its last step is answered: by the round, and where the answer holds
        it back."""
        return self.settings.rounds or self.settings.mode is Mode.SSP

    @property
    def counters(self) -> dict[str, dict[str, int]]:
        """How often something went on that training should not see: "gradients not finite", and their "rows" or
        "elements", by parameter."""
        found: dict[str, dict[str, int]] = {}
        for (param, what), count in sorted(self._nan_policy.counts.items()):
            found.setdefault(f"{what} not finite", {})[param] = count
        return found

    def check_declared(self, declared: Sequence[Declared]) -> None:
        self._catalog.check_declared(declared)

    def offered(self, name: str, use: Use) -> Declared:
        return self._catalog.offered(name, use)

    def check_step(
        self,
        gradients: Sequence[Gradient],
        wanted: Sequence[str],
        trainer: int | None = None,
        learning_rate: float | None = None,
    ) -> None:
        """RequestRefusedError for a step that cannot be applied. ``trainer``: whose it is, for the message."""
        self._rates.check(learning_rate)
        seen = set()
        for gradient in gradients:
            spec = self._catalog.gradient(gradient.name)
            spec.check(gradient)
            if gradient.name in seen:
                raise RequestRefusedError(f"gradient {gradient.name!r} comes twice in one step")
            seen.add(gradient.name)
            self._nan_policy.check(spec, gradient, trainer)
        for name in wanted:
            self._catalog.dense(name)

    def apply(self, steps: Mapping[int, Step], tick: int) -> int:
        """One step of the server: the schedule, ``tick`` times, then every update block that has a gradient."""
        with self._lock:
            for _ in range(tick):
                if self._schedule is not None:
                    self._schedule.run(self._scope, {})
            rate = self._rates.of(steps, self._version)
            given = self._given(steps)
            for update in self._updates:
                update.run(self._scope, given, first=next(iter(steps)), rate=rate)
            self._back_up(steps)
            self._version += 1
            return self._version

    def remember(self, trainer: int) -> None:
        """The dense parameters as they are now are those that a trainer computes its next gradients from: what delay
        compensation (``dc_asgd``) measures from. `apply` does so for the trainers whose steps it takes."""
        with self._lock:
            self._back_up([trainer])

    @contextmanager
    def at_rest(self) -> Iterator[Scope]:
        """The variables, while no step changes them and no pull reads them: for checkpoints."""
        with self._lock:
            yield self._scope

    def settle(self) -> None:
        """Bring rows that are regularised lazily up to date, as reading a whole table does."""
        with self._lock:
            for value in list(self._scope.values.values()):
                if isinstance(value, SparseTable):
                    value.settle()

    def resume(self, version: int) -> None:
        """Go on from a checkpoint, whose values the variables have."""
        self._version = version

    def _given(self, steps: Mapping[int, Step]) -> dict[str, dict[int, list[Gradient]]]:
        """The gradients to use, by name and trainer."""
        given: dict[str, dict[int, list[Gradient]]] = {}
        for trainer, step in steps.items():
            for gradient in step.gradients:
                used = self._nan_policy.apply(self._catalog.gradient(gradient.name), gradient, trainer)
                if used is not None:
                    given.setdefault(gradient.name, {}).setdefault(trainer, []).append(used)
        return given

    def _back_up(self, trainers: Collection[int]) -> None:
        for param, names_of in self._backups.items():
            for trainer in trainers:
                self._scope.set(names_of[trainer], self._catalog.dense(param).copy())

    def pull(self, requests: Sequence[PullRequest]) -> tuple[int, list[Value]]:
        with self._lock:
            return self._version, [self._value(request) for request in requests]

    def dense(self, names: Sequence[str]) -> dict[str, Array]:
        with self._lock:
            return {name: self._catalog.dense(name).copy() for name in names}

    def assign(self, name: str, value: Value) -> None:
        with self._lock:
            target = self._catalog.value(name)
            if isinstance(value, SelectedRows):
                self._load_rows(name, target, value)
                return
            array = self._catalog.dense(name)
            if (array.shape, array.dtype) != (value.shape, value.dtype):
                raise RequestRefusedError(
                    f"variable {name!r} is {list(array.shape)} {array.dtype}, the new value {list(value.shape)} {value.dtype}"
                )
            copy = np.array(value)
            self._scope.set(name, LoDTensor(copy, target.lod) if isinstance(target, LoDTensor) else copy)
            if name in self._backups:
                self._back_up(range(self.trainers))

    def _load_rows(self, name: str, target: Any, value: SelectedRows) -> None:
        if not is_rows(target):
            raise RequestRefusedError(f"variable {name!r} holds {type(target).__name__}; assign it whole, not by row")
        try:
            files.into_table(target, value)
        except _USER_ERRORS as error:
            raise RequestRefusedError(str(error)) from error

    def _value(self, request: PullRequest) -> Value:
        if isinstance(request, RowRequest):
            self._catalog.lookup(request.table).check(request)
            return self._lookups[request.table].rows(self._scope, request)
        if isinstance(request, DenseRequest):
            return self._catalog.dense(request.name).copy()
        value = self._catalog.value(request.table)
        if not is_rows(value):
            raise RequestRefusedError(
                f"variable {request.table!r} holds {type(value).__name__}, not a table; pull it whole"
            )
        exported: SelectedRows = value.export()
        return exported


class _Update:
    """A block that applies gradients to a parameter, compiled. ``together``: how many gradients may be summed in one step;
    the block of more than one begins with their sum."""

    def __init__(self, program: Program, block: int, catalog: Catalog, together: int, settings: Settings) -> None:
        self.gradients = [spec for spec in catalog.gradients.values() if spec.block == block]
        self._plan = Plan(program, None, block=block)
        self._rates = rates_of(program.blocks[block])
        self._mean_of_rows = settings.sparse_grad_reduce == "mean"
        read = {name for op in program.blocks[block].ops for name in op.input_arguments()}
        self._compensated = names.TRAINER_ID in read
        self._summed = {spec.name for spec in self.gradients if names.of_trainer(spec.name, 0) in read}
        for spec in self.gradients:
            if together > 1 and spec.name not in self._summed:
                raise ProgramError(f"block {block} does not sum the gradients {spec.name!r} of {together} trainers")

    def run(self, scope: Scope, given: Mapping[str, Mapping[int, Sequence[Gradient]]], first: int, rate: Rate) -> None:
        """Apply what trainers gave. A dense gradient that nobody gave leaves the parameter as it is; a sparse one that
        nobody gave is a gradient of no rows, by trainer ``first``."""
        feeds: dict[str, Any] = rate.feeds(scope, self._rates)
        if self._compensated:
            feeds[names.TRAINER_ID] = np.array([first])
        for spec in self.gradients:
            parts = given.get(spec.name, {})
            if not parts and not spec.sparse:
                return
            feeds.update(self._feeds(spec, parts) if parts else self._feed(spec, {first: spec.empty()}, 1))
        self._plan.run(scope, feeds, keep=())

    def _feeds(self, spec: GradientSpec, parts: Mapping[int, Sequence[Gradient]]) -> dict[str, Any]:
        values = {trainer: _total(spec, gradients) for trainer, gradients in parts.items()}
        return self._feed(spec, values, sum(map(len, parts.values())))

    def _feed(self, spec: GradientSpec, values: Mapping[int, Any], contributions: int) -> dict[str, Any]:
        if spec.name not in self._summed:
            (value,) = values.values()
            return {spec.name: value}
        scale = 1 / contributions if self._mean_of_rows or not spec.sparse else 1.0
        feeds = {names.of_trainer(spec.name, trainer): value for trainer, value in values.items()}
        return feeds | {names.CONTRIBUTION_SCALE: np.array([scale])}


class _Lookup:
    """A block that answers lookups, compiled twice: as it is, and such that it makes no rows."""

    def __init__(self, program: Program, spec: LookupSpec) -> None:
        self._spec = spec
        self._plans = {False: Plan(program, None, block=spec.block), True: _read_only(program, spec.block)}

    def rows(self, scope: Scope, request: RowRequest) -> Array:
        """(n, width) rows of (n,) ids."""
        try:
            env = self._plans[request.read_only].run(scope, {self._spec.ids: request.ids}, keep=[self._spec.out])
        except _USER_ERRORS as error:
            raise RequestRefusedError(str(error)) from error
        rows: Array = env.read(self._spec.out)
        return rows.reshape(len(request.ids), self._spec.width)


def _trainers(listen: Operator) -> int:
    trainers: int = listen.attr("Fanin", 1)
    if not 0 < trainers <= MAX_TRAINERS:
        raise ProgramError(f"listen_and_serv: a job of {trainers} trainers; it may have 1 to {MAX_TRAINERS}")
    return trainers


def _read_only(program: Program, block: int) -> Plan:
    twin = edit.clone(program)
    for op in twin.blocks[block].ops:
        edit.set_attr(twin, op, "is_test", Attr(AttrType.BOOLEAN, value=True))
    return Plan(twin, None, block=block)


def _summed_together(settings: Settings, trainers: int) -> int:
    """How many gradients of one name a step of the server may sum."""
    if not settings.rounds:
        return 1
    return trainers if settings.distinct_trainers else max(trainers, settings.grads_to_wait)


def _backups(program: Program, blocks: Iterable[int], trainers: int) -> dict[str, list[str]]:
    """Parameter -> its backups, one per trainer; of the parameters whose delayed gradients are compensated."""
    found: dict[str, list[str]] = {}
    for block in blocks:
        ops = program.blocks[block].ops
        backups = next((op.inputs["X"] for op in ops if op.type == "ref_by_trainer_id"), None)
        if backups is None:
            continue
        param = next((op.input("Param") for op in ops if registry.get(op.type).is_optimizer), None)
        if param is None or len(backups) < trainers:
            raise ProgramError(
                f"block {block} picks from {len(backups)} backups of {param!r}, but the job has {trainers} trainers"
            )
        found[param] = backups
    return found


def _pieces(listen: Operator, backups: Mapping[str, Sequence[str]]) -> dict[str, PieceOf]:
    """Slices and copies by their name here, and the backups of slices for delay compensation."""
    found: dict[str, PieceOf] = {}
    for name, _, first in (text.rpartition(":") for text in listen.attr("slices", ())):
        if not re.fullmatch("-1|[0-9]{1,18}", first):
            raise ProgramError(f"listen_and_serv: slices names row {first!r} of {name!r}")
        piece = PieceOf(names.parse_slice(name).origin, int(first) if first != "-1" else None)
        found[name] = piece
        for trainer, backup in enumerate(backups.get(name, ())):
            found[backup] = piece._replace(origin=names.backup_of(piece.origin, trainer))
    return found


def _total(spec: GradientSpec, gradients: Sequence[Gradient]) -> Array | SelectedRows:
    """The sum of one trainer's gradients, in order. Rows are of the parameter here, whatever height they came with."""
    if gradients[0].rows is None:
        return sum((gradient.value for gradient in gradients[1:]), gradients[0].value)
    height = spec.shape[0]
    if len(gradients) == 1:
        return SelectedRows(gradients[0].rows, gradients[0].value, height)
    ids = np.concatenate([gradient.rows for gradient in gradients if gradient.rows is not None])
    return SelectedRows(ids, np.concatenate([gradient.value for gradient in gradients]), height)


def make_service(
    host: Host, options: ServiceOptions | None = None, job: str | None = None, keeper: Keeper | None = None
) -> PServer:
    """The service that a pserver program describes: its number of trainers, its mode. ``keeper`` makes it again first."""
    policy = make_policy(host.settings)
    return PServer(host, trainers=host.trainers, sync=host.sync, policy=policy, options=options, job=job, keeper=keeper)
