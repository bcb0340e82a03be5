"""Programs that write the same few variables again and again: a rewrite may be right only where it proves to be."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import fluidlite as fluid
from fluidlite import fusion
from fluidlite.core import text
from fluidlite.core.ir import Program
from fluidlite.runtime.executor import ExecutorCore
from tests.test_fusion import bits

HEAD: Final = """block 0
  var x: float64[-1, 4] data
  var ids: int64[-1, 1] data
  var label: int64[-1, 1] data
  param w: float64[4, 4]
  param b: float64[4]
  param c: float64[4]
  param emb: float64[9, 4]
  var rate: float64[1] persistable
  var kept: float64[-1, 4] persistable
  var y: float64[-1, 1]
  var s: float64[-1, 8]
  var i0: int64[-1, 1]
  var i1: int64[-1, 1]
"""
TEMPORARIES: Final = ("kept", *(f"t{index}" for index in range(9)))
DECLARED: Final = HEAD + "".join(f"  var {name}: float64[-1, 4]\n" for name in TEMPORARIES[1:])
#: an op with places for variables that are read (R, Q), ids (I, made by J) and a variable that is written (O)
OPS: Final = (
    "mul(X=[R], Y=[w]) -> (Out=[O])",
    "elementwise_add(X=[R], Y=[Q]) -> (Out=[O])",
    "lookup_table(Ids=[I], W=[emb]) -> (Out=[O])",
    "scale(X=[R]) -> (Out=[O]) {scale=0.5}",
    "concat(X=[R Q]) -> (Out=[s]) {axis=1}",
    "scale(X=[ids]) -> (Out=[J]) {scale=0.0, bias=1.0}",
    "scale(X=[emb]) -> (Out=[emb]) {scale=0.5}",
    "sgd(Param=[b], Grad=[c], LearningRate=[rate]) -> (ParamOut=[b])",
    "sgd(Param=[c], Grad=[b], LearningRate=[rate]) -> (ParamOut=[c])",
)
#: ops each of which reads what the one before it writes
CHAINS: Final = (
    (OPS[0], "elementwise_add(X=[R], Y=[b]) -> (Out=[O]) {axis=1}", "relu(X=[R]) -> (Out=[O])"),
    (OPS[0], "elementwise_add(X=[R], Y=[c]) -> (Out=[O])", "tanh(X=[R]) -> (Out=[O])"),
    ("softmax(X=[R]) -> (Out=[O])", "cross_entropy(X=[R], Label=[label]) -> (Y=[y])"),
    (OPS[2], OPS[2], OPS[4]),
)


@st.composite
def programs(draw: st.DrawFn) -> str:
    """Chains with other ops in between, which read what was written before and write whatever they like."""
    lines, written, made = [], ["x", "x"], ["ids"]

    def add(op: str) -> None:
        other = written[-2] if op is OPS[4] else draw(st.sampled_from(written))
        line = op.replace("[R", f"[{written[-1]}").replace("Q]", f"{other}]")
        line = line.replace("[I]", f"[{draw(st.sampled_from(made))}]")
        if "[O]" in line:
            written.append(draw(st.sampled_from(TEMPORARIES)))
            line = line.replace("[O]", f"[{written[-1]}]")
        if "[J]" in line:
            made.append(draw(st.sampled_from(("i0", "i1"))))
            line = line.replace("[J]", f"[{made[-1]}]")
        lines.append(line)

    for chain in draw(st.lists(st.sampled_from(CHAINS), min_size=1, max_size=3)):
        for op in chain:
            add(op)
            before = written[-1]
            for between in draw(st.lists(st.sampled_from(OPS), max_size=1)):
                add(between)
            written.append(before)
    return DECLARED + "".join(f"  {line}\n" for line in lines)


def results(program: Program, choice: fusion.Choice, fetch: list[str]) -> list[Any]:
    """What is fetched and what stays, after two runs."""
    random, scope, core = np.random.default_rng(5), fluid.Scope(), ExecutorCore(passes=fusion.chosen(choice))
    for name, shape in {"w": (4, 4), "b": 4, "c": 4, "emb": (9, 4), "rate": 1, "kept": (3, 4)}.items():
        scope.set(name, random.normal(size=shape))
    feed = {
        "x": random.normal(size=(3, 4)),
        "ids": random.integers(0, 9, (3, 1)),
        "label": random.integers(0, 4, (3, 1)),
    }
    seen = []
    for _ in range(2):
        env = core.plan(program, fetch).run(scope, core.check(program, feed, fetch), fetch)
        seen.append([bits(env.read(name)) for name in (*fetch, "w", "b", "c", "emb", "kept")])
    return seen


@given(programs(), st.sets(st.sampled_from((*TEMPORARIES, "y", "s")), max_size=3))
@settings(max_examples=400, deadline=None)
def test_variables_that_are_overwritten_keep_their_meaning(written: str, fetch: set[str]) -> None:
    program, names = text.parse(written), sorted(fetch)
    expected = results(program, False, names)
    assert results(program, True, names) == expected
    for name in fusion.NAMES:
        assert results(program, [name], names) == expected, name
