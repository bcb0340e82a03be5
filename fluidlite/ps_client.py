"""`PSClient`: parameter servers for who has no program, but gradients from numpy, PyTorch or TensorFlow 2.

The verbs and their arguments are ElasticDL's.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, MutableSequence, Sequence
from typing import Final, Self

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.environment import whole_number
from fluidlite.errors import FeedError, LeaseLostError, PeerLostError, SettingError, StaleError, TableError
from fluidlite.ports import make_process_port, trainer_patience
from fluidlite.protocol.messages import READER, Declared, DenseRequest, Gradient, RowRequest, Use
from fluidlite.ps_model import (
    HEIGHT,
    PUSHED,
    PUSHED_ID,
    DenseParameterInfo,
    EmbeddingTableInfo,
    Parts,
    PSModel,
    endpoints_of_job,
    part_name,
    place_name,
    serve,
)
from fluidlite.ps_values import Tensor, TensorLike, as_ids, as_values, dense_gradient, row_gradient
from fluidlite.pserver.host import make_service
from fluidlite.pserver.service import IN_PROCESS
from fluidlite.rpc.inproc import inproc_port
from fluidlite.rpc.port import TrainerPort
from fluidlite.rpc.retry import Patience, Retries
from fluidlite.runtime.scope import Scope
from fluidlite.transpiler.plan import DenseParam, Table
from fluidlite.values.selected_rows import SelectedRows, unique_ids
from fluidlite.values.sharding import by_shard

__all__ = ["DenseParameterInfo", "EmbeddingTableInfo", "PSClient", "PSModel", "Tensor", "serve"]

#: by server, the version of its values
Versions = MutableSequence[int] | dict[int, int]
_LONGEST_PAUSE: Final = 1.0


class PSClient:
    """One trainer's way to the servers of a `PSModel`: pull values, compute gradients as you like, push these.

    ``endpoints`` (``host:port``) stand in the order of the servers' numbers; ``trainer_id`` counts from 0. Both, left out,
    are taken from the environment that `fluidlite launch` gives to a trainer. ``read_only``: this is no trainer, but pulls for
    inference, beside any number of others. Nothing is sent before the first verb. Leaving a ``with`` block completes the
    trainer; by an error, the servers take it for dead. For one thread at a time.

    Every verb raises what can go wrong on the way as a RemoteError: PeerLostError when servers cannot be reached,
    RequestRefusedError when they were started for another model or in another order. What is wrong with the arguments is a
    FeedError.
    """

    def __init__(
        self,
        model: PSModel,
        endpoints: Sequence[str] | None = None,
        trainer_id: int | None = None,
        *,
        read_only: bool = False,
        port: TrainerPort | None = None,
    ) -> None:
        """``port``: through which servers are reached, if not over gRPC. Raises ProgramError, TranspileError, SettingError."""
        if isinstance(endpoints, str):
            raise SettingError(f"endpoints must be a list of 'host:port', not the string {endpoints!r}")
        self.endpoints = tuple(endpoints if endpoints is not None else endpoints_of_job())
        if not self.endpoints:
            raise SettingError("PSClient needs the endpoints of its servers, or a job: see fluidlite launch")
        trainer = READER if read_only else trainer_id
        if trainer is None:
            trainer = whole_number("PADDLE_TRAINER_ID", 0)
        if not isinstance(trainer, int) or not READER <= trainer < 1 << 31:
            raise SettingError(f"trainer_id must be a whole number from 0 on, not {trainer!r}")
        parts = Parts(model, len(self.endpoints))
        self.model = model
        self._port = port if port is not None else make_process_port(trainer, model.trainers)
        self._port.two_phase = parts.plan.two_phase
        self._tables = {table.name: table for table in parts.plan.tables}
        self._dense = {param.name: param for param in parts.plan.dense}
        total = len(self.endpoints)
        self._at = {part_name(server): endpoint for server, endpoint in enumerate(self.endpoints)}
        self._places = {endpoint: place_name(server, total) for server, endpoint in enumerate(self.endpoints)}
        #: by endpoint: the version of the dense parameters, and of the first rows that came since the last push
        self._dense_seen: dict[str, int] = {}
        self._rows_seen: dict[str, int] = {}
        self._declare()

    @classmethod
    def local(cls, model: PSModel, servers: int = 1) -> list[Self]:
        """Servers in this very process, and a client of them for each trainer: for tests, notebooks and the debugger."""
        parts, services = Parts(model, servers), {}
        for server in range(servers):
            part, scope = parts.part(server), Scope()
            services[part_name(server)] = make_service(part.host(scope), IN_PROCESS)
            part.take_place(scope)
        ports = [inproc_port(services, trainer=trainer, trainers=model.trainers) for trainer in range(model.trainers)]
        return [cls(model, list(services), trainer, port=port) for trainer, port in enumerate(ports)]

    @property
    def _reads(self) -> bool:
        return self.trainer_id == READER

    @property
    def trainer_id(self) -> int:
        """Number of this trainer; -1 of a client that only reads."""
        return self._port.identity.trainer

    @property
    def model_versions(self) -> list[int]:
        """By server, the version of what was pulled for the next push; of several pulls that of the oldest."""
        return [self._seen(endpoint) for endpoint in self.endpoints]

    def push_embedding_table_infos(self, infos: Iterable[EmbeddingTableInfo]) -> None:
        """Meet the servers and check that they have these tables. TableError, with every reason, when they are others."""
        known = {info.name: (info.dim, info.dtype) for info in self.model.tables}
        wrong = [
            f"table {info.name!r} is {known.get(info.name, 'none')} in the model, not {(info.dim, info.dtype)}"
            for info in infos
            if known.get(info.name) != (info.dim, info.dtype)
        ]
        if wrong:
            raise TableError("; ".join(wrong))
        self._port.resume()

    def push_model(
        self, parameters: Iterable[TensorLike], embedding_table_infos: Iterable[EmbeddingTableInfo] = ()
    ) -> bool:
        """Give the servers the first values of all dense parameters; whether they took them.

        They take those of trainer 0, once: not again when it is started again, nor after a checkpoint was restored. The other
        trainers wait until it has pushed; then pull. FeedError unless every parameter is there, in its shape and dtype.
        """
        self.push_embedding_table_infos(list(embedding_table_infos))
        values = self._all_values(parameters)
        if not self._dense:
            return False
        if self.trainer_id:
            self._wait_for_model()
            return False
        if self._is_pushed():
            return False
        for name, value in values.items():
            for part, endpoint, rows in self._slices(self._dense[name]):
                self._port.assign(endpoint, part, value[rows])
        flag = SelectedRows(np.array([PUSHED_ID]), np.ones((1, 1), np.float32), HEIGHT)
        self._port.assign(self.endpoints[0], PUSHED, flag)
        return True

    def pull_dense_parameters(
        self, ps_ids: Iterable[int] | None = None, model_versions: Versions | None = None
    ) -> tuple[dict[str, Array], list[int]]:
        """(dense parameters by name, servers that have none yet, since `push_model` was not called).

        ``ps_ids``: only the parameters of these servers, whole, also where other servers have slices of them.
        ``model_versions``: gets the versions of the servers that were asked, in place; of a server from which nothing was
        needed too.
        """
        wanted = range(len(self.endpoints)) if ps_ids is None else _numbers(ps_ids, "ps_ids")
        if model_versions is not None and not isinstance(model_versions, dict):
            self._versions_of(model_versions)
        asked = {self._endpoint(server) for server in wanted}
        if self._dense and not self._is_pushed():
            return {}, list(wanted)
        params = [param for param in self._dense.values() if asked & {self._at[end] for end in param.endpoints}]
        slices = [(endpoint, part) for param in params for part, endpoint, _ in self._slices(param)]
        places = [(endpoint, self._places[endpoint]) for endpoint in asked.difference(end for end, _ in slices)]
        requests = [DenseRequest(endpoint, name, current=True) for endpoint, name in (*slices, *places)]
        pieces = iter(self._port.pull(requests))
        values = {param.name: np.concatenate([next(pieces) for _ in param.slices]) for param in params}
        self._dense_seen.update({request.endpoint: self._port.seen(request.endpoint) for request in requests})
        if model_versions is not None:
            for server, endpoint in enumerate(self.endpoints):
                if endpoint in asked:
                    model_versions[server] = self._seen(endpoint)
        return values, []

    def pull_embedding_vectors(self, layer_name: str, embedding_ids: object, *, read_only: bool = False) -> Array:
        """Rows of a table by ids of any shape; [*ids' shape, dim], a new array.

        An id that was never asked for gets a row. ``read_only``, for inference, and always by a client that only reads: it
        gets none, and the answer is zeros.
        """
        read_only = read_only or self._reads
        table = self._table(layer_name)
        ids = as_ids(embedding_ids, f"the ids for {layer_name!r}")
        unique, _, inverse = unique_ids(ids)
        requests = [
            RowRequest(endpoint, table.name, part, table.dim, table.dtype, read_only=read_only)
            for endpoint, part in self._by_server(unique)
            if len(part) or not read_only  # of a server without ids the version is needed
        ]
        found = self._port.pull(requests)
        if not read_only:
            for request in requests:
                self._rows_seen.setdefault(request.endpoint, self._port.seen(request.endpoint))
        _, place, _ = by_shard(unique, len(self.endpoints))
        rows = np.concatenate([np.empty((0, table.dim), table.dtype), *found])[place]
        return np.asarray(rows[inverse].reshape(*ids.shape, table.dim))

    def push_gradients(
        self,
        grads: Iterable[TensorLike] = (),
        edl_grads: Iterable[TensorLike] = (),
        learning_rate: float | None = None,
        model_versions: Versions | None = None,
    ) -> tuple[bool, int]:
        """One step: (whether it was accepted, the highest version of a server). Refused by one server, it counts on none:
        pull, and compute it again.

        ``grads`` are of dense parameters (``indices``: only of these rows), ``edl_grads`` of rows of tables; several of one
        name, and of one id, are added. ``learning_rate`` needs ``lr_from_trainer`` in the model's settings.
        ``model_versions``, by server: the version that the gradients were computed from, if not what this client saw.

        Returns when the step counts; in sync mode with ``distinct_trainers`` that is when the round is complete.
        """
        gradients = [*self._dense_gradients(grads), *self._row_gradients(edl_grads)]
        versions = self.model_versions if model_versions is None else self._versions_of(model_versions)
        seen = dict(zip(self.endpoints, versions, strict=True))
        if learning_rate is not None:
            learning_rate = _rate(learning_rate)
        try:
            for gradient in gradients:
                self._port.stage(gradient)
            reply = self._port.commit(self.endpoints, learning_rate=learning_rate, seen=seen)
            return True, max(reply.versions.values())
        except LeaseLostError:
            raise
        except StaleError:
            return False, max(self._port.versions(self.endpoints).values())  # raises where the client is out of date
        finally:
            self._port.abandon()
            self._rows_seen.clear()

    def barrier(self) -> None:
        """Wait until every trainer that has not left has called it."""
        self._port.barrier(self.endpoints)

    def complete(self) -> None:
        """Say that this trainer is done. The servers end when all are. Idempotent."""
        self._port.complete()

    def close(self) -> None:
        """Drop the connections. Without `complete` before, the servers take this trainer for dead. Idempotent."""
        self._port.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            self.complete()
        else:
            self.close()

    def _declare(self) -> None:
        """Let servers check at the first contact that they are those of this model, each in its place."""
        declared = {end: [Declared(place, Use.DENSE, "int64", (1,))] for end, place in self._places.items()}
        for table in self._tables.values():
            for items in declared.values():
                items.append(Declared(table.name, Use.ROWS, table.dtype, (table.dim,)))
                if table.gradient is not None:
                    items.append(Declared(table.gradient, Use.ROW_GRADIENT, table.dtype, (table.dim,)))
        for param in self._dense.values():
            for (name, endpoint, _), piece in zip(self._slices(param), param.slices, strict=True):
                shape = (piece.rows, *param.shape[1:])
                gradient = param.on_server(param.gradient, piece)
                declared[endpoint].append(Declared(name, Use.DENSE, param.dtype, shape))
                declared[endpoint].append(Declared(gradient, Use.GRADIENT, param.dtype, shape))
        self._port.declare(declared, self.model.trainers)

    def _slices(self, param: DenseParam) -> Iterator[tuple[str, str, slice]]:
        """(name on its server, endpoint, rows of the parameter) of each slice."""
        for piece in param.slices:
            rows = slice(piece.first_row, piece.first_row + piece.rows)
            yield param.on_server(param.name, piece), self._at[piece.endpoint], rows

    def _by_server(self, ids: Array) -> Iterator[tuple[str, Array]]:
        """(endpoint, which of ``ids`` (n,) are its, in the order in which they are) of every server."""
        order, _, counts = by_shard(ids, len(self.endpoints))
        parts = np.split(ids[order], np.cumsum(counts)[:-1])
        return zip(self.endpoints, parts, strict=True)

    def _all_values(self, parameters: Iterable[TensorLike]) -> dict[str, Array]:
        """The values of every dense parameter, checked."""
        given = {tensor.name: tensor.values for tensor in parameters}
        missing = [name for name in self._dense if name not in given]
        if missing:
            raise FeedError(f"push_model needs every dense parameter; there is no {', '.join(map(repr, missing))}")
        params = [self._param(name) for name in given]
        return {p.name: as_values(given[p.name], p.dtype, p.shape, f"parameter {p.name!r}") for p in params}

    def _dense_gradients(self, grads: Iterable[TensorLike]) -> Iterator[Gradient]:
        for name, tensors in _by_name(grads).items():
            param = self._param(name)
            whole = dense_gradient(tensors, param.dtype, param.shape, f"the gradient of {name!r}")
            for piece, (_, endpoint, rows) in zip(param.slices, self._slices(param), strict=True):
                yield Gradient(endpoint, param.on_server(param.gradient, piece), whole[rows])

    def _row_gradients(self, grads: Iterable[TensorLike]) -> Iterator[Gradient]:
        for name, tensors in _by_name(grads).items():
            table = self._table(name)
            assert table.gradient is not None
            merged = row_gradient(tensors, table.dtype, (table.dim,), f"the gradient of {name!r}")
            order, _, _ = by_shard(merged.rows, len(self.endpoints))
            values, first = merged.value[order], 0
            for endpoint, ids in self._by_server(merged.rows):
                if len(ids):
                    yield Gradient(endpoint, table.gradient, values[first : first + len(ids)], ids, table.height)
                first += len(ids)

    def _is_pushed(self) -> bool:
        request = RowRequest(self.endpoints[0], PUSHED, np.array([PUSHED_ID]), 1, "float32", read_only=True)
        return bool(self._port.pull([request])[0].any())

    def _wait_for_model(self) -> None:
        patience = Patience(retry=trainer_patience().connect, backoff_max=_LONGEST_PAUSE)
        retries = Retries(patience)
        if self._is_pushed() or any(self._is_pushed() for _ in retries.pauses()):
            return
        raise PeerLostError(f"trainer 0 has pushed no model; asked for {patience.retry:g} s")

    def _seen(self, endpoint: str) -> int:
        seen = [known[endpoint] for known in (self._dense_seen, self._rows_seen) if endpoint in known]
        return min(seen) if seen else self._port.seen(endpoint)

    def _versions_of(self, given: Versions) -> list[int]:
        """One version for each server; FeedError unless they are that."""
        total = range(len(self.endpoints))
        if isinstance(given, dict) and given.keys() == set(total):
            return _numbers((given[server] for server in total), "model_versions")
        if isinstance(given, dict) or not isinstance(given, Sequence) or len(given) != len(total):
            raise FeedError(f"model_versions needs the versions of {len(total)} servers, not {given!r}")
        return _numbers(given, "model_versions")

    def _endpoint(self, server: int) -> str:
        if not 0 <= server < len(self.endpoints):
            raise FeedError(f"there is no server {server} among {len(self.endpoints)}; they are numbered from 0")
        return self.endpoints[server]

    def _param(self, name: str) -> DenseParam:
        if name not in self._dense:
            raise FeedError(f"there is no dense parameter {name!r}; there are {', '.join(self._dense) or 'none'}")
        return self._dense[name]

    def _table(self, name: str) -> Table:
        if name not in self._tables or name == PUSHED:
            known = [info.name for info in self.model.tables]
            raise FeedError(f"there is no table {name!r}; there are {', '.join(known) or 'none'}")
        return self._tables[name]


def _by_name(tensors: Iterable[TensorLike]) -> dict[str, list[TensorLike]]:
    found: dict[str, list[TensorLike]] = {}
    for tensor in tensors:
        found.setdefault(tensor.name, []).append(tensor)
    return found


def _numbers(given: Iterable[int], what: str) -> list[int]:
    """Whole numbers of 0 to 2^63 - 1; FeedError for others."""
    try:
        numbers = [operator.index(number) for number in given]
    except TypeError as error:
        raise FeedError(f"{what} must be whole numbers: {error}") from None
    if any(not 0 <= number < 1 << 63 for number in numbers):
        raise FeedError(f"{what} must be whole numbers from 0 on, not {numbers}")
    return numbers


def _rate(given: float) -> float:
    """A learning rate; FeedError for what is no number."""
    try:
        return float(given)
    except (TypeError, ValueError, OverflowError) as error:
        raise FeedError(f"learning_rate must be a number, not {given!r}: {error}") from None
