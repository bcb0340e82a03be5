"""`DistributeTranspiler` behaves as Fluid's, whatever the order of calls and the process."""

from __future__ import annotations

import functools
import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fluidlite import clip, framework, layers, optimizer, regularizer, unique_name
from fluidlite.errors import ProgramError, TranspileError
from fluidlite.framework import Program
from fluidlite.layers import learning_rate_scheduler
from fluidlite.param_attr import ParamAttr
from fluidlite.transpiler import DistributeTranspiler, DistributeTranspilerConfig, HashName, explain
from fluidlite.transpiler.plan import Distribution, Storage

PSERVERS = "127.0.0.1:6174,127.0.0.1:6175"
FIRST, SECOND = PSERVERS.split(",")


def net(rate: Any = 0.1) -> framework.Variable:
    """Two distributed tables, an is_sparse embedding, an fc with bias, adam."""
    ids = layers.data("ids", [1], dtype="int64", lod_level=1)
    item = layers.data("item", [1], dtype="int64")
    tables = [
        layers.embedding(var, [1000, 4], is_sparse=True, is_distributed=True, param_attr=ParamAttr(name=name))
        for var, name in ((ids, "user_table"), (item, "item_table"))
    ]
    word = layers.embedding(item, [100, 4], is_sparse=True, param_attr=ParamAttr(name="word"))
    out = layers.fc([layers.sequence_pool(tables[0], "sum"), tables[1], word], 8, act="relu")
    loss = layers.mean(layers.fc(out, 1))
    optimizer.Adam(rate).minimize(loss)
    return loss


@functools.cache
def _built(build: Any) -> tuple[Program, Program]:
    main, startup = Program(), Program()
    with unique_name.guard(), framework.program_guard(main, startup):
        build()
    return main, startup


def programs(build: Any = net) -> tuple[Program, Program]:
    """(main, startup), the same ones at every call, as copies."""
    main, startup = _built(build)
    return main.clone(), startup.clone()


def transpile(
    build: Any = net, trainers: int = 2, trainer_id: int = 0, sync_mode: bool = True, **config: Any
) -> tuple[DistributeTranspiler, Program, Program]:
    """(transpiler, main, startup) with small blocks."""
    main, startup = programs(build)
    transpiler = DistributeTranspiler(DistributeTranspilerConfig(**{"min_block_size": 8, **config}))
    transpiler.transpile(
        trainer_id, main, pservers=PSERVERS, trainers=trainers, sync_mode=sync_mode, startup_program=startup
    )
    return transpiler, main, startup


def types(program: Program) -> list[str]:
    return [op.type for op in program.global_block().ops]


def test_the_programs_given_become_the_trainers() -> None:
    transpiler, main, startup = transpile()
    assert transpiler.get_trainer_program() is main
    assert transpiler.get_trainer_program(wait_port=False) is main
    assert "adam" not in types(main)
    assert types(main).count("send_barrier") == 1
    assert types(startup).count("fake_init") == 3
    assert "recv" in types(startup)


def test_default_programs_are_the_default() -> None:
    main, startup = programs()
    with framework.program_guard(main, startup):
        DistributeTranspiler().transpile(0, pservers=PSERVERS, trainers=1)
        assert "send" in types(framework.default_main_program())
        assert "recv" in types(framework.default_startup_program())


def test_a_refused_program_stays_as_it_was() -> None:
    main, startup = programs()
    before = str(main), str(startup)
    with pytest.raises(TranspileError, match="trainer_id"):
        DistributeTranspiler().transpile(7, main, pservers=PSERVERS, trainers=2, startup_program=startup)
    assert (str(main), str(startup)) == before
    assert main.distribution is None


def test_the_order_of_calls_does_not_matter() -> None:
    calls = {
        "trainer": lambda t: str(t.get_trainer_program()),
        "pserver": lambda t: str(t.get_pserver_program(FIRST)),
        "both": lambda t: "".join(map(str, t.get_pserver_programs(SECOND))),
        "startup": lambda t: str(t.get_startup_program(FIRST, t.get_pserver_program(FIRST), Program())),
    }
    results = []
    for order in itertools.permutations(calls):
        transpiler, main, startup = transpile()
        found = {name: calls[name](transpiler) for name in order}
        results.append((*(found[name] for name in calls), str(main), str(startup)))
    assert len(set(results)) == 1


def test_servers_do_not_depend_on_the_trainer() -> None:
    texts = {
        tuple(map(str, transpile(trainer_id=trainer)[0].get_pserver_programs(endpoint)))
        for trainer, endpoint in ((0, FIRST), (1, FIRST))
    }
    assert len(texts) == 1


def test_results_need_transpile() -> None:
    for call in (
        lambda t: t.get_trainer_program(),
        lambda t: t.get_pserver_program(FIRST),
        lambda t: t.get_startup_program(FIRST),
        lambda t: t.get_test_program(Program()),
    ):
        with pytest.raises(TranspileError, match="call transpile first"):
            call(DistributeTranspiler())


