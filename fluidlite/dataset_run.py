"""Runs a program over a whole dataset: what ``Executor.train_from_dataset`` and ``infer_from_dataset`` do."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from fluidlite import framework
from fluidlite.core.ir import OpRole
from fluidlite.dataset import DatasetBase
from fluidlite.errors import DataError, FetchError
from fluidlite.framework import Program, VarOrName
from fluidlite.reader.background import Background
from fluidlite.reader.columns import Feed
from fluidlite.values.lod import LoDTensor

#: is told of the program, the feed that comes next, if it is known by then, and the scope, before a step is run
LookAhead = Callable[[Program, Feed, Any], object]


class Runner(Protocol):
    """The part of an Executor that is used."""

    def run(
        self, program: Program, feed: Feed, fetch_list: Sequence[VarOrName], *, scope: Any, return_numpy: bool = True
    ) -> list[Any]:
        """One step."""


def run_dataset(
    executor: Runner,
    program: Program | None,
    dataset: DatasetBase | None,
    fetch_list: Sequence[VarOrName] | None = None,
    fetch_info: Sequence[str] | None = None,
    print_period: int = 100,
    scope: Any = None,
    look_ahead: LookAhead | None = None,
    skip: int = 0,
) -> int:
    """Run ``program`` once per batch of ``dataset``; every ``print_period`` batches fetch and print ``fetch_list``.

    ``skip``: how many batches at the start are left out. Returns how many there were. ``fetch_info``: what to print before each value; default the names. Raises DataError and FetchError.
    """
    if not isinstance(dataset, DatasetBase):
        raise DataError("a dataset is needed: make one by fluid.DatasetFactory().create_dataset()")
    program = program if program is not None else framework.default_main_program()
    fetches = list(fetch_list or ())
    labels = list(fetch_info or map(framework.name_of, fetches))
    if len(labels) != len(fetches):
        raise FetchError(f"fetch_info has {len(labels)} texts for {len(fetches)} variables of fetch_list")
    with dataset.feeds() as feeds:
        number = sum(1 for _ in itertools.islice(feeds, skip))
        for feed in _announced(feeds, program, scope, look_ahead):
            number += 1
            if fetches and number % print_period == 0:
                values = executor.run(program, feed, fetches, scope=scope, return_numpy=False)
                for label, value in zip(labels, values, strict=True):
                    print(f"batch {number} {label}: {_shown(value)}", flush=True)
            else:
                executor.run(program, feed, [], scope=scope)
    return number


def without_updates(program: Program | None) -> Program:
    """The program, or where it trains, a copy of it for tests."""
    program = program if program is not None else framework.default_main_program()
    trains = any(op.role & (OpRole.BACKWARD | OpRole.OPTIMIZE) for op in program.desc.root.ops)
    return program.clone(for_test=True) if trains else program


def _shown(value: Any) -> str:
    """A fetched value as text, with the lengths of its sequences where it has any."""
    if not isinstance(value, LoDTensor):
        return str(value)
    lengths = f" in sequences of {value.recursive_sequence_lengths()}" if value.lod else ""
    return f"{value.array}{lengths}"


def _announced(feeds: Background[Feed], program: Program, scope: Any, look_ahead: LookAhead | None) -> Iterator[Feed]:
    """The feeds; before one is handed out, ``look_ahead`` is told of the one behind it if that is there already."""
    for feed in feeds:
        following = feeds.peek() if look_ahead is not None else None
        if look_ahead is not None and following is not None:
            look_ahead(program, following, scope)
        yield feed
