"""Ops that compute in the memory of inputs that die with them: the same values, bit for bit, and nobody else's memory."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fluidlite as fluid
from fluidlite import fusion
from fluidlite.core import text
from fluidlite.core.ir import Program
from fluidlite.errors import SettingError
from fluidlite.runtime import in_place
from fluidlite.runtime.env import Env
from fluidlite.runtime.executor import ExecutorCore
from fluidlite.runtime.plan import Plan
from fluidlite.runtime.scope import Scope
from tests.frontend import fresh_programs
from tests.random_programs import OPTIMIZERS, Model, models
from tests.test_fusion import bits
from tests.training_jobs import Programs

some = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
many = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
ROWS, COLUMNS = 5, 6


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every array with elements counts as large; the list collects the variables whose memory was taken."""
    found: list[str] = []
    condition = in_place._condition

    def watched(name: str, index: int, count: int) -> Any:
        allowed = condition(name, index, count)

        def asked(env: Env, values: Any) -> bool:
            yes = allowed(env, values)
            found.extend([name] * yes)
            return yes

        return asked

    monkeypatch.setattr(in_place, "SMALLEST", 1)
    monkeypatch.setattr(in_place, "_condition", watched)
    return found


def run(program: Program, scope: Scope, feeds: dict[str, Any], fetch: list[str], **options: bool) -> list[Any]:
    env = Plan(program, None, **options).run(scope, feeds, fetch)  # type: ignore[arg-type]
    return [bits(env.read(name)) for name in fetch]


NAMES = [f"v{i}" for i in range(6)]
#: ops of one shape; `reshape`, `slice` and `assign` may give views or the array itself
_UNARY = (
    "scale(X=[{a}]) -> (Out=[{o}]) {{scale=0.5 bias=0.25}}",
    "relu(X=[{a}]) -> (Out=[{o}])",
    "tanh(X=[{a}]) -> (Out=[{o}])",
    "sigmoid(X=[{a}]) -> (Out=[{o}])",
    "clip(X=[{a}]) -> (Out=[{o}]) {{min=-0.5 max=0.75}}",
    "square(X=[{a}]) -> (Out=[{o}])",
    "assign(X=[{a}]) -> (Out=[{o}])",
    f"reshape(X=[{{a}}]) -> (Out=[{{o}}]) {{{{shape=[-1 {COLUMNS}]}}}}",
    f"slice(Input=[{{a}}]) -> (Out=[{{o}}]) {{{{axes=[0] starts=[0] ends=[{ROWS}]}}}}",
    "sum(X=[{a}]) -> (Out=[{o}])",
    "increment(X=[{a}]) -> (Out=[{a}]) {{step=2.0}}",
)
_BINARY = (
    "elementwise_add(X=[{a}] Y=[{b}]) -> (Out=[{o}])",
    "elementwise_sub(X=[{a}] Y=[{b}]) -> (Out=[{o}])",
    "elementwise_mul(X=[{a}] Y=[{b}]) -> (Out=[{o}])",
    "relu_grad(Out=[{a}] Out@GRAD=[{b}]) -> (X@GRAD=[{o}])",
    "sigmoid_grad(Out=[{a}] Out@GRAD=[{b}]) -> (X@GRAD=[{o}])",
    "elementwise_add_grad(X=[{a}] Y=[{a}] Out@GRAD=[{b}]) -> (X@GRAD=[{o}] Y@GRAD=[{a}])",
    "sum(X=[{a} {b}]) -> (Out=[{o}])",
    "sum(X=[{a} {b} {a}]) -> (Out=[{o}])",
)


@st.composite
def written_programs(draw: st.DrawFn) -> str:
    """Ops at random over few variables, of which `p` lasts and `x` and `v0` are fed, `x` as data."""
    source, target = st.sampled_from([*NAMES, *NAMES, "x", "p"]), st.sampled_from([*NAMES, *NAMES, *NAMES, "p"])
    lines = [f"  scale(X=[x]) -> (Out=[{name}]) {{scale={i}.5}}" for i, name in enumerate(NAMES[1:])]
    for pattern in draw(st.lists(st.sampled_from([*_UNARY, *_BINARY]), min_size=1, max_size=25)):
        a = draw(target if "increment" in pattern or "@GRAD=[{a}]" in pattern else source)
        lines.append("  " + pattern.format(a=a, b=draw(source), o=draw(target)))
    declared = "".join(f"  var {name}: [-1, {COLUMNS}]\n" for name in NAMES)
    return (
        f"block 0\n  var x: [-1, {COLUMNS}] data\n  var p: [{ROWS}, {COLUMNS}] persistable\n{declared}\n"
        + "\n".join(lines)
        + "\n"
    )