def test_an_unknown_endpoint() -> None:
    transpiler, _, _ = transpile()
    with pytest.raises(TranspileError, match=r"'127.0.0.1:1' is none of the endpoints"):
        transpiler.get_pserver_program("127.0.0.1:1")


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ("enable_dc_asgd", "enable_dc_asgd means something in async mode only, not in sync mode"),
        ("half_async", "half_async is for training that is not synchronous; set sync_mode=False"),
        ("geo_sgd_mode", "geo_sgd_mode is for training that is not synchronous; set sync_mode=False"),
    ],
)
def test_other_kinds_of_training_need_sync_mode_off(option: str, reason: str) -> None:
    with pytest.raises(TranspileError, match=reason):
        transpile(**{option: True})


@pytest.mark.parametrize(("argument", "config", "mode"), [(True, True, 0), (False, True, 1), (True, False, 1)])
def test_sync_mode_is_an_argument_and_an_option(argument: bool, config: bool, mode: int) -> None:
    main, startup = programs()
    transpiler = DistributeTranspiler(DistributeTranspilerConfig(sync_mode=config))
    transpiler.transpile(0, main, pservers=PSERVERS, sync_mode=argument, startup_program=startup)
    assert transpiler.get_pserver_program(FIRST).global_block().ops[0].attr("distributed_mode") == mode


def test_B001_a_distributed_embedding() -> None:
    transpiler, main, _ = transpile()
    (split, prefetch, concat, lookup) = types(main)[:4]
    assert [split, prefetch, concat, lookup] == ["split_ids", "prefetch", "concat", "lookup_table"]
    server = transpiler.get_pserver_program(FIRST)
    lookups = [op.input("W")[0] for block in server.blocks for op in block.ops if op.type == "lookup_sparse_table"]
    assert lookups == ["user_table", "item_table"]
    updated = [op.input("Param")[0] for block in server.blocks for op in block.ops if op.type == "adam"]
    assert updated[-2:] == ["user_table", "item_table"]


@pytest.mark.parametrize("build", [net, lambda: tiny([13, 1])])
def test_B006_every_server_has_the_learning_rate(build: Any) -> None:
    transpiler, _, _ = transpile(build)
    for endpoint in (FIRST, SECOND):
        main, startup = transpiler.get_pserver_programs(endpoint)
        assert main.global_block().var("learning_rate_0").persistable
        assert any("learning_rate_0" in op.output_arg_names for op in startup.global_block().ops)


def tiny(shape: list[int], name: str = "w") -> framework.Variable:
    """One parameter of any shape."""
    w = layers.create_parameter(shape, "float32", name=name)
    loss = layers.mean(layers.square(w))
    optimizer.SGD(0.1).minimize(loss)
    return loss


@pytest.mark.parametrize("shape", [[1], [7], [2, 1], [1, 1, 1]])
def test_B030_parameters_of_any_shape(shape: list[int]) -> None:
    transpiler, _, _ = transpile(lambda: tiny(shape), min_block_size=1)
    for endpoint in (FIRST, SECOND):
        transpiler.get_pserver_programs(endpoint)


def test_B031_a_name_that_begins_like_another() -> None:
    def build() -> None:
        ids = layers.data("ids", [1], dtype="int64")
        vectors = [
            layers.embedding(ids, [8, 4], param_attr=ParamAttr(name=name))
            for name in ("emb", "embedding_1.w_0", "emb.w")
        ]
        optimizer.SGD(0.1).minimize(layers.mean(layers.concat(vectors, axis=1)))

    transpiler, _, _ = transpile(build)
    found = []
    for endpoint in (FIRST, SECOND):
        startup = transpiler.get_startup_program(endpoint)
        made = [op.output_arg_names for op in startup.global_block().ops if op.type == "slice"]
        for op in startup.global_block().ops:
            if op.type == "slice":
                assert op.output("Out")[0].startswith(f"{op.input('Input')[0]}.block")
        found += [name for names in made for name in names]
    assert sorted(found) == [f"{name}.block{index}" for name in ("emb", "emb.w", "embedding_1.w_0") for index in (0, 1)]


def test_U04_tables_stay_in_the_list_of_parameters() -> None:
    transpiler, main, _ = transpile()
    expected = {"user_table": True, "item_table": True, "word": False}
    for program in (main, programs()[0]):
        found = {param.name: param.is_distributed for param in program.all_parameters()}
        assert expected.items() <= found.items()
    server = {param.name: param.is_distributed for param in transpiler.get_pserver_program(FIRST).all_parameters()}
    assert server["user_table"]


def test_a_test_clone_only_pulls() -> None:
    before, _ = programs()
    test_before = before.clone(for_test=True)
    transpiler, main, _ = transpile()
    for program in (main.clone(for_test=True), transpiler.get_test_program(test_before)):
        assert not {"send", "send_barrier", "recv", "split_byref"} & set(types(program))
        prefetches = [op for op in program.global_block().ops if op.type == "prefetch"]
        assert len(prefetches) == 3
        assert all(op.attr("is_test") for op in prefetches)
        assert not any("@GRAD" in name for name in program.global_block().vars)


