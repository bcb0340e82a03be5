"""Makes test and inference programs of a training program, and takes one apart that was read from a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fluidlite.core import dataflow, edit
from fluidlite.core.ir import Attr, AttrType, Block, Operator, OpRole, Parameter, Program, Variable
from fluidlite.dtypes import VarKind
from fluidlite.errors import ProgramError
from fluidlite.ops import registry

_FEED = "feed"
_FETCH = "fetch"
_LOOKUPS = ("lookup_table", "lookup_table_v2", "lookup_sparse_table")
_ROLE = {"op_role": Attr(AttrType.INT, 0)}
_IS_TEST = Attr(AttrType.BOOLEAN, value=True)


def inference_program(program: Program, feeds: Sequence[str], targets: Sequence[str]) -> tuple[Program, list[str]]:
    """The part of ``program`` that computes ``targets`` from ``feeds``, and the names of its results.

    As in Fluid, each target passes through a `scale` of its own (so no target is also an intermediate value), ops that
    know ``is_test`` get it, and `feed` and `fetch` ops say what goes in and out. Distributed tables become SELECTED_ROWS
    variables, which is what their files hold. ``program`` stays as it is. Raises ProgramError when a target needs data
    that is not fed.
    """
    twin = edit.clone(program)
    for name in (*feeds, *targets):
        if name not in twin.root.vars:
            raise ProgramError(f"cannot save an inference model: the program has no variable {name!r}")
    _drop_feed_fetch(twin)
    results = [_add_result(twin, index, name) for index, name in enumerate(targets)]
    edit.set_ops(twin, twin.root, dataflow.prune(twin, feeds, results, registry.find))
    _check_data(twin, feeds, targets)
    _refuse_remote(twin)
    _drop_unused_blocks(twin)
    _set_is_test(twin)
    _drop_unused_vars(twin, {*feeds, *results})
    prepend_feed(twin, feeds)
    append_fetch(twin, results)
    spell_defaults(twin)
    return twin, results


def spell_defaults(program: Program) -> None:
    """Write out the attributes that an op leaves to their defaults: so do the files of Fluid, and Paddle 3 and its
    converters read no others."""
    for _, op in program.all_ops():
        op_def = registry.find(op.type)
        for name, attr in op_def.default_attrs().items() if op_def is not None else ():
            if name not in op.attrs:
                edit.set_attr(program, op, name, attr)


def only_computing(program: Program, targets: Sequence[str]) -> Program:
    """The part of ``program`` that computes ``targets`` from data, for inference; ``program`` stays as it is."""
    twin = edit.clone(program)
    for name in targets:
        if name not in twin.root.vars:
            raise ProgramError(f"no inference program: the program has no variable {name!r}")
    strip_training(twin)
    data = [name for name, var in twin.root.vars.items() if var.is_data]
    edit.set_ops(twin, twin.root, dataflow.prune(twin, data, list(targets), registry.find))
    _drop_unused_blocks(twin)
    _drop_unused_vars(twin, set(targets))
    return twin


def pruned(program: Program, targets: Sequence[str], feeds: Sequence[str] = ()) -> Program:
    """The part of ``program`` that computes ``targets``, ``feeds`` being given; ``program`` stays as it is."""
    twin = edit.clone(program)
    edit.set_ops(twin, twin.root, dataflow.prune(twin, feeds, list(targets), registry.find))
    _drop_unused_blocks(twin)
    _drop_unused_vars(twin, {*targets, *feeds} & twin.root.vars.keys())
    return twin


def take_feed_fetch(program: Program) -> tuple[list[str], list[str]]:
    """(names fed, names fetched), by column; their ops and list variables leave the program, fed variables are data."""
    feeds = dict(_column(op, op.output("Out")) for op in program.root.ops if op.type == _FEED)
    fetches = dict(_column(op, op.input("X")) for op in program.root.ops if op.type == _FETCH)
    _drop_feed_fetch(program)
    for name in feeds.values():
        if name in program.root.vars:
            program.root.vars[name].is_data = True
    return [feeds[col] for col in sorted(feeds)], [fetches[col] for col in sorted(fetches)]


def _column(op: Operator, name: str | None) -> tuple[int, str]:
    """The place of a feed or fetch op, and its variable."""
    column = op.attr("col", 0)
    if name is None or not isinstance(column, int):
        raise ProgramError(f"a {op.type} op names no variable, or {column!r} as its column")
    return column, name


def tested(program: Program, *, without_readers: bool) -> Program:
    """A copy with ``is_test`` set on ops that have it; ``without_readers``: without what reads batches in the program."""
    twin = edit.clone(program)
    _set_is_test(twin)
    if without_readers:
        readers = {name for name, var in twin.root.vars.items() if var.kind is VarKind.READER}
        reading = [
            op for op in twin.root.ops if not readers.isdisjoint((*op.input_arguments(), *op.output_arguments()))
        ]
        edit.remove_ops(twin, twin.root, reading)
        for name in readers:
            edit.remove_var(twin, twin.root, name)
    return twin


def strip_training(program: Program) -> None:
    """Remove backward, optimizer and schedule ops (by role) and set ``is_test``, also on what reads a distributed table:
    inference makes no rows."""
    tables = {n for n, var in program.root.vars.items() if isinstance(var, Parameter) and var.is_distributed}
    for block in program.blocks:
        edit.remove_ops(program, block, _training_ops(block))
        for op in block.ops:
            op_def = registry.find(op.type)
            reads_table = not tables.isdisjoint(op.input_arguments())
            if reads_table or (op_def is not None and "is_test" in op_def.attrs):
                edit.set_attr(program, op, "is_test", _IS_TEST)
    data_and_parameters = {
        n for b in program.blocks for n, var in b.vars.items() if var.is_data or isinstance(var, Parameter)
    }
    _drop_unused_vars(program, data_and_parameters)


def _training_ops(block: Block) -> list[Operator]:
    """Ops of a training role (those that talk to servers at the end of a step are of one), and ops without one that read
    what only those wrote (error clips, a norm of gradients)."""
    training = OpRole.BACKWARD | OpRole.OPTIMIZE | OpRole.LR_SCHED | OpRole.RPC | OpRole.DIST
    kept = {name for name, var in block.vars.items() if var.persistable or var.is_data}
    doomed: list[Operator] = []
    lost: set[str] = set()
    for op in block.ops:
        if (op.role != OpRole.NOT_SPECIFIED and op.role & training) or not lost.isdisjoint(op.input_arguments()):
            doomed.append(op)
            lost.update(name for name in op.output_arguments() if name not in kept)
        else:
            kept.update(op.output_arguments())
    return doomed


def looked_up_tables(program: Program) -> Iterator[Variable]:
    """SELECTED_ROWS parameters that lookups read."""
    names = dict.fromkeys(name for _, op in program.all_ops() if op.type in _LOOKUPS for name in op.inputs.get("W", ()))
    for name in names:
        var = program.root.vars.get(name)
        if var is not None and var.persistable and var.kind is VarKind.SELECTED_ROWS:
            yield var


def _drop_feed_fetch(program: Program) -> None:
    root = program.root
    edit.remove_ops(program, root, [op for op in root.ops if op.type in (_FEED, _FETCH)])
    for name, var in list(root.vars.items()):
        if var.kind in (VarKind.FEED_MINIBATCH, VarKind.FETCH_LIST):
            edit.remove_var(program, root, name)


def _add_result(program: Program, index: int, target: str) -> str:
    """Append the `scale` of a target; a program that was a saved one before has such names already."""
    count = 0
    while (name := f"save_infer_model/scale_{index}.tmp_{count}") in program.root.vars:
        count += 1
    var = program.root.vars[target]
    result = Variable(name, dtype=var.dtype, shape=var.shape, lod_level=var.lod_level)
    edit.add_var(program, program.root, result)
    attrs = registry.attrs_for(registry.get("scale"), {"scale": 1.0, "op_role": 0})
    edit.append_op(
        program, program.root, Operator("scale", {"X": [target]}, {"Out": [name]}, attrs, "save_inference_model")
    )
    return name


def _check_data(program: Program, feeds: Sequence[str], targets: Sequence[str]) -> None:
    written = set(feeds)
    missing: dict[str, None] = {}
    for op in program.root.ops:
        effect = dataflow.effects(op, registry.find, program.blocks)
        for name in effect.reads:
            var = program.root.vars.get(name)
            if var is not None and var.is_data and name not in written:
                missing[name] = None
        written.update(effect.writes)
    if missing:
        raise ProgramError(
            f"cannot save an inference model: {', '.join(targets)} need(s) the data variables {', '.join(missing)}, "
            f"which are not among the fed ones ({', '.join(feeds) or 'none'})"
        )


def _refuse_remote(program: Program) -> None:
    for _, op in program.all_ops():
        op_def = registry.find(op.type)
        if op_def is not None and op_def.pull is not None:
            raise ProgramError(
                f"cannot save an inference model: op {op.type!r} asks servers ({op.origin}); save it from the program "
                "that was transpiled, or from a clone made before"
            )


def _drop_unused_blocks(program: Program) -> None:
    used = {0}
    for block in program.blocks:
        if block.idx in used:
            used.update(_named_blocks(block))
    edit.keep_blocks(program, sorted(used))


def _named_blocks(block: Block) -> Iterator[int]:
    return (index for op in block.ops for attr in op.attrs.values() for index in dataflow.sub_blocks(attr))


def _set_is_test(program: Program) -> None:
    tables = _as_rows(program)
    for _, op in program.all_ops():
        op_def = registry.find(op.type)
        reads_table = op.type in _LOOKUPS and op.input("W") in tables
        if reads_table or (op_def is not None and "is_test" in op_def.attrs):
            edit.set_attr(program, op, "is_test", _IS_TEST)


def _as_rows(program: Program) -> set[str]:
    """Declare distributed tables as SELECTED_ROWS; returns their names."""
    tables = {name for name, var in program.root.vars.items() if isinstance(var, Parameter) and var.is_distributed}
    for _, op in program.all_ops():
        if op.type in _LOOKUPS and op.attr("is_distributed", default=False):
            tables.update(op.inputs["W"])
    for name in sorted(tables & program.root.vars.keys()):
        var = edit.as_plain(program.root.vars[name])
        var.kind = VarKind.SELECTED_ROWS
        edit.add_var(program, program.root, var)
    return tables


def _drop_unused_vars(program: Program, keep: set[str]) -> None:
    used = {name for _, op in program.all_ops() for name in (*op.input_arguments(), *op.output_arguments())} | keep
    for block in program.blocks:
        for name in [name for name in block.vars if name not in used]:
            edit.remove_var(program, block, name)


def prepend_feed(program: Program, names: Sequence[str], holder: str = _FEED) -> None:
    """Feed ops before the others, in the order in which Fluid writes them: from the last to the first."""
    root = program.root
    if names:
        edit.add_var(program, root, Variable(holder, VarKind.FEED_MINIBATCH, persistable=True))
    for col, name in enumerate(names):
        _check_known(program, _FEED, name)
        attrs = {"col": Attr(AttrType.INT, col), **_ROLE}
        edit.insert_op(program, root, 0, Operator(_FEED, {"X": [holder]}, {"Out": [name]}, attrs))


def append_fetch(program: Program, names: Sequence[str], holder: str = _FETCH) -> None:
    """Fetch ops behind the others."""
    root = program.root
    edit.add_var(program, root, Variable(holder, VarKind.FETCH_LIST, persistable=True))
    for col, name in enumerate(names):
        _check_known(program, _FETCH, name)
        attrs = {"col": Attr(AttrType.INT, col), **_ROLE}
        edit.append_op(program, root, Operator(_FETCH, {"X": [name]}, {"Out": [holder]}, attrs))


def _check_known(program: Program, what: str, name: str) -> None:
    if name not in program.root.vars:
        raise ProgramError(f"cannot {what} {name!r}: the program has no such variable")
