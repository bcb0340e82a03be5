"""The ports of an executor: what its programs say about other processes, turned into connections.

Nothing is opened before a program needs it. `ProcessPorts` talks gRPC; `fluidlite.cluster` brings ports that stay inside
the process.
"""

from __future__ import annotations

import math
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fluidlite.core.ir import Block, Operator, Program
from fluidlite.dtypes import VarKind, dtype_name
from fluidlite.environment import seconds, setting, whole_number
from fluidlite.errors import ProgramError
from fluidlite.ops.context import HostPort, ServerPort
from fluidlite.ops.fluid_remote import UNDECIDED
from fluidlite.ops.keeping import Keeping
from fluidlite.ops.modes import Wire
from fluidlite.protocol.messages import READER, Declared, Use
from fluidlite.runtime.plan import Plan
from fluidlite.runtime.scope import Scope

if TYPE_CHECKING:
    from fluidlite.pserver.host import Host
    from fluidlite.pserver.keeper import Keeper
    from fluidlite.pserver.service import PServer, ServiceOptions
    from fluidlite.rpc.fluid_port import FluidPort
    from fluidlite.rpc.merging import MergingPort
    from fluidlite.rpc.port import TrainerPort
    from fluidlite.rpc.retry import Patience

#: makes a trainer's port from (trainer id, number of trainers)
PortMaker = Callable[[int, int], "TrainerPort"]


@dataclass
class Needs:
    """What one program will ask of servers and send to them.

    ``merges``: how many steps are merged to one push at most, 0: none are; ``added``: (endpoint, name) of the gradients of
    which the sum is sent then, and not the mean. ``two_phase``: see `rpc.port.TrainerPort`.
    """

    trainer: int
    trainers: int
    declared: dict[str, list[Declared]]
    merges: int = 0
    added: frozenset[tuple[str, str]] = frozenset()
    two_phase: bool = True
    wire: str = ""


