"""The public names of the objects that scripts hold (programs, executors, scopes, ...) against ours.

What Fluid 1.8.5's have is in `fluid_values/attributes.json` (`tests/oracle/record_attributes.py`).
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Final

import pytest

import fluidlite as fluid
from fluidlite import framework
from fluidlite.compat.run import SITE
from fluidlite.core.ir import AttrType, OpRole
from fluidlite.errors import NotSupported, ProgramError
from fluidlite.transpiler import HashName, RoundRobin
from tests.frontend import fresh_programs
from tests.oracle.record_attributes import objects

FOUND: Final[dict[str, list[str]]] = json.loads(
    Path(__file__).with_name("fluid_values").joinpath("attributes.json").read_text(encoding="utf-8")
)
#: names of Fluid's own bookkeeping, which ours do without
WITHOUT: Final = {
    "Block": {"backward_block_idx", "removed_vars"},
    "Operator": {"OP_WITHOUT_KERNEL_SET"},
    "Variable": {"belong_to_optimizer"},
    "Parameter": {"belong_to_optimizer"},
    "Optimizer": {"helper"},
    "Executor": {
        "ctx_caches",
        "program_caches",
        "pruned_program_caches",
        "pruned_program_scope_caches",
        "scope_caches",
        "var_caches",
    },
    "DistributeTranspiler": {"counter_var", "distributed_mode", "server_config"},
    "InMemoryDataset": {
        "dataset",
        "enable_pv_merge",
        "filelist",
        "fleet_send_batch_size",
        "fleet_send_sleep_seconds",
        "is_user_set_queue_num",
        "merge_by_lineid",
        "merge_by_sid",
        "parse_content",
        "parse_ins_id",
        "parse_logkey",
        "proto_desc",
        "queue_num",
        "thread_num",
    },
    "QueueDataset": {"dataset", "filelist", "proto_desc", "thread_num"},
    # values that are no tensors are held as they are
    "scope variable": {
        "get_bytes",
        "get_fetch_list",
        "get_float",
        "get_int",
        "get_lod_rank_table",
        "get_lod_tensor_array",
        "get_reader",
        "is_float",
        "is_int",
        "set_float",
        "set_int",
        "set_scope",
    },
}


@pytest.fixture(scope="module")
def ours() -> dict[str, list[str]]:
    with pytest.MonkeyPatch.context() as patch, fluid.unique_name.guard(), fluid.scope_guard(fluid.Scope()):
        patch.syspath_prepend(str(SITE))
        package = importlib.import_module("paddle.fluid")
        return objects(package, importlib.import_module("paddle.fluid.transpiler.ps_dispatcher"))


@pytest.mark.parametrize("name", FOUND)
def test_names_that_fluid_has(name: str, ours: dict[str, list[str]]) -> None:
    assert set(FOUND[name]) - set(ours[name]) == WITHOUT.get(name, set())


def test_what_is_left_out_belongs_to_an_object() -> None:
    assert FOUND.keys() >= WITHOUT.keys()


@pytest.mark.parametrize("name", ["numpy", "detach", "backward", "gradient", "clear_gradient", "set_value"])
def test_methods_of_imperative_variables_name_themselves(name: str) -> None:
    with fresh_programs():
        x = fluid.data("x", [None, 2])
        with pytest.raises(NotSupported, match=rf"Variable\.{name} belongs to imperative mode.*{Path(__file__).name}"):
            getattr(x, name)()


@pytest.mark.parametrize("name", ["current_step_lr", "clear_gradients", "state_dict", "set_dict"])
def test_methods_of_imperative_optimizers_name_themselves(name: str) -> None:
    with pytest.raises(NotSupported, match=rf"Optimizer\.{name} belongs to imperative mode"):
        getattr(fluid.optimizer.SGD(0.1), name)({})


def test_what_a_program_tells_of_its_parts() -> None:
    with fresh_programs() as (main, _):
        x = fluid.data("x", [None, 2])
        y = fluid.layers.fc(x, 1)
        optimizer = fluid.optimizer.Momentum(0.1, 0.9)
        assert optimizer.get_opti_var_name_list() == []
        optimizer.minimize(fluid.layers.mean(y))
        block = main.global_block()
        with main._optimized_guard([y]):
            assert (framework.state.role, framework.state.role_var) == (OpRole.OPTIMIZE, (y.name,))
        with main._backward_role_guard():
            assert framework.state.role == OpRole.BACKWARD
    assert [op.idx for op in block.ops] == list(range(len(block.ops)))
    mul = block.ops[0]
    assert (mul.type, mul.attr_type("x_num_col_dims")) == ("mul", AttrType.INT)
    assert [param.name for param in block.iter_parameters()] == [param.name for param in block.all_parameters()]
    assert block._find_var_recursive("x") is x
    assert block._find_var_recursive("nobody") is None
    assert (optimizer.type, main.current_block_idx) == ("momentum", 0)
    assert sorted(optimizer.get_opti_var_name_list()) == ["fc_0.b_0_velocity_0", "fc_0.w_0_velocity_0"]
    assert (mul.to_string(True), block.to_string(True)) == (str(mul), str(block))
    block._remove_op(0)
    with pytest.raises(ProgramError, match="'mul' is no longer in block 0"):
        _ = mul.idx
    with pytest.raises(ProgramError, match="no attribute 'nothing'"):
        mul.attr_type("nothing")
    with pytest.raises(ProgramError, match="'x_num_col_dims' of op 'mul' names no block"):
        mul._block_attr_id("x_num_col_dims")


def test_the_seed_of_all_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framework.state, "seed", None)
    before, main = framework.Program(), framework.Program()
    main.global_seed(5)
    assert (before.random_seed, main.random_seed, framework.Program().random_seed) == (0, 5, 5)


def test_a_program_for_inference_keeps_its_training_ops() -> None:
    with fresh_programs() as (main, _):
        reader = fluid.layers.py_reader(2, [[-1, 2]], ["float32"])
        loss = fluid.layers.mean(fluid.layers.dropout(fluid.layers.fc(fluid.layers.read_file(reader), 1), 0.5))
        fluid.optimizer.SGD(0.1).minimize(loss)
    types = [op.type for op in main.global_block().ops]
    kept = [op.type for op in main._inference_optimize(prune_read_op=False).global_block().ops]
    found = main._inference_optimize().global_block()
    assert kept == types
    assert [op.type for op in found.ops] == [type for type in types if "read" not in type]
    assert [op.attr("is_test") for op in found.ops if op.type == "dropout"] == [True]
    assert not any(op.attr("is_test") for op in main.global_block().ops if op.type == "dropout")


def test_dispatchers_name_endpoints() -> None:
    names = ["a", "b", "c", "d", "e"]
    turns = RoundRobin(["one", "two"])
    assert (turns.dispatch("abc"), turns.dispatch("d")) == (["one", "two", "one"], ["two"])
    turns.reset()
    assert (turns.dispatch("a"), turns.eps) == (["one"], ["one", "two"])
    hashed = HashName(["one", "two"])
    assert hashed.dispatch(names) == [["one", "two"][index] for index in HashName.prefer(names, 2)]
    hashed.reset()
    with fresh_programs():
        assert hashed.dispatch([fluid.data(name, [1]) for name in names]) == hashed.dispatch(names)


def test_what_a_feeder_feeds() -> None:
    with fresh_programs():
        feeder = fluid.DataFeeder([fluid.data("x", [None, 2]), fluid.data("ids", [None, 1], "int64", lod_level=1)])
    assert feeder.feed_shapes == [(-1, 2), (-1, 1)]
    assert (feeder.feed_dtypes, feeder.feed_lod_level) == (["float32", "int64"], [0, 1])


@pytest.mark.parametrize("name", ["preprocess_instance", "postprocess_instance", "get_pv_data_size"])
def test_page_views_are_left_out(name: str) -> None:
    dataset = fluid.DatasetFactory().create_dataset("InMemoryDataset")
    with pytest.raises(NotSupported, match=f"{name}: lines are not grouped by page view"):
        getattr(dataset, name)()
    with pytest.raises(NotSupported, match="set_current_phase: lines"):
        dataset.set_current_phase(0)
    with pytest.raises(NotSupported, match="rows of tables are made where they are first looked up"):
        dataset.generate_local_tables_unlock(0, 8, 1, 1, 1)
