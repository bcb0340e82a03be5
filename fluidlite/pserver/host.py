"""Runs the blocks of a pserver program: lookups, updates, learning-rate schedule. Owns version and lock.

Lock policy: one lock per server. A step and a list of pulls exclude each other, so a pull never sees half a step.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fluidlite.core import edit, names
from fluidlite.core.ir import Attr, AttrType, Operator, Program
from fluidlite.dtypes import Array
from fluidlite.errors import DtypeError, OutOfRangeError, ProgramError, RequestRefusedError, ShapeError, TableError
from fluidlite.protocol.messages import Declared, DenseRequest, Gradient, PullRequest, RowRequest, Value
from fluidlite.pserver.catalog import Catalog, GradientSpec, LookupSpec, check_program, is_rows
from fluidlite.pserver.service import PServer, ServiceOptions
from fluidlite.runtime.plan import Plan
from fluidlite.runtime.scope import Scope
from fluidlite.values import files
from fluidlite.values.lod import LoDTensor
from fluidlite.values.selected_rows import SelectedRows

_SYNC_MODE = 0
#: what a request, and not the server, has done wrong
_USER_ERRORS = (OutOfRangeError, TableError, ShapeError, DtypeError)


class Host:
    """Implements `pserver.service.Store` by a program and the scope that its startup program filled.

    ``listen`` is the program's `listen_and_serv` op. Everything is checked and compiled here: ProgramError and
    UnknownOpError for a program that cannot be served, UninitializedError when the startup program was not run.
    """

    def __init__(self, program: Program, listen: Operator, scope: Scope) -> None:
        check_program(program)
        self.trainers: int = listen.attr("Fanin", 1)
        self.sync = listen.attr("distributed_mode", _SYNC_MODE) == _SYNC_MODE
        self._scope = scope
        self._catalog = Catalog(program, listen, scope)
        # Fluid leaves the blocks of tables out of optimize_blocks, and never runs them.
        bound = [spec.block for spec in self._catalog.gradients.values()]
        blocks = dict.fromkeys([*listen.attr("optimize_blocks", ()), *bound])
        self._updates = [_Update(program, block, self._catalog, self.trainers if self.sync else 1) for block in blocks]
        self._lookups = {name: _Lookup(program, spec) for name, spec in self._catalog.lookups.items()}
        schedule = listen.attr("lr_decay_block_id", -1)
        self._schedule = Plan(program, None, block=schedule) if schedule > 0 else None
        self._lock = threading.Lock()
        self._version = 0

    @property
    def version(self) -> int:
        """How many steps were applied."""
        return self._version

    def check_declared(self, declared: Sequence[Declared]) -> None:
        self._catalog.check_declared(declared)

    def check_step(self, gradients: Sequence[Gradient], wanted: Sequence[str]) -> None:
        seen = set()
        for gradient in gradients:
            self._catalog.gradient(gradient.name).check(gradient)
            if gradient.name in seen:
                raise RequestRefusedError(f"gradient {gradient.name!r} comes twice in one step")
            seen.add(gradient.name)
        for name in wanted:
            self._catalog.dense(name)

    def apply(self, steps: Mapping[int, Sequence[Gradient]], tick: bool) -> int:
        """One step of the server: the schedule, then every update block that has a gradient."""
        given: dict[str, dict[int, Gradient]] = {}
        for trainer, gradients in steps.items():
            for gradient in gradients:
                given.setdefault(gradient.name, {})[trainer] = gradient
        with self._lock:
            if tick and self._schedule is not None:
                self._schedule.run(self._scope, {})
            for update in self._updates:
                update.run(self._scope, given, first=next(iter(steps)))
            self._version += 1
            return self._version

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
    """A block that applies gradients to a parameter, compiled. ``trainers``: how many may give theirs in one step; the
    block of more than one begins with their sum."""

    def __init__(self, program: Program, block: int, catalog: Catalog, trainers: int) -> None:
        self.gradients = [spec for spec in catalog.gradients.values() if spec.block == block]
        self._plan = Plan(program, None, block=block)
        read = {name for op in program.blocks[block].ops for name in op.input_arguments()}
        self._summed = {spec.name for spec in self.gradients if names.of_trainer(spec.name, 0) in read}
        for spec in self.gradients:
            if trainers > 1 and spec.name not in self._summed:
                raise ProgramError(f"block {block} does not sum the gradients {spec.name!r} of {trainers} trainers")

    def run(self, scope: Scope, given: Mapping[str, Mapping[int, Gradient]], first: int) -> None:
        """Apply what trainers gave. A dense gradient that nobody gave leaves the parameter as it is; a sparse one that
        nobody gave is a gradient of no rows, by trainer ``first``."""
        feeds: dict[str, Any] = {}
        for spec in self.gradients:
            parts = {trainer: _as_value(spec, gradient) for trainer, gradient in given.get(spec.name, {}).items()}
            if not parts and not spec.sparse:
                return
            feeds.update(self._feeds(spec, parts or {first: spec.empty()}))
        self._plan.run(scope, feeds, keep=())

    def _feeds(self, spec: GradientSpec, parts: Mapping[int, Any]) -> dict[str, Any]:
        if spec.name not in self._summed:
            (value,) = parts.values()
            return {spec.name: value}
        feeds = {names.of_trainer(spec.name, trainer): value for trainer, value in parts.items()}
        return feeds | {names.CONTRIBUTION_SCALE: np.array([1 / len(parts)])}


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


def _read_only(program: Program, block: int) -> Plan:
    twin = edit.clone(program)
    for op in twin.blocks[block].ops:
        edit.set_attr(twin, op, "is_test", Attr(AttrType.BOOLEAN, value=True))
    return Plan(twin, None, block=block)


def _as_value(spec: GradientSpec, gradient: Gradient) -> Array | SelectedRows:
    if gradient.rows is None:
        return gradient.value
    return SelectedRows(gradient.rows, gradient.value, gradient.height or spec.shape[0])


def make_service(host: Host, options: ServiceOptions | None = None, job: str | None = None) -> PServer:
    """The service that a pserver program describes: its number of trainers, sync or async."""
    return PServer(host, trainers=host.trainers, sync=host.sync, options=options, job=job)