class TrainerPorts:
    """Implements `ops.context.Ports` for one trainer, whatever the transport.

    One executor is one trainer: programs of different trainer ids are refused. It also runs those that only read, which
    need no trainer.
    """

    def __init__(self, make_port: PortMaker, host: HostPort) -> None:
        self._make_port = make_port
        self._port: TrainerPort | FluidPort | None = None
        self._trainer: int | None = None
        #: in front of the port where steps are merged
        self._merging: MergingPort | None = None
        #: by program, block and scope: what runs at the end
        self._at_close: dict[tuple[int, int, int], Callable[[], object]] = {}
        self.host = host

    def prepare(self, program: Program) -> None:
        """Read off a program what it will exchange, so that servers can check it at the first contact."""
        needs = needs_of(program)
        if needs is None:
            return
        if self._trainer == UNDECIDED != needs.trainer:
            self.leave()
            self._port = self._trainer = None
        if self._port is None:
            self._trainer = needs.trainer
            self._port = self._open(needs)
            self._port.two_phase = needs.two_phase
        if needs.trainer not in (self._trainer, READER, UNDECIDED):
            who = "only reads" if self._trainer == READER else f"is trainer {self._trainer}"
            raise ProgramError(
                f"this executor {who}; run programs of trainer {needs.trainer} by an executor of their own"
            )
        self._port.declare(needs.declared, needs.trainers)
        if needs.wire == Wire.FLUID_ASYNC:
            from fluidlite.rpc.fluid_port import FluidPort

            if isinstance(self._port, FluidPort):
                self._port.work_on_arrival()
        if needs.merges and self._merging is None:
            from fluidlite.rpc.merging import MergingPort
            from fluidlite.rpc.port import TrainerPort

            if not isinstance(self._port, TrainerPort):
                raise ProgramError("steps that are merged (half_async) cannot travel by Fluid's own wire")
            self._merging = MergingPort(self._port, needs.merges, needs.added)

    def _open(self, needs: Needs) -> TrainerPort | FluidPort:
        return self._make_port(max(needs.trainer, READER), needs.trainers)

    def server(self, op: Operator) -> ServerPort:
        """The trainer's port; ``op`` belongs to a program that was prepared."""
        if self._port is None:
            raise ProgramError(f"op {op.type!r} belongs to a program that was not prepared ({op.origin})")
        return self._merging if self._merging is not None else self._port

    def resume(self) -> int:
        """Meet the servers of the programs that were prepared; how many steps of this trainer count there already."""
        return self._port.resume() if self._port is not None else 0

    def abandon(self) -> None:
        """Drop what this thread has sent of a step that it could not end."""
        front = self._merging if self._merging is not None else self._port
        if front is not None:
            front.abandon()

    @property
    def salt(self) -> int:
        """Makes the randomness of trainers differ."""
        return max(self._trainer or 0, 0)

    @property
    def version(self) -> int:
        """The highest version of a server that this process has heard of."""
        return self._port.version if self._port is not None else 0

    @property
    def traffic(self) -> dict[str, tuple[int, int]]:
        """Bytes sent to all servers and received from them so far, by verb."""
        sums: dict[str, tuple[int, int]] = {}
        for verbs in self._port.traffic.values() if self._port is not None else ():
            for verb, (sent, received) in verbs.items():
                before = sums.get(verb, (0, 0))
                sums[verb] = before[0] + sent, before[1] + received
        return sums

    def run_at_close(self, program: Program, block: int, scope: Scope, feeds: Mapping[str, Any]) -> None:
        """Run a block of a program in a scope before this trainer says that it is done."""
        self._at_close.setdefault(
            (program.uid, block, id(scope)),
            lambda: Plan(program, self, block=block).run(scope, dict(feeds), keep=()),
        )

    def leave(self) -> None:
        """Drop the connections without a word, as a process that dies does."""
        if self._port is not None:
            self._port.close()
        if self._merging is not None:
            self._merging.stop()

    def close(self) -> None:
        """Do what is left to do, then tell the servers that this trainer is done."""
        try:
            self._finish()
        finally:
            if self._port is not None:
                self._port.complete()

    def _finish(self) -> None:
        """Run what was to be run at the end, and send what waits."""
        try:
            while self._at_close:
                self._at_close.pop(next(iter(self._at_close)))()
            if self._merging is not None:
                self._merging.flush()
        finally:
            if self._merging is not None:
                self._merging.stop()


#: ops that exchange no declared variable, and the attribute with their servers
_NAMING_SERVERS: Final = {
    "send_barrier": "endpoints",
    "fetch_barrier": "endpoints",
    "recv_save": "endpoints",
    "checkpoint_notify": "epmap",
}


def needs_of(program: Program) -> Needs | None:
    """What the ops of a program exchange with servers; None when they exchange nothing."""
    declared: dict[str, list[Declared]] = {}
    trainer, trainers, found = 0, 0, False
    merges, two_phase, wire = 0, True, ""
    added: set[tuple[str, str]] = set()
    for block, op in program.all_ops():
        items = list(_declared(program, block, op))
        if not items and op.type not in _NAMING_SERVERS:
            continue
        found = True
        wire = wire_of(op) or wire
        trainer, trainers = op.attr("trainer_id", 0), max(trainers, op.attr("trainers", 0))
        for endpoint, item in items:
            declared.setdefault(endpoint, []).append(item)
        for endpoint in op.attr(_NAMING_SERVERS.get(op.type, "endpoints"), ()):
            declared.setdefault(endpoint, [])
        if op.type == "send_barrier":
            two_phase = two_phase and op.attr("two_phase", default=True)
            if op.attr("half_async", default=False):
                merges = op.attr("max_merge_var_num", 20)
        if op.type == "send" and op.attr("merge_add", default=False):
            added.update((endpoint, item.name) for endpoint, item in items)
    return Needs(trainer, trainers, declared, merges, frozenset(added), two_phase, wire) if found else None


def wire_of(op: Operator) -> str:
    """What an op's peers speak; ProgramError for what nobody does."""
    wire: str = op.attr("wire", "")
    if wire not in list(Wire):
        raise ProgramError(f"op {op.type!r}: wire {wire!r} is none of {', '.join(map(repr, map(str, Wire)))}")
    return wire


