"""Items of readers as messages between processes: JSON that says what it is, then the bytes of each array. No pickle."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import ReaderError
from fluidlite.values.lod import LoDTensor


class Connection(Protocol):
    """The part of `multiprocessing.connection.Connection` that is used."""

    def send_bytes(self, buf: Any, /) -> None: ...
    def recv_bytes(self) -> bytes: ...
    def recv_bytes_into(self, buf: Any, /) -> int: ...


def send(connection: Connection, kind: str, value: Any = None) -> None:
    """One message: ``value`` is made of None, bool, int, float, str, bytes, list, tuple, dict by str, arrays, LoDTensors.

    Raises ReaderError for anything else.
    """
    arrays: list[Array] = []
    connection.send_bytes(json.dumps([kind, _described(value, arrays)]).encode())
    for array in arrays:
        if array.nbytes:
            connection.send_bytes(array.reshape(-1).view(np.uint8).data)


def receive(connection: Connection) -> tuple[str, Any]:
    """The next message: (kind, value). Raises EOFError when the sender is gone."""
    kind, description = json.loads(connection.recv_bytes())

    def received(dtype: str, shape: list[int]) -> Array:
        array = np.empty(math.prod(shape), dtype)
        if array.nbytes:
            connection.recv_bytes_into(array.view(np.uint8).data)
        return array.reshape(shape)

    return kind, _rebuilt(description, received)


def _described(value: Any, arrays: list[Array]) -> Any:
    """``value`` as JSON, where everything but numbers and text is a list that begins with its kind."""
    if value is None or (isinstance(value, (bool, int, float, str)) and not isinstance(value, np.generic)):
        return value
    if isinstance(value, (list, tuple)):
        return ["list" if isinstance(value, list) else "tuple", *(_described(item, arrays) for item in value)]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return ["dict", {key: _described(item, arrays) for key, item in value.items()}]
    if isinstance(value, LoDTensor):
        return ["LoDTensor", value.lod, _described(value.array, arrays)]
    if isinstance(value, bytes):
        return ["bytes", _described(np.frombuffer(value, np.uint8), arrays)]
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biufc":
        arrays.append(np.ascontiguousarray(value))
        return ["array" if isinstance(value, np.ndarray) else "scalar", value.dtype.str, value.shape]
    what = f"an array of {value.dtype}" if isinstance(value, np.ndarray) else f"{type(value).__name__}"
    raise ReaderError(f"a reader in a process of its own cannot pass on {what}: {value!r:.80}")


def _rebuilt(description: Any, received: Callable[[str, list[int]], Array]) -> Any:
    if not isinstance(description, list):
        return description
    kind, *parts = description
    if kind in ("array", "scalar"):
        array = received(*parts)
        return array if kind == "array" else array[()]
    if kind == "dict":
        return {key: _rebuilt(item, received) for key, item in parts[0].items()}
    if kind == "LoDTensor":
        return LoDTensor(_rebuilt(parts[1], received), tuple(map(tuple, parts[0])))
    if kind == "bytes":
        return _rebuilt(parts[0], received).tobytes()
    items = [_rebuilt(item, received) for item in parts]
    return items if kind == "list" else tuple(items)
