"""Scope: variable name -> value. Values are arrays, LoDTensors, SelectedRows, SparseTables or lists of these."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import ProgramError, UninitializedError
from fluidlite.values.lod import Lod, LoDTensor
from fluidlite.values.selected_rows import SelectedRows


class Scope:
    """A dictionary of values with a parent that it falls back to."""

    def __init__(self, parent: Scope | None = None) -> None:
        self.parent = parent
        self.values: dict[str, Any] = {}

    def get(self, name: str) -> Any:
        """The value of a variable, None when nothing wrote it."""
        scope: Scope | None = self
        while scope is not None:
            found = scope.values.get(name)
            if found is not None:
                return found
            scope = scope.parent
        return None

    def set(self, name: str, value: Any) -> None:
        """Write where the variable lives, or here when it is new."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.values:
                scope.values[name] = value
                return
            scope = scope.parent
        self.values[name] = value

    def erase(self, names: list[str]) -> None:
        """Forget variables of this scope (not of its parents)."""
        for name in names:
            self.values.pop(name, None)

    # Fluid's method names, used by scripts.
    def var(self, name: str) -> ScopeVariable:
        """The variable, created empty when it is new."""
        return ScopeVariable(self, name)

    def find_var(self, name: str) -> ScopeVariable | None:
        """The variable, None when nothing wrote it."""
        return None if self.get(name) is None else ScopeVariable(self, name)

    def new_scope(self) -> Scope:
        """A child that falls back to this scope."""
        return Scope(self)

    def drop_kids(self) -> None:
        """Nothing: a child lives as long as who asked for it."""

    def local_var_names(self) -> list[str]:
        """Names written in this very scope."""
        return list(self.values)


class ScopeVariable:
    """A handle to one variable of a scope, with Fluid's methods."""

    def __init__(self, scope: Scope, name: str) -> None:
        self._scope = scope
        self.name = name

    def get_tensor(self) -> ScopeTensor:
        """A view that reads and sets the tensor: ``np.array(var.get_tensor())``, ``.set(array, place)``.

        Raises ProgramError when the variable holds something else, such as a table.
        """
        return ScopeTensor(self._scope, self.name)

    def get_selected_rows(self) -> SelectedRows:
        """The SelectedRows value."""
        value = self._scope.get(self.name)
        if not isinstance(value, SelectedRows):
            raise UninitializedError(f"variable {self.name!r} holds no SelectedRows")
        return value


class ScopeTensor(LoDTensor):
    """A LoDTensor whose changes go to the scope."""

    __slots__ = ("_name", "_scope")

    def __init__(self, scope: Scope, name: str) -> None:
        value = scope.get(name)
        array = value.array if isinstance(value, LoDTensor) else value
        if array is not None and not isinstance(array, np.ndarray):
            raise ProgramError(f"variable {name!r} holds a {type(array).__name__}, not a tensor")
        super().__init__(array, value.lod if isinstance(value, LoDTensor) else ())
        self._scope = scope
        self._name = name

    def set(self, array: Any, place: object = None) -> None:
        super().set(array, place)
        self._store()

    def set_recursive_sequence_lengths(self, lengths: Any) -> None:
        super().set_recursive_sequence_lengths(lengths)
        self._store()

    def set_lod(self, lod: Any) -> None:
        super().set_lod(lod)
        self._store()

    def _store(self) -> None:
        self._scope.set(self._name, with_lod(self.array, self.lod))


def with_lod(array: Array, lod: Lod) -> Array | LoDTensor:
    """The form in which scopes hold tensors: a bare array unless there is LoD."""
    return LoDTensor(array, lod) if lod else array


_stack = [Scope()]


def global_scope() -> Scope:
    """The scope that ``Executor.run`` uses by default: the process' own, or that of the innermost `scope_guard`."""
    return _stack[-1]


@contextmanager
def scope_guard(scope: Scope) -> Iterator[None]:
    """Make ``scope`` the default inside the ``with`` (for the whole process, as in Fluid)."""
    _stack.append(scope)
    try:
        yield
    finally:
        _stack.pop()
