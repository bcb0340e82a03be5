"""How pushes count: the mode of a job and its settings, as the attributes of `listen_and_serv` carry them."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from fluidlite.core.ir import Operator
from fluidlite.errors import ProgramError
from fluidlite.ops.registry import AttrSpec, bool_attr, int_attr, string_attr

REDUCTIONS: Final = ("mean", "sum")
NAN_POLICIES: Final = ("", "error", "skip", "zero")


class Mode(enum.IntEnum):
    """The values of ``distributed_mode``: Fluid's, and 4."""

    SYNC = 0
    ASYNC = 1
    HALF_ASYNC = 2
    GEO = 3
    SSP = 4


class Wire(enum.StrEnum):
    """What trainers and servers of a job speak: our own, or Fluid's, by the round or on arrival."""

    OWN = ""
    FLUID = "fluid"
    FLUID_ASYNC = "fluid_async"


#: how ops say so
WIRE_ATTR: Final = string_attr("", "Fluid's own wire: 'fluid', 'fluid_async' without rounds; empty: ours")


@dataclass(frozen=True, slots=True)
class Settings:
    """What a server needs to know of the training. Every field but ``mode`` is the attribute of its name.

    Rounds (sync): ``grads_to_wait`` steps close one (0: those of all live trainers), of as many trainers unless
    ``distinct_trainers`` is off (ElasticDL counts pushes). A step that saw a version below the server's minus
    ``sync_version_tolerance`` is refused (-1: none is). ``sparse_grad_reduce``: "mean" of the contributions or their "sum",
    for gradients that are rows.

    On arrival (all other modes): ``lr_staleness_modulation`` divides the learning rate by how many versions the gradient is
    behind. ``staleness``: how many steps a trainer may be ahead of the slowest (ssp). ``max_merge_var_num``: how many steps
    one push may stand for (half_async). ``dc_asgd``: gradients are compensated for their delay.

    In any mode: ``lr_from_trainer`` takes the learning rate that a step carries. ``nan_policy``: what becomes of a gradient
    that is not finite ("": it is applied).
    """

    mode: Mode = Mode.SYNC
    grads_to_wait: int = 0
    distinct_trainers: bool = True
    sync_version_tolerance: int = -1
    sparse_grad_reduce: str = "mean"
    lr_staleness_modulation: bool = False
    lr_from_trainer: bool = False
    staleness: int = 0
    nan_policy: str = ""
    max_merge_var_num: int = 20
    dc_asgd: bool = False

    @staticmethod
    def read(listen: Operator) -> Settings:
        """The settings of a `listen_and_serv` op; ProgramError with every reason when they contradict each other."""
        number = listen.attr("distributed_mode", 0)
        if number not in list(Mode):
            raise ProgramError(f"listen_and_serv: distributed_mode {number} is none of {', '.join(map(_shown, Mode))}")
        given = {field.name: listen.attr(field.name, field.default) for field in fields(Settings)[1:]}
        settings = Settings(mode=Mode(number), **given)
        wrong = list(settings.contradictions(listen.attr("Fanin", 1)))
        if wrong:
            raise ProgramError(f"listen_and_serv: {'; '.join(wrong)}")
        return settings

    def attributes(self) -> dict[str, Any]:
        """The attributes of a `listen_and_serv` op that say so; defaults are left out."""
        given = {field.name: getattr(self, field.name) for field in fields(self)[1:]}
        changed = {name: value for name, value in given.items() if value != ATTRS[name].default}
        return {"distributed_mode": int(self.mode), **changed}

    @property
    def rounds(self) -> bool:
        """Whether steps are summed by the round, and not applied on arrival."""
        return self.mode is Mode.SYNC

    def contradictions(self, trainers: int) -> Iterator[str]:
        """What makes no sense, alone or together, in a job of so many trainers."""
        yield from self._out_of_range()
        for name, modes in _ONLY_IN.items():
            if getattr(self, name) != ATTRS[name].default and self.mode not in modes:
                where = " or ".join(mode.name.lower() for mode in modes)
                called = "enable_dc_asgd" if name == "dc_asgd" else name
                yield f"{called} means something in {where} mode only, not in {self.mode.name.lower()} mode"
        if self.distinct_trainers and self.grads_to_wait > trainers:
            yield (
                f"grads_to_wait is {self.grads_to_wait}, but the job has {trainers} trainer(s), and each counts once in a "
                "round; distinct_trainers=False counts pushes"
            )
        if self.mode is Mode.GEO and self.nan_policy in ("skip", "zero"):
            yield (
                f"nan_policy={self.nan_policy!r} would leave out what a geo trainer sends for ever, for its own values stay as they "
                "are; 'error' says it to the trainer"
            )
        if not self.distinct_trainers and not self.grads_to_wait:
            yield "distinct_trainers=False counts pushes: say by grads_to_wait how many make a round"

    def _out_of_range(self) -> Iterator[str]:
        for name, least in _LEAST.items():
            if getattr(self, name) < least:
                yield f"{name} must be at least {least}, not {getattr(self, name)}"
        if self.sparse_grad_reduce not in REDUCTIONS:
            yield f"sparse_grad_reduce must be 'mean' or 'sum', not {self.sparse_grad_reduce!r}"
        if self.nan_policy not in NAN_POLICIES:
            yield f"nan_policy must be 'error', 'skip', 'zero' or '' (none), not {self.nan_policy!r}"


