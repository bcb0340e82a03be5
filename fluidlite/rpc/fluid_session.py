"""What Fluid's trainers say to a server, as verbs of our service.

Their messages have no sequence numbers, and barriers do not say who sends them. So a session counts, as Fluid's server
does: it is either open for gradients or for parameters, and goes from one to the other when as many barriers have come as
there are trainers. All trainers of a job speak this way or none. docs/fluid_wire.md says what follows from that.
"""

from __future__ import annotations

import enum
import logging
import threading
import time
from typing import Final

import numpy as np

from fluidlite.core.names import on_wire, parse_slice
from fluidlite.dtypes import Array
from fluidlite.errors import FluidliteError, PeerLostError, RequestRefusedError, ServerFailedError
from fluidlite.protocol.messages import (
    DenseRequest,
    Gradient,
    Identity,
    PullRequest,
    Push,
    Registration,
    RowRequest,
    StepHeader,
    Use,
    Value,
)
from fluidlite.protocol.service import Service
from fluidlite.values.selected_rows import SelectedRows

log = logging.getLogger("fluidlite")
#: seconds between two looks whether the server still runs, while somebody waits
_LOOK: Final = 1.0


class Phase(enum.Enum):
    """What a server of a synchronous job is open for."""

    PARAMETERS = "parameters"
    GRADIENTS = "gradients"


