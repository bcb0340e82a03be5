"""Executor: runs a program, whichever it is. One per process."""

from __future__ import annotations

import copy
import difflib
import itertools
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from fluidlite.core import edit
from fluidlite.core.ir import Program
from fluidlite.errors import FeedError, FetchError, FluidliteError, OutdatedStepError
from fluidlite.fusion.pipeline import Pass, chosen, fuse
from fluidlite.ops.context import Ports
from fluidlite.runtime import profile
from fluidlite.runtime.ahead import LookAhead
from fluidlite.runtime.env import Env
from fluidlite.runtime.in_place import chosen as in_place_chosen
from fluidlite.runtime.plan import Plan
from fluidlite.runtime.scope import Scope, global_scope
from fluidlite.values.fed import checked
from fluidlite.values.lod import LoDTensor
from fluidlite.values.memory import keep_freed_memory
from fluidlite.values.selected_rows import SelectedRows

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
#: programs whose compiled plans an executor keeps, and plans of one program, one per set of fetched variables
_PROGRAMS: Final = 64
_FETCHES: Final = 16
#: how often a step is computed before it is given up for being too old
_ATTEMPTS: Final = 64


class _Plans(NamedTuple):
    """The plans of one state of a program, by what is fetched, the least recently used one first."""

    edits: int
    by_fetch: dict[frozenset[str], Plan]


class ExecutorCore:
    """Compiles and runs `core.ir` programs. The front end's Executor adds Variables and default programs.

    ``passes``: the fusion passes that rewrite a copy of a program before it is compiled. ``in_place``: whether its steps
    may compute in the memory of what dies with them. ``translate``: gives the form in which a program runs here, of the same
    variables (of programs that others made).
    """

    def __init__(
        self,
        ports: Ports | None = None,
        passes: Sequence[Pass] | None = None,
        *,
        in_place: bool | None = None,
        translate: Callable[[Program], Program] | None = None,
    ) -> None:
        self._translate = translate if translate is not None else _as_it_is
        self._ports = ports
        self._in_place = in_place_chosen(in_place)
        self._passes = chosen() if passes is None else passes
        self._lock = threading.Lock()
        #: by program, the least recently used one first
        self._plans: dict[int, _Plans] = {}
        #: numbers the runs of each program, across edits
        self._runs: defaultdict[int, Iterator[int]] = defaultdict(itertools.count)
        #: the look-ahead of plans that had one; held while it runs
        self._ahead: WeakKeyDictionary[Plan, LookAhead] = WeakKeyDictionary()
        self._looking = threading.Lock()
        self._closed = False
        keep_freed_memory()

    def run(
        self,
        program: Program,
        feed: Mapping[str, Any] | None = None,
        fetch: Sequence[str] = (),
        scope: Scope | None = None,
        return_numpy: bool = True,
    ) -> list[Any]:
        """Run block 0 once and return the fetched values in order."""
        feeds = self.check(program, feed or {}, fetch)
        recorder = profile.active()
        if recorder is not None and self._ports is not None:
            recorder.counts(self._ports)
        scope = scope if scope is not None else global_scope()
        env = self._run(program, feeds, fetch, scope)
        return [fetched(env, name, return_numpy) for name in fetch]

    def _run(self, program: Program, feeds: dict[str, Any], fetch: Sequence[str], scope: Scope) -> Env:
        """A run; one whose step is refused for its age gets the present parameters and is run again, now and then."""
        for left in reversed(range(_ATTEMPTS)):
            plan = self.plan(program, fetch)
            try:
                return plan.run(scope, dict(feeds), fetch)
            except OutdatedStepError:
                self._abandon()
                if not left:
                    raise
                self._receive(plan.program, scope)
            except BaseException:
                self._abandon()
                raise
        raise AssertionError("unreachable")

    def _abandon(self) -> None:
        if self._ports is not None:
            self._ports.abandon()

    def _receive(self, program: Program, scope: Scope) -> None:
        """Run the ops that take parameters from the servers, as a run of the program does at its end."""
        ops = program.root.ops
        taken = {name for op in ops if op.type == "recv" for name in op.output_arguments()}
        head = edit.clone(program)
        wanted = [op.type == "recv" or (op.type == "concat" and taken.issuperset(op.input_arguments())) for op in ops]
        edit.set_ops(head, head.root, [op for op, kept in zip(head.root.ops, wanted, strict=True) if kept])
        Plan(head, self._ports).run(scope, {}, ())

    def resume(self, program: Program) -> int:
        """How many steps of this trainer count on the servers; the next run of ``program`` is numbered behind them."""
        if self._ports is None:
            return 0
        self._ports.prepare(self._translate(program))
        steps = self._ports.resume()
        with self._lock:
            self._runs[program.uid] = itertools.count(steps)
            self._plans.pop(program.uid, None)
        return steps

    def check(self, program: Program, feed: Mapping[str, Any], fetch: Sequence[str]) -> dict[str, Any]:
        """What can be told of a run beforehand: raises what `run` would. Returns the feeds as scopes hold them."""
        if self._closed:
            raise FluidliteError("this executor is closed; make a new one")
        for name in fetch:
            if program.find_var(name, program.root) is None:
                close = ", ".join(difflib.get_close_matches(name, program.root.vars, n=3))
                hint = f"; did you mean {close}?" if close else ""
                raise FetchError(f"cannot fetch {name!r}: the program has no such variable{hint}")
        return check_feed(program, feed)

    def plan(self, program: Program, fetch: Collection[str] = ()) -> Plan:
        """The compiled plan of this state of the program for runs that fetch ``fetch``; edits since the last run are
        noticed. Other temporaries than the fetched ones may be fused away."""
        key = frozenset(fetch)
        with self._lock:
            plans = self._plans.pop(program.uid, None)
            if plans is None or plans.edits != program.edits:
                plans = _Plans(program.edits, {})
            _put_last(self._plans, program.uid, plans, _PROGRAMS)
            plan = plans.by_fetch.pop(key, None)
            if plan is None:
                form = self._translate(program)
                fused = fuse(form, key, self._passes) if self._passes else form
                plan = Plan(fused, self._ports, runs=self._runs[program.uid], in_place=self._in_place)
            _put_last(plans.by_fetch, key, plan, _FETCHES)
            return plan

    def prefetch(self, program: Program, feed: Mapping[str, Any], scope: Scope | None = None) -> bool:
        """Ask servers for the rows that a run with this feed will need; whether anything was asked."""
        feeds = self.check(program, feed, ())
        if self._ports is None:
            return False
        with self._lock:
            plans = self._plans.get(program.uid)
            plan = next(reversed(plans.by_fetch.values()), None) if plans and plans.edits == program.edits else None
        plan = plan if plan is not None else self.plan(program)
        with self._looking:
            ahead = self._ahead.get(plan)
            if ahead is None:
                ahead = self._ahead[plan] = LookAhead(plan.program, self._ports)
            return ahead.ask(scope if scope is not None else global_scope(), feeds)

    def close(self, failed: bool = False) -> None:
        """Say to the servers that this trainer is done, or ``failed``: drop the connections, as a process that dies does.

        No run is possible afterwards.
        """
        if not self._closed and self._ports is not None:
            if failed:
                self._ports.leave()
            else:
                self._ports.close()
        self._closed = True


