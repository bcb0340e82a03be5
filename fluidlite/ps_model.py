"""What servers hold for clients that have no program: tables, dense parameters and an optimizer, described; and `serve`.

The description is turned into an ordinary program of parameters and optimizer ops, which the transpiler cuts for servers as
any other. So a server of a `PSClient` is a server of programs.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from fluidlite import framework, layers, unique_name
from fluidlite import optimizer as rules
from fluidlite.core import edit, ir
from fluidlite.environment import setting
from fluidlite.errors import ProgramError, SettingError
from fluidlite.executor import Executor
from fluidlite.initializer import Constant, Initializer, Normal, TruncatedNormal, Uniform
from fluidlite.input import data, embedding
from fluidlite.ops.modes import Mode
from fluidlite.param_attr import ParamAttr
from fluidlite.ports import make_process_service, publish
from fluidlite.pserver.host import Host
from fluidlite.runtime.scope import Scope
from fluidlite.transpiler.distribute import DistributeTranspiler, DistributeTranspilerConfig
from fluidlite.transpiler.plan import Plan

#: the table whose row `PUSHED_ID` says whether trainer 0 has pushed the dense parameters: 0.0 or 1.0
PUSHED: Final = "model_pushed"
PUSHED_ID: Final = 0
#: how high tables are declared; any id is legal all the same
HEIGHT: Final = 1 << 40

#: who has no program does not know that the default programs are one process's: models may be cut in threads
_CUTTING: Final = threading.Lock()

#: initializers by name, with the numbers that Keras (and so ElasticDL) gives them
_INITIALIZERS: Final[Mapping[str, Initializer]] = {
    "uniform": Uniform(-0.05, 0.05),
    "normal": Normal(0.0, 0.05),
    "truncated_normal": TruncatedNormal(0.0, 0.05),
    "zeros": Constant(0.0),
    "ones": Constant(1.0),
}


@dataclass(frozen=True, slots=True)
class EmbeddingTableInfo:
    """A table: rows of ``dim`` numbers, one for each id that was ever asked for.

    ``initializer``: how a row starts: "uniform" (±0.05), "normal" or "truncated_normal" (deviation 0.05), "zeros", "ones",
    or an object of `fluidlite.initializer`. ``dtype``: "float32" or "float64".
    """

    name: str
    dim: int
    initializer: str | Initializer = "uniform"
    dtype: str = "float32"


@dataclass(frozen=True, slots=True)
class DenseParameterInfo:
    """A dense parameter. Its first value is what trainer 0 pushes."""

    name: str
    shape: Sequence[int]
    dtype: str = "float32"


@dataclass(frozen=True)
class PSModel:
    """Everything that servers need to know, the same on servers and clients.

    ``optimizer``: the name of a class of `fluidlite.optimizer`, in any case ("adagrad"), and ``optimizer_args`` its
    arguments, the ``learning_rate`` among them. ``trainers``: how many clients there are. ``settings``: how pushes count
    (``sync_mode``, ``grads_to_wait``, ``sync_version_tolerance``, ``lr_staleness_modulation``, ``lr_from_trainer``, ...), how
    dense parameters are cut and what is kept on disk (``checkpoint_dir``, ...).

    Raises ProgramError for what contradicts itself.
    """

    tables: Sequence[EmbeddingTableInfo] = ()
    dense: Sequence[DenseParameterInfo] = ()
    optimizer: str = "SGD"
    optimizer_args: Mapping[str, Any] = field(default_factory=lambda: {"learning_rate": 0.01})
    trainers: int = 1
    settings: DistributeTranspilerConfig = field(default_factory=DistributeTranspilerConfig)

    def __post_init__(self) -> None:
        if not self.tables and not self.dense:
            raise ProgramError("a PSModel needs tables or dense parameters")
        counts = Counter([*(info.name for info in self.tables), *(info.name for info in self.dense), PUSHED])
        for name, count in counts.items():
            if count > 1:
                what = "is what servers call a table of their own" if name == PUSHED else f"is there {count} times"
                raise ProgramError(f"the name {name!r} {what}; tables and dense parameters need names of their own")
        mode = self.settings.options().training.mode
        if mode in (Mode.GEO, Mode.HALF_ASYNC) or self.settings.dense_on_trainer:
            raise ProgramError(
                "geo_sgd_mode, half_async and dense_on_trainer let trainers run a part of the program; a PSClient has none"
            )

    def programs(self) -> tuple[framework.Program, framework.Program]:
        """(main, startup): the parameters, a loss that makes a gradient of each, and the ops that train them. Only what
        servers run of it is ever run. Raises ProgramError."""
        main, startup = framework.Program(), framework.Program()
        with unique_name.guard(), framework.program_guard(main, startup):
            used = [*map(_rows, self.tables), *map(_dense, self.dense)]
            terms = [layers.cast(layers.reduce_sum(value), "float64") for value in used]
            self._optimizer().minimize(layers.sums(terms))
            if self.dense:
                _rows(EmbeddingTableInfo(PUSHED, 1, "zeros"))
        return main, startup

    def _optimizer(self) -> rules.Optimizer:
        known = {name.lower(): name for name in rules.__all__ if name != "Optimizer"}
        name = known.get(self.optimizer.lower())
        if name is None:
            raise ProgramError(
                f"there is no optimizer {self.optimizer!r}; there are {', '.join(sorted(known.values()))}"
            )
        make: type[rules.Optimizer] = getattr(rules, name)
        try:
            return make(**self.optimizer_args)
        except TypeError as error:
            raise ProgramError(f"optimizer {name}: {error}") from None


class Part(NamedTuple):
    """What one of several servers runs."""

    program: framework.Program
    startup: framework.Program
    #: a variable that only this server has: a client that takes it for another one is refused
    place: str

    @property
    def listen(self) -> ir.Operator:
        return self.program.desc.root.ops[-1]

    def host(self, scope: Scope) -> Host:
        """The server's values, made in ``scope``."""
        edit.add_var(self.program.desc, self.program.desc.root, ir.Variable(self.place, dtype="int64", shape=(1,)))
        Executor().run(self.startup, scope=scope)
        return Host(self.program.desc, self.listen, scope)

    def take_place(self, scope: Scope) -> None:
        """Let clients come. Not before the server was restored: the place is no part of a checkpoint, which other numbers
        of servers can take."""
        scope.set(self.place, np.zeros(1, np.int64))