def test_the_main_program_knows_its_distribution() -> None:
    _, main, _ = transpile()
    distribution = main.distribution
    assert isinstance(distribution, Distribution)
    assert str(Program(distribution.main)) == str(programs()[0])
    assert str(Program(distribution.startup)) == str(programs()[1])
    assert main.clone(for_test=True).distribution is distribution
    held = {held.name: held for held in distribution.plan.held()}
    assert held["user_table"].storage is Storage.ROWS
    assert held["user_table_moment1_0"].storage is Storage.ROWS
    assert held["learning_rate_0"].storage is Storage.COPIES
    word = held["word"]
    assert word.storage is Storage.SLICES
    assert [(piece.name, piece.first_row, piece.rows) for piece in word.pieces] == [
        ("word.block0", 0, 50),
        ("word.block1", 50, 50),
    ]
    assert [piece.name for piece in held["word_beta1_pow_acc_0"].pieces] == [
        "word_beta1_pow_acc_0.block0",
        "word_beta1_pow_acc_0.block1",
    ]
    persistable = {name for name, var in distribution.main.root.vars.items() if var.persistable}
    assert persistable == held.keys()


SCRIPT = """
import hashlib, sys
from tests.test_transpiler_facade import FIRST, SECOND, transpile
transpiler, main, startup = transpile(split_method=None)
programs = [main, startup, *transpiler.get_pserver_programs(FIRST), *transpiler.get_pserver_programs(SECOND)]
print([hashlib.sha256(program.serialize_to_string()).hexdigest() for program in programs])
print(transpiler.get_pserver_program(FIRST))
"""


def test_B010_every_process_makes_the_same_bytes() -> None:
    root = Path(__file__).parent.parent
    outputs = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            cwd=root,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(root)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "2", "31", "4711")
    }
    assert len(outputs) == 1


def test_hash_name_is_a_split_method() -> None:
    transpiler, main, _ = transpile(split_method=HashName)
    plan = main.distribution.plan
    assert {part.endpoint for param in plan.dense for part in param.slices} == {FIRST, SECOND}
    assert str(transpiler.get_pserver_program(FIRST)) != str(transpile()[0].get_pserver_program(FIRST))


def test_explain_shows_every_pass() -> None:
    _, main, _ = transpile()
    untouched, startup, plan = main.distribution.main, main.distribution.startup, main.distribution.plan
    for role in ("trainer", "pserver"):
        for name in explain.pass_names(role):
            assert "block 0" in explain.after(untouched, startup, plan, role, name)
    assert "lookup_table(Ids=[item], W=[word.rows0])" in explain.after(
        untouched, startup, plan, "trainer", "lower_lookups"
    )
    with pytest.raises(ProgramError, match="'listen' is no pass of the trainer; it has keep_on_trainer"):
        explain.after(untouched, startup, plan, "trainer", "listen")
    with pytest.raises(ProgramError, match="'worker' is no role"):
        explain.pass_names("worker")


def test_why_says_what_was_left_alone() -> None:
    _, main, _ = transpile()
    reasons = explain.why(main.distribution.plan)
    assert "send_gradients: fc_1.b_0: not sliced: shape [1] is less than two blocks of 8 elements" in reasons
    assert explain.why(main.distribution.plan, "lower_lookups") == []


def test_why_names_what_stays_on_the_trainer() -> None:
    def build() -> None:
        x = layers.data("x", [4])
        fixed = layers.fc(x, 4, param_attr=ParamAttr(name="fixed", trainable=False), bias_attr=False)
        loss = layers.mean(layers.fc(fixed, 2, param_attr=ParamAttr(name="w"), bias_attr=ParamAttr(name="b")))
        rate = learning_rate_scheduler.exponential_decay(0.1, 2, 0.5)
        layers.scale(rate, 2.0)
        clips = clip.GradientClipByGlobalNorm(1.0)
        decay = regularizer.L2Decay(0.1)
        optimizer.SGD(rate, grad_clip=clips, regularization=decay).minimize(loss)

    _, main, _ = transpile(build)
    reasons = explain.why(main.distribution.plan)
    assert "receive_parameters: fixed: nothing trains it: every trainer has its own copy" in reasons
    for start, end in (
        ("move_updates: elementwise_mul", "it sees each trainer's gradient"),
        ("keep_on_trainer: sum", "runs on the server of 'w', on the averaged gradient"),
        ("drop_updates: increment", "an op of the trainer reads this learning rate"),
    ):
        assert any(reason.startswith(start) and reason.endswith(end) for reason in reasons), start
    assert "increment" in types(main)


def test_inserted_ops_say_which_pass_made_them() -> None:
    _, main, startup = transpile()
    made = [
        op.desc.origin
        for program in (main, startup)
        for op in program.global_block().ops
        if op.type in ("recv", "send", "fake_init")
    ]
    assert made
    assert all(origin.startswith("pass ") for origin in made)
    prefetch = next(op for op in main.global_block().ops if op.type == "prefetch")
    assert prefetch.desc.origin.startswith(f"pass lower_lookups, for {__file__}:")
