"""``paddle.fluid.incubate.fleet.base.role_maker``: which process is which, from arguments or the environment."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

from fluidlite.compat.fleet.gather import Alone, Comm, Group, Members, Unknown
from fluidlite.errors import FleetError, NotSupported, SettingError

__all__ = [
    "GeneralRoleMaker",
    "MPISymetricRoleMaker",
    "PaddleCloudRoleMaker",
    "Role",
    "RoleMakerBase",
    "UserDefinedCollectiveRoleMaker",
    "UserDefinedRoleMaker",
]

_PSERVERS: Final = "PADDLE_PSERVERS_IP_PORT_LIST"
_WORKERS: Final = "PADDLE_TRAINER_ENDPOINTS"
_TRAINERS: Final = "PADDLE_TRAINERS_NUM"


class Role:
    """The roles of a process."""

    WORKER = 1
    SERVER = 2


class RoleMakerBase:
    """Answers which process this is. A subclass sets the fields in ``generate_role``, or overrides what it asks.

    The values that workers exchange go through the endpoint of worker 0 (PADDLE_TRAINER_ENDPOINTS).
    """

    def __init__(self) -> None:
        self._worker_endpoints: list[str] = []
        self._server_endpoints: list[str] = []
        self._role_is_generated = False
        self._role: int | None = None
        self._current_id = -1
        self._trainers_num = 0
        self._comms: dict[str, Comm] = {}

    def generate_role(self) -> None:
        """Find out the role; called by ``fleet.init``, and when something is asked before."""
        self._role_is_generated = True

    def is_worker(self) -> bool:
        """Whether this process trains."""
        self._ready()
        return self._role == Role.WORKER

    def is_server(self) -> bool:
        """Whether this process is a pserver."""
        self._ready()
        return self._role == Role.SERVER

    def is_first_worker(self) -> bool:
        """Whether this is worker 0, which saves models."""
        return self.is_worker() and self.worker_index() == 0

    def worker_num(self) -> int:
        """How many workers there are."""
        self._ready()
        return self._trainers_num

    def server_num(self) -> int:
        """How many pservers there are."""
        return len(self.get_pserver_endpoints())

    def worker_index(self) -> int:
        """The number of this worker; of a pserver, its own number."""
        self._ready()
        return self._current_id

    def server_index(self) -> int:
        """The number of this pserver; of a worker, its own number."""
        self._ready()
        return self._current_id

    def get_trainer_endpoints(self) -> list[str]:
        """The endpoints of the workers; empty where nobody said."""
        self._ready()
        return self._worker_endpoints

    def get_pserver_endpoints(self) -> list[str]:
        """The endpoints of the pservers."""
        self._ready()
        return self._server_endpoints

    def get_local_endpoint(self) -> str:
        """The endpoint of this process."""
        mine = self.get_trainer_endpoints() if self.is_worker() else self.get_pserver_endpoints()
        if not mine:
            raise NotSupported(f"get_local_endpoint: {_WORKERS} does not say where the workers are")
        return mine[self._current_id]

    def to_string(self) -> str:
        """The role in words."""
        return (
            f"role: {self._role}, current_id: {self._current_id}, "
            f"worker_endpoints: {self._worker_endpoints}, server_endpoints: {self._server_endpoints}"
        )

    # values that processes exchange

    def barrier_worker(self) -> None:
        """Return when every worker has called it. Where they cannot find each other it only warns, as in Fluid."""
        if not self.is_worker():
            return
        try:
            self._node_type_comm.barrier()
        except NotSupported as error:
            warnings.warn(f"barrier_worker does not wait: {error}", stacklevel=2)

    def barrier_all(self) -> None:
        """Return when every worker and every pserver has called it; warns where they cannot find each other."""
        try:
            self._all_comm.barrier()
        except NotSupported as error:
            warnings.warn(f"barrier_all does not wait: {error}", stacklevel=2)

    def all_reduce_worker(self, input: Any, output: Any, mode: str = "sum") -> None:
        """Write into ``output``, one-dimensional as ``input``, the ``mode`` of every worker's ``input``.

        Raises NotSupported where the workers cannot find each other, and FleetError for a mode other than "sum", "min"
        and "max". Of a pserver it does nothing.
        """
        if not self.is_worker():
            return
        for position, value in enumerate(self._node_type_comm.all_reduce(list(input), mode)):
            output[position] = value

    def all_gather(self, input: Any) -> list[Any]:
        """The value of every process, workers first. Raises NotSupported where they cannot find each other."""
        return self._all_comm.all_gather(input)

    def _ready(self) -> None:
        if not self._role_is_generated:
            self.generate_role()

    @property
    def _node_type_comm(self) -> Comm:
        """The processes of the same role. Pservers do not find each other: worker 0 is no member of theirs."""
        if self.is_worker():
            return self._comm("workers", self._current_id, self.worker_num())
        return Comm(Alone() if self.server_num() == 1 else Unknown("the pservers of this job"))

    @property
    def _all_comm(self) -> Comm:
        return self._comm("all", self._get_rank(), self._get_size())

    def _comm(self, name: str, rank: int, size: int) -> Comm:
        if name not in self._comms:
            self._comms[name] = Comm(self._group(name, rank, size))
        return self._comms[name]

    def _group(self, name: str, rank: int, size: int) -> Group:
        endpoints = self.get_trainer_endpoints()
        if size <= 1:
            return Alone()
        if len(endpoints) < self.worker_num():
            return Unknown(f"the {size} {'workers' if name == 'workers' else 'processes'} of this job")
        return Members(name, endpoints[0], rank, size)

    def _all_reduce(self, input: Any, output: Any, mode: str = "sum") -> None:
        self.all_reduce_worker(input, output, mode)

    def _worker_gather(self, obj: Any) -> list[Any] | None:
        return self._node_type_comm.all_gather(obj) if self.is_worker() else None

    def _all_gather(self, obj: Any) -> list[Any]:
        return self.all_gather(obj)

    def _barrier_worker(self) -> None:
        self.barrier_worker()

    def _barrier_all(self) -> None:
        self.barrier_all()

    def _worker_num(self) -> int:
        return self.worker_num()

    def _server_num(self) -> int:
        return self.server_num()

    def _get_rank(self) -> int:
        return self._current_id + (0 if self.is_worker() else self.worker_num())

    def _get_size(self) -> int:
        return self.worker_num() + self.server_num()

    def _finalize(self) -> None:
        """Nothing is to be ended."""


class PaddleCloudRoleMaker(RoleMakerBase):
    """The role that Fluid's environment variables say.

    TRAINING_ROLE (TRAINER or PSERVER), PADDLE_PSERVERS_IP_PORT_LIST, PADDLE_TRAINERS_NUM; of a worker PADDLE_TRAINER_ID, of
    a pserver POD_IP and PADDLE_PORT. With ``is_collective`` a process is a worker: PADDLE_TRAINER_ENDPOINTS and
    PADDLE_TRAINER_ID. Raises SettingError for what is missing or contradicts itself, when the role is asked for.
    """

    def __init__(self, is_collective: bool = False, **unused: object) -> None:
        super().__init__()
        self._is_collective = is_collective

    def generate_role(self) -> None:
        """Read the environment. Raises SettingError."""
        if self._role_is_generated:
            return
        if self._is_collective:
            self._worker_endpoints = _endpoints(_WORKERS)
            self._role, self._current_id = Role.WORKER, _number("PADDLE_TRAINER_ID", "0")
            self._trainers_num = len(self._worker_endpoints)
        else:
            self._server_endpoints = _endpoints(_PSERVERS)
            self._worker_endpoints = _endpoints(_WORKERS, "")
            self._trainers_num = _number(
                _TRAINERS, str(len(self._worker_endpoints)) if self._worker_endpoints else None
            )
            self._role, self._current_id = _role(self._server_endpoints)
        self._role_is_generated = True


class GeneralRoleMaker(RoleMakerBase):
    """Like `PaddleCloudRoleMaker`, with the endpoints of the workers, which then exchange values.

    PADDLE_TRAINER_ENDPOINTS is needed; its length is the number of workers, and worker 0 serves the exchange at the first of
    them. A pserver is the one of PADDLE_PSERVER_ID, or of POD_IP and PADDLE_PORT. The keyword arguments of Fluid, which say
    by which file system or HTTP server processes find each other, are accepted and not needed.
    """

    _KNOWN: Final = ("hdfs_name", "hdfs_ugi", "path", "init_timeout_seconds", "run_timeout_seconds", "http_ip_port")

    def __init__(self, **kwargs: object) -> None:
        super().__init__()
        unknown = sorted(set(kwargs) - set(self._KNOWN))
        if unknown:
            raise FleetError(f"GeneralRoleMaker takes {', '.join(self._KNOWN)}, not {', '.join(unknown)}")

    def generate_role(self) -> None:
        """Read the environment. Raises SettingError."""
        if self._role_is_generated:
            return
        self._server_endpoints = _endpoints(_PSERVERS)
        self._worker_endpoints = _endpoints(_WORKERS)
        self._trainers_num = len(self._worker_endpoints)
        self._role, self._current_id = _role(self._server_endpoints)
        self._role_is_generated = True


class UserDefinedRoleMaker(RoleMakerBase):
    """The role that the arguments say: ``current_id`` among those of ``role``. Raises FleetError for arguments that cannot be."""

    def __init__(
        self,
        current_id: int = 0,
        role: int = Role.WORKER,
        worker_num: int = 0,
        server_endpoints: Sequence[str] | None = None,
        worker_endpoints: Sequence[str] | None = None,
        **unused: object,
    ) -> None:
        super().__init__()
        self._server_endpoints = _distinct("server_endpoints", server_endpoints)
        if worker_endpoints:
            self._worker_endpoints = _distinct("worker_endpoints", worker_endpoints)
        if role not in (Role.WORKER, Role.SERVER):
            raise FleetError(f"UserDefinedRoleMaker: role must be Role.WORKER or Role.SERVER, not {role!r}")
        self._role = role
        self._trainers_num = _whole("worker_num", worker_num or len(self._worker_endpoints), 1)
        members = len(self._server_endpoints) if role == Role.SERVER else None
        self._current_id = _whole("current_id", current_id, 0, members)


class UserDefinedCollectiveRoleMaker(RoleMakerBase):
    """A worker among ``worker_endpoints``, without pservers. Raises FleetError for arguments that cannot be."""

    def __init__(self, current_id: int = 0, worker_endpoints: Sequence[str] | None = None) -> None:
        super().__init__()
        self._worker_endpoints = _distinct("worker_endpoints", worker_endpoints)
        self._role = Role.WORKER
        self._trainers_num = len(self._worker_endpoints)
        self._current_id = _whole("current_id", current_id, 0, self._trainers_num)


class MPISymetricRoleMaker(RoleMakerBase):
    """Roles that MPI gives: not supported."""

    def __init__(self) -> None:
        raise NotSupported(
            "MPISymetricRoleMaker is not supported by fluidlite, which does not talk to MPI; use PaddleCloudRoleMaker and "
            "start the processes by fluidlite launch or paddle.distributed.launch_ps"
        )


def from_environment() -> RoleMakerBase:
    """The role maker of a job whose script names none. Raises NotSupported where the environment says no role."""
    if os.environ.get("TRAINING_ROLE"):
        return PaddleCloudRoleMaker()
    return MPISymetricRoleMaker()


def _role(servers: Sequence[str]) -> tuple[int, int]:
    """(role, number) of this process."""
    said = _said("TRAINING_ROLE")
    if said == "TRAINER":
        return Role.WORKER, _number("PADDLE_TRAINER_ID")
    if said != "PSERVER":
        _refuse("TRAINING_ROLE", "be TRAINER or PSERVER", said)
    if os.environ.get("PADDLE_PSERVER_ID"):
        index = _number("PADDLE_PSERVER_ID")
        if index >= len(servers):
            _refuse("PADDLE_PSERVER_ID", f"be below {len(servers)}, the length of {_PSERVERS}", str(index))
        return Role.SERVER, index
    endpoint = f"{_said('POD_IP')}:{_said('PADDLE_PORT')}"
    if endpoint not in servers:
        _refuse("POD_IP:PADDLE_PORT", f"be one of {_PSERVERS} ({', '.join(servers)})", endpoint)
    return Role.SERVER, list(servers).index(endpoint)


def _endpoints(variable: str, default: str | None = None) -> list[str]:
    return [endpoint.strip() for endpoint in _said(variable, default).split(",") if endpoint.strip()]


def _number(variable: str, default: str | None = None) -> int:
    text = _said(variable, default)
    if not text.isdecimal():
        _refuse(variable, "be a whole number", text)
    return int(text)


def _said(variable: str, default: str | None = None, environment: Mapping[str, str] = os.environ) -> str:
    text = environment.get(variable, "").strip()
    if text:
        return text
    if default is None:
        raise SettingError(
            f"the environment variable {variable} must be set: this role is read from the environment, which `fluidlite launch` "
            "and paddle.distributed.launch_ps prepare"
        )
    return default


def _refuse(variable: str, wanted: str, text: str) -> NoReturn:
    raise SettingError(f"the environment variable {variable} must {wanted}, not {text!r}")


def _distinct(argument: str, endpoints: Sequence[str] | None) -> list[str]:
    if not isinstance(endpoints, (list, tuple)) or not endpoints or not all(isinstance(e, str) for e in endpoints):
        raise FleetError(f"{argument} must be a list of at least one endpoint, not {endpoints!r}")
    if len(set(endpoints)) < len(endpoints):
        raise FleetError(f"{argument} must be distinct, not {', '.join(endpoints)}")
    return list(endpoints)


def _whole(argument: str, value: int, least: int, end: int | None = None) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (end is not None and value >= end):
        limit = f"at least {least}" if end is None else f"from {least} to {end - 1}"
        raise FleetError(f"{argument} must be a whole number {limit}, not {value!r}")
    return value
