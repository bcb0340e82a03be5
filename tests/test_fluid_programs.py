"""Programs that our front end builds for the snippets of `tests/program_snippets.py`, against those of real Fluid 1.8.5."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import fluidlite as fluid
from tests.golden_programs import Snippet, differences
from tests.oracle.record_programs import FOLDER, programs_of
from tests.program_snippets import SNIPPETS

ORACLE = os.environ.get("FLUIDLITE_ORACLE_PYTHON", "")


@pytest.fixture(autouse=True)
def fresh_programs() -> Iterator[None]:
    with fluid.unique_name.guard(), fluid.program_guard(fluid.Program(), fluid.Program()):
        yield


@pytest.mark.parametrize("name", SNIPPETS)
@pytest.mark.filterwarnings("default")
def test_our_program_is_that_of_fluid(name: str, tmp_path: Path) -> None:
    recorded = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    snippet = Snippet(SNIPPETS[name], str(tmp_path))
    found = differences(recorded["main"], snippet.main)
    found += [f"startup {line}" for line in differences(recorded["startup"], snippet.startup)]
    extra = snippet.names.get("extra", {})
    assert extra.keys() == recorded["extra"].keys()
    for key, program in recorded["extra"].items():
        found += [f"{key} {line}" for line in differences(program, extra[key])]
    assert not found, "\n".join(found)


def test_every_recording_has_a_snippet() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(SNIPPETS)


@pytest.mark.skipif(not ORACLE, reason="FLUIDLITE_ORACLE_PYTHON names no python with Fluid 1.8.5")
def test_fluid_makes_what_is_recorded() -> None:
    for name, made in programs_of(SNIPPETS, ORACLE).items():
        assert made == json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8")), name


def test_ftrl_keeps_its_own_l2() -> None:
    """Fluid 1.8.5 gives its op l1 for both."""
    x = fluid.data("x", [None, 2])
    fluid.optimizer.Ftrl(0.1, l1=0.1, l2=0.2).minimize(fluid.layers.mean(fluid.layers.fc(x, 1)))
    (first, _) = (op for op in fluid.default_main_program().desc.root.ops if op.type == "ftrl")
    assert (first.attr("l1"), first.attr("l2")) == (pytest.approx(0.1), pytest.approx(0.2))


def test_what_is_no_float_gets_no_gradient() -> None:
    """Fluid 1.8.5 appends casts of gradients to bool."""
    x = fluid.data("x", [None, 2])
    h = fluid.layers.fc(x, 2)
    loss = fluid.layers.mean(h * fluid.layers.cast(x < h, "float32"))
    fluid.backward.append_backward(loss)
    assert [op.type for op in fluid.default_main_program().desc.root.ops].count("cast") == 1


def test_a_recurrence_over_data_trains() -> None:
    """Fluid 1.8.5 wants a gradient of the step input."""
    x, y = fluid.data("x", [3, 2, 4]), fluid.data("y", [2, 4])
    rnn = fluid.layers.StaticRNN()
    with rnn.step():
        word = rnn.step_input(x)
        before = rnn.memory(shape=[-1, 4], batch_ref=word)
        hidden = fluid.layers.fc([word, before], 4)
        rnn.update_memory(before, hidden)
        rnn.step_output(hidden)
    loss = fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.reduce_sum(rnn(), 0), y))
    fluid.optimizer.SGD(0.05).minimize(loss)
    exe = fluid.Executor()
    feed = {"x": np.ones((3, 2, 4), np.float32), "y": np.ones((2, 4), np.float32)}
    with fluid.scope_guard(fluid.Scope()):
        exe.run(fluid.default_startup_program())
        first, *_, last = (exe.run(feed=feed, fetch_list=[loss])[0].item() for _ in range(5))
    assert last < first


def test_rows_and_empty_arrays_are_fetched() -> None:
    """Fluid 1.8.5 raises for SelectedRows, and gives None for an array without elements."""
    ids = fluid.data("ids", [None, 1], "int64")
    rows = fluid.layers.embedding(ids, [5, 2], is_sparse=True, param_attr="w")
    fluid.backward.append_backward(fluid.layers.reduce_sum(rows))
    exe, empty = fluid.Executor(), {"ids": np.zeros((0, 1), np.int64)}
    with fluid.scope_guard(fluid.Scope()):
        exe.run(fluid.default_startup_program())
        (gradient,) = exe.run(feed={"ids": np.array([[3], [1]])}, fetch_list=["w@GRAD"])
        (nothing,) = exe.run(feed=empty, fetch_list=[rows])
    assert (gradient.rows.tolist(), gradient.value.tolist()) == ([3, 1], [[1.0, 1.0]] * 2)
    assert nothing.shape == (0, 2)


def test_adam_counts_a_step_without_rows() -> None:
    """Fluid 1.8.5 leaves the powers of the betas as they are."""
    ids = fluid.data("ids", [None, 1], "int64")
    loss = fluid.layers.reduce_sum(fluid.layers.embedding(ids, [5, 2], is_sparse=True, param_attr="w"))
    fluid.optimizer.Adam(0.1).minimize(loss)
    exe, scope = fluid.Executor(), fluid.Scope()
    exe.run(fluid.default_startup_program(), scope=scope)
    exe.run(feed={"ids": np.zeros((0, 1), np.int64)}, scope=scope)
    np.testing.assert_allclose(scope.get("w_beta1_pow_acc_0"), [0.81], rtol=1e-6)
