"""Dependencies, readiness, liveness, dead ops and pruning, on programs written as text."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluidlite.core import dataflow, text
from fluidlite.core.declarations import OpDeclaration
from fluidlite.core.ir import EMPTY, Operator


def defs(type: str) -> OpDeclaration | None:
    """``print`` and ``send`` are visible outside, ``add_to`` overwrites X, ``mystery`` is unknown."""
    if type == "mystery":
        return None
    found: Any = SimpleNamespace(
        inputs=(),
        outputs=(),
        attrs={},
        side_effect=type in ("print", "send"),
        inplace={"Out": "X"} if type == "add_to" else {},
    )
    return found  # type: ignore[no-any-return]


def ops(written: str) -> list[Operator]:
    return text.parse(written).root.ops


def kinds(written: str) -> list[tuple[int, int, str, str]]:
    return [tuple(hazard) for hazard in dataflow.hazards(ops(written), defs)]  # type: ignore[misc]


DIAMOND = """
a() -> (Out=[x])
b(X=[x]) -> (Out=[y])
c(X=[x]) -> (Out=[z])
d(X=[y z]) -> (Out=[w])
"""


def test_a_diamond() -> None:
    assert dataflow.dependencies(ops(DIAMOND), defs) == [(), (0,), (0,), (1, 2)]
    assert dataflow.levels(ops(DIAMOND), defs) == [[0], [1, 2], [3]]
    assert dataflow.last_use(ops(DIAMOND), defs) == {"x": 2, "y": 3, "z": 3, "w": 3}
    uses = dataflow.def_use(ops(DIAMOND), defs)
    assert (uses["x"].writers, uses["x"].readers) == ([0], [1, 2])


def test_each_kind_of_hazard() -> None:
    assert kinds("a() -> (Out=[x])\nb(X=[x])\nc() -> (Out=[x])") == [
        (0, 1, "read after write", "x"),
        (1, 2, "write after read", "x"),
        (0, 2, "write after write", "x"),
    ]


def test_an_op_that_updates_its_input_does_not_wait_for_itself() -> None:
    assert kinds("sgd(Param=[w]) -> (ParamOut=[w])\nsgd(Param=[w]) -> (ParamOut=[w])") == [
        (0, 1, "read after write", "w"),
        (0, 1, "write after write", "w"),
    ]


def test_overwriting_in_place_counts_as_a_write() -> None:
    assert kinds("a(X=[x])\nadd_to(X=[x]) -> (Out=[y])\nb(X=[x])") == [
        (0, 1, "write after read", "x"),
        (1, 2, "read after write", "x"),
    ]


def test_visible_and_unknown_ops_keep_their_order() -> None:
    written = "print(X=[a])\nb(X=[a])\nmystery()\nsend(X=[b])"
    assert dataflow.dependencies(ops(written), defs) == [(), (), (0,), (2,)]


def test_empty_arguments_are_no_variables() -> None:
    written = f"a() -> (Out=[{EMPTY}])\nb(X=[{EMPTY}])"
    assert dataflow.dependencies(ops(written), defs) == [(), ()]


LOOP = """
fill() -> (Out=[x])
while(Condition=[c]) -> (StepScopes=[s]) {sub_block=block(1)}
use(X=[y])
block 1
var local
inner(X=[x]) -> (Out=[local])
again(X=[local]) -> (Out=[y]) {sub_block=block(2)}
block 2 parent=1
print(X=[z])
"""


def test_sub_blocks_count_for_the_op_that_owns_them() -> None:
    program = text.parse(LOOP)
    effect = dataflow.effects(program.root.ops[1], defs, program.blocks)
    assert effect == (("c", "x", "z"), ("s", "y"), True)
    assert dataflow.dependencies(program.root.ops, defs, program.blocks) == [(), (0,), (1,)]
    assert dataflow.dependencies(program.root.ops, defs) == [(), (), ()]


def test_a_block_that_names_itself_ends() -> None:
    program = text.parse("loop() {sub_block=block(1)}\nblock 1\nloop() {sub_block=blocks(0, 1, 7)}")
    assert dataflow.effects(program.root.ops[0], defs, program.blocks) == ((), (), False)


def test_dead_ops() -> None:
    written = DIAMOND + "e(X=[w]) -> (Out=[unused])\nf(X=[y]) -> (Out=[kept])\nprint(X=[x])"
    dead = dataflow.dead_ops(ops(written), {"kept"}, defs)
    assert [op.type for op in dead] == ["c", "d", "e"]


TRAINING = """
var w persistable
embed(W=[w], Ids=[ids]) -> (Out=[e])
fc(X=[e]) -> (Out=[predict])
loss(X=[predict], Label=[label]) -> (Out=[cost])
loss_grad(X=[predict]) -> (X@GRAD=[e@GRAD])
sgd(Param=[w], Grad=[e@GRAD]) -> (ParamOut=[w])
send(X=[e@GRAD])
"""


def test_prune_keeps_what_the_targets_need() -> None:
    program = text.parse(TRAINING)
    assert [op.type for op in dataflow.prune(program, ["ids"], ["predict"], defs)] == ["embed", "fc"]
    assert [op.type for op in dataflow.prune(program, ["ids", "label"], ["cost"], defs)] == ["embed", "fc", "loss"]


def test_prune_cuts_at_the_feeds() -> None:
    program = text.parse(TRAINING)
    assert [op.type for op in dataflow.prune(program, ["e"], ["predict"], defs)] == ["fc"]
    assert dataflow.prune(program, ["predict"], ["predict"], defs) == []


def test_prune_leaves_the_program_alone() -> None:
    program = text.parse(TRAINING)
    before = text.show(program)
    dataflow.prune(program, ["ids"], ["predict"], defs)
    assert text.show(program) == before


def test_the_graph_of_a_block() -> None:
    nx = pytest.importorskip("networkx")
    program = text.parse(DIAMOND)
    graph = dataflow.graph(program, defs)
    assert nx.is_directed_acyclic_graph(graph)
    assert list(graph.edges) == [(0, 1), (0, 2), (1, 3), (2, 3)]
    assert graph.nodes[3]["op"].type == "d"
    assert graph.edges[0, 1]["hazards"] == [(0, 1, "read after write", "x")]


_names = st.lists(st.sampled_from("abcde"), max_size=2)
_random_ops = st.lists(
    st.builds(lambda reads, writes: Operator("mix", {"X": reads}, {"Out": writes}), _names, _names), max_size=8
)


@given(_random_ops, st.randoms(use_true_random=False))
def test_any_order_that_keeps_dependencies_gives_the_same_values(block: list[Operator], random: Any) -> None:
    before = dataflow.dependencies(block, defs)
    order: list[int] = []
    while len(order) < len(block):
        ready = [at for at in range(len(block)) if at not in order and set(before[at]) <= set(order)]
        order.append(random.choice(ready))
    assert _run(block, order) == _run(block, list(range(len(block))))


@given(_random_ops)
def test_the_program_without_dead_ops_gives_the_same_result(block: list[Operator]) -> None:
    dead = {id(op) for op in dataflow.dead_ops(block, {"a"}, defs)}
    live = [at for at, op in enumerate(block) if id(op) not in dead]
    assert _run(block, live)["a"] == _run(block, list(range(len(block))))["a"]


@given(_random_ops)
def test_levels_respect_dependencies(block: list[Operator]) -> None:
    level = {at: number for number, group in enumerate(dataflow.levels(block, defs)) for at in group}
    assert sorted(level) == list(range(len(block)))
    for at, before in enumerate(dataflow.dependencies(block, defs)):
        assert all(level[earlier] < level[at] for earlier in before)


def _run(block: list[Operator], order: list[int]) -> dict[str, int]:
    """Interpret ops as hashes of their place and what they read."""
    values = dict.fromkeys("abcde", 0)
    for at in order:
        op = block[at]
        result = hash((at, *(values[name] for name in op.input_arguments())))
        for name in op.output_arguments():
            values[name] = int(np.int64(result))
    return values
