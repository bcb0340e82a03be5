"""Programs that our transpiler makes against those of real Fluid: what differs, rule by rule, and why.

Fluid's programs are first brought into our form by the passes of `transpiler.legacy`, whose texts show what they do. What
is left then, the rules below make equal on both sides; anything else is a difference.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import fluidlite as fluid
from fluidlite.core import ir, names
from fluidlite.dtypes import VarKind
from fluidlite.ops import registry
from fluidlite.ops.modes import Mode
from fluidlite.transpiler.legacy import translate
from tests.golden_programs import Golden, Snippet, canonical, show

ENDPOINTS: Final = ("127.0.0.1:6174", "127.0.0.1:6175")
#: mode -> fields of the config
MODES: Final[Mapping[str, Mapping[str, Any]]] = {
    "sync": {},
    "noslice": {"slice_var_up": False},
    "async": {"sync_mode": False},
    "async_rt": {"sync_mode": False, "runtime_split_send_recv": True},
    "half_async": {"sync_mode": False, "runtime_split_send_recv": True, "half_async": True},
    "dc_asgd": {"sync_mode": False, "enable_dc_asgd": True},
    "geo": {"sync_mode": False, "runtime_split_send_recv": True, "geo_sgd_mode": True, "geo_sgd_need_push_nums": 5},
}
Ops = list[Golden]


class Side(NamedTuple):
    """What a rule is applied to: the ops of one block. ``ours``: of which side; ``role``: trainer or pserver."""

    ours: bool
    role: str
    part: str


Rule = Callable[[Ops, Side], Ops]


def _without(ops: Ops, *attrs: str, types: tuple[str, ...] = ()) -> Ops:
    return [
        {**op, "attrs": {k: v for k, v in op["attrs"].items() if k not in attrs}}
        if op["type"] in types or not types
        else op
        for op in ops
    ]


def _renamed(op: Golden, rename: Callable[[str], str]) -> Golden:
    arguments = {word: {k: [rename(n) for n in v] for k, v in op[word].items()} for word in ("in", "out")}
    attrs = dict(op["attrs"])
    if "op_role_var" in attrs:
        attrs["op_role_var"] = [rename(n) for n in attrs["op_role_var"]]
    return {**op, **arguments, "attrs": attrs}


def sender_in_name(ops: Ops, side: Side) -> Ops:
    """A trainer's gradient has its own name; who sends it, the step says (Fluid: `w@GRAD.trainer_0`)."""
    if side.role == "trainer":
        return [_renamed(op, names.on_wire) for op in ops]
    return [
        {**op, "attrs": {**op["attrs"], "op_role_var": [names.on_wire(n) for n in op["attrs"]["op_role_var"]]}}
        if "op_role_var" in op["attrs"]
        else op
        for op in ops
    ]


def names_on_the_wire(ops: Ops, side: Side) -> Ops:
    """What a variable is called on its server is an attribute, and so is the number of trainers, which servers check."""
    talking = ("send", "recv", "send_barrier", "fetch_barrier")
    ops = _without(ops, "send_varnames", "varnames", "trainers", types=talking)
    # the goldens leave out a trainer_id of 0, by which a startup program of Fluid after 1.5 is told
    return [{**op, "attrs": {k: v for k, v in op["attrs"].items() if k != "trainer_id" or v > 0}} for op in ops]


def answer_brings_parameters(ops: Ops, side: Side) -> Ops:
    """No second barrier: the answer to a commit brings the parameters."""
    if side.part == "startup":
        return ops
    return [op for op in ops if op["type"] != "fetch_barrier"]


def received_not_initialised(ops: Ops, side: Side) -> Ops:
    """A trainer does not compute first values that it then receives, nor those of counters that only servers read."""
    if side.role != "trainer" or side.part != "startup":
        return ops
    received = {n for op in ops if op["type"] in ("recv", "concat") for n in op["out"]["Out"]}

    def needless(op: Golden) -> bool:
        outs = op["out"].get("Out", [])
        dead = all(n in received or n.startswith(names.LR_COUNTER) for n in outs)
        return op["type"] not in ("recv", "concat") and bool(outs) and dead

    return [op for op in ops if not needless(op)]


def sends_leave_early(ops: Ops, side: Side) -> Ops:
    """A gradient leaves right after the op that makes it. Fluid does so, too, but where regularisation or clips follow (then
    behind all of them), and waits for each send."""
    leaving = ("send", "split_byref", "split_selected_rows", "merge_selected_rows")
    moving = [op for op in ops if op["type"] in leaving]
    rest = [op for op in ops if op["type"] not in leaving]
    return [*rest, *sorted(moving, key=show)]


