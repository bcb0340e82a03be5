"""Env: the values of one run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fluidlite.runtime.scope import Scope


class Env:
    """Values during one run: temporaries here, persistable variables in the scope.

    ``keep``: what the caller asks for afterwards; other temporaries may go after their last use. None keeps everything.
    """

    __slots__ = ("keep", "local", "persistable", "plain", "scope")

    def __init__(
        self, scope: Scope, persistable: frozenset[str], feeds: dict[str, Any], keep: frozenset[str] | None = None
    ) -> None:
        self.local: dict[str, Any] = dict(feeds)
        self.scope = scope
        self.persistable = persistable
        self.keep = keep
        #: a fed value hides a persistable variable until the program writes it, which only plain steps look for
        self.plain = not persistable.isdisjoint(feeds)

    def read(self, name: str) -> Any:
        """The value of a variable, None when nothing wrote it."""
        found = self.local.get(name)
        return self.scope.get(name) if found is None else found

    def write(self, name: str, value: Any) -> None:
        if name in self.persistable:
            self.local.pop(name, None)  # a fed value counts until the program writes the variable
            self.scope.set(name, value)
        else:
            self.local[name] = value


Step = Callable[[Env], None]
