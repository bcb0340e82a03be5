"""Nested lists, tuples, named tuples and dicts of variables: taken apart, mapped, put together again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fluidlite.errors import ProgramError
from fluidlite.framework import user_line


def is_nested(value: object) -> bool:
    """Whether a value holds others: a list, tuple or dict."""
    return isinstance(value, (list, tuple, Mapping))


def flatten(value: Any) -> list[Any]:
    """The leaves in order; of a dict in the order of its keys."""
    return list(_leaves(value))


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        for key in sorted(value):
            yield from _leaves(value[key])
    elif is_nested(value):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def packed(like: Any, leaves: Sequence[Any]) -> Any:
    """``leaves`` in the structure of ``like``; ProgramError unless there are as many as it has."""
    if len(flatten(like)) != len(leaves):
        raise ProgramError(f"{len(leaves)} values do not fit a structure of {len(flatten(like))} ({user_line()})")
    return _packed(like, iter(leaves))


def _packed(like: Any, leaves: Iterator[Any]) -> Any:
    if isinstance(like, Mapping):
        found = {key: _packed(like[key], leaves) for key in sorted(like)}
        return type(like)({key: found[key] for key in like})  # type: ignore[call-arg]
    if not is_nested(like):
        return next(leaves)
    items = [_packed(item, leaves) for item in like]
    return type(like)(*items) if hasattr(like, "_fields") else type(like)(items)


def map_structure(function: Callable[..., Any], *structures: Any) -> Any:
    """``function`` of the leaves of one or more structures, in the structure of the first."""
    leaves = zip(*(flatten(structure) for structure in structures), strict=True)
    return packed(structures[0], [function(*items) for items in leaves])


def require_same_structure(layer: str, first: Any, second: Any) -> None:
    """Refuse two structures that are not nested alike; lists and tuples count as the same."""
    if not _alike(first, second):
        raise ProgramError(f"{layer}: {first!r} and {second!r} are not nested alike ({user_line()})")


def _alike(first: Any, second: Any) -> bool:
    if not is_nested(first) or not is_nested(second):
        return not is_nested(first) and not is_nested(second)
    if isinstance(first, Mapping) or isinstance(second, Mapping):
        same = isinstance(first, Mapping) and isinstance(second, Mapping) and first.keys() == second.keys()
        return same and all(_alike(first[key], second[key]) for key in first)
    return len(first) == len(second) and all(map(_alike, first, second))