def one_commit(ops: Ops, side: Side) -> Ops:
    """The commit of an asynchronous step goes to every server, so that all count steps."""
    return _without(ops, "endpoints", types=("send_barrier",))


def what_servers_are_told(ops: Ops, side: Side) -> Ops:
    """A server knows how many there are, and what its slices are of, for checkpoints; threads are grpc's. Fluid's runtime split
    is the mode in which its communicator merges steps; ours merges in half_async only."""
    if side.role != "pserver" or side.part != "main":
        return ops
    ops = _without(
        ops, "rpc_prefetch_thread_num", "pservers", "pserver_id", "slices", "op_role", types=("listen_and_serv",)
    )
    return [
        {**op, "attrs": {**op["attrs"], "distributed_mode": int(Mode.ASYNC)}}
        if op["attrs"].get("distributed_mode") == Mode.HALF_ASYNC
        else op
        for op in ops
    ]


def scope_of_names(ops: Ops, side: Side) -> Ops:
    """Ops keep the name scope that the user made them in when they move to a server (Fluid forgets it). Scopes of one name are
    numbered over the process, and a golden's process made several programs."""
    if side.role == "pserver":
        return _without(ops, "op_namescope")
    return [
        {**op, "attrs": {k: re.sub(r"_\d+/", "/", v) if k == "op_namescope" else v for k, v in op["attrs"].items()}}
        for op in ops
    ]


def schedule_starts_with_the_first_step(ops: Ops, side: Side) -> Ops:
    """The schedule of trainers that wait for nobody starts as a local one (Fluid: at one step of each of them)."""
    if side.part != "startup":
        return ops
    kept = [op for op in ops if not any(map(names.is_clock, op["out"].get("Out", [])))]
    return [
        {**op, "attrs": {k: v for k, v in op["attrs"].items() if k != "value"}}
        if op["out"].get("Out") == [names.LR_COUNTER]
        else op
        for op in kept
    ]


def slices_of_accumulators(ops: Ops, side: Side) -> Ops:
    """A slice's accumulator is named like the slice, so that one server can hold two slices (Fluid: by the whole's name)."""
    if side.role != "pserver":
        return ops

    def whole(name: str) -> str:
        return names.parse_slice(name).origin if re.search(r"_(velocity|moment\d*|beta\d_pow_acc)_\d+", name) else name

    ops = [_renamed(op, whole) for op in ops]
    return [
        {
            **op,
            "attrs": {**op["attrs"], "op_role_var": [names.parse_slice(n).origin for n in op["attrs"]["op_role_var"]]},
        }
        if "op_role_var" in op["attrs"]
        else op
        for op in ops
    ]


def role_of_the_mean(ops: Ops, side: Side) -> Ops:
    """The sum and the mean of a round have the role Optimize (Fluid: Forward)."""
    return (
        _without(ops, "op_role", types=("sum", "scale", "concat"))
        if side.role == "pserver" or side.part == "startup"
        else ops
    )


def values_do_not_depend_on_slicing(ops: Ops, side: Side) -> Ops:
    """A slice is cut out of the whole's first value (Fluid draws each slice anew, from the same seed): docs/decisions/0006."""
    if side.role != "pserver" or side.part != "startup":
        return ops
    cut = {op["in"]["Input"][0] for op in ops if op["type"] == "slice"}
    kept = [op for op in ops if op["out"].get("Out", [""])[0] not in cut]
    blank = [
        {"type": "slice", "in": {}, "out": op["out"], "attrs": {}}
        if names.parse_slice(op["out"]["Out"][0]).block is not None
        else op
        for op in kept
    ]
    return sorted(blank, key=show)


def lookups_one_by_one(ops: Ops, side: Side) -> Ops:
    """Each lookup has variables of its own, so none waits for another; the executor joins their pulls. Fluid makes one op of
    all lookups of a parameter, behind the last that any id needs. A gradient's duplicate rows are summed before they travel."""
    if side.role != "trainer":
        return ops
    parts = re.compile(r"^(.*)\.(rows|ids)\d+(\.shard\d+)?$")

    def plain(name: str) -> str:
        return parts.sub(r"\1", name).removesuffix(".merged")

    fetching = ("split_ids", "prefetch", "merge_selected_rows")
    kept = [op for op in ops if op["type"] not in fetching and not _joins_rows(op)]
    kept = _without(kept, "remote_prefetch", types=("lookup_table", "lookup_table_v2"))
    lookups = sorted((op for op in kept if op["type"] in ("lookup_table", "lookup_table_v2")), key=show)
    rest = [op for op in kept if op["type"] not in ("lookup_table", "lookup_table_v2")]
    return [_renamed(op, plain) for op in (*lookups, *rest)]


