"""Whichever passes run together, a program gives what it gives without any: bit for bit, locally and on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import fluidlite as fluid
from fluidlite import fusion
from fluidlite.dtypes import VarKind
from fluidlite.errors import FetchError, UninitializedError
from tests.random_programs import OPTIMIZERS, Model, models
from tests.tangled_programs import Tangle, tangles
from tests.test_equivalence import blocks, check_sync
from tests.test_fusion import bits, trained, written
from tests.training_jobs import Cluster, Local, Programs, assert_states, fused_by

passes = st.sets(st.sampled_from(fusion.NAMES)).map(sorted)
batches = st.sampled_from([0, 1, 2, 5])
everything = st.sampled_from(sorted(OPTIMIZERS)).flatmap(models)
#: without shrinking, which takes minutes here: a failing program is small enough to read
quick = settings(max_examples=150, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
few = settings(quick, max_examples=25)
thorough = settings(quick, max_examples=2000)


def from_bytes(main: fluid.Program) -> fluid.Program:
    return fluid.Program.parse_from_string(main.serialize_to_string())


FORMS: dict[str, Callable[[fluid.Program], fluid.Program]] = {
    "as it is": lambda main: main,
    "test program": lambda main: main.clone(for_test=True),
    "saved and loaded": from_bytes,
}


def check_local(tangle: Tangle, batch: int, choice: list[str], form: str, data: st.DataObject) -> None:
    programs = Programs(tangle.build)
    programs.main = FORMS[form](programs.main)
    fetch = data.draw(st.lists(st.sampled_from(written(programs.main)), max_size=3, unique=True))
    feeds = tangle.feeds(2, batch)
    assert trained(programs, feeds, choice, fetch) == trained(programs, feeds, False, fetch)


@quick
@given(tangles, batches, passes, st.sampled_from(sorted(FORMS)), st.data())
def test_any_passes_give_what_none_give(
    tangle: Tangle, batch: int, choice: list[str], form: str, data: st.DataObject
) -> None:
    check_local(tangle, batch, choice, form, data)


#: what a user does to a program between two runs: another variable stays, or is read by one more op, or is fetched
EDITS = ("keep", "read", "fetch")
edits = st.lists(st.tuples(st.sampled_from(EDITS), st.integers(0, 200)), min_size=1, max_size=3)


def edit(programs: Programs, kind: str, number: int) -> list[str]:
    """Edit the main program; the variables to fetch from now on."""
    block = programs.main.global_block()
    dtype = block.var("x").desc.dtype
    found = [block.desc.vars[name] for name in written(programs.main)]
    numbers = [var.name for var in found if var.dtype == dtype and var.kind is VarKind.LOD_TENSOR]
    var = block.var(numbers[number % len(numbers)])
    if kind == "keep":
        var.persistable = True
    elif kind == "read":
        with fluid.unique_name.guard(), fluid.program_guard(programs.main):
            var = fluid.layers.scale(var, 2.0, name=f"edit{number}")
    return [programs.loss] if kind == "keep" else [var.name]


def after_edits(tangle: Tangle, choice: fusion.Choice, changes: Sequence[tuple[str, int]], batch: int) -> list[Any]:
    """What one executor fetches between edits, and what stays in the end."""
    programs, scope, executor = Programs(tangle.build), fluid.Scope(), fluid.Executor(fusion=choice)
    executor.run(programs.startup, scope=scope)
    fetch, seen = [programs.loss], []
    for feed, (kind, number) in zip(tangle.feeds(len(changes) + 1, batch), [*changes, ("fetch", 0)], strict=True):
        try:
            seen.append(bits(executor.run(programs.main, feed, fetch, scope=scope, return_numpy=False)))
        except (FetchError, UninitializedError) as error:  # not all that ops name is written
            seen.append(type(error))
        fetch = edit(programs, kind, number)
    kept = [name for name, var in programs.main.desc.root.vars.items() if var.persistable]
    return [seen, [bits(scope.get(name)) for name in kept if scope.find_var(name) is not None]]


@few
@given(tangles, st.integers(1, 3), passes, edits)
def test_programs_that_are_edited_between_runs(
    tangle: Tangle, batch: int, choice: list[str], changes: list[tuple[str, int]]
) -> None:
    assert after_edits(tangle, choice, changes, batch) == after_edits(tangle, False, changes, batch)


def unfused(programs: Programs) -> Local:
    with fused_by():
        return Local(programs)


def fused(choice: Sequence[str]) -> Callable[..., Cluster]:
    """What makes a cluster whose trainers and servers run these passes."""

    def make(*arguments: Any, **options: Any) -> Cluster:
        with fused_by(*choice):
            return Cluster(*arguments, **options)

    return make


def check_one_trainer(
    model: Tangle | Model, feeds: list[dict[str, Any]], choice: list[str], servers: int, **options: bool
) -> None:
    """A trainer of which some passes run trains as an unfused process, bit for bit."""
    programs = Programs(model.build)
    local = unfused(programs)
    expected = [local.step(feed) for feed in feeds]
    with closing(fused(choice)(programs, servers, **options)) as cluster:
        np.testing.assert_array_equal([cluster.step([feed])[0] for feed in feeds], expected)  # NaN equals NaN
        assert_states(cluster.state(), local.state())


#: without what cannot be transpiled: tables looked up inside blocks
transpiled = tangles.filter(lambda tangle: not tangle.behind and all(name != "branch" for name, *_ in tangle.steps))
options = st.fixed_dictionaries({"sync": st.booleans(), "dense_on_trainer": st.booleans()})


@few
@given(transpiled, st.sampled_from([1, 2, 5]), passes, st.integers(1, 3), options)
def test_tangled_programs_on_a_cluster(
    tangle: Tangle, batch: int, choice: list[str], servers: int, options: dict[str, bool]
) -> None:
    check_one_trainer(tangle, tangle.feeds(3, batch), choice, servers, **options)


@few
@given(everything, st.integers(1, 3), passes, st.integers(1, 3), st.booleans())
def test_random_models_on_a_cluster(model: Model, batch: int, choice: list[str], servers: int, sync: bool) -> None:
    check_one_trainer(model, [feed for (feed,) in model.feeds(3, 1, batch)], choice, servers, sync=sync)


@few
@given(everything, passes, st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), blocks)
def test_trainers_together_train_as_one_unfused_process(
    model: Model, choice: list[str], servers: int, trainers: int, batch: int, block: int
) -> None:
    check_sync(fused(choice), model, servers, trainers, batch, block, unfused)


@pytest.mark.full
@pytest.mark.timeout(3600)
@thorough
@given(tangles, batches, passes, st.sampled_from(sorted(FORMS)), st.data())
def test_many_programs_give_what_they_give_unfused(
    tangle: Tangle, batch: int, choice: list[str], form: str, data: st.DataObject
) -> None:
    check_local(tangle, batch, choice, form, data)


@pytest.mark.full
@pytest.mark.timeout(3600)
@settings(thorough, max_examples=500)
@given(transpiled, st.sampled_from([1, 2, 5]), passes, st.integers(1, 3), options)
def test_many_programs_on_a_cluster(
    tangle: Tangle, batch: int, choice: list[str], servers: int, options: dict[str, bool]
) -> None:
    check_one_trainer(tangle, tangle.feeds(3, batch), choice, servers, **options)
