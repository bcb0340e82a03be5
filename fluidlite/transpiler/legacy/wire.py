"""The wire of programs that Fluid transpiled. They do not name one, for Fluid knows one only: whoever runs them says."""

from __future__ import annotations

from typing import Final

from fluidlite.core.ir import Operator, Program
from fluidlite.errors import ProgramError
from fluidlite.ops.modes import Mode, Wire
from fluidlite.transpiler.legacy.forms import is_clock_send, is_send, set_value

#: ops that name the wire
_SPEAKERS: Final = ("recv", "prefetch", "send_barrier", "fetch_barrier", "recv_save", "listen_and_serv")
#: half_async is Fluid's async where the trainer's communicator cuts
_SERVED: Final = (Mode.SYNC, Mode.ASYNC, Mode.HALF_ASYNC)


def is_of_fluid(program: Program) -> bool:
    """Whether a program that no pass changes is Fluid's all the same: ours write no `recv_save`."""
    return any(op.type == "recv_save" for op in program.root.ops)


def speak_as_fluid(program: Program, original: Program) -> None:
    """Every op that talks to others says that they speak Fluid's own wire; without rounds where ``original`` has gradients,
    but no barrier. Raises ProgramError for what that wire has no message for here."""
    sends = [op for op in original.root.ops if is_send(op)]
    rounds = not sends or any(op.type == "send_barrier" for op in original.root.ops)
    for op in original.root.ops:
        if is_send(op) and is_clock_send(op):
            raise _refusal(
                op, "tells how far the schedule of an asynchronous trainer is; take a constant rate, or sync_mode"
            )
    for op in program.root.ops:
        if op.type == "prefetch" and not op.attr("height_sections", ()):
            raise _refusal(op, "asks for rows of a distributed table; take is_sparse alone")
        if op.type == "listen_and_serv" and Mode(op.attr("distributed_mode", 0)) not in _SERVED:
            raise _refusal(op, "serves geo training")
        if op.type in _SPEAKERS:
            set_value(program, op, "wire", str(Wire.FLUID if rounds else Wire.FLUID_ASYNC))


def _refusal(op: Operator, what: str) -> ProgramError:
    return ProgramError(f"op {op.type!r} {what}: Fluid's own wire does not carry that here ({op.origin})")
