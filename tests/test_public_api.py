"""The public surface is the checked-in list tests/public_api.txt; all of it is annotated and documented.

``FLUIDLITE_REWRITE=1 pytest tests/test_public_api.py`` writes the list anew; read the diff.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import fluidlite
from fluidlite import (
    backward,
    clip,
    constraint,
    fusion,
    initializer,
    io,
    layers,
    metrics,
    nets,
    optimizer,
    ps_client,
    regularizer,
    transpiler,
    unique_name,
)

LIST = Path(__file__).with_name("public_api.txt")
MODULES = (
    fluidlite,
    layers,
    optimizer,
    initializer,
    regularizer,
    clip,
    constraint,
    fusion,
    backward,
    io,
    metrics,
    nets,
    ps_client,
    transpiler,
    unique_name,
)


def public_names(module: ModuleType) -> list[str]:
    if hasattr(module, "__all__"):
        return sorted(module.__all__)
    return sorted(
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__ and callable(value)
    )


def public_objects() -> Iterator[tuple[str, object]]:
    for module in MODULES:
        for name in public_names(module):
            yield f"{module.__name__}.{name}", getattr(module, name)


def described(path: str, value: object) -> str:
    if inspect.isfunction(value):
        parameters = [
            name if parameter.default is parameter.empty else f"{name}={parameter.default!r}"
            for name, parameter in inspect.signature(value).parameters.items()
        ]
        return f"{path}({', '.join(parameters)})"
    return f"{'class ' if inspect.isclass(value) else ''}{path}"


def test_the_list_is_current() -> None:
    current = "\n".join(described(path, value) for path, value in public_objects()) + "\n"
    if os.environ.get("FLUIDLITE_REWRITE"):
        LIST.write_text(current, encoding="utf-8")
    assert current == LIST.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("path", "value"), list(public_objects()), ids=lambda item: item if isinstance(item, str) else ""
)
def test_documented_and_annotated(path: str, value: object) -> None:
    if not (inspect.isfunction(value) or inspect.isclass(value)) or not value.__module__.startswith("fluidlite"):
        return
    assert (value.__doc__ or "").strip(), f"{path} has no docstring"
    if inspect.isfunction(value):
        signature = inspect.signature(value)
        bare = [name for name, parameter in signature.parameters.items() if parameter.annotation is parameter.empty]
        assert not bare, f"{path}: not annotated: {bare}"
        assert signature.return_annotation is not signature.empty, path