@given(written_programs(), st.sets(st.sampled_from([*NAMES, "x", "p"])), st.integers(0, 99))
@many
def test_programs_give_the_same(taken: list[str], written: str, fetch: set[str], seed: int) -> None:
    program, rng = text.parse(written), np.random.default_rng(seed)
    x, v, p = (rng.normal(size=(ROWS, COLUMNS)).astype(np.float32) for _ in range(3))
    seen = []
    for options in ({"in_place": True}, {"in_place": False}, {"plain": True}):
        scope, feeds = Scope(), {"x": x.copy(), "v0": v.copy()}
        mine = p.copy()
        scope.set("p", mine)
        results = [run(program, scope, feeds, sorted(fetch), **options) for _ in range(2)]
        assert (bits(feeds["x"]), bits(feeds["v0"])) == (bits(x), bits(v))
        seen.append((results, bits(scope.get("p")), "increment(X=[p])" in written or bits(mine) == bits(p)))
        assert seen[-1][2]
    assert seen[0] == seen[1] == seen[2]


def test_the_programs_above_take_memory(taken: list[str]) -> None:
    program = text.parse(
        f"block 0\n  var x: [-1, {COLUMNS}] data\n  var a: [-1, {COLUMNS}]\n  var b: [-1, {COLUMNS}]\n\n"
        "  scale(X=[x]) -> (Out=[a])\n  relu(X=[a]) -> (Out=[b])\n"
    )
    run(program, Scope(), {"x": np.ones((ROWS, COLUMNS), np.float32)}, ["b"])
    assert taken == ["a"]


@given(st.sampled_from(sorted(OPTIMIZERS)).flatmap(models), st.booleans(), st.data())
@some
def test_random_models_train_the_same(taken: list[str], model: Model, fused: bool, data: st.DataObject) -> None:
    programs = Programs(model.build)
    main = programs.main.desc
    names = dict.fromkeys(name for op in main.root.ops for name in op.output_arguments() if name in main.root.vars)
    temporary = [name for name in names if not main.root.vars[name].persistable]
    fetch = [programs.loss, *data.draw(st.lists(st.sampled_from(temporary), max_size=4))]
    batches = [feed for (feed,) in model.feeds(2, 1, 4)]
    before = bits(batches)
    seen = []
    for choice in (True, False):
        scope, core = Scope(), ExecutorCore(passes=fusion.chosen(fused), in_place=choice)
        core.run(programs.startup.desc, scope=scope)
        taken.clear()
        results = []
        for feed in batches:
            env = core.plan(main, fetch).run(scope, core.check(main, feed, fetch), fetch)
            results.append([bits(env.read(name)) for name in fetch])
        state = {name: bits(scope.get(name)) for name, var in main.root.vars.items() if var.persistable}
        seen.append((results, state))
        assert choice or not taken
        assert bits(batches) == before
    assert seen[0] == seen[1]


def layers(fetches_before: bool) -> tuple[fluid.Program, fluid.Program, list[str]]:
    with fresh_programs() as (main, startup):
        hidden = fluid.layers.fc(fluid.data("x", [None, 3]), 4, act="relu")
        hidden = fluid.layers.dropout(fluid.layers.fc(hidden, 4, act="sigmoid"), 0.5)
        loss = fluid.layers.mean(fluid.layers.fc(hidden, 1))
        decay = fluid.regularizer.L2Decay(0.1)
        clip = fluid.clip.GradientClipByGlobalNorm(0.1)
        fluid.optimizer.SGD(0.1, regularization=decay, grad_clip=clip).minimize(loss)
    gradients = [name for name in main.desc.root.vars if name.endswith("@GRAD") and "tmp" in name]
    return main, startup, [loss.name, *(gradients if fetches_before else [])]