def _declared(program: Program, block: Block, op: Operator) -> Iterator[tuple[str, Declared]]:
    """(endpoint, what is exchanged) of one op."""
    if op.type == "prefetch":
        dtype = dtype_name(op.attr("dtype", 5))
        for endpoint, table in _alike(op, epmap=op.attr("epmap"), table_names=op.attr("table_names")):
            yield endpoint, Declared(table, Use.ROWS, dtype, (op.attr("width"),))
    elif op.type == "send_and_recv":
        there = op.attr("endpoint")
        yield there, _exchanged(program, block, op, op.input("X") or "", op.attr("send_var_name"), sent=True)
        yield there, _exchanged(program, block, op, op.output("Out") or "", op.attr("recv_var_name"), sent=False)
    elif op.type in ("send", "recv"):
        sent = op.type == "send"
        word, attr = ("X", "send_varnames") if sent else ("Out", "varnames")
        arguments = (op.inputs if sent else op.outputs).get(word, [])
        named = {word: arguments, "epmap": op.attr("epmap"), attr: op.attr(attr) or arguments}
        for argument, endpoint, name in _alike(op, **named):
            yield endpoint, _exchanged(program, block, op, argument, name, sent=sent)


def _alike(op: Operator, **lists: Sequence[str] | None) -> Iterator[tuple[str, ...]]:
    """The elements of lists of an op that belong together; ProgramError when one is longer than another."""
    lengths = {name: len(items or ()) for name, items in lists.items()}
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        raise ProgramError(f"op {op.type!r}: one element each is needed, but {found} ({op.origin})")
    return zip(*(items or () for items in lists.values()), strict=True)


def _exchanged(program: Program, block: Block, op: Operator, argument: str, name: str, *, sent: bool) -> Declared:
    """A variable that an op sends or receives, called ``name`` on the server."""
    var = program.find_var(argument, block)
    if var is None or var.shape is None:
        raise ProgramError(f"op {op.type!r}: {argument!r} is not declared with a shape ({op.origin})")
    rows = var.kind == VarKind.SELECTED_ROWS
    use = (Use.ROW_GRADIENT if rows else Use.GRADIENT) if sent else Use.DENSE
    return Declared(name, use, var.dtype, var.shape[1:] if rows else var.shape)


@dataclass(eq=False)
class _Shared:
    """A port of this process, and who uses it."""

    port: TrainerPort | FluidPort
    users: weakref.WeakSet[ProcessPorts] = field(default_factory=weakref.WeakSet)


_shared: weakref.WeakSet[_Shared] = weakref.WeakSet()
_sharing = threading.Lock()


class ProcessPorts(TrainerPorts):
    """The ports of an ordinary process, over gRPC.

    Executors that are one trainer of the same servers share a port: servers know one of each trainer, and take a second
    for its successor. The last executor to close completes the trainer.
    """

    def __init__(self) -> None:
        super().__init__(make_process_port, _GrpcHost())
        self._mine: _Shared | None = None

    def leave(self) -> None:
        if self._is_last():
            super().leave()

    def close(self) -> None:
        try:
            self._finish()
        finally:
            if self._is_last():
                super().close()

    def _open(self, needs: Needs) -> TrainerPort | FluidPort:
        with _sharing:
            mine = next((known for known in _shared if _is_for(known.port, needs)), None)
            if mine is None:
                mine = _Shared(make_fluid_port(needs) if needs.wire else super()._open(needs))
                _shared.add(mine)
            mine.port.declare(needs.declared, needs.trainers)
            mine.users.add(self)
            self._mine = mine
            return mine.port

    def _is_last(self) -> bool:
        """Stop using the port; whether nobody does any more."""
        with _sharing:
            if self._mine is None or self not in self._mine.users:
                return False
            self._mine.users.discard(self)
            if self._mine.users:
                return False
            _shared.discard(self._mine)
            return True


def complete_all() -> None:
    """Tell all servers that this process knows that its trainers are done, whichever executors ran their programs.

    The executors can be closed afterwards, and run programs that need no server.
    """
    with _sharing:
        users = [user for shared in _shared for user in shared.users]
    for user in users:
        user.close()


