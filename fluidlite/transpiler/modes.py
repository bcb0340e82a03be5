"""Which kind of training a `DistributeTranspilerConfig` asks for: Fluid's flags read as one mode."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import NamedTuple, Protocol

from fluidlite.ops.modes import Mode, Settings


class Flags(Protocol):
    """The fields of `DistributeTranspilerConfig` that choose a mode."""

    @property
    def sync_mode(self) -> bool: ...
    @property
    def runtime_split_send_recv(self) -> bool: ...
    @property
    def half_async(self) -> bool: ...
    @property
    def completely_not_async(self) -> bool: ...
    @property
    def geo_sgd_mode(self) -> bool: ...
    @property
    def geo_sgd_need_push_nums(self) -> int: ...
    @property
    def enable_dc_asgd(self) -> bool: ...
    @property
    def staleness(self) -> int | None: ...


class Asked(NamedTuple):
    """What is asked for, and what of it contradicts the rest."""

    settings: Settings
    refusals: tuple[str, ...]


def asked_for(flags: Flags, sync_mode: bool) -> Asked:
    """The mode and its settings. ``sync_mode``: the argument of ``transpile``, which turns it off as the field does.

    Fluid's synchronous communicator is ``half_async`` with ``completely_not_async``: that is sync here.
    """
    sync = flags.sync_mode and sync_mode
    ways = list(_asynchronous(flags))
    refusals = []
    if len(ways) > 1:
        refusals.append(f"{' and '.join(name for name, _ in ways)} are different kinds of training; choose one")
    if sync:
        others = [name for name, mode in ways if mode is not Mode.SYNC]
        others += ["runtime_split_send_recv"] if flags.runtime_split_send_recv else []
        refusals += [f"{name} is for training that is not synchronous; set sync_mode=False" for name in others]
    if flags.geo_sgd_mode and flags.geo_sgd_need_push_nums < 1:
        refusals.append(f"geo_sgd_need_push_nums must be at least 1, not {flags.geo_sgd_need_push_nums}")
    synchronous = sync or flags.completely_not_async
    mode = ways[0][1] if ways else Mode.SYNC if synchronous else Mode.ASYNC
    given = {f.name: getattr(flags, f.name) for f in fields(Settings) if hasattr(flags, f.name) and f.name != "mode"}
    given |= {"dc_asgd": flags.enable_dc_asgd, "staleness": (flags.staleness or 0) if mode is Mode.SSP else 0}
    return Asked(Settings(mode=mode, **given), tuple(refusals))


def _asynchronous(flags: Flags) -> Iterator[tuple[str, Mode]]:
    """The flags that ask for something other than plain sync or async, with what."""
    if flags.half_async and not flags.completely_not_async:
        yield "half_async", Mode.HALF_ASYNC
    if flags.geo_sgd_mode:
        yield "geo_sgd_mode", Mode.GEO
    if flags.staleness is not None:
        yield "staleness", Mode.SSP
    if flags.completely_not_async and (flags.geo_sgd_mode or flags.staleness is not None):
        yield "completely_not_async", Mode.SYNC
