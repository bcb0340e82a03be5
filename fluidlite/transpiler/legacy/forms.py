"""By what the ops of a program that Fluid transpiled are told from ours, and small edits that several passes make."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from fluidlite.core import edit, names
from fluidlite.core.ir import Attr, AttrType, Operator, Program, Variable
from fluidlite.dtypes import VarKind
from fluidlite.errors import ProgramError
from fluidlite.ops import registry

#: ops that talk to servers
RPC_OPS: Final = ("send", "recv", "send_barrier", "fetch_barrier", "prefetch", "checkpoint_notify", "recv_save")
#: attributes that `listen_and_serv` has in Fluid, one or the other in every version, and that ours is not written with
_SERVER_MARKS: Final = ("sync_mode", "rpc_get_thread_num", "rpc_send_thread_num", "checkpint_block_id")


def listen_of(program: Program) -> Operator | None:
    """The `listen_and_serv` of a server's program that Fluid made; ours says how many servers there are."""
    for op in program.root.ops:
        if op.type == "listen_and_serv" and "pservers" not in op.attrs:
            return op if any(mark in op.attrs for mark in _SERVER_MARKS) else None
    return None


def is_send(op: Operator) -> bool:
    """Whether a `send` is Fluid's: its order is told by variables (1.0 and later) or by the mode (before)."""
    if op.type != "send":
        return False
    return any(map(names.is_control, op.output_arguments())) or "sync_mode" in op.attrs or "sections" in op.attrs


def is_clock_send(send: Operator) -> bool:
    """Whether a `send` of Fluid's tells how many steps a trainer has made."""
    return not send.attr("use_send_handler", default=True)


def set_value(program: Program, op: Operator, name: str, value: Any) -> None:
    """Set an attribute, typed by the op's record."""
    edit.set_attr(program, op, name, registry.attrs_for_one(op.type, name, value))


def with_arguments(
    program: Program, op: Operator, inputs: Mapping[str, list[str]], outputs: Mapping[str, list[str]]
) -> Operator:
    """Put in place of an op of block 0 one with other arguments; the new one."""
    twin = edit.clone_op(op)
    twin.inputs, twin.outputs = dict(inputs), dict(outputs)
    edit.replace_op(program, program.root, op, [twin])
    return twin


def declared(program: Program, name: str, op: Operator) -> Variable:
    """The declaration of a variable of block 0, with a shape."""
    var = program.root.vars.get(name)
    if var is None or not var.shape:
        raise ProgramError(f"op {op.type!r}: {name!r} is not declared with a shape ({op.origin})")
    return var


def is_rows(program: Program, name: str) -> bool:
    """Whether a variable of block 0 is declared to hold SelectedRows."""
    var = program.root.vars.get(name)
    return var is not None and var.kind is VarKind.SELECTED_ROWS


def pairs(op: Operator, attr: str) -> Iterator[tuple[str, str]]:
    """The two parts of each ``"name:what"`` of a list attribute; names may hold colons themselves."""
    for text in op.attr(attr, ()):
        name, _, what = text.rpartition(":")
        yield name, what


def strings(*values: str) -> Attr:
    return Attr(AttrType.STRINGS, values)