def _is_for(port: TrainerPort | FluidPort, needs: Needs) -> bool:
    return port.identity.trainer == needs.trainer and not port.endpoints.isdisjoint(needs.declared)


def make_process_port(trainer: int, trainers: int) -> TrainerPort:
    """A port over gRPC, as patient as the environment says. Raises SettingError."""
    from fluidlite.rpc.client import grpc_port

    return grpc_port(trainer=trainer, trainers=trainers, job=job_id(), patience=trainer_patience())


def make_fluid_port(needs: Needs) -> FluidPort:
    """A port to servers that speak Fluid's own wire, as patient as the environment says. Raises SettingError."""
    from fluidlite.rpc.fluid_port import fluid_port

    return fluid_port(trainer=needs.trainer, sync=needs.wire == Wire.FLUID, patience=trainer_patience())


def trainer_patience() -> Patience:
    """How long the environment lets a trainer wait for servers. Raises SettingError."""
    from fluidlite.rpc.retry import Patience

    usual = Patience()
    return replace(
        usual,
        connect=seconds("FLUIDLITE_CONNECT_SECONDS", usual.connect),
        retry=seconds("FLUIDLITE_RETRY_SECONDS", usual.retry),
    )


def server_options() -> ServiceOptions:
    """How long the environment lets a server wait for trainers. Raises SettingError."""
    from fluidlite.pserver.service import ServiceOptions

    usual = ServiceOptions()
    return replace(
        usual,
        lease=seconds("FLUIDLITE_LEASE_SECONDS", usual.lease),
        grace=seconds("FLUIDLITE_GRACE_SECONDS", usual.grace),
        stays=whole_number("FLUIDLITE_STAY", 0) > 0,
    )


def starts_before() -> int:
    """How often this process was started before, as the launcher says. Raises SettingError."""
    return whole_number("FLUIDLITE_RESTARTS", 0)


def job_id() -> str:
    """What tells the processes of one job from those of another: ``FLUIDLITE_JOB``, set by the launcher."""
    return setting("FLUIDLITE_JOB") or "job"


class _GrpcHost:
    """Serves a pserver program over gRPC until all trainers are done."""

    def serve(self, program: Program, op: Operator, scope: Scope) -> None:
        from fluidlite.pserver.host import Host
        from fluidlite.rpc.server import serve

        host = Host(program, op, scope)
        serve(
            make_process_service(op, host),
            op.attr("endpoint"),
            trainers=host.trainers,
            on_bound=publish,
            fluid_job=job_id() if wire_of(op) else None,
        )


def make_process_service(op: Operator, host: Host) -> PServer:
    """The service of a `listen_and_serv` op, as patient and as forgetful as the op and the environment say."""
    from fluidlite.pserver.host import make_service

    options = server_options()
    if wire_of(op):  # nobody gives signs of life there
        options = replace(options, lease=math.inf)
    return make_service(host, options, job_id(), keeper_of(op, host))


def keeper_of(op: Operator, host: Host) -> Keeper | None:
    """What keeps a server on disk, where its program or the launcher asks for that."""
    from fluidlite.pserver.keeper import Keeper

    keeping = Keeping.read(op)
    state = setting("FLUIDLITE_STATE_DIR")
    if state is not None:
        keeping = replace(
            keeping,
            checkpoint_dir=keeping.checkpoint_dir or f"{state}/checkpoints",
            log_dir=keeping.log_dir or f"{state}/log",
        )
    if not (keeping.checkpoint_dir or keeping.log_dir):
        return None
    again = starts_before() > 0
    return Keeper(keeping, op.attr("pserver_id", 0), op.attr("pservers", 0), host, run=job_id(), again=again)


def publish(endpoint: str) -> None:
    """Write the real endpoint into the file that ``FLUIDLITE_ENDPOINT_FILE`` names: how a server at port 0 is found."""
    path = setting("FLUIDLITE_ENDPOINT_FILE")
    if path:
        unfinished = Path(f"{path}.{os.getpid()}")
        unfinished.write_text(endpoint, encoding="utf-8")
        unfinished.replace(path)
