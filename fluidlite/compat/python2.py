"""``paddle.compat``: text, bytes and numbers the same in Python 2 and 3, as scripts of that time ask for them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

int_type = int
long_type = int


def to_text(obj: Any, encoding: str = "utf-8", inplace: bool = False) -> Any:
    """Bytes as text; in lists, sets and dicts their items, ``inplace`` or in a new one. Other values stay."""
    return _each(obj, lambda item: item.decode(encoding) if isinstance(item, bytes) else item, inplace)


def to_bytes(obj: Any, encoding: str = "utf-8", inplace: bool = False) -> Any:
    """Text as bytes; in lists and sets their items, ``inplace`` or in a new one. Other values stay."""
    return _each(obj, lambda item: item.encode(encoding) if isinstance(item, str) else item, inplace)


def _each(obj: Any, change: Callable[[Any], Any], inplace: bool) -> Any:
    if isinstance(obj, list):
        changed: Any = [change(item) for item in obj]
        if inplace:
            obj[:] = changed
    elif isinstance(obj, set):
        changed = {change(item) for item in obj}
        if inplace:
            obj.clear()
            obj.update(changed)
    elif isinstance(obj, dict):
        changed = {change(key): change(value) for key, value in obj.items()}
        if inplace:
            obj.clear()
            obj.update(changed)
    else:
        return change(obj)
    return obj if inplace else changed


def round(x: float, d: int = 0) -> float:
    """Rounded half away from zero to ``d`` digits, as Python 2 did."""
    p = 10.0**d
    return math.copysign(math.floor(abs(x) * p + 0.5) / p, x) if x else math.copysign(0.0, x)


def floor_division(x: float, y: float) -> float:
    """``x // y``."""
    return x // y


def get_exception_message(exc: BaseException) -> str:
    """The text of an exception."""
    return str(exc)
