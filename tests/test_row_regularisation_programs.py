"""Modes and forms of regularisation, and constraints, in whole programs: local, on servers, refused, saved and loaded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
import fluidlite.layers as L
from fluidlite import optimizer
from fluidlite.constraint import Bounds, Constraint, MaxNorm, NonNegative
from fluidlite.core import text
from fluidlite.dtypes import Array
from fluidlite.errors import ProgramError
from fluidlite.framework import Program
from fluidlite.initializer import NumpyArrayInitializer
from fluidlite.optimizer import Optimizer
from fluidlite.param_attr import ParamAttr
from fluidlite.regularizer import ElasticNet, GroupL1, L1Decay, L2Decay, WeightDecayRegularizer
from tests.frontend import fresh_programs, op_types
from tests.row_reference import Reference
from tests.test_checkpoint_jobs import restore, save, writers_of

ROWS, WIDTH, STEPS = 10, 3, 40
START = np.random.default_rng(0).normal(0, 1, (ROWS, WIDTH)).astype(np.float32)
WEIGHT = np.random.default_rng(1).normal(0, 1, (12, 4)).astype(np.float32)
BOUNDARIES, RATES = [7, 20, 35], [0.3, 0.01, 0.0, 0.2]
#: as a program keeps it
L1, L2 = float(np.float32(0.01)), float(np.float32(0.1))
BETAS = float(np.float32(0.9)), float(np.float32(0.999))


def rate_of(step: int) -> float:
    return float(np.float32(RATES[np.searchsorted(BOUNDARIES, step, side="right")]))


def batches(trainers: int = 1) -> list[list[tuple[Array, Array]]]:
    """Per step and trainer (ids, gradients of their rows); rows 8 and 9 only in the first step, some steps without ids."""
    random = np.random.default_rng(2)
    found = []
    for step in range(STEPS):
        parts = []
        for _ in range(trainers):
            count = 0 if step % 5 == 3 else 4
            ids = random.integers(0, 8, count) if step else np.array([8, 9, 9, 0])
            parts.append((ids, random.normal(0, 0.5, (count, WIDTH)).astype(np.float32).astype(np.float64)))
        found.append(parts)
    return found


def build(
    make: Callable[..., Optimizer], *, sparse: bool = False, dtype: str = "float64", **attr: Any
) -> tuple[Program, Program]:
    with fresh_programs() as (main, startup):
        ids, c = L.data("ids", [1], dtype="int64"), L.data("c", [WIDTH], dtype=dtype)
        param = ParamAttr("emb", initializer=NumpyArrayInitializer(START), **attr)
        rows = L.embedding(ids, [ROWS, WIDTH], is_sparse=True, is_distributed=not sparse, param_attr=param, dtype=dtype)
        loss = L.reduce_sum(L.elementwise_mul(rows, c))
        make(L.piecewise_decay(BOUNDARIES, RATES)).minimize(loss)
    return main, startup


def feed_of(ids: Array, c: Array, dtype: str = "float64") -> dict[str, Array]:
    return {"ids": ids.reshape(-1, 1).astype(np.int64), "c": c.astype(dtype)}


def rows_in(scopes: Sequence[Any]) -> Array:
    """The rows of all ids, in order, of the shards of the table."""
    tables = [scope.get("emb") for scope in scopes]
    if isinstance(tables[0], np.ndarray):
        return np.array(tables[0])
    shards = [table.export() for table in tables]
    ids = np.concatenate([shard.rows for shard in shards])
    return np.concatenate([shard.value for shard in shards])[np.argsort(ids)]


def run_local(main: Program, startup: Program, first: int = 0, last: int = STEPS, scope: Any = None) -> Any:
    executor = fluid.Executor()
    if scope is None:
        scope = fluid.Scope()
        executor.run(startup, scope=scope)
    for (part,) in batches()[first:last]:
        executor.run(main, feed_of(*part), scope=scope)
    return scope


def run_cluster(main: Program, startup: Program, pservers: int, trainers: int = 1, sync: bool = True) -> Array:
    with fluid.LocalCluster(main, startup, pservers, trainers, sync) as cluster:
        for parts in batches(trainers):
            cluster.run([feed_of(*part) for part in parts])
        return rows_in(list(cluster.scopes.values()))


def expected(optimizer_name: str, trainers: int = 1, **penalty: Any) -> Array:
    plain = Reference(START, optimizer_name, **penalty)
    for step, parts in enumerate(batches(trainers)):
        sums = np.zeros((ROWS, WIDTH))
        for ids, c in parts:
            np.add.at(sums, ids, c / trainers)
        touched = np.unique(np.concatenate([ids for ids, _ in parts]))
        plain.step(rate_of(step), touched if len(touched) else None, sums[touched])
    return plain.value


def made(kind: str, regularization: WeightDecayRegularizer | None = None) -> Callable[..., Optimizer]:
    makers: dict[str, Callable[..., Optimizer]] = {
        "sgd": lambda rate: optimizer.SGD(rate, regularization=regularization),
        "momentum": lambda rate: optimizer.Momentum(rate, 0.5, regularization=regularization),
        "nesterov": lambda rate: optimizer.Momentum(rate, 0.5, use_nesterov=True, regularization=regularization),
        "adagrad": lambda rate: optimizer.Adagrad(rate, regularization=regularization),
        "adam": lambda rate: optimizer.AdamW(rate, weight_decay=0.1, decay_mode="lazy"),
        "ftrl": lambda rate: optimizer.Ftrl(rate, l1=0.01, l2=0.1, mode="lazy"),
    }
    return makers[kind]


LAZY: dict[str, tuple[str, WeightDecayRegularizer | None, dict[str, Any]]] = {
    "sgd l2": ("sgd", L2Decay(0.1, "lazy"), {"l2": L2}),
    "sgd l2 gradient": ("sgd", L2Decay(0.1, "lazy", form="gradient"), {"l2": L2, "form": "gradient"}),
    "sgd l2 factor": ("sgd", L2Decay(0.1, "lazy", form="multiplicative"), {"l2": L2, "form": "multiplicative"}),
    "sgd l1": ("sgd", L1Decay(0.01, "lazy"), {"l1": L1}),
    "sgd elastic net": ("sgd", ElasticNet(0.01, 0.1, "lazy"), {"l1": L1, "l2": L2}),
    "sgd group l1": ("sgd", GroupL1(0.01, "lazy"), {"l1": L1, "by_row": True}),
    "adagrad elastic net": ("adagrad", ElasticNet(0.01, 0.1, "lazy"), {"l1": L1, "l2": L2}),
    "adagrad l2 factor": ("adagrad", L2Decay(0.1, "lazy", form="multiplicative"), {"l2": L2, "form": "multiplicative"}),
    "adamw": ("adam", None, {"l2": L2, "form": "multiplicative", "betas": BETAS}),
    "momentum l2": ("momentum", L2Decay(0.1, "lazy"), {"l2": L2, "mu": 0.5}),
    "momentum l2 gradient": ("momentum", L2Decay(0.1, "lazy", "gradient"), {"l2": L2, "mu": 0.5, "form": "gradient"}),
    "nesterov l2": ("nesterov", L2Decay(0.1, "lazy"), {"l2": L2, "mu": 0.5}),
    "ftrl": ("ftrl", None, {"l1": L1, "l2": L2}),
}
CASES = pytest.mark.parametrize("case", LAZY)


def with_all_rows(main: Program, startup: Program) -> Any:
    """The scope after a local run that begins with all rows there, as the reference does."""
    executor, scope = fluid.Executor(), fluid.Scope()
    executor.run(startup, scope=scope)
    scope.get("emb").lookup(np.arange(ROWS))
    return run_local(main, startup, scope=scope)


@CASES
def test_lazy_rows_are_those_of_every_row_at_every_step(case: str) -> None:
    kind, decay, penalty = LAZY[case]
    scope = with_all_rows(*build(made(kind, decay)))
    np.testing.assert_allclose(rows_in([scope]), expected(kind, **penalty), rtol=1e-9, atol=1e-12)


@CASES
@pytest.mark.parametrize("pservers", [1, 3])
def test_servers_make_the_rows_of_a_local_run_bit_for_bit(case: str, pservers: int) -> None:
    kind, decay, _ = LAZY[case]
    main, startup = build(made(kind, decay))
    local = rows_in([run_local(main, startup)])
    assert run_cluster(main, startup, pservers).tobytes() == local.tobytes()


@pytest.mark.parametrize("sync", [True, False])
def test_async_servers_tick_once_per_step(sync: bool) -> None:
    main, startup = build(made("sgd", ElasticNet(0.01, 0.1, "lazy")))
    np.testing.assert_array_equal(run_cluster(main, startup, 2, sync=sync), rows_in([run_local(main, startup)]))


@CASES
def test_two_trainers_on_three_servers(case: str) -> None:
    kind, decay, _ = LAZY[case]
    main, startup = build(made(kind, decay))
    executor, scope = fluid.Executor(), fluid.Scope()
    executor.run(startup, scope=scope)
    for parts in batches(2):
        ids, c = np.concatenate([ids for ids, _ in parts]), np.concatenate([c for _, c in parts])
        executor.run(main, feed_of(ids, c / 2), scope=scope)
    np.testing.assert_allclose(run_cluster(main, startup, 3, 2), rows_in([scope]), rtol=1e-9, atol=1e-13)


@CASES
def test_C39_saved_in_the_middle_and_loaded(case: str, tmp_path: Path) -> None:
    kind, decay, _ = LAZY[case]
    main, startup = build(made(kind, decay))
    executor, half = fluid.Executor(), 23
    scope = run_local(main, startup, last=half)
    with fluid.scope_guard(scope):
        fluid.io.save_persistables(executor, str(tmp_path), main)
    run_local(main, startup, half, scope=scope)
    loaded = fluid.Scope()
    executor.run(startup, scope=loaded)
    with fluid.scope_guard(loaded):
        fluid.io.load_persistables(executor, str(tmp_path), main)
    run_local(main, startup, half, scope=loaded)
    assert rows_in([loaded]).tobytes() == rows_in([scope]).tobytes()


@CASES
@pytest.mark.parametrize(("before", "after"), [(1, 3), (2, 1)])
def test_C39_a_checkpoint_goes_on_bit_for_bit_on_other_servers(
    case: str, before: int, after: int, tmp_path: Path
) -> None:
    """A full checkpoint, then one of what changed since, for rows change by decay alone."""
    kind, decay, _ = LAZY[case]
    program, half = build(made(kind, decay)), 23
    with fluid.LocalCluster(*program, before, 1) as job:
        writers = writers_of(job, tmp_path)
        for step, parts in enumerate(batches()):
            if step in (half - 3, half):
                save(job, tmp_path, writers, step)
            job.run([feed_of(*part) for part in parts])
        expected_rows = rows_in(list(job.scopes.values()))
    with fluid.LocalCluster(*program, after, 1) as job:
        restore(job, tmp_path)
        for parts in batches()[half:]:
            job.run([feed_of(*part) for part in parts])
        assert rows_in(list(job.scopes.values())).tobytes() == expected_rows.tobytes()


@CASES
def test_geo_of_one_trainer(case: str) -> None:
    """The trainer's rows decay by its local steps, and the last exchange takes them all to the servers."""
    kind, decay, _ = LAZY[case]
    main, startup = build(made(kind, decay))
    config = fluid.DistributeTranspilerConfig()
    config.geo_sgd_mode, config.geo_sgd_need_push_nums, config.sync_mode = True, 4, False
    job = fluid.LocalCluster(main, startup, 2, 1, False, config)
    with job:
        for parts in batches():
            job.run([feed_of(*part) for part in parts])
    np.testing.assert_allclose(rows_in(list(job.scopes.values())), rows_in([run_local(main, startup)]), rtol=1e-12)


