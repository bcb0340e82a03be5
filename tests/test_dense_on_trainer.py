"""`dense_on_trainer`: with one trainer, dense parameters stay on it, and nothing that can be measured changes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fluidlite as fluid
from fluidlite import layers
from fluidlite.errors import TranspileError
from fluidlite.transpiler import explain
from fluidlite.transpiler.plan import Plan
from tests.frontend import fresh_programs
from tests.random_programs import CLIPS, OPTIMIZERS, Model, models
from tests.test_dist_io import FEED, IDS, assert_same_files, build, run_locally
from tests.test_equivalence import STEPS, quick
from tests.training_jobs import Cluster, Local, Programs, State, assert_states, by_id, config_of, is_rows

ENDPOINTS = "a:1,b:1"


def whole_state(job: Cluster) -> State:
    """What servers hold, and every other persistable variable as the trainer has it."""
    trainer = job.inside.trainers[0]
    names = (name for name, var in trainer.main.distribution.main.root.vars.items() if var.persistable)
    own = {name: trainer.scope.get(name) for name in names}
    return {name: by_id(value) if is_rows(value) else value for name, value in own.items()} | job.state()


def check(model: Model, servers: int, batch: int, *, sync: bool) -> None:
    """The same losses and the same state in a local run, in the plain placement, and with dense on the trainer."""
    programs = Programs(model.build)
    local = Local(programs)
    feeds = [feed for (feed,) in model.feeds(STEPS, 1, batch)]
    losses = [local.step(feed) for feed in feeds]
    for dense_on_trainer in (False, True):
        with closing(Cluster(programs, servers, sync=sync, dense_on_trainer=dense_on_trainer)) as job:
            assert [job.step([feed])[0] for feed in feeds] == losses
            assert_states(whole_state(job), local.state())


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_training_is_that_of_one_process_bit_for_bit(optimizer: str) -> None:
    @quick
    @given(models(optimizer, tuple(CLIPS)), st.integers(1, 3), st.integers(1, 3), st.booleans())
    def property(model: Model, servers: int, batch: int, sync: bool) -> None:
        check(model, servers, batch, sync=sync)

    property()


@pytest.fixture
def net() -> Iterator[SimpleNamespace]:
    """The model of test_dist_io, alone in the default programs."""
    with fresh_programs():
        yield build()


def job_of(pservers: int = 2) -> fluid.LocalCluster:
    main, startup = fluid.default_main_program(), fluid.default_startup_program()
    return fluid.LocalCluster(main, startup, pservers, config=config_of(1, dense_on_trainer=True))


def plan_of(trainers: Any = 1, **options: Any) -> Plan:
    config = fluid.DistributeTranspilerConfig(**{"min_block_size": 1, "dense_on_trainer": True, **options})
    main, startup = fluid.default_main_program().clone(), fluid.default_startup_program().clone()
    fluid.DistributeTranspiler(config).transpile(0, main, ENDPOINTS, trainers, startup_program=startup)
    plan: Plan = main.distribution.plan
    return plan


@pytest.mark.parametrize("trainers", [2, 3, 0, None])
def test_more_than_one_trainer_or_an_unknown_number_is_refused(net: SimpleNamespace, trainers: Any) -> None:
    with pytest.raises(TranspileError, match=rf"dense_on_trainer needs exactly one trainer, not {trainers}: dense"):
        plan_of(trainers)


def test_only_rows_travel(net: SimpleNamespace) -> None:
    with job_of() as job:
        trainer = job.trainers[0]
        ops = [op for program in (trainer.main, trainer.startup) for op in program.global_block().ops]
        sent = [op.input("X") for op in ops if op.type == "send"]
        assert sent == [
            ["words_w@GRAD.block0", "words_w@GRAD.block1"],
            ["emb@GRAD.shard0", "emb@GRAD.shard1"],
        ]
        assert not [op for op in ops if op.type == "recv"]
        updated = [op.input("Param")[0] for op in ops if op.type == "adam"]
        assert sorted(updated) == ["fc_0.b_0", "fc_0.w_0", "fc_1.b_0", "fc_1.w_0"]
        for scope in job.scopes.values():
            assert scope.get("emb") is not None
            assert scope.get("fc_0.w_0") is None


def test_the_plan_says_what_stays_and_why(net: SimpleNamespace) -> None:
    plan = plan_of()
    assert sorted(plan.on_trainer) == ["fc_0.b_0", "fc_0.w_0", "fc_1.b_0", "fc_1.w_0"]
    assert [param.name for param in plan.dense] == ["words_w"]
    reason = "no server holds it: dense_on_trainer leaves it and its update to the only trainer"
    kept = [f"send_gradients: {name}: {reason}" for name in plan.on_trainer]
    assert [line for line in explain.why(plan) if "dense_on_trainer" in line] == kept
    assert "on_trainer=('fc_" in repr(plan)


def test_a_sparse_parameter_that_is_used_whole_stays_too() -> None:
    with fresh_programs():
        ids = fluid.data("ids", [None, 1], "int64")
        tied = layers.embedding(ids, [7, 3], is_sparse=True, param_attr=fluid.ParamAttr("tied"))
        weight = fluid.default_main_program().global_block().var("tied")
        fluid.optimizer.SGD(0.1).minimize(layers.mean(layers.matmul(tied, weight, transpose_y=True)))
        plan = plan_of()
    assert plan.on_trainer == ("tied",)
    assert any(line.startswith("lower_lookups: tied: not fetched by row: matmul") for line in explain.why(plan))


@pytest.mark.parametrize("pservers", [1, 3])
def test_the_files_are_those_of_a_local_run(net: SimpleNamespace, pservers: int, tmp_path: Path) -> None:
    run_locally(net, 3, tmp_path / "before")
    expected = run_locally(net, 2, tmp_path / "local", load=tmp_path / "before")
    with job_of(pservers) as job:
        trainer = job.trainers[0]
        with fluid.scope_guard(trainer.scope):
            fluid.io.load_persistables(trainer.executor, tmp_path / "before", trainer.main)
            losses = [job.run([FEED], [net.loss])[0][0] for _ in range(2)]
            fluid.io.save_persistables(trainer.executor, tmp_path / "job", trainer.main)
    np.testing.assert_array_equal(losses, expected)
    assert_same_files(tmp_path / "job", tmp_path / "local")


def test_a_test_program_sees_the_trainers_parameters(net: SimpleNamespace) -> None:
    inputs = {name: FEED[name] for name in ("ids", "words")}
    local = fluid.Executor()
    with fluid.scope_guard(fluid.Scope()), job_of() as job:
        local.run(fluid.default_startup_program())
        local.run(feed=FEED)
        expected = local.run(net.test_program, inputs, [net.predict])
        job.run([FEED])
        clone = job.trainers[0].main.clone(for_test=True)
        for program, feed in ((job.get_test_program(net.test_program), inputs), (clone, FEED)):
            assert not {op.type for op in program.global_block().ops} & {"adam", "send", "send_barrier"}
            actual = job.trainers[0].run(feed, [net.predict], program=program)
            np.testing.assert_array_equal(actual, expected)


def test_a_server_keeps_out_of_the_schedule_that_only_the_trainer_needs() -> None:
    with fresh_programs():
        table = layers.embedding(
            fluid.data("ids", [None, 1], "int64"), [9, 4], is_sparse=True, is_distributed=True, param_attr="emb"
        )
        loss = layers.mean(layers.fc(table, 1))
        optimizer = fluid.optimizer.SGD(layers.exponential_decay(0.1, 2, 0.5))
        pairs = optimizer.backward(loss)
        fluid.optimizer.SGD(0.5).apply_gradients([pair for pair in pairs if pair[0].name == "emb"])
        optimizer.apply_gradients([pair for pair in pairs if pair[0].name != "emb"])
        plan = plan_of()
        assert not any("LR_DECAY" in name for name in plan.shared)
        with job_of(1) as job:
            trainer = job.trainers[0]
            for _ in range(3):
                job.run([{"ids": IDS}])
            counters = [name for name in trainer.main.global_block().vars if "LR_DECAY" in name]
            assert [trainer.scope.get(name).tolist() for name in counters] == [[2]]
