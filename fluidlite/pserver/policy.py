"""When a step counts: pure decisions, without clocks, locks or values.

A policy is told what happens (a trainer's step came, a trainer left) together with the live trainers, and answers with
the `Round` to apply now, if any. What it decides depends on the order of these events and on nothing else, so replaying
them gives the same rounds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol

from fluidlite.errors import CorruptFileError
from fluidlite.ops.modes import Mode, Settings
from fluidlite.protocol.messages import Gradient


@dataclass(frozen=True, slots=True)
class Step:
    """What a trainer gives to a round: its gradients, the version of this server that they were computed from, and the
    learning rate that the step carries, if any."""

    gradients: Sequence[Gradient]
    seen: int = 0
    learning_rate: float | None = None

    def joined(self, later: Step) -> Step:
        """This step and a later one of the same trainer as its part of one round: the gradients of both are summed, and
        count as two contributions."""
        rate = self.learning_rate if later.learning_rate is None else later.learning_rate
        return Step((*self.gradients, *later.gradients), max(self.seen, later.seen), rate)


@dataclass(frozen=True, slots=True)
class Round:
    """Steps to apply together, as one step of the server: whose, in the order in which they are summed.

    A trainer that stands there n times gives its n oldest steps that wait. ``tick``: how many steps the learning-rate
    schedule advances first.
    """

    trainers: tuple[int, ...]
    tick: int


class Policy(Protocol):
    """Decides when steps that came are applied, and when their trainers may go on."""

    @property
    def waits(self) -> bool:
        """Whether a step is answered when it is applied; False: when it is accepted, with the version of that moment."""
        ...

    def check(self, trainer: int, seen: int, version: int) -> str | None:
        """Why a step that saw version ``seen`` is refused as stale by a server at ``version``; None: it is not."""
        ...

    def arrive(self, trainer: int, live: Collection[int], steps: int = 1) -> Round | None:
        """A push of ``trainer`` came to count. ``steps``: how many steps of the trainer it stands for."""
        ...

    def left(self, live: Collection[int]) -> Round | None:
        """A trainer left; ``live`` are those that remain."""
        ...

    def missing(self, live: Collection[int]) -> tuple[int, ...]:
        """Who is waited for."""
        ...

    def holds(self, trainer: int, live: Collection[int]) -> bool:
        """Whether the answer to the trainer's last step must wait although it is applied. Changes nothing."""
        ...

    def state(self) -> dict[str, Any]:
        """What `restore` of a policy of the same kind takes; JSON can hold it. Steps that wait are not in it: whoever
        holds them lets them arrive again."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state; CorruptFileError for one that is not of this kind of policy."""
        ...


def make_policy(settings: Settings) -> Policy:
    """The policy that a server's program asks for."""
    match settings.mode:
        case Mode.SYNC:
            tolerance = settings.sync_version_tolerance
            return Sync(
                settings.grads_to_wait or None,
                tolerance if tolerance >= 0 else None,
                distinct=settings.distinct_trainers,
            )
        case Mode.SSP:
            return Ssp(settings.staleness)
        case Mode.GEO:
            return Async(ticks=False)
        case Mode.HALF_ASYNC:
            return Async(max_steps=settings.max_merge_var_num)
        case Mode.ASYNC:
            return Async()


