"""Rows that were asked for before they are needed."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from fluidlite.protocol.messages import RowRequest
from fluidlite.rpc.retry import Retries

#: calls of `AheadPulls.put` of which answers are kept: of the batch that is run next, and the one after it
_KEPT: Final = 2


@dataclass(slots=True, eq=False)
class _Batch:
    """Requests that went out together; ``answers`` waits for them."""

    requests: list[RowRequest | None]
    wait: Callable[[Retries], list[Any]]
    answers: list[Any] | None = None

    def take(self, request: RowRequest, retries: Retries) -> Any:
        """The answer to an equal request, handed out once; None when there is none."""
        for index, known in enumerate(self.requests):
            if known is not None and _same(known, request):
                self.requests[index] = None
                if self.answers is None:
                    self.answers = self.wait(retries)
                return self.answers[index]
        return None


class AheadPulls:
    """What was asked ahead and not fetched yet. For any number of threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._batches: deque[_Batch] = deque(maxlen=_KEPT)

    def put(self, requests: Sequence[RowRequest], wait: Callable[[Retries], list[Any]]) -> None:
        """Keep what ``wait`` will answer. Ids may change afterwards."""
        with self._lock:
            self._batches.append(_Batch([replace(request, ids=request.ids.copy()) for request in requests], wait))

    def take(self, request: RowRequest, retries: Retries) -> Any:
        """The answer to ``request``, if it was asked; None otherwise. Raises what went wrong, and then keeps nothing: what
        else was asked may have gone wrong as well, and is to be asked again."""
        if not self._batches:
            return None
        with self._lock:
            try:
                found = (batch.take(request, retries) for batch in self._batches)
                return next((rows for rows in found if rows is not None), None)
            except BaseException:
                self._batches.clear()
                raise


def _same(one: RowRequest, other: RowRequest) -> bool:
    return (
        len(one.ids) == len(other.ids) and replace(one, ids=other.ids) == other and np.array_equal(one.ids, other.ids)
    )
