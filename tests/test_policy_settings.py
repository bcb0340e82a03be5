"""From the fields of `DistributeTranspilerConfig` to the settings of a server, and what is refused on the way."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fluidlite as fluid
from fluidlite.core.ir import Operator
from fluidlite.errors import ProgramError, TranspileError
from fluidlite.ops import registry
from fluidlite.ops.modes import ATTRS, NAN_POLICIES, REDUCTIONS, Mode, Settings
from fluidlite.transpiler import DistributeTranspiler, DistributeTranspilerConfig


def dense_net() -> None:
    x = fluid.data("x", [None, 3], "float32")
    loss = fluid.layers.mean(fluid.layers.fc(x, 2, param_attr="w", bias_attr="b"))
    fluid.optimizer.SGD(0.1).minimize(loss)


def table_net(is_distributed: bool = True) -> None:
    ids = fluid.data("ids", [None, 1], "int64")
    row = fluid.layers.embedding(ids, [9, 2], is_sparse=True, is_distributed=is_distributed, param_attr="emb")
    fluid.optimizer.SGD(0.1).minimize(fluid.layers.mean(row))


def adadelta_net() -> None:
    x = fluid.data("x", [None, 3], "float32")
    fluid.optimizer.Adadelta(0.1).minimize(fluid.layers.mean(fluid.layers.fc(x, 2, param_attr="w")))


def listen(build: Any = dense_net, trainers: int = 2, sync_mode: bool = True, **config: Any) -> Operator:
    """The op that a server of a transpiled model listens by."""
    main, startup = fluid.Program(), fluid.Program()
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        build()
    transpiler = DistributeTranspiler(DistributeTranspilerConfig(**config))
    transpiler.transpile(0, main, "ps:1", trainers, sync_mode, startup)
    op: Operator = transpiler.get_pserver_program("ps:1").desc.root.ops[-1]
    return op


OFF = {"sync_mode": False}


@pytest.mark.parametrize(
    ("config", "settings"),
    [
        ({}, Settings()),
        ({"completely_not_async": True}, Settings()),
        (OFF, Settings(Mode.ASYNC)),
        (OFF | {"runtime_split_send_recv": True}, Settings(Mode.ASYNC)),
        (OFF | {"completely_not_async": True}, Settings()),
        (OFF | {"half_async": True, "completely_not_async": True}, Settings()),
        (OFF | {"half_async": True}, Settings(Mode.HALF_ASYNC)),
        (
            OFF | {"half_async": True, "runtime_split_send_recv": True, "max_merge_var_num": 7},
            Settings(Mode.HALF_ASYNC, max_merge_var_num=7),
        ),
        (OFF | {"geo_sgd_mode": True, "geo_sgd_need_push_nums": 10}, Settings(Mode.GEO)),
        (OFF | {"staleness": 0}, Settings(Mode.SSP)),
        (OFF | {"staleness": 4}, Settings(Mode.SSP, staleness=4)),
        (OFF | {"enable_dc_asgd": True}, Settings(Mode.ASYNC, dc_asgd=True)),
        ({"grads_to_wait": 1, "sync_version_tolerance": 0}, Settings(grads_to_wait=1, sync_version_tolerance=0)),
        ({"grads_to_wait": 9, "distinct_trainers": False}, Settings(grads_to_wait=9, distinct_trainers=False)),
        ({"sparse_grad_reduce": "sum", "nan_policy": "zero"}, Settings(sparse_grad_reduce="sum", nan_policy="zero")),
        ({"lr_from_trainer": True}, Settings(lr_from_trainer=True)),
        (OFF | {"lr_staleness_modulation": True}, Settings(Mode.ASYNC, lr_staleness_modulation=True)),
    ],
    ids=str,
)
def test_what_a_config_asks_for_reaches_the_server(config: dict[str, Any], settings: Settings) -> None:
    op = listen(**config)
    assert Settings.read(op) == settings
    said = {name for name in op.attrs if name in ATTRS}
    assert said - {"distributed_mode"} == set(settings.attributes()) - {"distributed_mode"}, "defaults are left out"


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"half_async": True}, "half_async is for training that is not synchronous; set sync_mode=False"),
        ({"geo_sgd_mode": True}, "geo_sgd_mode is for training that is not synchronous"),
        ({"staleness": 1}, "staleness is for training that is not synchronous"),
        ({"runtime_split_send_recv": True}, "runtime_split_send_recv is for training that is not synchronous"),
        (
            OFF | {"half_async": True, "geo_sgd_mode": True},
            "half_async and geo_sgd_mode are different kinds of training",
        ),
        (OFF | {"geo_sgd_mode": True, "staleness": 1}, "geo_sgd_mode and staleness are different kinds"),
        (
            OFF | {"geo_sgd_mode": True, "completely_not_async": True},
            "geo_sgd_mode and completely_not_async are different",
        ),
        (OFF | {"staleness": 1, "completely_not_async": True}, "staleness and completely_not_async are different"),
        (OFF | {"geo_sgd_mode": True, "geo_sgd_need_push_nums": 0}, "geo_sgd_need_push_nums must be at least 1, not 0"),
        (OFF | {"staleness": -1}, "staleness must be at least 0, not -1"),
        (OFF | {"half_async": True, "max_merge_var_num": 0}, "max_merge_var_num must be at least 1, not 0"),
        (
            OFF | {"max_merge_var_num": 3},
            "max_merge_var_num means something in half_async mode only, not in async mode",
        ),
        ({"enable_dc_asgd": True}, "enable_dc_asgd means something in async mode only, not in sync mode"),
        (OFF | {"half_async": True, "enable_dc_asgd": True}, "enable_dc_asgd means something in async mode only"),
        (OFF | {"grads_to_wait": 1}, "grads_to_wait means something in sync mode only, not in async mode"),
        (OFF | {"sync_version_tolerance": 1}, "sync_version_tolerance means something in sync mode only"),
        (OFF | {"distinct_trainers": False, "grads_to_wait": 1}, "distinct_trainers means something in sync mode only"),
        (
            {"lr_staleness_modulation": True},
            "lr_staleness_modulation means something in async or half_async or ssp mode only",
        ),
        (OFF | {"geo_sgd_mode": True, "lr_from_trainer": True}, "lr_from_trainer means something in sync or async"),
        ({"grads_to_wait": -1}, "grads_to_wait must be at least 0, not -1"),
        ({"grads_to_wait": 3}, r"grads_to_wait is 3, but the job has 2 trainer\(s\)"),
        ({"distinct_trainers": False}, "say by grads_to_wait how many"),
        ({"sync_version_tolerance": -2}, "sync_version_tolerance must be at least -1"),
        ({"sparse_grad_reduce": "max"}, "sparse_grad_reduce must be 'mean' or 'sum', not 'max'"),
        (
            {"sync_mode": False, "geo_sgd_mode": True, "nan_policy": "skip"},
            "nan_policy='skip' would leave out what a geo trainer sends for ever",
        ),
        ({"nan_policy": "ignore"}, "nan_policy must be 'error', 'skip', 'zero' or '' .none., not 'ignore'"),
    ],
    ids=str,
)
def test_what_contradicts_itself_is_refused(config: dict[str, Any], reason: str) -> None:
    with pytest.raises(TranspileError, match=reason):
        listen(**config)


def test_the_argument_of_transpile_turns_sync_off_as_the_field_does() -> None:
    assert Settings.read(listen(sync_mode=False, staleness=2)) == Settings(Mode.SSP, staleness=2)
    with pytest.raises(TranspileError, match="set sync_mode=False"):
        listen(sync_mode=True, staleness=2)


@pytest.mark.parametrize("build", [table_net, lambda: table_net(is_distributed=False)], ids=["table", "sparse"])
def test_delay_compensation_of_rows_is_refused_with_the_reason(build: Any) -> None:
    with pytest.raises(TranspileError, match=r"'emb' is .*, of which a trainer sees some rows only"):
        listen(build, sync_mode=False, enable_dc_asgd=True)


@pytest.mark.parametrize("field", ["lr_staleness_modulation", "lr_from_trainer"])
def test_an_optimizer_without_a_learning_rate(field: str) -> None:
    with pytest.raises(TranspileError, match=rf"{field} changes learning rates, but .*adadelta.* of 'w' has none"):
        listen(adadelta_net, sync_mode=False, **{field: True})


def test_names_of_delay_compensation_that_are_taken() -> None:
    def build() -> None:
        dense_net()
        fluid.layers.create_parameter([1], "float32", "w.trainer_1_bak")

    with pytest.raises(TranspileError, match=r"'w.trainer_1_bak', the name of 'w' as trainer 1 last saw it"):
        listen(build, sync_mode=False, enable_dc_asgd=True)


# --- the attributes -------------------------------------------------------------------------------------------------


def op_with(**attrs: Any) -> Operator:
    return Operator("listen_and_serv", attrs=registry.attrs_for(registry.get("listen_and_serv"), attrs))


def test_every_setting_is_an_attribute_with_the_same_default() -> None:
    assert {field.name: field.default for field in fields(Settings)[1:]} == {
        name: spec.default for name, spec in ATTRS.items() if name != "distributed_mode"
    }
    assert Settings.read(Operator("listen_and_serv")) == Settings()


SETTINGS = st.builds(
    Settings,
    mode=st.sampled_from(Mode),
    grads_to_wait=st.integers(0, 4),
    distinct_trainers=st.booleans(),
    sync_version_tolerance=st.integers(-1, 3),
    sparse_grad_reduce=st.sampled_from(REDUCTIONS),
    lr_staleness_modulation=st.booleans(),
    lr_from_trainer=st.booleans(),
    staleness=st.integers(0, 3),
    nan_policy=st.sampled_from(NAN_POLICIES),
    max_merge_var_num=st.sampled_from([20, 1]),
    dc_asgd=st.booleans(),
)


@given(SETTINGS, st.integers(1, 4))
def test_settings_are_read_as_they_were_written_or_refused(settings: Settings, trainers: int) -> None:
    op = op_with(**settings.attributes(), Fanin=trainers)
    reasons = list(settings.contradictions(trainers))
    if not reasons:
        assert Settings.read(op) == settings
        return
    with pytest.raises(ProgramError) as refused:
        Settings.read(op)
    assert all(reason in str(refused.value) for reason in reasons)


@pytest.mark.parametrize("mode", [-1, 5, 99])
def test_an_unknown_mode_is_refused(mode: int) -> None:
    with pytest.raises(ProgramError, match=rf"distributed_mode {mode} is none of 0 \(sync\), 1 \(async\)"):
        Settings.read(op_with(distributed_mode=mode))