def test_a_lookup_reads_decayed_rows() -> None:
    main, startup = build(made("sgd", L2Decay(0.1, "lazy")))
    scope = with_all_rows(main, startup)
    test = main.clone(for_test=True)
    (out,) = fluid.Executor().run(
        test, feed_of(np.arange(ROWS), np.zeros((ROWS, WIDTH))), [_output_of_lookup(test)], scope=scope
    )
    np.testing.assert_array_equal(out, rows_in([scope]))


def _output_of_lookup(program: Program) -> str:
    return next(op.output("Out") or "" for op in program.desc.root.ops if op.type == "lookup_table")


# modes that look at every row, or only at those of the step


DENSE: dict[str, tuple[str, WeightDecayRegularizer, dict[str, Any]]] = {
    "l2 gradient": ("sgd", L2Decay(0.1, "dense"), {"l2": L2, "form": "gradient"}),
    "l2": ("sgd", L2Decay(0.1, "dense", "proximal"), {"l2": L2}),
    "elastic net": ("adagrad", ElasticNet(0.01, 0.1, "dense"), {"l1": L1, "l2": L2}),
    "group l1": ("sgd", GroupL1(0.01, "dense"), {"l1": L1, "by_row": True}),
    "momentum l2": ("momentum", L2Decay(0.1, "dense", "proximal"), {"l2": L2, "mu": 0.5}),
    "momentum l2 gradient": ("momentum", L2Decay(0.1, "dense"), {"l2": L2, "mu": 0.5, "form": "gradient"}),
}


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("case", DENSE)
def test_dense_mode_is_the_reference(case: str, sparse: bool) -> None:
    kind, decay, penalty = DENSE[case]
    main, startup = build(made(kind, decay), sparse=sparse)
    scope = run_local(main, startup) if sparse else with_all_rows(main, startup)
    np.testing.assert_allclose(rows_in([scope]), expected(kind, **penalty), rtol=1e-9, atol=1e-12)
    for pservers in (1, 2):
        served = run_cluster(main, startup, pservers)
        assert served.tobytes() == rows_in([run_local(main, startup)]).tobytes()