@pytest.mark.parametrize("fused", [False, True])
def test_training_takes_memory_and_leaves_what_is_fetched(taken: list[str], fused: bool) -> None:
    for fetches_before in (False, True):
        main, startup, fetch = layers(fetches_before)
        core, scope = ExecutorCore(passes=fusion.chosen(fused)), Scope()
        core.run(startup.desc, scope=scope)
        core.run(main.desc, {"x": np.ones((2, 3), np.float32)}, fetch, scope)
        assert not set(taken) & set(fetch)
        assert any(name.endswith("@GRAD") and "tmp" in name for name in taken) != fetches_before
        taken.clear()


def text_of(*ops: str, declared: str = "", columns: int = COLUMNS) -> Program:
    names = "".join(f"  var {name}: [-1, {columns}]\n" for name in "abcde")
    lines = "".join(f"  {op}\n" for op in ops)
    return text.parse(f"block 0\n  var x: [-1, {columns}] data\n{names}{declared}\n{lines}")


MADE = "scale(X=[x]) -> (Out=[a]) {scale=2.0}"


@pytest.mark.parametrize(
    ("ops", "expected"),
    [
        ((MADE, "relu(X=[a]) -> (Out=[b])"), ["a"]),
        ((MADE, "relu(X=[a]) -> (Out=[b])", "tanh(X=[b]) -> (Out=[c])", "scale(X=[c]) -> (Out=[d])"), ["a", "b", "c"]),
        ((MADE, "elementwise_add(X=[x] Y=[a]) -> (Out=[b])"), ["a"]),
        ((MADE, "relu(X=[a]) -> (Out=[b])", "tanh(X=[a]) -> (Out=[c])"), ["a"]),
        ((MADE, "elementwise_mul(X=[a] Y=[a]) -> (Out=[b])"), []),
        ((MADE, "sum(X=[a a]) -> (Out=[b])"), []),
        ((MADE, f"reshape(X=[a]) -> (Out=[b]) {{shape=[-1 {COLUMNS}]}}", "relu(X=[b]) -> (Out=[c])"), []),
        (
            (
                MADE,
                f"reshape(X=[a]) -> (Out=[b]) {{shape=[-1 {COLUMNS}]}}",
                "relu(X=[a]) -> (Out=[c])",
                "elementwise_add(X=[b] Y=[c]) -> (Out=[d])",
            ),
            [],
        ),
        ((MADE, "sum(X=[a]) -> (Out=[b])", "relu(X=[a]) -> (Out=[c])", "sum(X=[b c]) -> (Out=[d])"), ["b"]),
        (("relu(X=[x]) -> (Out=[b])",), []),
        (("relu(X=[e]) -> (Out=[b])",), []),
        (("relu(X=[p]) -> (Out=[b])",), []),
        ((MADE, "relu(X=[a]) -> (Out=[b])", "increment(X=[a]) -> (Out=[a]) {step=1.0}"), []),
    ],
)
def test_whose_memory_is_taken(taken: list[str], ops: tuple[str, ...], expected: list[str]) -> None:
    program = text_of(*ops, declared=f"  var p: [{ROWS}, {COLUMNS}] persistable\n")
    values = {name: np.linspace(-1, 1, ROWS * COLUMNS).reshape(ROWS, COLUMNS) for name in "xep"}
    last = list(program.root.ops[-1].output_arguments())
    seen = []
    for choice in (True, False):
        scope, fed = Scope(), {"x": values["x"].copy(), "e": values["e"].copy()}
        scope.set("p", values["p"].copy())
        seen.append(run(program, scope, fed, last, in_place=choice))
        assert bits([fed["x"], fed["e"], scope.get("p")]) == bits([values["x"], values["e"], values["p"]])
    assert seen[0] == seen[1]
    assert taken == expected