class Parts:
    """A model cut for ``servers`` servers. Servers are named by their number, in ``plan`` by `part_name`."""

    def __init__(self, model: PSModel, servers: int) -> None:
        if servers < 1:
            raise ProgramError(f"a model needs at least one server, not {servers}")
        self._transpiler = DistributeTranspiler(model.settings)
        endpoints = ",".join(map(part_name, range(servers)))
        with _CUTTING:
            main, startup = model.programs()
            self._transpiler.transpile(0, main, endpoints, model.trainers, startup_program=startup)
        assert main.distribution is not None
        self.plan: Plan = main.distribution.plan
        self.servers = servers

    def part(self, server: int) -> Part:
        """The programs of a server. ProgramError for a number that is none."""
        if not 0 <= server < self.servers:
            raise ProgramError(f"there is no server {server} among {self.servers}; they are numbered from 0")
        with _CUTTING:
            programs = self._transpiler.get_pserver_programs(part_name(server))
        return Part(*programs, place_name(server, self.servers))


def part_name(server: int) -> str:
    """How a plan names a server: where it really listens is not known when the model is cut."""
    return f"server{server}:0"


def place_name(server: int, servers: int) -> str:
    """The variable by which a server shows its place."""
    return f"server {server} of {servers}"


def serve(
    model: PSModel,
    endpoint: str | None = None,
    server: int | None = None,
    servers: int | None = None,
    on_bound: Callable[[str], None] | None = None,
) -> None:
    """Be server ``server`` (from 0) of ``servers`` at ``endpoint`` (``host:port``, port 0 takes a free one) until all
    trainers are done or a signal asks for the end.

    What is left out is taken from the environment that `fluidlite launch` gives to a pserver; without one it is server 0 of 1.
    ``on_bound`` gets the real endpoint once clients can connect; if it is not given, the file that ``FLUIDLITE_ENDPOINT_FILE``
    names gets it. Raises ProgramError, TranspileError, SettingError, AddressInUseError.
    """
    listed = endpoints_of_job()
    if endpoint is None:
        endpoint = _own_endpoint(listed)
    if server is None:
        server = listed.index(endpoint) if endpoint in listed else 0
    parts = Parts(model, servers if servers is not None else max(1, len(listed)))
    part, scope = parts.part(server), Scope()
    host = part.host(scope)
    service = make_process_service(part.listen, host)
    part.take_place(scope)
    from fluidlite.rpc.server import serve as listen

    listen(service, endpoint, trainers=model.trainers, on_bound=on_bound or publish)


def endpoints_of_job() -> list[str]:
    """The servers of the job that this process was launched for, in order; none outside of one."""
    given = setting("PADDLE_PSERVERS_IP_PORT_LIST") or ""
    return [endpoint.strip() for endpoint in given.split(",") if endpoint.strip()]


def _own_endpoint(listed: Sequence[str]) -> str:
    host, port = setting("POD_IP"), setting("PADDLE_PORT")
    if host is None or port is None:
        raise SettingError(
            "serve needs an endpoint, or a job: fluidlite launch sets POD_IP and PADDLE_PORT of its pservers"
        )
    endpoint = f"{host}:{port}"
    if endpoint not in listed:
        raise SettingError(f"POD_IP and PADDLE_PORT say {endpoint}, which is none of PADDLE_PSERVERS_IP_PORT_LIST")
    return endpoint


def _rows(info: EmbeddingTableInfo) -> framework.Variable:
    """Rows of a distributed embedding, which becomes part of the program that is being built."""
    chosen = info.initializer
    start = chosen if isinstance(chosen, Initializer) else _INITIALIZERS.get(chosen)
    if start is None:
        raise ProgramError(
            f"table {info.name!r}: there is no initializer {chosen!r}; there are {', '.join(_INITIALIZERS)}, and objects "
            "of fluidlite.initializer"
        )
    ids = data(f"{info.name}@IDS", [None], "int64")
    attr = ParamAttr(info.name, initializer=start)
    return embedding(ids, [HEIGHT, info.dim], is_distributed=True, param_attr=attr, dtype=info.dtype)


def _dense(info: DenseParameterInfo) -> framework.Parameter:
    return layers.create_parameter(list(info.shape), info.dtype, attr=ParamAttr(info.name, initializer=Constant(0.0)))
