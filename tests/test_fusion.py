"""A fused program gives what the program gives: losses, parameters, tables, bit for bit, whichever passes run."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fluidlite as fluid
from fluidlite import fusion
from fluidlite.core import text
from fluidlite.core.verify import verify
from fluidlite.fusion.pipeline import NAMES
from fluidlite.ops import registry
from fluidlite.runtime.executor import ExecutorCore
from tests.fusion_programs import PROGRAMS, feeds
from tests.random_programs import OPTIMIZERS, Model, models
from tests.training_jobs import Cluster, Local, Programs, assert_states, by_id, is_rows

#: all passes, and each alone
CHOICES: list[fusion.Choice] = [True, *([name] for name in NAMES)]
some = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def trained(
    programs: Programs, batches: Sequence[dict[str, Any]], choice: fusion.Choice, fetch: Sequence[str] = ()
) -> tuple[list[Any], dict[str, Any]]:
    """What runs with some passes give: the variables asked for (None: not written), and every persistable one in the end,
    so that ``==`` compares them bit for bit."""
    scope, core, main = fluid.Scope(), ExecutorCore(passes=fusion.chosen(choice)), programs.main.desc
    core.run(programs.startup.desc, scope=scope)
    names, seen = [programs.loss, *fetch], []
    for feed in batches:
        env = core.plan(main, names).run(scope, core.check(main, feed, names), names)
        seen.append([bits(env.read(name)) for name in names])
    return seen, {name: bits(scope.get(name)) for name, var in main.root.vars.items() if var.persistable}


def bits(value: Any) -> Any:
    """A value in a form that ``==`` compares bit for bit; the rows of a table by id."""
    if isinstance(value, list):
        return [bits(item) for item in value]
    if isinstance(value, fluid.LoDTensor):
        return bits(value.array), value.lod
    if is_rows(value):
        return {id: bits(row) for id, row in sorted(by_id(value).items())}
    if isinstance(value, fluid.SelectedRows):
        return value.rows.tolist(), bits(value.value), value.height
    return (value.dtype, value.shape, value.tobytes()) if isinstance(value, np.ndarray) else value


def written(main: fluid.Program) -> list[str]:
    """The temporaries of block 0 that ops write."""
    root = main.desc.root
    names = dict.fromkeys(name for op in root.ops for name in op.output_arguments())
    return [name for name in names if name in root.vars and not root.vars[name].persistable]


@given(st.sampled_from(sorted(OPTIMIZERS)).flatmap(models), st.integers(0, 4))
@some
def test_random_models_train_the_same(model: Model, batch: int) -> None:
    programs = Programs(model.build)
    batches = [feed for (feed,) in model.feeds(3, 1, batch)]
    expected = trained(programs, batches, choice=False)
    for choice in CHOICES:
        assert trained(programs, batches, choice) == expected, choice


@given(st.sampled_from(sorted(OPTIMIZERS)).flatmap(models), st.data())
@some
def test_what_is_fetched_is_there_and_the_same(model: Model, data: st.DataObject) -> None:
    programs = Programs(model.build)
    fetch = data.draw(st.lists(st.sampled_from(written(programs.main)), max_size=4, unique=True))
    choice = data.draw(st.just(True) | st.lists(st.sampled_from(NAMES)))
    batches = [feed for (feed,) in model.feeds(2, 1, 3)]
    assert trained(programs, batches, choice, fetch) == trained(programs, batches, False, fetch)


def programs_of(name: str, dtype: str = "float64") -> Programs:
    return Programs(lambda: PROGRAMS[name](dtype))


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize(("dtype", "batch"), [("float32", 1), ("float32", 33), ("float64", 0), ("float64", 5)])
def test_programs_train_the_same(name: str, dtype: str, batch: int) -> None:
    programs = programs_of(name, dtype)
    batches = feeds(programs.main, batch)
    expected = trained(programs, batches, choice=False)
    for choice in CHOICES:
        assert trained(programs, batches, choice) == expected, choice


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_variable_fetched_alone_is_the_same(name: str) -> None:
    programs = programs_of(name)
    batches = feeds(programs.main, 3, steps=1)
    for variable in written(programs.main):
        found = trained(programs, batches, True, [variable])
        assert found == trained(programs, batches, False, [variable]), variable


@pytest.mark.parametrize("name", PROGRAMS)
def test_test_programs_give_the_same(name: str) -> None:
    programs = programs_of(name)
    batches = feeds(programs.main, 3)
    programs.main = programs.main.clone(for_test=True)
    assert trained(programs, batches, choice=True) == trained(programs, batches, choice=False)


@pytest.mark.parametrize("name", PROGRAMS)
def test_fused_programs_are_programs(name: str) -> None:
    programs = programs_of(name)
    before = text.show(programs.main.desc)
    fused = fusion.fuse(programs.main.desc, [programs.loss])
    assert text.show(programs.main.desc) == before
    assert len(fused.root.ops) < len(programs.main.desc.root.ops)
    verify(fused, registry.find)
    assert fusion.fuse(fused, [programs.loss]) is fused
    twin = fluid.Program.parse_from_string(fluid.Program(fused).serialize_to_string())
    batches = feeds(programs.main, 3)
    expected = trained(programs, batches, choice=False)
    programs.main = twin
    assert trained(programs, batches, choice=False) == expected


def test_every_pass_finds_something() -> None:
    programs = [programs_of(name).main.desc for name in PROGRAMS]
    for name in set(NAMES) - {"fetches"}:
        assert any(fusion.fuse(program, (), fusion.chosen([name])) is not program for program in programs), name


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("servers", [1, 2])
def test_fused_trainers_train_as_an_unfused_process(name: str, servers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = programs_of(name)
    batches = feeds(programs.main, 4)
    monkeypatch.setenv("FLUIDLITE_FUSION", "0")
    local = Local(programs)
    expected = [local.step(feed) for feed in batches]
    monkeypatch.delenv("FLUIDLITE_FUSION")
    with closing(Cluster(programs, servers)) as cluster:
        assert [cluster.step([feed])[0] for feed in batches] == expected
        assert_states(cluster.state(), local.state())