def _joins_rows(op: Golden) -> bool:
    return op["type"] == "concat" and all(".rows" in n for n in op["in"]["X"])


#: in order; the reason of each is its first line
RULES: Final[tuple[Rule, ...]] = (
    sender_in_name,
    names_on_the_wire,
    answer_brings_parameters,
    received_not_initialised,
    lookups_one_by_one,
    sends_leave_early,
    one_commit,
    what_servers_are_told,
    scope_of_names,
    schedule_starts_with_the_first_step,
    slices_of_accumulators,
    role_of_the_mean,
    values_do_not_depend_on_slicing,
)


def differences(golden: Golden, mode: str, role: str, tmp: str, used: set[str]) -> list[str]:
    """A line for each op of one role's programs that is not the same on both sides; ``used`` gets the rules that mattered."""
    lines = []
    mine = _ours(golden, mode, role, tmp)
    for part in ("main", "startup"):
        theirs = translate(read(golden["transpiled"][mode][role][part]))
        sides = (
            _Blocks(theirs, Side(False, role[:-1], part), used),
            _Blocks(mine[part], Side(True, role[:-1], part), used),
        )
        old, new = (side.shown() for side in sides)
        lines += [f"{role} {part}: - {line}" for line in old if line not in new]
        lines += [f"{role} {part}: + {line}" for line in new if line not in old]
        if not lines and old != new:
            lines.append(f"{role} {part}: another order\n  {old}\n  {new}")
    return lines


class _Blocks:
    def __init__(self, program: ir.Program, side: Side, used: set[str]) -> None:
        self._program, self._side, self._used = program, side, used

    def shown(self) -> list[str]:
        return [f"block {block.idx}: {show(op)}" for block in self._program.blocks for op in self._ops(block)]

    def _ops(self, block: ir.Block) -> Ops:
        ops = [canonical(op) for op in block.ops]
        for rule in RULES:
            after = rule(ops, self._side)
            if [show(op) for op in after] != [show(op) for op in ops]:
                self._used.add(rule.__name__)
            ops = after
        return ops


def _ours(golden: Golden, mode: str, role: str, tmp: str) -> dict[str, ir.Program]:
    snippet = Snippet(golden["text"], tmp)
    config = fluid.DistributeTranspilerConfig()
    for name, value in MODES[mode].items():
        setattr(config, name, value)
    trainer = int(role[-1]) if role.startswith("trainer") else 0
    transpiler = fluid.DistributeTranspiler(config)
    transpiler.transpile(trainer, snippet.main, ",".join(ENDPOINTS), 2, config.sync_mode, snippet.startup)
    if role.startswith("trainer"):
        return {"main": snippet.main.desc, "startup": snippet.startup.desc}
    main, startup = transpiler.get_pserver_programs(ENDPOINTS[int(role[-1])])
    return {"main": main.desc, "startup": startup.desc}


def read(golden: Golden) -> ir.Program:
    """A program in the golden form; attributes that no record of ours knows are left out."""
    program = ir.Program(blocks=[], random_seed=golden.get("random_seed", 0))
    for content in golden["blocks"]:
        block = ir.Block(content["idx"], content["parent"], content.get("forward", -1))
        block.vars = {var["n"]: _var(var) for var in content["vars"]}
        block.ops = [_op(op) for op in content["ops"]]
        program.blocks.append(block)
    return program


def _var(var: Golden) -> ir.Variable:
    return ir.Variable(
        var["n"],
        VarKind[var.get("t", "LOD_TENSOR")],
        var.get("dt", "float32"),
        tuple(var["s"]) if var.get("s") else None,
        var.get("lod", 0),
        persistable=var.get("p", False),
        stop_gradient=var.get("sg", False),
        is_data=var.get("data", False),
    )


def _op(op: Golden) -> ir.Operator:
    known = {**registry.get(op["type"]).attrs, **registry.COMMON_ATTRS}
    attrs = {
        name: registry.attrs_for_one(op["type"], name, _block_or(value))
        for name, value in op.get("attrs", {}).items()
        if name in known
    }
    arguments = ({key: list(names) for key, names in op.get(word, {}).items()} for word in ("in", "out"))
    return ir.Operator(op["type"], *arguments, attrs)


def _block_or(value: Any) -> Any:
    return next(iter(value.values())) if isinstance(value, dict) else value