TOUCHED: dict[str, WeightDecayRegularizer] = {
    "l2 gradient": L2Decay(0.1, "touched"),
    "l1 gradient": L1Decay(0.01, "touched"),
    "l2": L2Decay(0.1, "touched", "proximal"),
    "l2 factor": L2Decay(0.1, "touched", "multiplicative"),
    "elastic net": ElasticNet(0.01, 0.1, "touched"),
    "group l1": GroupL1(0.01, "touched"),
}


@pytest.mark.parametrize("case", TOUCHED)
def test_touched_mode_is_the_same_for_tables_and_sparse_parameters(case: str) -> None:
    """And moves no row but those of the step; on servers too."""
    results = {}
    for sparse in (False, True):
        main, startup = build(made("sgd", TOUCHED[case]), sparse=sparse)
        results[sparse] = rows_in([run_local(main, startup)])
        assert run_cluster(main, startup, 2).tobytes() == results[sparse].tobytes()
    assert results[False].tobytes() == results[True].tobytes()
    first, c = batches()[0][0]
    step = np.zeros((2, WIDTH))
    np.add.at(step, first[:3] - 8, c[:3])
    if case == "l2":
        rate = rate_of(0)
        np.testing.assert_allclose(results[True][8:], (START[8:] - rate * step) / (1 + rate * L2), rtol=1e-12)


