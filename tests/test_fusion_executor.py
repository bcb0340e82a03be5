"""Fusion as users meet it: which passes run, what errors and profiles show, what is compiled when, printed programs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import fluidlite as fluid
from fluidlite import cli, fusion
from fluidlite.core import text
from fluidlite.errors import (
    FetchError,
    FluidliteError,
    OutOfRangeError,
    ProgramError,
    ShapeError,
    TableError,
    UninitializedError,
)
from fluidlite.runtime import executor as runtime
from fluidlite.runtime.executor import ExecutorCore
from tests.frontend import fresh_programs

LAYER = "block 0\n  var x: [-1, 2] data\n  param w: [2, 3]\n  param b: [3]\n  var t: [-1, 3]\n  var o: [-1, 3]\n\n"
LAYER += "  mul(X=[x], Y=[w]) -> (Out=[t])\n  elementwise_add(X=[t], Y=[b]) -> (Out=[o])\n"


def passes() -> list[str]:
    return [step.__name__ for step in fusion.chosen()]


def test_the_environment_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLUIDLITE_FUSION", raising=False)
    assert passes() == list(fusion.NAMES)
    assert fusion.describe() == ", ".join(fusion.NAMES)
    for value, expected in {
        "": list(fusion.NAMES),
        "1": list(fusion.NAMES),
        "all": list(fusion.NAMES),
        "0": [],
        "updates, fc": ["fc", "updates"],
    }.items():
        monkeypatch.setenv("FLUIDLITE_FUSION", value)
        assert passes() == expected, value
    assert fusion.describe() == "fc, updates (FLUIDLITE_FUSION=updates, fc)"
    monkeypatch.setenv("FLUIDLITE_FUSION", "fc,conv")
    with pytest.raises(FluidliteError, match=r"environment variable FLUIDLITE_FUSION names 'conv'.* there are fetches"):
        fluid.Executor()
    assert fluid.Executor(fusion=False)._core._passes == ()


def test_an_executor_is_told() -> None:
    def chosen(choice: fusion.Choice) -> list[str]:
        return [step.__name__ for step in fluid.Executor(fusion=choice)._core._passes]

    assert chosen(False) == []
    assert chosen(True) == chosen("1") == list(fusion.NAMES)
    assert chosen("updates,fc") == chosen(["fc", "updates"]) == ["fc", "updates"]
    with pytest.raises(FluidliteError, match="fusion names 'fcs'"):
        fluid.Executor(fusion=["fcs"])


def labels(core: ExecutorCore, program: fluid.Program, feed: dict[str, object], fetch: list[str]) -> list[str]:
    """The ops of a run, as the profiler shows them."""
    with fluid.profiler.profile() as report:
        core.run(program.desc, feed, fetch, fluid.global_scope())
    return [event.op_type for event in report.events]


def test_the_profiler_shows_fused_ops_and_fetches_decide() -> None:
    with fresh_programs() as (main, startup), fluid.scope_guard(fluid.Scope()):
        out = fluid.layers.fc(fluid.data("x", [None, 2]), 3, act="relu")
        before = main.global_block().ops[-1].input("X")[0]
        core, feed = ExecutorCore(), {"x": np.ones((1, 2), np.float32)}
        core.run(startup.desc, scope=fluid.global_scope())
        assert labels(core, main, feed, [out.name]) == ["fc"]
        assert labels(core, main, feed, [before]) == ["fc", "relu"]
        assert labels(core, main, feed, [out.name]) == ["fc"]
        assert labels(ExecutorCore(passes=()), main, feed, [out.name]) == ["mul", "elementwise_add", "relu"]


def test_plans_are_kept_by_fetches_and_made_anew_after_an_edit(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    fuse = runtime.fuse

    def counting(*arguments: object) -> object:
        made.append(arguments)
        return fuse(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(runtime, "fuse", counting)
    with fresh_programs() as (main, _):
        x = fluid.data("x", [None, 2])
        outs = [fluid.layers.scale(x, float(factor)).name for factor in range(runtime._FETCHES + 1)]
        core = ExecutorCore()
        for _ in range(2):
            plans = [core.plan(main.desc, [name]) for name in outs[:-1]]
        assert len(made) == len(outs) - 1
        assert core.plan(main.desc, [outs[0], outs[1]]) is core.plan(main.desc, [outs[1], outs[0], outs[0]])
        assert core.plan(main.desc, [outs[-2]]) is plans[-1]
        assert len(core._plans[main.desc.uid].by_fetch) == runtime._FETCHES
        fluid.layers.scale(x, 3.0)
        assert core.plan(main.desc, [outs[-2]]) is not plans[-1]
        assert len(core._plans[main.desc.uid].by_fetch) == 1


def test_randomness_does_not_depend_on_the_plan() -> None:
    with fresh_programs() as (main, startup):
        x = fluid.data("x", [None, 8])
        dropped = fluid.layers.dropout(fluid.layers.fc(x, 8, act="relu"), 0.5)
        feed, draws = {"x": np.ones((4, 8), np.float32)}, []
        for fetches in (
            [[dropped]] * 3,
            [[dropped], [dropped, main.global_block().ops[0].output("Out")[0]], [dropped]],
        ):
            core, scope = ExecutorCore(), fluid.Scope()
            core.run(startup.desc, scope=scope)
            names = [[item if isinstance(item, str) else item.name for item in fetch] for fetch in fetches]
            draws.append([core.run(main.desc, feed, fetch, scope)[0].tobytes() for fetch in names])
    assert draws[0] == draws[1]
    assert len(set(draws[0])) == 3


def slots(layer: Callable[..., fluid.Variable], count: int = 3, **options: object) -> list[fluid.Variable]:
    ids = [fluid.data(f"ids{slot}", [None, 1], "int64") for slot in range(count)]
    return [layer(slot, [10, 2], param_attr="emb", **options) for slot in ids]


@pytest.mark.parametrize("side_by_side", [False, True])
def test_errors_in_fused_lookups_name_the_input_and_the_users_line(side_by_side: bool) -> None:
    with fresh_programs() as (main, startup), fluid.scope_guard(fluid.Scope()):
        found = slots(fluid.layers.embedding)
        out = fluid.layers.concat(found, axis=1) if side_by_side else fluid.layers.sums(found)
        exe = fluid.Executor()
        exe.run(startup)
        feed = {f"ids{slot}": np.zeros((4, 1), np.int64) for slot in range(3)}
        feed["ids1"][2] = 12
        with pytest.raises(OutOfRangeError) as caught:
            exe.run(main, feed, [out])
        feed["ids1"] = feed["ids1"].astype(np.int64)[:3] * 0
        with pytest.raises(ShapeError):
            exe.run(main, feed, [out])
    assert "id 12 at position 2 of 'ids1' is outside 'emb'" in str(caught.value)
    assert f"for {__file__}:" in str(caught.value)


def test_errors_in_fused_lookups_of_fetched_rows_name_the_input() -> None:
    program = text.parse(
        "block 0\n  var a: int64[-1, 1] data\n  var c: int64[-1, 1] data\n  var w: selected_rows [9, 2] data\n"
        "  var u: [-1, 2]\n  var v: [-1, 2]\n\n"
        "  lookup_table(Ids=[a], W=[w]) -> (Out=[u])\n  lookup_table(Ids=[c], W=[w]) -> (Out=[v])\n"
    )
    core, scope = ExecutorCore(), fluid.Scope()
    rows = fluid.SelectedRows(np.array([3, 5]), np.ones((2, 2), np.float32), 9)
    plan = core.plan(program, ["u", "v"])
    env = plan.run(scope, {"a": np.array([[3]]), "c": np.array([[5], [3]]), "w": rows}, ["u", "v"])
    assert env.read("v").shape == (2, 2)
    with pytest.raises(TableError, match="id 4 at position 1 of 'c' is not among the 2 fetched rows of 'w'"):
        plan.run(scope, {"a": np.array([[3]]), "c": np.array([[5], [4]]), "w": rows}, ["u", "v"])


def test_what_is_missing_is_named_as_without_fusion() -> None:
    with fresh_programs() as (main, startup), fluid.scope_guard(fluid.Scope()):
        block = main.global_block()
        ids = [block.create_var(name=f"made{slot}", shape=[-1, 1], dtype="int64") for slot in range(2)]
        rows = [fluid.layers.embedding(slot, [10, 2], param_attr="emb") for slot in ids]
        out = fluid.layers.fc(fluid.layers.sums(rows), 1)
        exe, one = fluid.Executor(), np.zeros((1, 1), np.int64)
        with pytest.raises(UninitializedError, match=r"'emb'.*was never written; run the startup program"):
            exe.run(main, {"made0": one, "made1": one}, [out])
        exe.run(startup)
        exe.run(main, {"made0": one, "made1": one}, [out])
        with pytest.raises(UninitializedError, match="Ids='made1' of op 'fused_lookup_table' was never written"):
            exe.run(main, {"made0": one}, [out])


def test_a_layer_that_fails_shows_the_users_line() -> None:
    with fresh_programs() as (main, startup), fluid.scope_guard(fluid.Scope()):
        x = fluid.data("x", [None, 2])
        out = fluid.layers.fc(x, 3, param_attr="w", act="relu")
        exe = fluid.Executor()
        exe.run(startup)
        fluid.global_scope().set("w", np.ones((4, 3), np.float32))
        with pytest.raises(ShapeError, match=rf"in op fc\((.|\n)*made at pass fc, for {__file__}:\d+"):
            exe.run(main, {"x": np.ones((1, 2), np.float32)}, [out])


def test_show_prints_what_runs() -> None:
    with fresh_programs() as (main, _):
        hidden = fluid.layers.fc(fluid.data("x", [None, 2]), 3, act="relu")
        fluid.optimizer.SGD(0.1).minimize(fluid.layers.mean(hidden))
    assert "fused_sgd(" in fusion.show(main)
    assert "mul(" not in fusion.show(main, [hidden])
    assert "fused_sgd(" not in fusion.show(main, [hidden], after="fc")
    assert "mul(" in fusion.show(main, ["fc_0.tmp_0"])
    assert fusion.show(main, fusion=False) == text.show(main.desc, brief=True)
    with pytest.raises(FetchError, match="'nothing'"):
        fusion.show(main, ["nothing"])
    with pytest.raises(ProgramError, match=r"'conv' is none of the passes fetches"):
        fusion.show(main, after="conv")


def test_the_command_line_shows_it(tmp_path: Path) -> None:
    path = tmp_path / "layer.txt"
    path.write_text(LAYER, encoding="utf-8")

    def shown(*options: str) -> str:
        done = CliRunner().invoke(cli.app, ["fuse", str(path), *options])
        assert done.exit_code == 0, done.output
        return done.output

    assert "fc(Input=[x], W=[w], Bias=[b]) -> (Out=[o])" in shown("--fetch", "o")
    assert "mul(" in shown("--fetch", "o", "--fetch", "t")
    assert "mul(" in shown("--after", "lookups")


def test_fed_parameters_stay_the_users() -> None:
    with fresh_programs() as (main, startup), fluid.scope_guard(fluid.Scope()):
        loss = fluid.layers.mean(fluid.layers.fc(fluid.data("x", [None, 2]), 3, param_attr="w", bias_attr="b"))
        fluid.optimizer.SGD(0.5).minimize(loss)
        exe = fluid.Executor()
        exe.run(startup)
        fed = {"w": np.ones((2, 3), np.float32), "b": np.ones(3, np.float32)}
        exe.run(main, {"x": np.ones((4, 2), np.float32), **fed}, [loss])
        trained = [np.array(fluid.global_scope().find_var(name).get_tensor()) for name in fed]
    for value, after in zip(fed.values(), trained, strict=True):
        np.testing.assert_array_equal(value, 1)
        assert not np.array_equal(after, value)
