"""What stands in the way of transpiling a program. Every check yields reasons, so that all are reported at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain as concat
from itertools import product

from fluidlite.core import names
from fluidlite.core.ir import Block, Operator, Program
from fluidlite.core.verify import verify
from fluidlite.errors import ProgramError, UnknownOpError
from fluidlite.ops import registry
from fluidlite.transpiler.analysis import (
    LOOKUP_GRADS,
    LOOKUPS,
    accumulators,
    is_helper,
    is_optimizer,
    is_sparse_var,
    lookups_of,
    place_of,
    reads,
    users,
    writes,
)
from fluidlite.transpiler.plan import Cluster, Options, Plan
from fluidlite.transpiler.schedule import Schedule, staying_ops
from fluidlite.transpiler.updates import ROW_UPDATES, Chain, Updates

_MAX_PORT = 65535
_WIRE_DTYPES = ("", "float16", "bfloat16")
#: ops that only a transpiler writes
_TRANSPORT = (
    "send",
    "recv",
    "send_barrier",
    "fetch_barrier",
    "prefetch",
    "distributed_lookup_table",
    "listen_and_serv",
)


def cluster(given: Cluster) -> Iterator[str]:
    """Endpoints, number of trainers and trainer id make sense."""
    if not given.endpoints or not all(given.endpoints):
        yield f"pservers must be endpoints separated by commas, not {','.join(given.endpoints)!r}"
    for endpoint in filter(None, given.endpoints):
        host, _, port = endpoint.rpartition(":")
        if not host or not port.isdecimal() or int(port) > _MAX_PORT:
            yield f"{endpoint!r} is no endpoint: give host:port, the port from 0 to {_MAX_PORT}"
    for endpoint, count in Counter(given.endpoints).items():
        if count > 1 and endpoint:
            yield f"endpoint {endpoint!r} is listed {count} times; every pserver needs its own"
    if not isinstance(given.trainers, int) or given.trainers < 1:
        yield f"trainers must be a number from 1 on, not {given.trainers!r}"
    elif not isinstance(given.trainer_id, int) or not 0 <= given.trainer_id < given.trainers:
        yield f"trainer_id must be from 0 to {given.trainers - 1} (trainers={given.trainers}), not {given.trainer_id!r}"


def options(given: Options, of: Cluster) -> Iterator[str]:
    """The options make sense, also for this cluster."""
    if given.dense_on_trainer and of.trainers != 1:
        yield (
            f"dense_on_trainer needs exactly one trainer, not {of.trainers!r}: dense parameters do not travel then, so "
            "every trainer would train its own"
        )
    if given.min_block_size < 1:
        yield f"min_block_size must be at least 1, not {given.min_block_size}"
    for name in ("rows_wire_dtype", "gradients_wire_dtype"):
        if (dtype := getattr(given, name)) not in _WIRE_DTYPES:
            yield f"{name} must be 'float16', 'bfloat16' or '' (as they are), not {dtype!r}"
    if given.other_mode:
        yield f"{given.other_mode} is not supported; this transpiler makes programs for pservers and their trainers"
    yield from given.contradictions
    if isinstance(of.trainers, int):
        yield from given.training.contradictions(of.trainers)
        yield from given.keeping.contradictions()


def ops(program: Program) -> Iterator[str]:
    """Known ops only, not yet distributed, with optimizer ops, all of them in block 0."""
    for block, op in program.all_ops():
        try:
            registry.get(op.type)
        except UnknownOpError as error:
            yield f"{error} ({op.origin or f'in block {block.idx}'})"
        if block.idx and (is_optimizer(op) or is_helper(op)):
            yield f"{place_of(op)} updates a parameter inside block {block.idx}; only updates in block 0 can be moved"
    transport = next((op for _, op in program.all_ops() if op.type in _TRANSPORT), None)
    if transport is not None:
        yield f"the program is already distributed: it has a {transport.type} op; transpile the program that minimize made"
    elif not any(is_optimizer(op) for op in program.root.ops):
        yield "the program has no optimizer op; call minimize before transpile"


def invariants(program: Program, which: str) -> Iterator[str]:
    """The program is one that could be run."""
    try:
        verify(program, registry.find)
    except ProgramError as error:
        yield f"the {which} program: {error}"


def optimizers(program: Program, updates: Updates) -> Iterator[str]:
    """Each parameter is updated once, in place, by an op whose record explains all its state."""
    optimizer_ops = [op for op in program.root.ops if is_optimizer(op)]
    for name, count in Counter(op.input("Param") for op in optimizer_ops).items():
        if count > 1:
            yield f"parameter {name!r} is updated by {count} ops; a server updates it once per step"
    owners: dict[str, list[str]] = {}
    for op in optimizer_ops:
        param = op.input("Param") or ""
        yield from _optimizer(program, op, param)
        for name in concat(*accumulators(op)):
            owners.setdefault(name, []).append(param)
    for name, sharing in owners.items():
        if len(sharing) > 1:
            yield f"accumulator {name!r} is shared by the updates of {', '.join(map(repr, sharing))}"


def _optimizer(program: Program, op: Operator, param: str) -> Iterator[str]:
    var = program.root.vars.get(param)
    if var is None or not var.shape or any(dim < 1 for dim in var.shape):
        yield f"{place_of(op)} updates {param!r}, which is no variable of block 0 with a fixed shape"
    if op.output("ParamOut") != param:
        yield f"{place_of(op)} writes the new {param!r} to {op.output('ParamOut')!r}; only updates in place can be moved"
    known = {param, *concat(*accumulators(op))}
    for name in op.output_arguments():
        if name not in known:
            yield f"{place_of(op)} writes {name!r}, which its record does not declare as an accumulator"


def tables(program: Program, startup: Program, updates: Updates, found: Sequence[str]) -> Iterator[str]:
    """Distributed tables are only looked up, in block 0, and can be updated and initialised row by row."""
    chains = {chain.param: chain for chain in updates.chains}
    named = users(program, found)
    for name in found:
        shape = program.root.vars[name].shape
        if shape is None or len(shape) != 2 or shape[1] < 1:
            yield f"distributed table {name!r} must have shape [height, width], not {list(shape or ())}"
        yield from _table_users(program, updates, name, named[name])
        yield from _table_start(startup, name)
        chain = chains.get(name)
        if chain is not None:
            yield from _table_update(program, startup, chain)


def _table_users(
    program: Program, updates: Updates, name: str, named: Sequence[tuple[Block, Operator]]
) -> Iterator[str]:
    moved = {id(program.root.ops[position]) for position in updates.moved}
    for block, op in named:
        lookup = _is_lookup_of(op, name) and block.idx == 0
        if id(op) in moved and (lookup or is_optimizer(op) or op.type in (*ROW_UPDATES, "table_rows")):
            continue
        if lookup and not is_helper(op):
            continue
        where = f" in block {block.idx}" if block.idx else ""
        yield f"distributed table {name!r} is used by {place_of(op)}{where}; it can only be looked up"


def _is_lookup_of(op: Operator, name: str) -> bool:
    others = (argument for key, arguments in op.inputs.items() if key != "W" for argument in arguments)
    return (
        op.type in ("lookup_sparse_table", *LOOKUPS, *LOOKUP_GRADS)
        and op.inputs.get("W") == [name]
        and name not in others
        and name not in op.output_arguments()
    )


def _table_start(startup: Program, name: str) -> Iterator[str]:
    for op in startup.root.ops:
        op_def = registry.find(op.type)
        if name in op.output_arguments() and (op_def is None or "auto_grown_table" not in op_def.attrs):
            yield f"distributed table {name!r} is initialised by {place_of(op)}, which cannot make rows one by one"


def _table_update(program: Program, startup: Program, chain: Chain) -> Iterator[str]:
    optimizer = program.root.ops[chain.optimizer]
    if registry.get(optimizer.type).needs_whole_param:
        yield f"{place_of(optimizer)} needs the norm of all of {chain.param!r}, which no server of a distributed table has"
    if not is_sparse_var(program, chain.gradient):
        yield f"the gradient {chain.gradient!r} of distributed table {chain.param!r} is dense"
    cut, _ = accumulators(optimizer)
    for op in startup.root.ops:
        op_def = registry.find(op.type)
        if set(cut).intersection(op.output_arguments()) and (op_def is None or "table_name" not in op_def.attrs):
            yield (
                f"accumulator {op.output('Out')!r} of distributed table {chain.param!r} is initialised by "
                f"{place_of(op)}; only a constant can start a new row"
            )


def trainer(program: Program, updates: Updates) -> Iterator[str]:
    """What stays on the trainer finds what it reads there, with the values that it would have in a local run."""
    state: dict[str, str] = {}
    updated: dict[str, int] = {}
    for chain in updates.chains:
        updated[chain.param] = chain.optimizer
        cut, whole = accumulators(program.root.ops[chain.optimizer])
        state.update(dict.fromkeys((*cut, *whole), chain.param))
    last = max(updates.moved, default=-1)
    staying = {id(op) for op in staying_ops(program, updates.moved)}
    gone = _gone(program, updates)
    for position, op in enumerate(program.root.ops):
        if id(op) not in staying:
            continue
        read, written = reads(program, op), writes(program, op)
        for name in sorted(read & (state.keys() | gone)):
            yield f"{place_of(op)} reads {name!r}, which only the server of its parameter has"
        for name in sorted(updated.keys() & written - _passed_through(op)):
            yield f"{place_of(op)} changes parameter {name!r} outside its update; the server would not see it"
        for name in sorted(read & updated.keys()):
            if updated[name] < position < last:
                yield f"{place_of(op)} reads {name!r} after its update but before the end of the step"


def _passed_through(op: Operator) -> set[str]:
    """Arguments of outputs that only gradients read: hierarchical_sigmoid names its weight there, and leaves it alone."""
    return {name for arg in registry.get(op.type).outputs if arg.intermediate for name in op.outputs.get(arg.name, ())}


def _gone(program: Program, updates: Updates) -> set[str]:
    """Temporaries that only moved helper ops write."""
    moved: set[str] = set()
    others: set[str] = set()
    for position, op in enumerate(program.root.ops):
        (moved if position in updates.moved and is_helper(op) else others).update(op.output_arguments())
    return {name for name in moved - others if not program.root.vars[name].persistable}


def initialised(
    program: Program, startup: Program, updates: Updates, schedule: Schedule, found: Sequence[str]
) -> Iterator[str]:
    """The startup program gives a first value to all that servers hold."""
    held = dict.fromkeys(found)
    for chain in updates.chains:
        held[chain.param] = None
        held.update(dict.fromkeys(concat(*accumulators(program.root.ops[chain.optimizer]))))
    held.update(dict.fromkeys(schedule.state))
    written = {name for op in startup.root.ops for name in op.output_arguments()}
    for name in held:
        if name not in written:
            yield f"no op of the startup program initialises {name!r}"


def training(program: Program, plan: Plan, updates: Updates) -> Iterator[str]:
    """Every update that servers run can do what the mode asks of it."""
    tables = {table.name for table in plan.tables}
    for chain in updates.chains:
        optimizer = program.root.ops[chain.optimizer]
        for flag in ("lr_staleness_modulation", "lr_from_trainer"):
            if getattr(plan.training, flag) and optimizer.input("LearningRate") is None:
                yield f"{flag} changes learning rates, but {place_of(optimizer)} of {chain.param!r} has none"
        if plan.training.dc_asgd and (chain.param in tables or is_sparse_var(program, chain.gradient)):
            what = "a distributed table" if chain.param in tables else "a parameter with a sparse gradient"
            yield (
                f"enable_dc_asgd keeps a copy of each parameter for every trainer; {chain.param!r} is {what}, of which a "
                "trainer sees some rows only: train it with dense gradients, or without delay compensation"
            )


def derived_names(program: Program, plan: Plan) -> Iterator[str]:
    """No name that passes make up is taken by a variable of the program."""
    taken = {name for block in program.blocks for name in block.vars}
    for name, what in _derived(program, plan):
        if name in taken:
            yield f"the program has a variable {name!r}, the name of {what}; rename it"


def _derived(program: Program, plan: Plan) -> Iterator[tuple[str, str]]:
    """Every name that passes make up, and what for."""
    for param in plan.dense:
        own = (param.name, param.gradient, *param.accumulators, *param.whole_accumulators)
        for part in param.slices if len(param.slices) > 1 else ():
            yield from ((param.on_server(name, part), f"slice {part.index} of {name!r}") for name in own)
        for name in param.parts if plan.training.dc_asgd else ():
            yield from _of_delay(name, plan.cluster.trainers)
    merged = [param.gradient for param in plan.dense if param.sparse_gradient]
    for gradient in (table.gradient or "" for table in plan.trained_tables):
        merged.append(gradient)
        yield from _shards(gradient, len(plan.cluster.endpoints))
    yield from ((names.merged(gradient), f"the merged {gradient!r}") for gradient in merged)
    for source in plan.row_sources:
        for index, kind in product(range(len(lookups_of(program, source.name))), ("ids", "rows")):
            name = names.lookup_part(source.name, kind, index)
            yield name, f"the {kind} of lookup {index} of {source.name!r}"
            yield from _shards(name, len(source.endpoints))


def _of_delay(param: str, trainers: int) -> Iterator[tuple[str, str]]:
    for trainer in range(trainers):
        yield names.backup_of(param, trainer), f"{param!r} as trainer {trainer} last saw it"
    for part in names.DELAY_PARTS:
        yield names.delay_part(param, part), f"the delay of {param!r}"


def _shards(name: str, count: int) -> Iterator[tuple[str, str]]:
    return ((names.shard_of_var(name, shard), f"shard {shard} of {name!r}") for shard in range(count))