@pytest.mark.parametrize("case", ["l2 gradient", "l2", "l2 factor", "elastic net"])
def test_a_dense_parameter_decays_whole_in_every_mode(case: str) -> None:
    values = []
    for mode in ("touched", "dense", "lazy"):
        decay = TOUCHED[case]
        same = ElasticNet(0.01, 0.1, mode) if isinstance(decay, ElasticNet) else L2Decay(0.1, mode, form=decay.form)
        with fresh_programs() as (main, startup):
            x = L.data("x", [4])
            y = L.fc(x, 3, param_attr=ParamAttr("w", regularizer=same), bias_attr=False)
            optimizer.Adam(0.1).minimize(L.reduce_sum(y))
        scope, executor = fluid.Scope(), fluid.Executor()
        executor.run(startup, scope=scope)
        for _ in range(3):
            executor.run(main, {"x": np.ones((2, 4), np.float32)}, scope=scope)
        values.append(np.array(scope.get("w")))
    assert values[0].tobytes() == values[1].tobytes() == values[2].tobytes()


@pytest.mark.parametrize("pservers", [1, 3])
@pytest.mark.parametrize("decay", [GroupL1(0.01), ElasticNet(0.01, 0.1), L2Decay(0.1, form="multiplicative")])
def test_slices_of_a_dense_parameter_decay_on_their_servers(decay: WeightDecayRegularizer, pservers: int) -> None:
    with fresh_programs() as (main, startup):
        x = L.data("x", [12])
        attr = ParamAttr("w", regularizer=decay, constraint=MaxNorm(0.5), initializer=NumpyArrayInitializer(WEIGHT))
        L.fc(x, 4, param_attr=attr, bias_attr=ParamAttr("b", regularizer=decay))
        optimizer.AdamW(0.1).minimize(L.reduce_sum(L.square(main.global_block().var("fc_0.tmp_1"))))
    config = fluid.DistributeTranspilerConfig()
    config.min_block_size = 4
    feeds = [{"x": np.random.default_rng(step).normal(0, 1, (2, 12)).astype(np.float32)} for step in range(5)]
    scope, executor = fluid.Scope(), fluid.Executor()
    executor.run(startup, scope=scope)
    with fluid.LocalCluster(main, startup, pservers, 1, config=config) as cluster:
        for feed in feeds:
            executor.run(main, feed, scope=scope)
            cluster.run([feed])
        for name in ("w", "b"):
            assert np.array(cluster.trainers[0].scope.get(name)).tobytes() == np.array(scope.get(name)).tobytes()
    assert (np.linalg.norm(scope.get("w"), axis=1) < 0.5 + 1e-6).all()


