"""half_async: a queue in front of a trainer's port merges steps, and a thread sends them while the trainer goes on."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import FluidliteError, PeerLostError, RemoteError
from fluidlite.protocol.messages import DenseRequest, Gradient, PullRequest, Reply, RowRequest
from fluidlite.values.selected_rows import SelectedRows, merge_rows

log = logging.getLogger("fluidlite")

#: (endpoint, name there) of a gradient or of a dense variable
Place = tuple[str, str]


class Port(Protocol):
    """What is needed of the port behind: `rpc.port.TrainerPort` has it. Each of its threads has an open step of its own."""

    def pull(self, requests: Sequence[PullRequest]) -> list[Any]: ...
    def pull_ahead(self, requests: Sequence[PullRequest]) -> bool: ...
    def stage(self, gradient: Gradient) -> None: ...
    def commit(self, endpoints: Sequence[str], *, steps: int) -> Reply: ...
    def barrier(self, endpoints: Sequence[str]) -> None: ...
    def assign(self, endpoint: str, name: str, value: Array | SelectedRows) -> None: ...
    def checkpoint(self, endpoints: Sequence[str], folder: str = "") -> int: ...
    def complete(self) -> None: ...


class _Sum:
    """Gradients of one name, one after the other."""

    def __init__(self, first: Gradient) -> None:
        self._last = first
        self._count = 1
        self._dense = None if first.rows is not None else first.value.copy()
        self._parts = [] if first.rows is None else [(first.rows.copy(), first.value.copy())]

    def fits(self, gradient: Gradient) -> bool:
        """Whether the gradient is of the same kind."""
        same = (gradient.rows is None) == (self._last.rows is None) and gradient.value.dtype == self._last.value.dtype
        return same and (gradient.rows is not None or gradient.value.shape == self._last.value.shape)

    def add(self, gradient: Gradient) -> None:
        """One more; its arrays are not kept."""
        self._last, self._count = gradient, self._count + 1
        if gradient.rows is None:
            assert self._dense is not None
            self._dense += gradient.value
        else:
            self._parts.append((gradient.rows.copy(), gradient.value.copy()))

    def merged(self, *, mean: bool) -> Gradient:
        """Their sum or mean, of rows by id."""
        divisor = self._count if mean else 1
        if self._dense is not None:
            return replace(self._last, value=self._dense if divisor == 1 else self._dense / self._as_float(divisor))
        rows = np.concatenate([rows for rows, _ in self._parts])
        value = np.concatenate([value for _, value in self._parts])
        merged = merge_rows(SelectedRows(rows, value, self._last.height))
        scaled = merged.value if divisor == 1 else merged.value / self._as_float(divisor)
        return replace(self._last, rows=merged.rows, value=scaled)

    def _as_float(self, number: int) -> Any:
        return self._last.value.dtype.type(number)


@dataclass
class _Push:
    """Steps of one push, numbered from ``first``."""

    first: int
    steps: int = 0
    endpoints: dict[str, None] = field(default_factory=dict)
    sums: dict[Place, _Sum] = field(default_factory=dict)
    done: threading.Event = field(default_factory=threading.Event)
    versions: Mapping[str, int] = field(default_factory=dict)
    failure: RemoteError | None = None

    def fits(self, step: Mapping[Place, Gradient]) -> bool:
        return all(place not in self.sums or self.sums[place].fits(gradient) for place, gradient in step.items())

    def add(self, endpoints: Sequence[str], step: Mapping[Place, Gradient]) -> None:
        self.steps += 1
        self.endpoints.update(dict.fromkeys(endpoints))
        for place, gradient in step.items():
            if place in self.sums:
                self.sums[place].add(gradient)
            else:
                self.sums[place] = _Sum(gradient)

    def __str__(self) -> str:
        last = self.first + self.steps - 1
        return f"step {last}" if self.steps == 1 else f"steps {self.first} to {last}, merged in one push"


class MergingPort:
    """Implements `ops.context.ServerPort` in front of another port.

    A commit hands its step over and returns; it waits only while ``most`` steps wait already. A thread takes all steps that
    wait, merges them to one and commits that; meanwhile the next ones gather. A gradient is the mean of those of the
    steps that gave one, as in Fluid, or of the names in ``added`` their sum. Dense variables are pulled by that thread after
    each push, and a pull of one gives what it brought last. What goes wrong with a push is raised by the next call, naming
    its steps; these are over. For any number of threads.
    """

    def __init__(self, port: Port, most: int, added: Collection[Place] = ()) -> None:
        if most < 1:
            raise FluidliteError(f"max_merge_var_num must be at least 1, not {most}")
        self._port = port
        self._most = most
        self._added = added
        self._changed = threading.Condition()
        #: guarded by it: the push that gathers steps, the one under way, what went wrong and was not told
        self._gathering: _Push | None = None
        self._sending: _Push | None = None
        self._failures: list[RemoteError] = []
        self._number = 0
        self._thread: threading.Thread | None = None
        self._stopped = False
        #: by thread: the gradients of the open step
        self._open: dict[int, dict[Place, Gradient]] = {}
        #: dense variables as they came last
        self._dense: dict[Place, Any] = {}
        #: pushes and steps so far
        self.pushes, self.steps = 0, 0

    def pull(self, requests: Sequence[PullRequest]) -> list[Any]:
        """One answer per request. Rows are those of the servers now, which lack the steps that wait; dense variables as the
        last push brought them; whole tables, and current values, after all that waits was sent."""
        self._tell()
        if not all(isinstance(r, RowRequest) or (isinstance(r, DenseRequest) and not r.current) for r in requests):
            self.flush()
        answers = {index: self._last(request) for index, request in enumerate(requests)}
        asked = [index for index, value in answers.items() if value is None]
        for index, value in zip(asked, self._port.pull([requests[index] for index in asked]), strict=True):
            request, answers[index] = requests[index], value
            if isinstance(request, DenseRequest) and not request.current:
                self._dense.setdefault((request.endpoint, request.name), value)
        return [answers[index] for index in range(len(requests))]

    def pull_ahead(self, requests: Sequence[PullRequest]) -> bool:
        """Ask for rows that a `pull` to come will ask for."""
        return self._port.pull_ahead(requests)

    def stage(self, gradient: Gradient) -> None:
        """Add a gradient to the open step of this thread."""
        self._open.setdefault(threading.get_ident(), {})[gradient.endpoint, gradient.name] = gradient

    def abandon(self) -> None:
        """Drop the open step of this thread."""
        self._open.pop(threading.get_ident(), None)

    def commit(self, endpoints: Sequence[str]) -> Reply:
        """Hand the open step over. ``versions`` of the reply waits for its push."""
        step = self._open.pop(threading.get_ident(), {})
        self._tell()
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or self._failures or self._has_room(step))
            self._tell()
            if self._stopped:
                raise FluidliteError("this trainer is closed")
            if self._gathering is None:
                self._gathering = _Push(self._number)
            self._gathering.add([*endpoints, *(endpoint for endpoint, _ in step)], step)
            self._number += 1
            push = self._gathering
            self._start()
            self._changed.notify_all()
        return Reply(lambda: self._versions(push))

    def flush(self) -> None:
        """Wait until everything that was handed over is sent and applied; raises what went wrong."""
        with self._changed:
            self._changed.wait_for(lambda: self._gathering is None and self._sending is None)
        self._tell()

    def barrier(self, endpoints: Sequence[str]) -> None:
        """Wait until every live trainer has called it; what these had handed over is applied then."""
        self.flush()
        self._port.barrier(endpoints)

    def assign(self, endpoint: str, name: str, value: Array | SelectedRows) -> None:
        """Overwrite a variable of a server, after all that waits was sent."""
        self.flush()
        self._dense.pop((endpoint, name), None)
        self._port.assign(endpoint, name, value)

    def checkpoint(self, endpoints: Sequence[str], folder: str = "") -> int:
        """Make the servers write a checkpoint, after all that waits was sent."""
        self.flush()
        return self._port.checkpoint(endpoints, folder)

    def complete(self) -> None:
        """Send what waits, then tell every server that this trainer is done."""
        try:
            self.flush()
        finally:
            self.stop()
            self._port.complete()

    def stop(self) -> None:
        """End the thread; what waits is dropped, what is under way is waited for. Idempotent."""
        with self._changed:
            self._stopped = True
            dropped, self._gathering = self._gathering, None
            if dropped is not None:
                dropped.failure = PeerLostError(f"{dropped}: dropped, the trainer left before it was sent")
                dropped.done.set()
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _has_room(self, step: Mapping[Place, Gradient]) -> bool:
        return self._gathering is None or (self._gathering.steps < self._most and self._gathering.fits(step))

    def _last(self, request: PullRequest) -> Any:
        if not isinstance(request, DenseRequest) or request.current:
            return None
        return self._dense.get((request.endpoint, request.name))

    def _tell(self) -> None:
        """Raise what went wrong, once."""
        with self._changed:
            failures, self._failures = self._failures, []
        if failures:
            for other in failures[1:]:
                log.warning("%s", other)
            raise failures[0]

    def _versions(self, push: _Push) -> Mapping[str, int]:
        push.done.wait()
        if push.failure is not None:
            with self._changed:
                self._failures = [failure for failure in self._failures if failure is not push.failure]
            raise push.failure
        return push.versions

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._send_all, name="merged pushes", daemon=True)
            self._thread.start()

    def _send_all(self) -> None:
        """What the thread does."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopped or self._gathering is not None)
                if self._gathering is None:
                    return
                push = self._sending = self._gathering
                self._gathering = None
                self._changed.notify_all()
            try:
                self._send(push)
            except Exception as error:
                push.failure = (
                    error if isinstance(error, RemoteError) else RemoteError(f"{type(error).__name__}: {error}")
                )
                push.failure.args = (f"{push}: {push.failure}",)
            with self._changed:
                self._sending = None
                if push.failure is not None:
                    self._failures.append(push.failure)
                push.done.set()
                self._changed.notify_all()

    def _send(self, push: _Push) -> None:
        for place, total in push.sums.items():
            self._port.stage(total.merged(mean=place not in self._added))
        push.versions = dict(self._port.commit(list(push.endpoints), steps=push.steps).versions)
        self.pushes, self.steps = self.pushes + 1, self.steps + push.steps
        places = list(self._dense)
        values = self._port.pull([DenseRequest(endpoint, name) for endpoint, name in places]) if places else []
        self._dense.update(zip(places, values, strict=True))
