from typing import Any


def to_bytes(p: Any) -> bytes:
    return b""


def from_bytes(p: bytes) -> Any: ...
