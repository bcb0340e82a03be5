"""Automatic names: ``fc_0``, ``fc_0.w_0``, ``tmp_3``. Counters per key, as in Fluid."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fluidlite import framework
from fluidlite.framework import NameGenerator


def generate(key: str) -> str:
    """The next name for a key: ``generate("fc")`` -> ``fc_0``, ``fc_1``, ..."""
    return framework.state.names.generate(key)


def switch(new_generator: NameGenerator | None = None, new_para_name_checker: object = None) -> NameGenerator:
    """Install a generator (a fresh one by default) and return the one before; the second argument is Fluid's."""
    before = framework.state.names
    framework.state.names = new_generator if new_generator is not None else NameGenerator()
    return before


@contextmanager
def guard(new_generator: NameGenerator | str | None = None) -> Iterator[None]:
    """A counter space of its own inside the ``with``; a string becomes the prefix of all names."""
    if isinstance(new_generator, (str, bytes)):
        prefix = new_generator.decode() if isinstance(new_generator, bytes) else new_generator
        new_generator = NameGenerator(prefix)
    before = switch(new_generator)
    try:
        yield
    finally:
        switch(before)