def test_what_a_block_reads_is_left(taken: list[str]) -> None:
    with fresh_programs() as (main, _):
        twice = fluid.data("x", [4]) * 2.0
        other = fluid.layers.relu(twice)
        count, end, total = (fluid.layers.fill_constant([1], "float32", value) for value in (0.0, 3.0, 0.0))
        more = fluid.layers.less_than(count, end)
        with fluid.layers.While(more).block():
            inside = fluid.layers.relu(fluid.layers.scale(twice, 3.0))
            fluid.layers.assign(total + fluid.layers.reduce_sum(inside), total)
            fluid.layers.increment(count)
            fluid.layers.less_than(count, end, cond=more)
        out = fluid.layers.reduce_sum(other) + total
    scope = Scope()
    env = Plan(main.desc, None).run(scope, {"x": np.ones(4, np.float32)}, [out.name])
    assert env.read(out.name).tolist() == [8 + 3 * 24]
    assert twice.name not in taken
    assert inside.name not in taken


def test_runs_that_keep_everything_take_nothing(taken: list[str]) -> None:
    program = text_of(MADE, "relu(X=[a]) -> (Out=[b])")
    feeds = {"x": -np.ones((ROWS, COLUMNS))}
    env = Plan(program, None).run(Scope(), feeds)
    assert (env.read("a") == -2).all()
    env = Plan(program, None).run(Scope(), feeds, ["a", "b"])
    assert (env.read("a") == -2).all()
    assert not taken


def test_a_plan_takes_what_this_run_does_not_keep(taken: list[str]) -> None:
    plan, feeds = Plan(text_of(MADE, "relu(X=[a]) -> (Out=[b])"), None), {"x": -np.ones((ROWS, COLUMNS))}
    for keep, expected in ((["a"], []), (["b"], ["a"]), (["a", "b"], [])):
        taken.clear()
        plan.run(Scope(), feeds, keep)
        assert taken == expected


def test_gradients_of_one_array_are_not_taken(taken: list[str]) -> None:
    """`elementwise_add_grad` gives its operands one array for both gradients."""
    program = text_of(
        MADE,
        "elementwise_add_grad(X=[x] Y=[x] Out@GRAD=[a]) -> (X@GRAD=[b] Y@GRAD=[c])",
        "relu_grad(Out=[x] Out@GRAD=[b]) -> (X@GRAD=[d])",
        "relu_grad(Out=[x] Out@GRAD=[c]) -> (X@GRAD=[e])",
    )
    env = Plan(program, None).run(Scope(), {"x": np.linspace(-1, 1, ROWS * COLUMNS).reshape(ROWS, -1)}, ["d", "e"])
    assert bits(env.read("d")) == bits(env.read("e"))
    assert taken == ["c"], "the last one to read it may"


def test_small_arrays_are_not_worth_it() -> None:
    def peak(rows: int, *, in_place: bool, columns: int = 64) -> float:
        lines = [f"relu(X=[{a}]) -> (Out=[{b}])" for a, b in zip("xabcd", "abcde", strict=True)]
        plan = Plan(text_of(*lines, columns=columns), None, in_place=in_place)
        x = np.ones((rows, columns), np.float32)
        tracemalloc.start()
        try:
            plan.run(Scope(), {"x": x}, ["e"])
            return tracemalloc.get_traced_memory()[1] / x.nbytes
        finally:
            tracemalloc.stop()

    assert peak(4096, in_place=True) < 1.5
    assert peak(4096, in_place=False) > 1.9
    assert peak(128, in_place=True) > 1.9
    assert peak(1 << 16, columns=4, in_place=True) > 1.9, "rows so short that steps do not look"


def test_it_can_be_switched_off(taken: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    program, feeds = text_of(MADE, "relu(X=[a]) -> (Out=[b])"), {"x": np.ones((ROWS, COLUMNS), np.float32)}
    for value, choice, on in (
        ("", None, True),
        ("1", None, True),
        ("0", None, False),
        ("0", True, True),
        ("1", False, False),
    ):
        monkeypatch.setenv(in_place.VARIABLE, value)
        taken.clear()
        fluid.Executor(in_place=choice)._core.run(program, feeds, ["b"], Scope())
        assert taken == ["a"] * on, (value, choice)
    monkeypatch.setenv(in_place.VARIABLE, "yes")
    with pytest.raises(SettingError, match="FLUIDLITE_IN_PLACE must be 0 or 1, not 'yes'"):
        fluid.Executor()
