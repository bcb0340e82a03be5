"""The Executor that users make: runs default programs, takes Variables, and brings the ports to other processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Self, TypeAlias

from fluidlite import framework
from fluidlite.core import dataflow, edit
from fluidlite.core.ir import Program as ProgramDesc
from fluidlite.data_feeder import joined
from fluidlite.data_loader import with_loaders
from fluidlite.dataset import DatasetBase
from fluidlite.dataset_run import FetchHandler, run_dataset, without_updates
from fluidlite.errors import FetchError, FluidliteError, ProgramError
from fluidlite.framework import Operator, Program, Variable, VarOrName
from fluidlite.framework.versions import cpu_count
from fluidlite.fusion.pipeline import Choice, chosen
from fluidlite.kernels import choice
from fluidlite.ops import registry
from fluidlite.ops.context import Ports
from fluidlite.ports import ProcessPorts, starts_before
from fluidlite.runtime.executor import ExecutorCore
from fluidlite.runtime.scope import Scope
from fluidlite.transpiler import fluid_wire
from fluidlite.transpiler.legacy import translate

#: what `Executor.run` takes in its ``fetch_list``
Fetch: TypeAlias = "VarOrName | Operator | tuple[Any, ...]"
#: how many pruned programs an executor keeps
_PRUNED: Final = 16


class CPUPlace:
    """The only place there is; scripts name it."""

    def __repr__(self) -> str:
        return "CPUPlace()"


def cpu_places(device_count: int | None = None) -> list[CPUPlace]:
    """``device_count`` places; by default as many as the environment variable CPU_NUM says, else one."""
    return [CPUPlace() for _ in range(cpu_count() if device_count is None else device_count)]


class CUDAPlace:
    """Refused: fluidlite computes on CPUs."""

    def __init__(self, device: int = 0) -> None:
        raise FluidliteError(f"CUDAPlace({device}): fluidlite computes on CPUs only; use fluid.CPUPlace()")


def is_compiled_with_cuda() -> bool:
    """False; scripts guard CUDAPlace with it."""
    return False


class Executor:
    """Runs whichever program it is given: a trainer's, a startup program, or a pserver's (which then serves).

    ``place`` is accepted for Fluid's sake. ``ports`` connects the process to others; by default gRPC, opened when a
    program first needs it. ``fusion``: which fusion passes rewrite the copy of a program that is compiled: all (True), none
    (False), or these by name; by default what the environment variable ``FLUIDLITE_FUSION`` says, else all. ``in_place``: whether ops may compute in the memory
    of inputs that nobody reads afterwards; by default what ``FLUIDLITE_IN_PLACE`` says (0 or 1), else yes.
    Raises SettingError for passes that there are not, SettingError or KernelError for kernels (``FLUIDLITE_KERNELS``).
    """

    def __init__(
        self,
        place: object = None,
        *,
        ports: Ports | None = None,
        fusion: Choice = None,
        in_place: bool | None = None,
    ) -> None:
        choice.check()
        self.place = place
        #: how this process reaches others
        self.ports: Ports = ports if ports is not None else ProcessPorts()
        #: by program: what is called at versions
        self._hooks: dict[int, list[_Every]] = {}
        #: the last pruned programs, by what they were pruned of and for
        self._pruned: dict[tuple[int, int, tuple[str, ...]], Program] = {}
        #: by program: batches of data sets that are still to be left out
        self._to_skip: dict[int, int] = {}
        self._core = ExecutorCore(self.ports, chosen(fusion), in_place=in_place, translate=_as_here)

    def run(
        self,
        program: Program | None = None,
        feed: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        fetch_list: Fetch | Sequence[Fetch] | None = None,
        feed_var_name: str = "feed",
        fetch_var_name: str = "fetch",
        scope: Scope | None = None,
        return_numpy: bool = True,
        use_program_cache: bool = False,
        return_merged: bool = True,
        use_prune: bool = False,
    ) -> list[Any]:
        """Run a program once (default: the default main program) and return the fetched values.

        ``feed``: variable name -> array of the declared dtype and shape, or LoDTensor; or a list of such, as for several
        devices, which are joined. What it lacks, loaders of the program that are not iterable add (EOFException when they
        have no more). ``fetch_list``: Variables or names; a single one is taken as a list of one. Ops in it, or what
        ``minimize`` returned, fetch nothing. ``use_prune``: run only the ops that the fetched ones, and those ops, need.
        ``return_numpy=False`` returns LoDTensors; with ``return_merged=False`` each value of a program with data parallelism
        is a list, of the one device's. Programs are compiled once and recompiled when edited, whatever
        ``use_program_cache`` says; the other arguments are Fluid's and change nothing.

        Raises FeedError, FetchError, UninitializedError, OpRunError and what the ops raise.
        """
        fetch_list, wanted = _without_ops(fetch_list)
        apart = not return_merged and getattr(program, "is_data_parallel", False)
        program, feed, names = _as_given(program, self._accepted(program, feed), fetch_list)
        if use_prune or wanted:
            program = self._pruned_to(program, feed, [*names, *wanted])
            feed = {name: value for name, value in feed.items() if name in program.desc.root.vars}
        values = self._shown(self._core.run(program.desc, with_loaders(program, feed), names, scope, return_numpy))
        for hook in self._hooks.get(program.desc.uid, ()):
            hook.look(self.ports.version if program.distribution is not None else hook.runs + 1)
        return [[value] for value in values] if apart else values

    def _accepted(self, _program: Program | None, feed: Any, /) -> Any:
        """What `run` takes of a feed."""
        return feed

    def _shown(self, values: list[Any], /) -> list[Any]:
        """What `run` returns of fetched values."""
        return values

    def _pruned_to(self, program: Program, feed: Mapping[str, Any], targets: Sequence[str]) -> Program:
        """A copy of a program with only the ops that ``targets`` need, the last writers of targets among them."""
        key = program.desc.uid, program.desc.edits, (*targets, *sorted(feed))
        if key not in self._pruned:
            pruned = program.clone()
            ops = dataflow.prune(pruned.desc, (), targets, registry.find)
            edit.set_ops(pruned.desc, pruned.desc.root, ops)
            if len(self._pruned) >= _PRUNED:
                del self._pruned[next(iter(self._pruned))]
            self._pruned[key] = pruned
        return self._pruned[key]

    def run_every(self, versions: int, function: Callable[[int], object], program: Program | None = None) -> None:
        """Call ``function(version)`` after the run of a program with which the model reaches a multiple of ``versions``.

        ``program`` (default: the default main program) trains; `run` and `train_from_dataset` call the function when the
        step is done, so it may run a test program by this executor, or save. The version is that of the servers as far
        as this trainer has heard; of a program without servers, the number of runs. It can have gone past the multiple
        where trainers do not wait for each other. What the function raises, the run raises; the step counts all the same.
        Raises ProgramError for ``versions`` < 1.
        """
        if versions < 1:
            raise ProgramError(f"run_every: versions must be at least 1, not {versions}")
        program = framework.as_program(program) if program is not None else framework.default_main_program()
        self._hooks.setdefault(program.desc.uid, []).append(_Every(versions, function))

    def check(
        self,
        program: Program | None = None,
        feed: Mapping[str, Any] | None = None,
        fetch_list: VarOrName | Sequence[VarOrName] | None = None,
    ) -> None:
        """Raise what `run` would raise before it runs the first op: wrong feeds, fetches of unknown variables."""
        program, feed, names = _as_given(program, feed, fetch_list)
        self._core.check(program.desc, feed, names)

    def resume(self, program: Program | None = None) -> int:
        """How many steps of this trainer count on the servers already: 0 in a new job, more in a process that was started
        again. To go on where it ended, leave out as many batches::

            for batch in itertools.islice(reader(), exe.resume(), None):
                exe.run(feed=feeder.feed(batch), fetch_list=[loss])

        ``program``: a trainer's main program (default: the default one), after the startup program was run. Waits until the
        last of these steps is applied, so that what follows sees it, and numbers the runs of the program behind them, so
        that dropout and the like draw what they would have drawn. Raises what the first contact with servers does.
        """
        return self._core.resume((program if program is not None else framework.default_main_program()).desc)

    def prefetch(
        self, program: Program | None = None, feed: Mapping[str, Any] | None = None, scope: Scope | None = None
    ) -> bool:
        """Ask servers now for the rows that a later `run` of the program with this feed will need, and return at once.

        Call it before the run of another batch: while that computes, the rows travel. The later run finds them by their
        ids, whichever its feed; if it asks for others, it asks as usual. Only lookups whose ids depend on nothing but the
        feed are asked for. The rows are those of the time of this call: they lack this trainer's steps since then, and
        its last one where that was still on its way, besides what other trainers did since. In sync mode, where that
        would change results, nothing is done. Returns whether anything was asked; raises what `run` would for the feed.
        """
        program, feed, _ = _as_given(program, feed, None)
        return self._core.prefetch(program.desc, feed, scope)

    def train_from_dataset(
        self,
        program: Program | None = None,
        dataset: DatasetBase | None = None,
        scope: Scope | None = None,
        thread: int = 0,
        debug: bool = False,
        fetch_list: Sequence[VarOrName] | None = None,
        fetch_info: Sequence[str] | None = None,
        print_period: int = 100,
        fetch_handler: FetchHandler | None = None,
        *,
        look_ahead: bool = False,
    ) -> None:
        """Run the program once per batch of a dataset, whose batches a thread makes ahead.

        Every ``print_period`` batches ``fetch_list`` is fetched and printed behind the texts of ``fetch_info``;
        ``fetch_handler`` is called by time, see `FetchHandler`. With
        ``look_ahead`` the rows of a batch are asked for before the batch before it is run: see `prefetch`. The other
        arguments are Fluid's and change nothing: files are read by the threads that the dataset was told of, and steps
        follow each other. In a process that `fluidlite launch --restart` started again, the batches of its steps that
        count already are left out, over all calls for the program; they must be the same ones again. Raises DataError,
        FetchError and what `run` does.
        """
        ahead = self.prefetch if look_ahead else None
        program = framework.as_program(program) if program is not None else framework.default_main_program()
        skip = self._counted_before(program)
        batches = run_dataset(
            self, program, dataset, fetch_list, fetch_info, print_period, scope, ahead, skip, fetch_handler
        )
        self._to_skip[program.desc.uid] = max(0, skip - batches)

    def _counted_before(self, program: Program) -> int:
        """How many batches of ``program`` are still to be left out: those whose steps count already."""
        uid = program.desc.uid
        if uid not in self._to_skip:
            self._to_skip[uid] = self.resume(program) if starts_before() else 0
        return self._to_skip[uid]

    def infer_from_dataset(
        self,
        program: Program | None = None,
        dataset: DatasetBase | None = None,
        scope: Scope | None = None,
        thread: int = 0,
        debug: bool = False,
        fetch_list: Sequence[VarOrName] | None = None,
        fetch_info: Sequence[str] | None = None,
        print_period: int = 100,
        fetch_handler: FetchHandler | None = None,
    ) -> None:
        """Like `train_from_dataset`; of a program that trains, a copy ``for_test`` is run, which changes no parameter."""
        program = without_updates(framework.as_program(program))
        run_dataset(self, program, dataset, fetch_list, fetch_info, print_period, scope, fetch_handler=fetch_handler)

    def close(self) -> None:
        """Tell the servers that this trainer is done. Idempotent; the executor cannot run afterwards."""
        self._core.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        """Closes; after an error as a trainer that was lost, so that the others do not take its work for done."""
        self._core.close(failed=kind is not None)


class _Every:
    """Calls a function whenever a version passes a multiple of ``versions``."""

    def __init__(self, versions: int, function: Callable[[int], object]) -> None:
        self._versions = versions
        self._function = function
        self._reached: int | None = None
        #: of the program, since this was made
        self.runs = 0

    def look(self, version: int) -> None:
        """A run is over, and the model at a version."""
        self.runs += 1
        before = version - 1 if self._reached is None else self._reached
        self._reached = max(version, before)
        if version // self._versions > before // self._versions:
            self._function(version)


def _as_here(program: ProgramDesc) -> ProgramDesc:
    """The form in which a program runs here; what it does not say of the wire, the environment does."""
    return translate(program, fluid_wire.of_environment())


def _as_given(
    program: Program | None,
    feed: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None,
    fetch_list: Any,
) -> tuple[Program, Mapping[str, Any], list[str]]:
    """The arguments of a run: defaults filled in, kinds checked."""
    program = framework.as_program(program) if program is not None else framework.default_main_program()
    if not isinstance(program, Program):
        raise ProgramError(f"Executor.run needs a Program, not {type(program).__name__}")
    if isinstance(feed, Sequence) and feed and all(isinstance(one, Mapping) for one in feed):
        feed = joined(feed)
    if feed is not None and not isinstance(feed, Mapping):
        raise ProgramError(f"feed must be a dict of variable name -> value, not {type(feed).__name__}")
    names = fetch_names(fetch_list)
    distribution = program.distribution
    moved = () if distribution is None else distribution.plan.server_only
    for name in names:
        if name in moved and program.desc.find_var(name, program.desc.root) is None:
            raise FetchError(f"cannot fetch {name!r} in a trainer: the transpiler moved it to the servers")
    return program, feed or {}, names


def _without_ops(fetch_list: Any) -> tuple[Any, list[str]]:
    """What is to be fetched, and what the ops in the list write: ops, lists of them, and pairs that `minimize` returned."""
    if not isinstance(fetch_list, (list, tuple)):
        return fetch_list, []
    kept, written = [], []
    for item in fetch_list:
        ops = item[0] if isinstance(item, tuple) and item and isinstance(item[0], (list, tuple)) else item
        ops = [ops] if isinstance(ops, Operator) else ops
        if isinstance(ops, (list, tuple)) and all(isinstance(op, Operator) for op in ops):
            written += [name for op in ops for name in op.output_arg_names]
        else:
            kept.append(item)
    return kept, written


def fetch_names(fetch_list: VarOrName | Sequence[VarOrName] | None) -> list[str]:
    """Names of what to fetch, from Variables, names or one of them."""
    if fetch_list is None:
        return []
    if isinstance(fetch_list, (Variable, str)) or not isinstance(fetch_list, Iterable):
        fetch_list = [fetch_list]
    return [framework.name_of(item) for item in fetch_list]
