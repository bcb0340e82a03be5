"""The forms in which Fluid's trainers fetched rows, each as ours: split_ids, prefetch, concat, and a lookup in what came.

- 0.12: per lookup split_ids, prefetch, `concat` of what the servers answered (by server, not in the order of the ids).
- 0.14: the same with `merge_ids`, which puts the rows back in order; 1.1 to 1.8.2: one group of them for all lookups.
- 1.2 to 1.5.1: `lookup_table` with ``remote_prefetch``; from 1.5.2 on `distributed_lookup_table`. Parameters cut by rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from fluidlite.core import edit, names
from fluidlite.core.ir import Operator, Program
from fluidlite.dtypes import VarKind, dtype_number
from fluidlite.errors import ProgramError
from fluidlite.ops.ids import NO_PADDING
from fluidlite.transpiler.analysis import LOOKUP_GRADS, LOOKUPS
from fluidlite.transpiler.build import declare, make_op
from fluidlite.transpiler.legacy.forms import declared

_BY: Final = "look_up_here"


class _Group(NamedTuple):
    """Lookups that fetch together: ``ids[i]`` gives ``outs[i]``. ``ops``: what they are in Fluid's form. ``sections``: empty
    where ids go to servers by modulo."""

    ops: tuple[Operator, ...]
    table: str
    ids: list[str]
    outs: list[str]
    lookup: str
    endpoints: tuple[str, ...]
    names: tuple[str, ...]
    sections: tuple[int, ...]
    padding: int


def look_up_here(program: Program) -> None:
    """Every group of lookups that asks servers becomes split_ids, prefetch and concat, and a lookup of each of its ids; the
    gradient ops name the fetched rows, too."""
    for index, group in enumerate(list(_groups(program))):
        ops, rows = _lowered(program, group, index)
        for grad in _gradients(program, group):
            edit.rename_arguments(program, grad, {group.table: rows})
        edit.replace_op(program, program.root, group.ops[-1], ops)
        edit.remove_ops(program, program.root, group.ops[:-1])


def _groups(program: Program) -> Iterator[_Group]:
    for op in program.root.ops:
        if op.type == "distributed_lookup_table":
            yield _by_section(op, op.inputs["Ids"], op.outputs["Outputs"], op.attr("endpoints"), _version(op))
        elif op.attr("remote_prefetch", default=False) and op.attr("epmap", ()) and not op.type.endswith("_grad"):
            if op.type not in LOOKUPS:
                raise ProgramError(
                    f"op {op.type!r} fetches rows of {op.input('W')!r} or others by itself, which only lookups do here; "
                    f"transpile the untouched program with fluidlite ({op.origin})"
                )
            yield _by_section(op, op.inputs["Ids"], op.outputs["Out"], op.attr("epmap"), op.type)
        elif op.type == "prefetch" and not op.attr("width", 0):
            yield _by_modulo(program, op)


def _version(op: Operator) -> str:
    found: str = op.attr("lookup_table_version", "lookup_table")
    return found


def _by_section(op: Operator, ids: list[str], outs: list[str], endpoints: tuple[str, ...], lookup: str) -> _Group:
    sections, pieces = op.attr("height_sections", ()), op.attr("table_names", ())
    if not len(endpoints) == len(pieces) == len(sections):
        raise ProgramError(
            f"op {op.type!r}: one element each is needed, but there are {len(endpoints)} endpoints, {len(pieces)} "
            f"table_names and {len(sections)} height_sections ({op.origin})"
        )
    padding = op.attr("padding_idx", NO_PADDING)
    return _Group((op,), op.inputs["W"][0], ids, outs, lookup, endpoints, pieces, sections, padding)


def _by_modulo(program: Program, fetch: Operator) -> _Group:
    """The group of a `prefetch`: the op before it that splits the ids, the one behind it that joins the rows."""
    ops = program.root.ops
    at = edit.position(program.root, fetch)
    asked, answered = fetch.inputs["X"], fetch.outputs["Out"]
    split = next((op for op in reversed(ops[:at]) if op.type == "split_ids" and op.outputs.get("Out") == asked), None)
    joined = (op for op in ops[at:] if op.type in ("merge_ids", "concat") and op.inputs.get("X") == answered)
    join = next(joined, None)
    if split is None or join is None:
        raise ProgramError(
            f"op 'prefetch': no split_ids makes {asked} before it, or no merge_ids or concat joins {answered} behind it "
            f"({fetch.origin})"
        )
    ids, outs = split.inputs["Ids"], join.outputs["Out"]
    table = _table_of(program, ids, outs, fetch)
    flat = declared(program, ids[0], split).shape or ()
    lookup = LOOKUPS[0] if flat[-1:] == (1,) else LOOKUPS[1]
    endpoints = fetch.attr("epmap")
    return _Group((split, fetch, join), table, ids, outs, lookup, endpoints, (table,) * len(endpoints), (), NO_PADDING)


def _table_of(program: Program, ids: list[str], outs: list[str], fetch: Operator) -> str:
    """The parameter of a group of 0.12 to 1.8.2, which its ops do not name: that of the gradient ops of these lookups, or, in
    a program without them, the only parameter that no op reads and whose rows are as wide."""
    for op in program.root.ops:
        if op.type in LOOKUP_GRADS and op.input("Ids") in ids and names.forward_of(op.input("Out@GRAD") or "") in outs:
            return op.inputs["W"][0]
    width = (declared(program, outs[0], fetch).shape or ())[-1]
    used = {name for _, op in program.all_ops() for name in op.input_arguments()}
    idle = [
        name
        for name, var in program.root.vars.items()
        if var.persistable and name not in used and len(var.shape or ()) == 2 and (var.shape or ())[1] == width
    ]
    if len(idle) != 1:
        raise ProgramError(
            f"op 'prefetch' of {fetch.inputs['X']} does not say which table it asks for; of that width are "
            f"{', '.join(map(repr, idle)) or 'none'} ({fetch.origin})"
        )
    return idle[0]


def _lowered(program: Program, group: _Group, index: int) -> tuple[list[Operator], str]:
    """The ops that take the place of a group, and the variable with the rows that it fetched."""
    of, role = group.ops[-1], group.ops[-1].role
    height, width = declared(program, group.table, of).shape or ()
    dtype = declared(program, group.table, of).dtype
    ids, rows = (names.lookup_part(group.table, part, index) for part in ("ids", "rows"))
    shards = range(len(group.endpoints))
    asked = [declare(program, program.root, names.shard_of_var(ids, k), (-1, 1), "int64") for k in shards]
    fetched = [names.shard_of_var(rows, k) for k in shards]
    for name in (*fetched, rows):
        declare(program, program.root, name, (height, width), dtype, VarKind.SELECTED_ROWS)
    split = {"padding_idx": group.padding, "height_sections": group.sections}
    fetch = {
        "epmap": group.endpoints,
        "table_names": group.names,
        "height_sections": group.sections,
        "width": width,
        "height": height,
        "dtype": dtype_number(dtype),
    }

    def op(type: str, inputs: dict[str, list[str]], outputs: dict[str, list[str]], attrs: dict[str, Any]) -> Operator:
        return make_op(_BY, type, inputs, outputs, role, attrs, of=of)

    found = {"padding_idx": group.padding, "is_sparse": True}
    ops = [
        op("split_ids", {"Ids": list(dict.fromkeys(group.ids))}, {"Out": asked}, split),
        op("prefetch", {"X": asked}, {"Out": fetched}, fetch),
        op("concat", {"X": fetched}, {"Out": [rows]}, {"axis": 0}),
    ]
    for one, out in zip(group.ids, group.outs, strict=True):
        ops.append(op(group.lookup, {"W": [rows], "Ids": [one]}, {"Out": [out]}, found))
    return ops, rows


def _gradients(program: Program, group: _Group) -> Iterator[Operator]:
    """The gradient ops of a group."""
    for op in program.root.ops:
        ours = op.type in LOOKUP_GRADS and op.input("W") == group.table and op.input("Ids") in group.ids
        if ours and names.forward_of(op.input("Out@GRAD") or "") in group.outs:
            yield op