class Rendezvous:
    """Trainers meet: complete when every live one has come. One that came and left since still counts as present."""

    def __init__(self) -> None:
        self._present: set[int] = set()

    def arrive(self, trainer: int) -> None:
        """``trainer`` is here; coming twice is coming once."""
        self._present.add(trainer)

    def withdraw(self, trainer: int) -> None:
        """``trainer`` starts anew and has not come yet."""
        self._present.discard(trainer)

    def meet(self, live: Collection[int]) -> tuple[int, ...]:
        """Everybody present, ascending, once no live trainer is missing (then the next meeting opens); else ()."""
        if self.missing(live):
            return ()
        met = tuple(sorted(self._present))
        self._present.clear()
        return met

    def missing(self, live: Collection[int]) -> tuple[int, ...]:
        """The live trainers that have not come, ascending."""
        return tuple(sorted(set(live) - self._present))

    def state(self) -> dict[str, Any]:
        """What `restore` takes; JSON can hold it."""
        return {"present": sorted(self._present)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state; CorruptFileError for what is none."""
        self._present = {_count(trainer) for trainer in _items(state, "present")}


class Sync:
    """Rounds: steps that are applied together, in the order of their trainers; the schedule advances once per round.

    A round closes with ``grads_to_wait`` steps. ``distinct``: of as many trainers, and in any case once every live one
    gave its own (None: only then), so a trainer that leaves shrinks the round that is open; the step it already sent
    counts, and one that joins is waited for. Not ``distinct`` (ElasticDL's rule): pushes are counted, whoever sends them,
    and answered at once; what is left when the last trainer leaves makes the last round.

    ``version_tolerance``: how many versions behind the server's a gradient may be; None: any number.
    """

    KIND: ClassVar = "sync"

    def __init__(
        self, grads_to_wait: int | None = None, version_tolerance: int | None = None, *, distinct: bool = True
    ) -> None:
        self._wanted = grads_to_wait
        self._tolerance = version_tolerance
        self._distinct = distinct
        #: whose steps wait, in order of arrival
        self._came: list[int] = []

    @property
    def waits(self) -> bool:
        return self._distinct

    def check(self, trainer: int, seen: int, version: int) -> str | None:
        if self._tolerance is None or seen >= version - self._tolerance:
            return None
        return (
            f"the gradients of trainer {trainer} were computed from version {seen}; this server is at version {version} and "
            f"takes none older than {version - self._tolerance}: pull the parameters and compute them again"
        )

    def arrive(self, trainer: int, live: Collection[int], steps: int = 1) -> Round | None:
        if not self._distinct or trainer not in self._came:
            self._came.append(trainer)
        return self.left(live)

    def left(self, live: Collection[int]) -> Round | None:
        if not self._came or self.missing(live):
            return None
        trainers = tuple(sorted(self._came))
        self._came.clear()
        return Round(trainers, tick=1)

    def missing(self, live: Collection[int]) -> tuple[int, ...]:
        if self._wanted is not None and len(self._came) >= self._wanted:
            return ()
        absent = set(live).difference(self._came)
        return tuple(sorted(absent or (() if self._distinct else live)))

    def holds(self, trainer: int, live: Collection[int]) -> bool:
        return False

    def state(self) -> dict[str, Any]:
        return {"policy": self.KIND}

    def restore(self, state: Mapping[str, Any]) -> None:
        _check_kind(state, self.KIND)
        self._came = []


class Async:
    """Every step is applied when it comes.

    The schedule's clock: it advances before the first step, and again whenever as many steps were applied since as
    there are live trainers. So n trainers move it once per n steps, as one step of all of them together would. A push
    that stands for several steps, ``max_steps`` at most, moves it as these would. Not ``ticks``: it stands still, since
    trainers have schedules of their own.
    """

    KIND: ClassVar = "async"
    waits: Final = True

    def __init__(self, *, ticks: bool = True, max_steps: int = 1) -> None:
        self._ticks = ticks
        self._max_steps = max_steps
        self._since_tick = 0

    def check(self, trainer: int, seen: int, version: int) -> str | None:
        return None

    def arrive(self, trainer: int, live: Collection[int], steps: int = 1) -> Round | None:
        return Round((trainer,), self._advance(max(1, min(steps, self._max_steps)), max(1, len(live))))

    def left(self, live: Collection[int]) -> Round | None:
        if self._since_tick >= len(live):
            self._since_tick = 0
        return None

    def missing(self, live: Collection[int]) -> tuple[int, ...]:
        return ()

    def holds(self, trainer: int, live: Collection[int]) -> bool:
        return False

    def state(self) -> dict[str, Any]:
        return {"policy": self.KIND, "since_tick": self._since_tick}

    def restore(self, state: Mapping[str, Any]) -> None:
        _check_kind(state, self.KIND)
        self._since_tick = _count(state.get("since_tick"))

    def _advance(self, steps: int, live: int) -> int:
        """How many of the next ``steps`` steps begin a new tick: those at multiples of ``live``."""
        if not self._ticks:
            return 0
        before = self._since_tick
        self._since_tick = (before + steps) % live
        return (before + steps - 1) // live - (before - 1) // live


class Ssp(Async):
    """Every step is applied when it comes, but nobody runs away: a trainer begins its next step only while it is at
    most ``staleness`` steps ahead of the slowest live trainer. So what it computes from holds every step of every live
    trainer but the latest ``staleness`` (stale synchronous parallel; Ho et al., NIPS 2013). 0: all go step by step.

    One that joins or comes back is counted from where the slowest is; one that left holds nobody up.
    """

    KIND: ClassVar = "ssp"

    def __init__(self, staleness: int) -> None:
        super().__init__()
        self._staleness = staleness
        #: trainer -> how many steps it has made, counted from where it joined
        self._made: dict[int, int] = {}
        #: where one joins when nobody is there
        self._reached = 0

    def arrive(self, trainer: int, live: Collection[int], steps: int = 1) -> Round | None:
        self._meet(live)
        self._made[trainer] = self._made.get(trainer, self._reached) + 1
        return super().arrive(trainer, live)

    def left(self, live: Collection[int]) -> Round | None:
        self._meet(live)
        return super().left(live)

    def missing(self, live: Collection[int]) -> tuple[int, ...]:
        """The slowest trainers, when they hold somebody up."""
        known = {trainer: made for trainer, made in self._made.items() if trainer in live}
        slowest = min(known.values(), default=0)
        if max(known.values(), default=0) <= slowest + self._staleness:
            return ()
        return tuple(sorted(trainer for trainer in live if known.get(trainer, slowest) == slowest))

    def holds(self, trainer: int, live: Collection[int]) -> bool:
        if trainer not in live or trainer not in self._made:
            return False
        slowest = min(made for other, made in self._made.items() if other in live)
        return self._made[trainer] > slowest + self._staleness

    def state(self) -> dict[str, Any]:
        return {**super().state(), "made": sorted(map(list, self._made.items())), "reached": self._reached}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        try:
            self._made = {_count(trainer): _count(made) for trainer, made in _items(state, "made")}
        except (TypeError, ValueError):
            raise CorruptFileError("the state of policy 'ssp' does not say how many steps trainers made") from None
        self._reached = _count(state.get("reached"))

    def _meet(self, live: Collection[int]) -> None:
        """Count who is new since the last event from where the slowest was, then forget who left."""
        self._reached = max(self._reached, min(self._made.values(), default=0))
        self._made = {trainer: self._made.get(trainer, self._reached) for trainer in live}


def _check_kind(state: Mapping[str, Any], kind: str) -> None:
    if state.get("policy") != kind:
        raise CorruptFileError(f"a state of policy {state.get('policy')!r} cannot be restored into policy {kind!r}")


def _items(state: Mapping[str, Any], name: str) -> list[Any]:
    found = state.get(name)
    if not isinstance(found, list):
        raise CorruptFileError(f"a state has no list {name!r}")
    return found


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise CorruptFileError(f"a state holds {value!r} where a count belongs")
    return value
