"""Runs a program over a whole dataset: what ``Executor.train_from_dataset`` and ``infer_from_dataset`` do."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
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


class FetchHandler:
    """Sees values during `Executor.train_from_dataset`: define ``handler(self, res_dict)``.

    About every ``period_secs`` seconds, behind a batch, ``res_dict`` has the value of each variable of ``var_dict`` by the
    name that it has there: an array, or a LoDTensor where it has LoD.
    """

    def __init__(self, var_dict: Mapping[str, VarOrName] | None = None, period_secs: float = 60) -> None:
        if not isinstance(var_dict, Mapping):
            raise DataError("FetchHandler needs var_dict: a dict of name -> variable")
        self.var_dict = var_dict
        self.period_secs = period_secs

    def handler(self, res_dict: dict[str, Any]) -> None:
        """Print the values; to be defined by subclasses."""
        for name, value in res_dict.items():
            print(f"{name}: {_shown(value)}", flush=True)

    @staticmethod
    def help() -> None:
        """Print how a subclass looks."""
        print("class Handler(FetchHandler):\n    def handler(self, res_dict):\n        print(res_dict['loss'])")


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
    fetch_handler: FetchHandler | None = None,
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
    watched = _Watched(fetch_handler)
    with dataset.feeds() as feeds:
        number = sum(1 for _ in itertools.islice(feeds, skip))
        for feed in _announced(feeds, program, scope, look_ahead):
            number += 1
            printed = fetches if fetches and number % print_period == 0 else []
            values = executor.run(program, feed, [*printed, *watched.due()], scope=scope, return_numpy=False)
            for label, value in zip(labels, values[: len(printed)], strict=False):
                print(f"batch {number} {label}: {_shown(value)}", flush=True)
            watched.tell(values[len(printed) :])
    return number


class _Watched:
    """When a handler's time has come, and what it is told."""

    def __init__(self, handler: FetchHandler | None) -> None:
        self._handler = handler
        self._last = time.monotonic()

    def due(self) -> list[VarOrName]:
        """The variables to fetch with the next batch; none while the time has not come."""
        if self._handler is None or time.monotonic() - self._last < self._handler.period_secs:
            return []
        return list(self._handler.var_dict.values())

    def tell(self, values: Sequence[Any]) -> None:
        """Call the handler if the batch fetched for it."""
        if self._handler is not None and values:
            self._last = time.monotonic()
            plain = [value.array if isinstance(value, LoDTensor) and not value.lod else value for value in values]
            self._handler.handler(dict(zip(self._handler.var_dict, plain, strict=True)))


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