_ON_ARRIVAL = (Mode.ASYNC, Mode.HALF_ASYNC, Mode.SSP)
_LEAST: Final[Mapping[str, int]] = {
    "grads_to_wait": 0,
    "sync_version_tolerance": -1,
    "staleness": 0,
    "max_merge_var_num": 1,
}
_ONLY_IN: Final[Mapping[str, tuple[Mode, ...]]] = {
    "grads_to_wait": (Mode.SYNC,),
    "distinct_trainers": (Mode.SYNC,),
    "sync_version_tolerance": (Mode.SYNC,),
    "lr_staleness_modulation": _ON_ARRIVAL,
    "lr_from_trainer": (Mode.SYNC, *_ON_ARRIVAL),
    "staleness": (Mode.SSP,),
    "max_merge_var_num": (Mode.HALF_ASYNC,),
    "dc_asgd": (Mode.ASYNC,),
}


def _shown(mode: Mode) -> str:
    return f"{mode.value} ({mode.name.lower()})"


#: how `listen_and_serv` declares the settings
ATTRS: Final[Mapping[str, AttrSpec]] = {
    "distributed_mode": int_attr(0, ", ".join(map(_shown, Mode))),
    "grads_to_wait": int_attr(0, "sync: steps that make a round; 0: one of every live trainer"),
    "distinct_trainers": bool_attr(
        default=True, doc="sync: a trainer counts once in a round; false: pushes are counted"
    ),
    "sync_version_tolerance": int_attr(-1, "sync: how many versions behind a gradient may be; -1: any number"),
    "sparse_grad_reduce": string_attr(
        "mean", "sync: 'mean' of the contributions, or 'sum'; for gradients that are rows"
    ),
    "lr_staleness_modulation": bool_attr(
        default=False, doc="async, half_async, ssp: the learning rate is divided by max(1, version - version seen)"
    ),
    "lr_from_trainer": bool_attr(default=False, doc="the learning rate that a step carries overrides the schedule"),
    "staleness": int_attr(0, "ssp: steps that a trainer may be ahead of the slowest"),
    "nan_policy": string_attr("", "a gradient with NaN or infinities: 'error', 'skip', 'zero'; '': applied as it is"),
    "max_merge_var_num": int_attr(20, "half_async: steps that one push stands for at most"),
    "dc_asgd": bool_attr(default=False, doc="async: gradients are compensated for their delay"),
}