# programs in files


@CASES
def test_a_program_read_from_a_file_trains_the_same(case: str) -> None:
    kind, decay, _ = LAZY[case]
    main, startup = build(made(kind, decay), constraint=Bounds(-2.0, 2.0))
    read = [Program.parse_from_string(program.serialize_to_string()) for program in (main, startup)]
    assert text.parse(text.show(main.desc)).blocks == main.desc.blocks
    assert rows_in([run_local(*read)]).tobytes() == rows_in([run_local(main, startup)]).tobytes()


# lazy rows of an is_sparse parameter


@CASES
def test_a_sparse_parameter_becomes_a_table(case: str) -> None:
    kind, decay, _ = LAZY[case]
    results = [rows_in([run_local(*build(made(kind, decay), sparse=sparse))]) for sparse in (False, True)]
    assert results[0].tobytes() == results[1].tobytes()


def test_a_sparse_parameter_that_is_a_table_is_served() -> None:
    main, startup = build(made("sgd", L2Decay(0.1, "lazy")), sparse=True)
    assert run_cluster(main, startup, 2).tobytes() == rows_in([run_local(main, startup)]).tobytes()


def test_a_sparse_parameter_that_other_ops_read_is_refused() -> None:
    with fresh_programs() as (main, _):
        ids = L.data("ids", [1], dtype="int64")
        rows = L.embedding(ids, [4, 2], is_sparse=True, param_attr="emb")
        loss = L.reduce_sum(rows)
        L.reduce_sum(main.global_block().var("emb")).stop_gradient = True
        with pytest.raises(ProgramError, match="reduce_sum uses it"):
            optimizer.SGD(0.1, regularization=L2Decay(0.1, "lazy")).minimize(loss)


# refusals


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda d: optimizer.Adagrad(0.1, regularization=d("gradient")), "enters the accumulator.*'proximal' is exact"),
        (lambda d: optimizer.Adam(0.1, regularization=d("gradient")), "enters both moments.*use AdamW"),
        (lambda d: optimizer.Adam(0.1, regularization=d("proximal")), "use AdamW"),
        (lambda d: optimizer.Momentum(0.1, 0.9, regularization=d("multiplicative")), "velocity's step"),
        (lambda d: optimizer.Momentum(0.1, 0.9, regularization=L1Decay(0.1, "lazy")), "changes its sign"),
        (lambda d: optimizer.Momentum(0.1, 0.9, regularization=GroupL1(0.1, "lazy")), "changes its sign"),
        (lambda d: optimizer.SGD(0.1, regularization=L1Decay(0.1, "lazy", form="gradient")), "subgradient"),
        (lambda d: optimizer.Ftrl(0.1, regularization=d("proximal")), r"Ftrl\(l1=, l2=, mode='lazy'\)"),
        (lambda d: optimizer.Adamax(0.1, regularization=d("proximal")), "no closed form"),
        (lambda d: optimizer.RMSProp(0.1, regularization=d("proximal")), "no closed form"),
        (lambda d: optimizer.Adadelta(0.1, regularization=d("proximal")), "no closed form"),
        (lambda d: optimizer.DecayedAdagrad(0.1, regularization=d("proximal")), "no closed form"),
    ],
)
def test_what_is_not_exact_is_refused_with_its_reason(
    make: Callable[..., Optimizer], reason: str, sparse: bool
) -> None:
    with pytest.raises(ProgramError, match=f"'emb' lazily.*{reason}"):
        build(lambda _: make(lambda form: L2Decay(0.1, "lazy", form=form)), sparse=sparse)


