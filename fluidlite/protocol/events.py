"""What changes a server, as values and as bytes: the entries of its log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from fluidlite.errors import RequestRefusedError
from fluidlite.proto_gen import pserver_pb2 as pb
from fluidlite.protocol import encode
from fluidlite.protocol.messages import Gradient, Identity, Push, StepHeader, Value
from fluidlite.protocol.packet import Packet, Payload


@dataclass(frozen=True, slots=True)
class Came:
    """A trainer registered: it comes, comes back, or a new incarnation takes its place."""

    identity: Identity


@dataclass(frozen=True, slots=True)
class Stepped:
    """A step was accepted. ``decided``: it counts; otherwise a `Decided` says so."""

    header: StepHeader
    gradients: tuple[Gradient, ...]
    decided: bool


@dataclass(frozen=True, slots=True)
class Decided:
    """What became of an accepted step: it counts, or it is forgotten."""

    trainer: int
    sequence: int
    apply: bool


@dataclass(frozen=True, slots=True)
class Lost:
    """A trainer was given up."""

    trainer: int


@dataclass(frozen=True, slots=True)
class Completed:
    """A trainer is done."""

    trainer: int


@dataclass(frozen=True, slots=True)
class Assigned:
    """A variable was overwritten."""

    identity: Identity
    name: str
    value: Value


@dataclass(frozen=True, slots=True)
class Arrived:
    """A trainer is at the barrier."""

    trainer: int


@dataclass(frozen=True, slots=True)
class NewJob:
    """All trainers were done, and the server was started for others."""


@dataclass(frozen=True, slots=True)
class Settled:
    """Rows that are regularised lazily were brought up to date, to be read as a whole: that rounds."""


Event: TypeAlias = Came | Stepped | Decided | Lost | Completed | Assigned | Arrived | NewJob | Settled


def encode_event(event: Event) -> Packet:
    """An entry, and the arrays behind it."""
    match event:
        case Came(identity):
            return _bare(pb.Entry(came=encode.encode_identity(identity)))
        case Stepped(header, gradients, decided):
            packet = encode.encode_push(Push(header, gradients, (), decided))
            step = encode.parse(pb.PushRequestHeader, packet.header)
            return Packet(pb.Entry(step=step).SerializeToString(), packet.arrays)
        case Decided(trainer, sequence, apply):
            return _bare(pb.Entry(decided=pb.Decided(trainer=trainer, sequence=sequence, apply=apply)))
        case Lost(trainer):
            return _bare(pb.Entry(left=trainer))
        case Completed(trainer):
            return _bare(pb.Entry(completed=trainer))
        case Arrived(trainer):
            return _bare(pb.Entry(arrived=trainer))
        case NewJob():
            return _bare(pb.Entry(new_job=True))
        case Settled():
            return _bare(pb.Entry(settled=True))
        case Assigned(identity, name, value):
            packet = encode.encode_assign(identity, name, value)
            assigned = encode.parse(pb.AssignRequestHeader, packet.header)
            return Packet(pb.Entry(assigned=assigned).SerializeToString(), packet.arrays)


def _bare(entry: pb.Entry) -> Packet:
    return Packet(entry.SerializeToString(), [])


def decode_event(header: bytes, payload: Payload) -> Event:
    """The event of an entry; RequestRefusedError when it is none."""
    entry = encode.parse(pb.Entry, header)
    kind = entry.WhichOneof("event")
    if kind == "step":
        pushed = encode.OpenStep("").add(entry.step.SerializeToString(), payload)
        if not isinstance(pushed, Push):
            raise RequestRefusedError("malformed entry: a step without its commit")
        return Stepped(pushed.header, tuple(pushed.gradients), pushed.decided)
    if kind == "assigned":
        return Assigned(*encode.decode_assign(entry.assigned.SerializeToString(), payload))
    payload.finish()
    if kind not in _BARE:
        raise RequestRefusedError("malformed entry: no event")
    return _BARE[kind](entry)


#: events without arrays, by their field
_BARE: Final[dict[str, Callable[[pb.Entry], Event]]] = {
    "came": lambda entry: Came(encode.decode_identity(entry.came)),
    "decided": lambda entry: Decided(entry.decided.trainer, entry.decided.sequence, entry.decided.apply),
    "left": lambda entry: Lost(entry.left),
    "completed": lambda entry: Completed(entry.completed),
    "arrived": lambda entry: Arrived(entry.arrived),
    "new_job": lambda _: NewJob(),
    "settled": lambda _: Settled(),
}
