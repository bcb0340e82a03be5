"""Programs with sub-blocks: as real Fluid 1.8.5 builds them, its values, and gradients against numeric ones.

`tests/fluid_values/control_flow.json` holds, by snippet, the program that Fluid makes of it and, for parameters as
`parameter` gives them, the loss and the gradients of parameters that its run gives.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.core.verify import verify
from fluidlite.dtypes import Array
from fluidlite.errors import GradientError
from fluidlite.framework import Program, Variable
from fluidlite.ops import registry
from fluidlite.ops.rank_table import RankTable
from fluidlite.runtime.executor import ExecutorCore
from fluidlite.runtime.plan import Plan
from fluidlite.runtime.scope import Scope
from fluidlite.values.lod import LoDTensor, lod_from_lengths
from fluidlite.values.selected_rows import SelectedRows, to_dense
from tests.frontend import fresh_programs
from tests.golden_programs import Snippet, differences
from tests.training_jobs import Cluster, Local, Programs, assert_states

RECORDED = json.loads((Path(__file__).parent / "fluid_values" / "control_flow.json").read_text())
#: snippet -> gradients that Fluid gets wrong: it replaces, or keeps, the gradient of what a loop or a case overwrites
FLUID_IS_WRONG = {
    "while_loop": {"fw@GRAD", "w@GRAD"},
    "while_sums": {"aw@GRAD", "fw@GRAD", "w@GRAD"},
    "switch_grad": {"w0@GRAD"},
}
L = fluid.layers


def parameter(name: str, shape: Sequence[int]) -> Array:
    """A parameter's value, by its name and shape alone."""
    start = zlib.crc32(name.encode()) % 1000
    return (np.cos(np.arange(int(np.prod(shape))) * 0.9 + start) * 0.5).astype(np.float32).reshape(shape)


def recorded(value: dict[str, Any]) -> Array | LoDTensor:
    array = np.array(value["v"], value.get("d", "float32")).reshape(value["s"])
    return LoDTensor(array, lod_from_lengths(value["lod"])) if "lod" in value else array


def numbers(value: Any) -> Array:
    if isinstance(value, SelectedRows):
        return to_dense(value)
    return value.array if isinstance(value, LoDTensor) else np.asarray(value)