def test_norms_of_the_whole_parameter_are_refused() -> None:
    with pytest.raises(ProgramError, match="norm of the whole parameter"):
        build(lambda rate: optimizer.Lamb(rate, regularization=L2Decay(0.1, "lazy")))


def test_arguments_are_checked() -> None:
    with pytest.raises(ProgramError, match="mode must be"):
        L2Decay(0.1, "sometimes")  # type: ignore[arg-type]
    with pytest.raises(ProgramError, match="form must be one of gradient, proximal"):
        L1Decay(0.1, form="multiplicative")
    with pytest.raises(ProgramError, match="l2 must be a number"):
        ElasticNet(0.1, "x")  # type: ignore[arg-type]
    with pytest.raises(ProgramError, match="'touched' or 'lazy'"):
        optimizer.Ftrl(0.1, mode="dense")  # type: ignore[arg-type]
    for make in (fluid.regularizer.L1Decay, fluid.regularizer.L2Decay, fluid.regularizer.GroupL1):
        with pytest.raises(ProgramError, match="regularization_coeff must be finite, in float32 too, not nan"):
            make(float("nan"))
        with pytest.raises(ProgramError, match="finite, in float32 too, not 1"):
            make(10**400)
    with pytest.raises(ProgramError, match=r"l1 must be at least 0, not -1\.0: a proximal step only shrinks"):
        fluid.regularizer.ElasticNet(-1.0, 1.0)
    with pytest.raises(ProgramError, match="must be at least 0"):
        fluid.regularizer.GroupL1(-1.0)


def test_a_rate_below_zero_is_refused_when_it_comes() -> None:
    main, startup = build(lambda _: optimizer.SGD(-0.1, regularization=L2Decay(0.1, "lazy")))
    with pytest.raises(fluid.errors.FluidliteError, match="learning rate"):
        run_local(main, startup, last=1)


@pytest.mark.parametrize("decay", [L1Decay(0.1), L2Decay(0.1)])
def test_defaults_append_what_they_always_did(decay: WeightDecayRegularizer) -> None:
    tables = op_types(build(made("sgd", decay))[0])
    assert [type for type in tables if "rows" in type or "sparse" in type] == [
        "merge_selected_rows",
        "extract_rows",
        "lookup_sparse_table",
    ]
    assert not {"decay_rows", "table_rows", "constrain_rows"} & set(op_types(build(made("sgd", decay), sparse=True)[0]))


# constraints


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("pservers", [0, 2])
@pytest.mark.parametrize(
    ("constraint", "holds"),
    [
        (MaxNorm(0.5), lambda rows: np.linalg.norm(rows, axis=1) <= 0.5 + 1e-12),
        (NonNegative(), lambda rows: (rows >= 0).all(axis=1)),
        (Bounds(-0.25, 0.125), lambda rows: ((rows >= -0.25) & (rows <= 0.125)).all(axis=1)),
    ],
)
def test_a_constraint_holds_the_rows_of_a_step(
    constraint: Constraint, holds: Callable[[Array], Array], pservers: int, sparse: bool
) -> None:
    main, startup = build(made("adagrad"), sparse=sparse, constraint=constraint)
    rows = run_cluster(main, startup, pservers) if pservers else rows_in([run_local(main, startup)])
    assert holds(rows).all()
    assert not holds(START.astype(np.float64)).all()


def test_a_constraint_sees_the_decayed_row_and_leaves_others_alone() -> None:
    decay = L1Decay(0.01, "lazy")
    main, startup = build(made("sgd", decay), constraint=Bounds(0.25, 9.0))
    scope = with_all_rows(main, startup)
    last = batches()[-1][0][0]
    assert (rows_in([scope])[last] >= 0.25).all()
    assert (rows_in([scope])[8:] < 0.25).any()


@pytest.mark.parametrize("wrong", [{"low": 1.0, "high": 0.0}, {"max_norm": -1.0}, {"low": float("nan")}, {"high": "x"}])
def test_a_constraint_that_no_row_meets_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ProgramError):
        Constraint(**wrong)