def _as_it_is(program: Program) -> Program:
    return program


def _put_last(kept: dict[K, V], key: K, value: V, most: int) -> None:
    """Keep a value as the most recently used one; the least recently used one goes where there are too many."""
    kept[key] = value
    if len(kept) > most:
        del kept[next(iter(kept))]


def check_feed(program: Program, feed: Mapping[str, Any]) -> dict[str, Any]:
    """Fed values in the form that scopes hold, checked against the declarations."""
    feeds = {}
    for name, value in feed.items():
        var = program.root.vars.get(name)
        if var is None:
            known = ", ".join(n for n, v in program.root.vars.items() if v.is_data) or "none"
            raise FeedError(f"cannot feed {name!r}: the program has no such variable; its data variables: {known}")
        exact = var.need_check_feed or not var.is_data
        feeds[name] = checked(name, value, var.dtype, var.shape, var.lod_level, exact=exact)
    return feeds


def fetched(env: Env, name: str, return_numpy: bool) -> Any:
    """A value as the user gets it: a copy, since optimizers change parameters in place and other values may view them."""
    value = env.read(name)
    if value is None:
        raise FetchError(f"cannot fetch {name!r}: nothing wrote it in this run")
    if isinstance(value, (np.ndarray, LoDTensor, SelectedRows)):
        value = copy.deepcopy(value)
    if isinstance(value, LoDTensor):
        if not return_numpy:
            return value
        if value.lod:
            raise FetchError(f"{name!r} has LoD; fetch it with return_numpy=False")
        return value.array
    if isinstance(value, np.ndarray) and not return_numpy:
        return LoDTensor(value)
    return value
