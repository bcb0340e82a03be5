"""Jobs whose programs real Fluid transpiled: read from recordings, and run in one process or as several."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import fluidlite as fluid
from fluidlite.core import edit
from fluidlite.core.ir import Attr, AttrType
from fluidlite.ports import TrainerPorts
from fluidlite.pserver.host import Host, make_service
from fluidlite.pserver.service import IN_PROCESS
from fluidlite.rpc.inproc import inproc_port
from fluidlite.transpiler.legacy import translate

FOLDER = Path(__file__).parent / "fluid_values" / "transpiled"
#: what is fed as int64
_INTEGERS = ("one", "many", "other", "ids")


class Programs(NamedTuple):
    """Of one role."""

    main: fluid.Program
    startup: fluid.Program


class Recorded(NamedTuple):
    """A job of real Fluid; ``losses`` by trainer and step, None where it was not run."""

    loss: str
    trainers: list[Programs]
    pservers: dict[str, Programs]
    feeds: list[list[dict[str, Any]]]
    losses: list[list[float]] | None


def recorded(name: str) -> Recorded:
    """A recording of `tests/oracle/record_transpiled.py`."""
    found = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    roles = {
        role: Programs(*(_program(both[part]) for part in Programs._fields)) for role, both in found["programs"].items()
    }
    trainers = [programs for role, programs in sorted(roles.items()) if role.startswith("trainer")]
    servers = [programs for role, programs in sorted(roles.items()) if role.startswith("pserver")]
    pservers = {endpoint_of(programs.main): programs for programs in servers}
    feeds = [[{n: _fed(n, *item) for n, item in step.items()} for step in steps] for steps in found["feeds"]]
    return Recorded(found["loss"], trainers, pservers, feeds, found["losses"])


def _program(text: str) -> fluid.Program:
    return fluid.Program.parse_from_string(zlib.decompress(base64.b64decode(text)))


def _fed(name: str, values: Any, lengths: Sequence[int] | None) -> Any:
    array = np.array(values, np.int64 if name in _INTEGERS else np.float32)
    return fluid.create_lod_tensor(array, [lengths], fluid.CPUPlace()) if lengths else array


def endpoint_of(program: fluid.Program) -> str:
    """Where a server's program listens."""
    endpoint: str = next(op for op in program.desc.root.ops if "listen_and_serv" in op.type).attr("endpoint")
    return endpoint


def moved(programs: Programs, endpoints: Mapping[str, str]) -> Programs:
    """The programs with other endpoints in the attributes of their ops."""
    twins = Programs(*(program.clone() for program in programs))
    for twin in twins:
        for _, op in twin.desc.all_ops():
            for name, attr in list(op.attrs.items()):
                if attr.type is AttrType.STRINGS:
                    new = tuple(endpoints.get(item, item) for item in attr.value)
                    edit.set_attr(twin.desc, op, name, Attr(attr.type, new))
                elif name == "endpoint":
                    edit.set_attr(twin.desc, op, name, Attr(attr.type, endpoints.get(attr.value, attr.value)))
    return twins


class _NoHost:
    def serve(self, program: Any, op: Any, scope: Any) -> None:
        raise AssertionError("a trainer serves nothing")


class Job:
    """Servers and trainers of given programs in one process, over calls."""

    def __init__(self, trainers: Sequence[Programs], pservers: Mapping[str, Programs]) -> None:
        self.programs = trainers
        self.server_scopes = {endpoint: fluid.Scope() for endpoint in pservers}
        services = {}
        for endpoint, programs in pservers.items():
            fluid.Executor().run(programs.startup, scope=self.server_scopes[endpoint])
            served = translate(programs.main.desc)
            host = Host(served, served.root.ops[-1], self.server_scopes[endpoint])
            services[endpoint] = make_service(host, IN_PROCESS)
        self.scopes = [fluid.Scope() for _ in trainers]
        self.executors = [
            fluid.Executor(
                ports=TrainerPorts(
                    lambda trainer, _: inproc_port(services, trainer=trainer, trainers=len(trainers)), _NoHost()
                )
            )
            for _ in trainers
        ]
        self._threads = ThreadPoolExecutor(len(trainers))
        for executor, scope, programs in zip(self.executors, self.scopes, trainers, strict=True):
            executor.run(programs.startup, scope=scope)

    def run(self, feeds: Sequence[Mapping[str, Any]], fetch: Sequence[str]) -> list[list[Any]]:
        """One step of every trainer at the same time."""
        return list(self._threads.map(lambda trainer: self.step(trainer, feeds[trainer], fetch), range(len(feeds))))

    def step(self, trainer: int, feed: Mapping[str, Any], fetch: Sequence[str]) -> list[Any]:
        """One step of one trainer."""
        return self.executors[trainer].run(self.programs[trainer].main, feed, fetch, scope=self.scopes[trainer])

    def close(self) -> None:
        for executor in self.executors:
            executor.close()
        self._threads.shutdown()
