"""Passes over a trainer's programs: messages of Fluid become the one transaction that a step is here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fluidlite.core import edit, names
from fluidlite.core.ir import Attr, AttrType, Operator, OpRole, Program
from fluidlite.errors import ProgramError
from fluidlite.ops.fluid_remote import UNDECIDED
from fluidlite.transpiler.analysis import blocks_run_by
from fluidlite.transpiler.build import declare, make_op
from fluidlite.transpiler.legacy.forms import (
    RPC_OPS,
    declared,
    is_clock_send,
    is_rows,
    is_send,
    listen_of,
    set_value,
    with_arguments,
)

#: op types that went, and what they do by today's name
_OLD_NAMES: Final = {"send_vars": "send", "fl_listen_and_serv": "listen_and_serv"}


def rename_old_ops(program: Program) -> None:
    """Ops of old names. `fl_listen_and_serv` is a server in sync mode; `send_vars` (before 0.14) sent all that it was given."""
    for op in list(program.root.ops):
        if op.type in _OLD_NAMES:
            twin = edit.clone_op(op)
            twin.type = _OLD_NAMES[op.type]
            twin.attrs.setdefault("sync_mode", Attr(AttrType.BOOLEAN, value=True))
            twin.outputs = {name: arguments for name, arguments in op.outputs.items() if name != "RPCClient"}
            edit.replace_op(program, program.root, op, [twin])


def drop_clock(program: Program) -> None:
    """Trainers that wait for nobody tell servers how many steps they made, for the schedule; here a step says so itself."""
    clocks = [op for op in program.root.ops if is_send(op) and is_clock_send(op)]
    if clocks:
        edit.remove_ops(program, program.root, clocks)


def cut_in_program(program: Program) -> None:
    """What Fluid's communicator cut and joined at run time (``runtime_split_send_recv``) is cut and joined by ops."""
    sections: dict[str, tuple[int, ...]] = {}
    for op in list(program.root.ops):
        if is_send(op) and op.attr("send_varnames", ()) and not is_clock_send(op):
            _check_addressed(op)
            sections[op.role_var[0] if op.role_var else ""] = op.attr("sections", ())
            if len(op.inputs["X"]) < len(op.attr("send_varnames")):
                _cut(program, op)
    for op in list(program.root.ops):
        if op.type == "recv" and op.attr("recv_varnames", ()):
            _join(program, op, sections.get(op.role_var[0] if op.role_var else "", ()))


def _check_addressed(op: Operator) -> None:
    if not op.attr("epmap", ()) or (len(op.attr("epmap")) != len(op.attr("send_varnames"))):
        raise ProgramError(
            f"op 'send' of {', '.join(op.inputs['X'])} names no server for {', '.join(op.attr('send_varnames'))}: in geo "
            "mode Fluid gave servers and intervals to its communicator, and not to the program. Transpile the program that "
            f"was there before with fluidlite and geo_sgd_mode=True; servers that Fluid transpiled take what it sends ({op.origin})"
        )


def _cut(program: Program, send: Operator) -> None:
    parts: tuple[str, ...] = send.attr("send_varnames")
    whole, sections = send.inputs["X"][0], send.attr("sections", ())
    _declare_parts(program, parts, whole, sections, send)
    rows = is_rows(program, whole)
    type, sizes = ("split_selected_rows", "height_sections") if rows else ("split_byref", "sections")
    attrs, made = {sizes: sections}, {"Out": list(parts)}
    split = make_op("cut_in_program", type, {"X": [whole]}, made, OpRole.DIST, attrs, of=send)
    twin = edit.clone_op(send)
    twin.inputs = {"X": list(parts)}
    edit.replace_op(program, program.root, send, [split, twin])


def _join(program: Program, recv: Operator, sections: Sequence[int]) -> None:
    pieces: tuple[str, ...] = recv.attr("recv_varnames")
    out = recv.outputs["Out"]
    twin = edit.clone_op(recv)
    twin.attrs.pop("recv_varnames")
    set_value(program, twin, "varnames", pieces)
    new = []
    if len(pieces) > 1:
        _declare_parts(program, pieces, out[0], sections, recv)
        twin.outputs = {"Out": list(pieces)}
        new = [
            make_op("cut_in_program", "concat", {"X": list(pieces)}, {"Out": out}, OpRole.DIST, {"axis": 0}, of=recv)
        ]
    edit.replace_op(program, program.root, recv, [twin, *new])