class FluidSession:
    """The trainers of one job before one server. For any number of threads: every method may wait for other trainers.

    Every method raises RequestRefusedError for what cannot be, PeerLostError when the server ends, and, once a step could
    not be applied, ServerFailedError from then on: the others must not go on as if it had been.
    """

    def __init__(self, service: Service, endpoint: str, trainers: int, job: str) -> None:
        self._service = service
        self._endpoint = endpoint
        self._trainers = trainers
        self._job = job
        self._changed = threading.Condition()
        self._identities: dict[int, Identity] = {}
        self._next: dict[int, int] = {}
        self._sync = True
        self._phase = Phase.PARAMETERS
        #: the connections by which barriers of this phase came
        self._barriers: list[str] = []
        #: by trainer and name: gradients of the open round; in async training of the trainer's open step
        self._staged: dict[int, dict[str, Gradient]] = {}
        self._version = 0
        self._failure: FluidliteError | None = None

    def send(self, name: str, value: Value, trainer: int) -> None:
        """A gradient, by its name on this wire. One that comes twice in a round counts once, as it came last."""
        part = parse_slice(name)
        gradient = self._gradient(on_wire(name), value)
        with self._changed:
            who = self._known(trainer if part.trainer is None else part.trainer)
            self._service.check_gradients(self._identities[who], [gradient])
            if self._sync:
                self._wait_for(Phase.GRADIENTS)
            elif gradient.name in self._staged.get(who, ()):
                self._commit([who])
            self._staged.setdefault(who, {})[gradient.name] = gradient

    def batch_barrier(self, connection: str) -> None:
        """One trainer has sent all of its step; with the last one's the step is applied."""
        self._meet(Phase.GRADIENTS, connection)

    def fetch_barrier(self, connection: str) -> None:
        """One trainer has all parameters."""
        self._meet(Phase.PARAMETERS, connection)

    def get(self, name: str, trainer: int) -> Array:
        """A parameter, once the step is applied that the trainer has sent."""
        with self._changed:
            who = self._known(trainer)
            if self._sync:
                self._wait_for(Phase.PARAMETERS)
            else:
                self._commit([who])
        return self._pull(DenseRequest(self._endpoint, name, current=True))

    def get_now(self, name: str) -> Array:
        """A variable as it is."""
        return self._pull(DenseRequest(self._endpoint, name, current=True))

    def prefetch(self, table: str, ids: Array) -> Array:
        """(n, width) rows of a parameter. ``ids`` any shape with n elements, counted from the first row of its slice."""
        rows = ids.reshape(-1).astype(np.int64, copy=False)
        with self._changed:
            self._anybody()
        try:
            offered = self._service.offered(table, Use.ROWS)
        except RequestRefusedError:
            return self._rows_of_dense(table, rows)
        request = RowRequest(self._endpoint, table, rows, offered.shape[0], offered.dtype)
        return self._pull(request)

    def complete(self, trainer: int, connection: str) -> None:
        """A trainer is done; the others go on without it, and the barrier that it may have passed last is not one of theirs
        (Fluid's server takes it for one, and then lets those that still fetch wait for ever)."""
        with self._changed:
            who = self._leaving(trainer)
            if self._phase is Phase.PARAMETERS and connection in self._barriers:
                self._barriers.remove(connection)
            if not self._sync:
                self._commit(list(self._staged))
            self._staged.pop(who, None)
            identity = self._identities.pop(who)
            self._service.complete(identity)
            self._pass_on()

    def checkpoint(self) -> None:
        """Write a checkpoint, where this server keeps them."""
        with self._changed:
            identity = self._anybody()
        self._service.checkpoint(identity, self._service.pull(identity, []).version)()

    def _known(self, trainer: int) -> int:
        """A trainer that takes part; the first message of any makes all known to the server."""
        if self._failure is not None:
            raise ServerFailedError(str(self._failure))
        if not self._next:
            self._register()
        if not self._identities:
            raise PeerLostError("all trainers are done; the server ends")
        if trainer not in self._identities:
            state = "is done" if trainer in self._next else "is none of them"
            raise RequestRefusedError(f"trainer {trainer} {state}; this server has trainers 0 to {self._trainers - 1}")
        return trainer

    def _anybody(self) -> Identity:
        """For what any trainer may ask, and does not say which one does."""
        return self._identities[self._known(min(self._identities, default=0))]

    def _register(self) -> None:
        incarnation = time.time_ns()
        for trainer in range(self._trainers):
            identity = Identity(self._job, trainer, incarnation)
            welcome = self._service.register(Registration(identity, self._trainers))
            self._identities[trainer], self._next[trainer] = identity, welcome.next_sequence
            self._sync, self._version = welcome.sync, welcome.version

    def _leaving(self, trainer: int) -> int:
        """Who is meant by a message of Fluid before 1.5, which does not say who is done: anybody who is not."""
        if not self._next:
            self._register()
        if trainer in self._identities or not self._identities:
            return self._known(trainer)
        return min(self._identities)

    def _gradient(self, name: str, value: Value) -> Gradient:
        if isinstance(value, SelectedRows):
            return Gradient(self._endpoint, name, value.value, value.rows, value.height)
        return Gradient(self._endpoint, name, value)

    def _meet(self, phase: Phase, connection: str) -> None:
        """A barrier came."""
        with self._changed:
            self._anybody()
            if not self._sync:
                return
            self._wait_for(phase)
            self._barriers.append(connection)
            self._pass_on()

    def _pass_on(self) -> None:
        """To the next phase, if all that are left have come."""
        if self._sync and self._identities and len(self._barriers) >= len(self._identities):
            self._barriers.clear()
            if self._phase is Phase.GRADIENTS:
                self._commit(list(self._identities))
            self._phase = Phase.PARAMETERS if self._phase is Phase.GRADIENTS else Phase.GRADIENTS
        self._changed.notify_all()

    def _commit(self, trainers: list[int]) -> None:
        """One step of each trainer, in this order; in async training those only that have sent something."""
        try:
            pending = [self._service.commit(self._push(who)) for who in trainers if self._sync or self._staged.get(who)]
            for answer in pending:
                self._version = answer().version
        except FluidliteError as error:
            self._failure = error
            self._changed.notify_all()
            raise
        finally:
            for who in trainers:
                self._staged.pop(who, None)

    def _push(self, trainer: int) -> Push:
        gradients = list(self._staged.get(trainer, {}).values())
        sequence = self._next[trainer]
        self._next[trainer] += 1
        header = StepHeader(self._identities[trainer], sequence, sequence, self._version, len(gradients))
        return Push(header, gradients, [])

    def _wait_for(self, phase: Phase) -> None:
        while self._phase is not phase:
            self._changed.wait(_LOOK)
            self._service.heartbeat(self._anybody())

    def _pull(self, request: PullRequest) -> Array:
        """The answer to a request that any trainer may make."""
        with self._changed:
            identity = self._anybody()
        (value,) = self._service.pull(identity, [request]).values
        assert not isinstance(value, SelectedRows)
        return value

    def _rows_of_dense(self, table: str, rows: Array) -> Array:
        """Rows of a parameter that trainers of our own would hold whole."""
        whole = self._pull(DenseRequest(self._endpoint, table, current=True))
        outside = rows[(rows < 0) | (rows >= len(whole))]
        if len(outside):
            raise RequestRefusedError(f"id {outside[0]} is outside {table!r}, which has {len(whole)} rows here")
        return whole[rows]