@pytest.mark.parametrize("name", sorted(RECORDED))
@pytest.mark.filterwarnings("default")
def test_programs_are_those_of_fluid(name: str, tmp_path: Path) -> None:
    snippet = Snippet(RECORDED[name]["text"], str(tmp_path))
    verify(snippet.main.desc, registry.find)
    found = differences(RECORDED[name]["main"], snippet.main)
    # the gradient of tanh has the LoD of its output here, of its gradient in Fluid
    found = [line for line in found if not (name == "drnn_level1" and "fc_1.tmp_3@GRAD" in line)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("name", sorted(name for name, entry in RECORDED.items() if "values" in entry))
@pytest.mark.parametrize("plain", [False, True], ids=["fast", "plain-read-back"])
@pytest.mark.filterwarnings("default")
def test_values_are_those_of_fluid(name: str, plain: bool, tmp_path: Path) -> None:
    entry = RECORDED[name]
    snippet = Snippet(entry["text"], str(tmp_path))
    scope = started(snippet.main, snippet.startup, "float32")
    feeds = {key: recorded(value) for key, value in entry["feeds"].items()}
    if plain:
        read_back = Program.parse_from_string(snippet.main.serialize_to_string())
        env = Plan(read_back.desc, None, plain=True).run(scope, feeds)
        found = {key: env.read(key) for key in entry["values"]}
    else:
        results = ExecutorCore().run(snippet.main.desc, feeds, list(entry["values"]), scope, return_numpy=False)
        found = dict(zip(entry["values"], results, strict=True))
    for key, expected in entry["values"].items():
        if key not in FLUID_IS_WRONG.get(name, ()):
            np.testing.assert_allclose(
                numbers(found[key]), recorded(expected), rtol=1e-5, atol=1e-7, err_msg=f"{name}: {key}"
            )


def started(main: Program, startup: Program, dtype: str) -> Scope:
    """A scope in which parameters have their values."""
    scope = Scope()
    ExecutorCore().run(startup.desc, scope=scope)
    for param in main.all_parameters():
        scope.set(param.name, parameter(param.name, param.shape).astype(dtype))
    return scope


def check_numerically(build: Callable[[], Variable], feeds: dict[str, Any]) -> None:
    """Compare every parameter's gradient with the difference quotients of the loss that ``build`` returns, in float64."""
    with fresh_programs() as (main, startup):
        loss = build()
        pairs = fluid.backward.append_backward(loss)
        verify(main.desc, registry.find)
        scope, core = started(main, startup, "float64"), ExecutorCore()
        names = [loss.name, *(gradient.name for _, gradient in pairs)]
        _, *gradients = core.run(main.desc, feeds, names, scope)
        assert pairs
        for (param, _), gradient in zip(pairs, gradients, strict=True):
            value, numeric = scope.get(param.name), np.zeros(param.shape)
            for index in np.ndindex(*param.shape):
                ends = []
                for step in (1e-5, -1e-5):
                    moved = value.copy()
                    moved[index] += step
                    scope.set(param.name, moved)
                    ends.append(float(core.run(main.desc, feeds, [loss.name], scope)[0].item()))
                numeric[index] = (ends[0] - ends[1]) / 2e-5
            scope.set(param.name, value)
            np.testing.assert_allclose(numbers(gradient), numeric, rtol=1e-6, atol=1e-8, err_msg=param.name)


def data(name: str, shape: Sequence[int], lod_level: int = 0) -> Variable:
    return L.data(name, list(shape), append_batch_size=False, dtype="float64", lod_level=lod_level)


def weight(name: str, shape: Sequence[int]) -> Variable:
    return L.create_parameter(list(shape), "float64", name=name)


def counter(value: int) -> Variable:
    return L.fill_constant([1], "int64", value)


def loop(steps: int, body: Callable[[Variable], None]) -> None:
    """``body(i)`` for i = 0, 1, ...; i is counted up in place after it."""
    i, n = counter(0), counter(steps)
    goes_on = L.less_than(i, n)
    with L.While(goes_on).block():
        body(i)
        L.increment(i)
        L.less_than(i, n, cond=goes_on)


X = np.sin(np.arange(6.0)).reshape(2, 3)


def carried_by_while_loop() -> Variable:
    x, w = data("x", [2, 3]), weight("w", [3, 3])
    h = L.mul(x, weight("v", [3, 3]))
    _, h = L.while_loop(
        lambda i, h: L.less_than(i, counter(3)),
        lambda i, h: [L.increment(i, in_place=False), L.tanh(L.mul(h, w) + x)],
        [counter(0), h],
    )
    return L.mean(L.square(h))


def accumulated_in_place() -> Variable:
    x, w = data("x", [2, 3]), weight("w", [3, 3])
    h, total = L.mul(x, weight("v", [3, 3])), L.mul(x, weight("u", [3, 3]))
    loop(3, lambda i: L.sums([total, L.tanh(L.mul(h, w)) * L.cast(i, "float64")], out=total))
    return L.mean(L.square(total))


def first_entry_read_at_each_step() -> Variable:
    """An array of which every step reads the entry before and the first one, and of which the loss reads two."""
    x, w = data("x", [2, 3]), weight("w", [3, 3])
    zero = counter(0)
    zero.stop_gradient = True
    array = L.array_write(L.mul(x, weight("v", [3, 3])), zero)

    def body(i: Variable) -> None:
        new = L.tanh(L.mul(L.array_read(array, i), w) + L.array_read(array, zero))
        L.array_write(new, L.increment(i, in_place=False), array)

    loop(3, body)
    return L.mean(L.array_read(array, counter(3))) + L.mean(L.square(L.array_read(array, counter(1))))


def one_entry_overwritten() -> Variable:
    """An array as a variable: the same entry is read and written again."""
    x, w = data("x", [2, 3]), weight("w", [3, 3])
    zero = counter(0)
    array = L.array_write(L.mul(x, weight("v", [3, 3])), zero)
    loop(3, lambda i: void(L.array_write(L.tanh(L.mul(L.array_read(array, zero), w)), zero, array)))
    return L.mean(L.square(L.array_read(array, zero)))


def void(_: object) -> None: ...


def no_step_at_all() -> Variable:
    x, w = data("x", [2, 3]), weight("w", [3, 3])
    h = L.mul(x, weight("v", [3, 3]))
    loop(0, lambda i: void(L.assign(L.tanh(L.mul(h, w)), h)))
    return L.mean(L.square(h))


def cases_inside_a_loop() -> Variable:
    """Each step overwrites h in one of two ways, or leaves it."""
    x = data("x", [2, 3])
    h, u, w = L.mul(x, weight("v", [3, 3])), weight("u", [3, 3]), weight("w", [3, 3])

    def body(i: Variable) -> None:
        with L.Switch() as switch:
            with switch.case(L.equal(i, counter(0))):
                L.assign(L.tanh(L.mul(h, w)), h)
            with switch.case(L.equal(i, counter(2))):
                L.assign(L.mul(h, u) + x, h)

    loop(4, body)
    return L.mean(L.square(h))


def overwritten_by_a_case() -> Variable:
    x = data("x", [2, 3])
    out = L.mul(x, weight("v", [3, 3]))
    with L.Switch() as switch:
        with switch.case(L.less_than(counter(1), counter(2))):
            L.assign(L.tanh(L.mul(x, weight("w", [3, 3]))), out)
        with switch.default():
            L.assign(L.square(L.mul(x, weight("u", [3, 3]))), out)
    return L.mean(out)


def cond_inside_a_loop() -> Variable:
    x, w, u = data("x", [2, 3]), weight("w", [3, 3]), weight("u", [3, 3])

    def body(i: Variable, h: Variable) -> list[Variable]:
        odd = L.equal(L.elementwise_mod(i, counter(2)), counter(1))
        new = L.cond(odd, lambda: L.tanh(L.mul(h, w)), lambda: L.mul(h, u) * h)
        return [L.increment(i, in_place=False), new]

    _, h = L.while_loop(lambda i, h: L.less_than(i, counter(3)), body, [counter(0), L.mul(x, weight("v", [3, 3]))])
    return L.mean(h)


def loops_in_a_loop() -> Variable:
    x, w = data("x", [2, 3]), weight("w", [3, 3])
    h = L.mul(x, weight("v", [3, 3]))
    loop(2, lambda i: loop(2, lambda j: void(L.assign(L.tanh(L.mul(h, w)) + x, h))))
    return L.mean(L.square(h))


def outside(build: Callable[[], Variable]) -> Variable:
    """Build into the block around the current one."""
    with fluid.default_main_program().outside():
        return build()


def static_rnn_backwards() -> Variable:
    """Two memories, one that starts as a constant; one output that the loss does not read."""
    x = data("x", [3, 2, 4])
    network = L.StaticRNN()
    with network.step():
        step = network.step_input(x)
        one = network.memory(init=outside(lambda: L.mul(L.reduce_mean(x, 0), weight("v", [4, 4]))))
        two = network.memory(shape=[-1, 4], batch_ref=x, init_value=0.5)
        new_one = L.tanh(L.mul(one, weight("w", [4, 4])) + step)
        new_two = new_one * two + L.mul(step, weight("u", [4, 4]))
        network.update_memory(one, new_one)
        network.update_memory(two, new_two)
        network.output(new_two, L.square(new_one))
    out, _ = network()
    return L.mean(L.square(out))


def dynamic_rnn_of_two_levels() -> Variable:
    x = data("x", [-1, 3], lod_level=2)
    network = L.DynamicRNN()
    with network.block():
        step = network.step_input(outside(lambda: L.mul(x, weight("v", [3, 3]))))
        before = network.memory(shape=[3], value=0.1, dtype="float64")
        new = L.tanh(L.sequence_pool(step, "sum") + L.mul(before, weight("w", [3, 3])))
        network.update_memory(before, new)
        network.output(new)
    return L.mean(L.square(L.sequence_pool(network(), "last")))


def if_else_with_one_side_only() -> Variable:
    x = data("x", [2, 3])
    branch = L.IfElse(L.less_than(L.reduce_sum(x, 1, keep_dim=True), L.fill_constant([2, 1], "float64", 100.0)))
    with branch.true_block():
        branch.output(L.tanh(L.mul(branch.input(x), weight("w", [3, 3]))))
    with branch.false_block():
        branch.output(L.mul(branch.input(x), weight("v", [3, 3])))
    (merged,) = branch()
    return L.mean(L.square(merged))


PLAIN = {"x": X}
BUILDS: list[tuple[Callable[[], Variable], dict[str, Any]]] = [
    (carried_by_while_loop, PLAIN),
    (accumulated_in_place, PLAIN),
    (first_entry_read_at_each_step, PLAIN),
    (one_entry_overwritten, PLAIN),
    (no_step_at_all, PLAIN),
    (cases_inside_a_loop, PLAIN),
    (overwritten_by_a_case, PLAIN),
    (cond_inside_a_loop, PLAIN),
    (loops_in_a_loop, PLAIN),
    (static_rnn_backwards, {"x": np.sin(np.arange(24.0)).reshape(3, 2, 4)}),
    (
        dynamic_rnn_of_two_levels,
        {"x": LoDTensor(np.sin(np.arange(27.0)).reshape(9, 3), lod_from_lengths([[2, 1, 2], [2, 1, 3, 1, 2]]))},
    ),
    (if_else_with_one_side_only, PLAIN),
]


@pytest.mark.parametrize(("build", "feeds"), BUILDS, ids=[build.__name__ for build, _ in BUILDS])
def test_gradients_are_the_numeric_ones(build: Callable[[], Variable], feeds: dict[str, Any]) -> None:
    check_numerically(build, feeds)


def test_training_with_a_loop() -> None:
    """Variables that steps use again, released memory, in-place steps: the same losses as from a plain interpreter."""
    losses = []
    for in_place in (True, False):
        with fresh_programs() as (main, startup):
            x = data("x", [64, 64])
            w = weight("w", [64, 64])
            h = L.mul(x, weight("v", [64, 64]))
            loop(3, lambda i, h=h, w=w: void(L.assign(L.tanh(L.relu(L.mul(h, w)) + h), h)))  # type: ignore[misc]
            loss = L.mean(L.square(L.scale(h, 2.0)))
            fluid.optimizer.SGD(2.0).minimize(loss)
            scope = started(main, startup, "float64")
            core = ExecutorCore(in_place=in_place, passes=None if in_place else ())
            feed = {"x": np.sin(np.arange(4096.0)).reshape(64, 64)}
            losses.append([core.run(main.desc, feed, [loss.name, h.name], scope)[0].item() for _ in range(5)])
    assert losses[0] == losses[1]
    assert losses[0][-1] < losses[0][0] * 0.9


def test_the_loop_leaves_what_it_made() -> None:
    """After a run with gradients variables have the values of the forward run."""
    with fresh_programs() as (main, startup):
        x, w = data("x", [2, 3]), weight("w", [3, 3])
        h = L.mul(x, weight("v", [3, 3]))
        loop(2, lambda i: void(L.assign(L.tanh(L.mul(h, w)), h)))
        loss = L.mean(h)
        forward = main.clone(for_test=True)
        fluid.backward.append_backward(loss)
        scope, core = started(main, startup, "float64"), ExecutorCore()
        with_gradients = core.run(main.desc, {"x": X}, [h.name, loss.name], scope)
        alone = core.run(forward.desc, {"x": X}, [h.name, loss.name], scope)
        for mine, other in zip(with_gradients, alone, strict=True):
            np.testing.assert_array_equal(mine, other)


def refused(build: Callable[[], Variable], match: str) -> None:
    with fresh_programs() as (main, _):
        loss = build()
        before = main.desc.edits, len(main.desc.blocks)
        with pytest.raises(GradientError, match=match):
            fluid.backward.append_backward(loss)
        assert len(main.desc.blocks) == before[1]


def test_a_value_that_a_loop_overwrites_is_refused() -> None:
    def build() -> Variable:
        h = L.tanh(L.mul(data("x", [2, 3]), weight("v", [3, 3])))
        loop(2, lambda i: void(L.assign(L.scale(h, 2.0), h)))
        return L.mean(h)

    refused(build, r"op 'tanh' .* needs the value that variable 'tanh_0\.tmp_0' has there, but op 'while'")


def test_reading_what_a_step_overwrote_is_refused() -> None:
    def build() -> Variable:
        h, total = (L.mul(data("x", [2, 3]), weight(name, [3, 3])) for name in ("v", "u"))

        def body(i: Variable) -> None:
            L.assign(L.scale(h, 2.0), h)
            L.assign(total + h, total)

        loop(2, body)
        return L.mean(total)

    refused(build, r"'mul_0\.tmp_0' is overwritten in block 1 by op 'assign' .* and read there afterwards")


def test_an_op_without_gradient_inside_a_block_is_refused() -> None:
    def build() -> Variable:
        h = L.mul(data("x", [2, 3]), weight("v", [3, 3]))
        loop(2, lambda i: void(L.assign(L.sign(h) if registry.get("sign").grad is None else L.cast(h, "float64"), h)))
        return L.mean(h)

    if registry.get("sign").grad is None:
        refused(build, "op 'sign' has no gradient")


def test_a_second_pass_through_a_block_is_refused() -> None:
    with fresh_programs():
        loss = carried_by_while_loop()
        fluid.backward.append_backward(loss)
        with pytest.raises(GradientError, match="a second gradient pass through ops that run blocks"):
            fluid.backward.append_backward(L.mean(L.square(loss)))


def test_rank_tables_order_by_length() -> None:
    table = RankTable.of(((0, 2, 2, 5, 7),), 0)
    assert table.order == (2, 0, 3, 1)
    assert table.lengths == (3, 2, 2, 0)
    assert table.offsets() == (0, 2, 2, 5, 7)
    assert [table.longer(step) for step in range(4)] == [3, 3, 1, 0]


def network_with_blocks() -> Variable:
    """A DynamicRNN that looks words up inside its block, and a cond."""
    words = fluid.data("words", [None, 1], "int64", lod_level=1)
    network = L.DynamicRNN()
    with network.block():
        ids = network.step_input(words)
        rows = L.embedding(ids, [20, 4], is_sparse=True, param_attr="emb")
        before = network.memory(shape=[5], value=0.2)
        new = L.fc([rows, before], 5, act="tanh")
        network.update_memory(before, new)
        network.output(new)
    last = L.sequence_last_step(network())
    small = L.less_than(L.reduce_sum(last), L.fill_constant([1], "float32", 0.0))
    chosen = L.cond(small, lambda: L.fc(last, 2, param_attr="yes"), lambda: L.fc(last, 2, param_attr="no"))
    fluid.optimizer.SGD(0.5).minimize(loss := L.mean(L.square(chosen)))
    return loss


def test_a_job_with_blocks_trains_as_one_process() -> None:
    programs = Programs(network_with_blocks)
    words = LoDTensor((np.arange(6) * 7 % 20).reshape(6, 1), lod_from_lengths([[2, 3, 1]]))
    local = Local(programs)
    losses = [float(local.step({"words": words}).item()) for _ in range(4)]
    with closing(Cluster(programs, pservers=2)) as cluster:
        found = [float(cluster.step([{"words": words}])[0].item()) for _ in range(4)]
        assert_states(cluster.state(), local.state(), 1e-6)
    assert found == pytest.approx(losses, rel=1e-6)
    assert losses[-1] < losses[0]