def _declare_parts(program: Program, parts: Sequence[str], whole: str, sections: Sequence[int], op: Operator) -> None:
    var = declared(program, whole, op)
    if len(sections) != len(parts):
        raise ProgramError(
            f"op {op.type!r}: {whole!r} has {len(parts)} parts, but {len(sections)} sections ({op.origin})"
        )
    for name, rows in zip(parts, sections, strict=True):
        declare(program, program.root, name, (rows, *(var.shape or ())[1:]), var.dtype, var.kind)


def name_gradients(program: Program) -> None:
    """A gradient is called on the wire what it is called in the server's update; who sends it, the step says."""
    for op in program.root.ops:
        if is_send(op):
            set_value(
                program,
                op,
                "send_varnames",
                [names.on_wire(name) for name in op.attr("send_varnames", ()) or op.inputs["X"]],
            )


def commit_once(program: Program) -> None:
    """Where trainers wait for nobody, Fluid's servers apply each gradient when it comes. Here all of a step come together:
    it ends behind the last of them."""
    sends = [op for op in program.root.ops if is_send(op)]
    if not sends or any(op.type == "send_barrier" for op in program.root.ops):
        return
    everywhere = {name for op in program.root.ops for attr in ("epmap", "endpoints") for name in op.attr(attr, ())}
    attrs = {"endpoints": sorted(everywhere)}
    barrier = make_op("commit_once", "send_barrier", {}, {}, OpRole.RPC, attrs, of=sends[-1])
    edit.replace_op(program, program.root, sends[-1], [sends[-1], barrier])


def drop_control(program: Program) -> None:
    """Variables that only order ops: ops that talk to servers keep their order here. With them goes what else marks a `send`
    as one of Fluid."""
    for op in [op for op in program.root.ops if op.type in RPC_OPS]:
        if op.type == "fetch_barrier" or _is_ordered(op):
            inputs = op.inputs if op.type in ("send", "prefetch") else {}
            outputs = op.outputs if op.type in ("recv", "prefetch") else {}
            if (inputs, outputs) != (op.inputs, op.outputs):
                with_arguments(program, op, inputs, outputs)
    for op in filter(is_send, program.root.ops):
        for mark in ("sections", "sync_mode"):
            edit.set_attr(program, op, mark, None)
    for name in [name for name in program.root.vars if names.is_control(name)]:
        edit.remove_var(program, program.root, name)


def _is_ordered(op: Operator) -> bool:
    return any(map(names.is_control, (*op.input_arguments(), *op.output_arguments())))


def name_trainer(program: Program) -> None:
    """Every op that talks to servers says for which trainer: what one of them says, else the names of its gradients do. Until
    1.5 a startup program did not say it; what runs next does."""
    ops = [op for op in program.root.ops if op.type in RPC_OPS]
    told = {op.attr("trainer_id") for op in ops if op.attr("trainer_id", 0)}
    named = {
        trainer
        for op in ops
        if op.type == "send"
        for name in op.inputs.get("X", ())
        if (trainer := names.parse_slice(names.without_server(name)).trainer) is not None
    }
    trainer = max(told or named, default=0)
    if not any("trainer_id" in op.attrs or op.type == "send" for op in ops) and any(map(_is_ordered, ops)):
        trainer = UNDECIDED
    for op in ops:
        if trainer and op.attr("trainer_id", 0) != trainer:
            set_value(program, op, "trainer_id", trainer)


def forget_dead_blocks(program: Program) -> None:
    """Blocks whose ops went to the servers."""
    if listen_of(program) is None and any(op.type in RPC_OPS for op in program.root.ops):
        alive = [0, *sorted(blocks_run_by(program, program.root.ops))]
        if len(alive) < len(program.blocks):
            edit.keep_blocks(program, alive)
