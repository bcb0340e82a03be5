"""Optimizer ops on the three kinds of parameter: dense, dense with a SelectedRows gradient, auto-grown table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluidlite.core.ir import Variable
from fluidlite.errors import OutOfRangeError, ProgramError
from fluidlite.ops import registry
from fluidlite.runtime.plan import Plan
from fluidlite.values.initial import Constant
from fluidlite.values.selected_rows import SelectedRows, to_dense
from fluidlite.values.sparse_table import SparseTable
from tests.optimizer_job import ELEMENTWISE, EVERY_ROW, OPTIMIZERS, WHOLE_NORM, Job, assert_same, rows, table_of

HEIGHT, WIDTH = 6, 3
VARIANTS = [
    *((name, {}) for name in ELEMENTWISE),
    ("adam", {"lazy_mode": True}),
    ("momentum", {"use_nesterov": True}),
    ("rmsprop", {"centered": True}),
    ("ftrl", {"lr_power": -0.3}),
]
ROWS_ONLY = [(name, attrs) for name, attrs in VARIANTS if name not in EVERY_ROW or attrs.get("lazy_mode")]
variants = pytest.mark.parametrize(
    ("op_type", "attrs"), VARIANTS, ids=lambda v: v if isinstance(v, str) else "-".join(v) or "plain"
)
seeds = st.integers(0, 2**32 - 1)
FEW = settings(max_examples=15, deadline=None)


def random_batch(rng: Any, *, every_row: bool) -> SelectedRows:
    """Duplicate, unsorted ids, of every row or of some (perhaps none)."""
    ids = rng.integers(0, HEIGHT, rng.integers(0, 10))
    if every_row:
        ids = rng.permutation(np.concatenate([np.arange(HEIGHT), ids]))
    return rows(ids, rng.normal(size=(len(ids), WIDTH)), HEIGHT)


# ---- the three kinds agree


@variants
@given(seed=seeds)
@FEW
def test_table_equals_dense_on_the_summed_gradient(op_type: str, attrs: dict[str, Any], seed: int) -> None:
    rng = np.random.default_rng(seed)
    param = rng.normal(size=(HEIGHT, WIDTH))
    dense, table = Job(op_type, param.copy(), attrs), Job(op_type, table_of(param), attrs)
    for _ in range(3):
        batch = random_batch(rng, every_row=True)
        dense.step(to_dense(batch))
        table.step(batch)
    assert_same(dense, table, np.arange(HEIGHT))


@pytest.mark.parametrize(
    ("op_type", "attrs"), ROWS_ONLY, ids=lambda v: v if isinstance(v, str) else "-".join(v) or "plain"
)
@given(seed=seeds)
@FEW
def test_table_equals_selected_rows_on_a_dense_parameter(op_type: str, attrs: dict[str, Any], seed: int) -> None:
    rng = np.random.default_rng(seed)
    param = rng.normal(size=(HEIGHT, WIDTH))
    dense, table = Job(op_type, param.copy(), attrs), Job(op_type, table_of(param), attrs)
    for _ in range(3):
        batch = random_batch(rng, every_row=False)
        dense.step(batch)
        table.step(batch)
    assert_same(dense, table, np.arange(HEIGHT))


@pytest.mark.parametrize("op_type", EVERY_ROW)
@given(seed=seeds)
@FEW
def test_selected_rows_equal_dense_where_every_row_moves(op_type: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    param = rng.normal(size=(HEIGHT, WIDTH))
    dense, sparse = Job(op_type, param.copy()), Job(op_type, param.copy())
    for _ in range(3):
        batch = random_batch(rng, every_row=False)
        dense.step(to_dense(batch))
        sparse.step(batch)
    assert_same(dense, sparse, np.arange(HEIGHT))


@pytest.mark.parametrize(
    ("op_type", "attrs"), ROWS_ONLY, ids=lambda v: v if isinstance(v, str) else "-".join(v) or "plain"
)
def test_rows_that_the_gradient_does_not_name_stay(op_type: str, attrs: dict[str, Any]) -> None:
    param = np.arange(1.0, 13.0).reshape(4, 3)
    job = Job(op_type, param.copy(), attrs).step(rows([2, 0, 2], np.ones((3, 3)), 4))
    np.testing.assert_array_equal(job.value()[[1, 3]], param[[1, 3]])
    assert (job.value()[[0, 2]] != param[[0, 2]]).all()


@pytest.mark.parametrize("op_type", ELEMENTWISE)
def test_table_touches_the_rows_of_the_batch_only(op_type: str) -> None:
    job = Job(op_type, SparseTable("emb", 2, "float64", Constant(1.0)))
    job.value(ids=[1, 2])
    job.step(rows([2, 7], np.ones((2, 2))))
    assert job.scope.get("Param").ids.tolist() == [1, 2, 7]
    np.testing.assert_array_equal(job.value(ids=[1]), [[1.0, 1.0]])
    assert (job.value(ids=[2, 7]) != 1.0).all()
    np.testing.assert_array_equal(job.value(ids=[2]), job.value(ids=[7]))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("op_type", OPTIMIZERS)
def test_dtype_is_kept(op_type: str, dtype: str) -> None:
    job = Job(op_type, np.ones((2, 2), dtype)).step(np.full((2, 2), 0.5, dtype))
    assert {job.value(name).dtype.name for name in ("Param", *job.state_names)} == {dtype}


# ---- values of Fluid 1.8.5, defects corrected

DENSE_GOLDEN = [
    ("sgd", {}, [[0.95, -1.9, 0.5], [0.9, -1.8, 0.5], [0.85, -1.7, 0.5]]),
    ("momentum", {"mu": 0.9}, [[0.95, -1.9, 0.5], [0.855, -1.71, 0.5], [0.7195, -1.439, 0.5]]),
    (
        "momentum",
        {"mu": 0.9, "use_nesterov": True},
        [[0.905, -1.81, 0.5], [0.7695, -1.539, 0.5], [0.59755, -1.1951, 0.5]],
    ),
    (
        "lars_momentum",
        {"mu": 0.9},
        [[0.9998975, -1.999795, 0.4999999], [0.9997029, -1.999406, 0.4999999], [0.9994252, -1.99885, 0.4999997]],
    ),
    (
        "adagrad",
        {"epsilon": 1e-6},
        [[0.9000002, -1.9, 0.5], [0.8292896, -1.829289, 0.5], [0.7715546, -1.771554, 0.5]],
    ),
    ("adam", {}, [[0.9, -1.9, 0.5], [0.8000004, -1.8, 0.5], [0.7000012, -1.700001, 0.5]]),
    (
        "decayed_adagrad",
        {},
        [[0.5527904, -1.552788, 0.5], [0.2325362, -1.232533, 0.5], [-0.03225276, -0.9677436, 0.5]],
    ),
    (
        "rmsprop",
        {"decay": 0.95, "epsilon": 1e-6, "momentum": 0.0},
        [[0.5528044, -1.552791, 0.5], [0.2325546, -1.232536, 0.5], [-0.03223199, -0.9677469, 0.5]],
    ),
    (
        "rmsprop",
        {"decay": 0.95, "epsilon": 1e-6, "momentum": 0.9},
        [[0.5528044, -1.552791, 0.5], [-0.1699215, -0.8300481, 0.5], [-1.085161, 0.08520985, 0.5]],
    ),
    (
        "rmsprop",
        {"decay": 0.95, "epsilon": 1e-6, "momentum": 0.0, "centered": True},
        [[0.5411879, -1.541173, 0.5], [0.2040837, -1.204064, 0.5], [-0.08187917, -0.9180971, 0.5]],
    ),
    (
        "ftrl",
        {"l1": 0.0, "l2": 0.0},
        [[0.9, -1.9, 0.0], [0.8292893, -1.829289, 0.0], [0.7715543, -1.771554, 0.0]],
    ),
    (
        "ftrl",
        {"l1": 0.1, "l2": 0.1},
        [[0.8461539, -1.852941, 0.0], [0.7773882, -1.783216, 0.0], [0.7209564, -1.72614, 0.0]],
    ),
    (
        "ftrl",
        {"l1": 0.0, "l2": 0.0, "lr_power": -0.3},
        [[0.9242142, -1.9, 0.0], [0.8626569, -1.818775, 0.0], [0.80815, -1.746853, 0.0]],
    ),
    (
        "dpsgd",
        {"clip": 0.9, "batch_size": 1.0, "sigma": 0.0},
        [[0.9597508, -1.919502, 0.5], [0.9195015, -1.839003, 0.5], [0.8792523, -1.758505, 0.5]],
    ),
]


@pytest.mark.parametrize(
    ("op_type", "attrs", "expected"), DENSE_GOLDEN, ids=lambda v: v if isinstance(v, str) else None
)
def test_dense_values_of_fluid(op_type: str, attrs: dict[str, Any], expected: Any) -> None:
    job = Job(op_type, np.array([1.0, -2.0, 0.5], np.float32), attrs)
    for after in expected:
        job.step(np.array([0.5, -1.0, 0.0], np.float32))
        np.testing.assert_allclose(job.value(), after, rtol=2e-6, atol=1e-7)


def test_adagrad_with_an_initial_accumulator() -> None:
    job = Job("adagrad", np.array([1.0, -2.0, 0.5]), fills={"moment": 0.1}).step(np.array([0.5, -1.0, 0.0]))
    np.testing.assert_allclose(job.value(), [0.9154847, -1.904654, 0.5], rtol=1e-6)


def test_adadelta_in_place_uses_the_old_average_of_updates() -> None:
    job = Job("adadelta", np.array([1.0]), {"epsilon": 1e-6}).step(np.array([0.5]))
    np.testing.assert_allclose(job.value(), [1.0 - np.sqrt(1e-6 / (0.0125 + 1e-6)) * 0.5], rtol=1e-7)


SPARSE_GOLDEN = [
    ("sgd", {}, [[1, 1], [0.7, 0.6], [1, 1], [0.4, 0.2], [1, 1]], [[0.8, 0.8], [0.6, 0.5], [1, 1], [0.4, 0.2], [1, 1]]),
    (
        "momentum",
        {"mu": 0.9},
        [[1, 1], [0.7, 0.6], [1, 1], [0.4, 0.2], [1, 1]],
        [[0.8, 0.8], [0.33, 0.14], [1, 1], [-0.14, -0.52], [1, 1]],
    ),
    (
        "adagrad",
        {"epsilon": 1e-6},
        [[1, 1], [0.9, 0.9], [1, 1], [0.9, 0.9], [1, 1]],
        [[0.9, 0.9], [0.868377, 0.875746], [1, 1], [0.9, 0.9], [1, 1]],
    ),
    (
        "rmsprop",
        {"decay": 0.95, "epsilon": 1e-6, "momentum": 0.0},
        [[1, 1], [0.552787, 0.552787], [1, 1], [0.552787, 0.552787], [1, 1]],
        [[0.552787, 0.552787], [0.408072, 0.441676], [1, 1], [0.552787, 0.552787], [1, 1]],
    ),
]


@pytest.mark.parametrize(
    ("op_type", "attrs", "first", "second"), SPARSE_GOLDEN, ids=lambda v: v if isinstance(v, str) else None
)
def test_sparse_values_of_fluid(op_type: str, attrs: dict[str, Any], first: Any, second: Any) -> None:
    job = Job(op_type, np.ones((5, 2)), attrs)
    job.step(rows([3, 1, 3], [[1, 2], [3, 4], [5, 6]], 5))
    np.testing.assert_allclose(job.value(), first, rtol=2e-6)
    job.step(rows([1, 0], [[1, 1], [2, 2]], 5))
    np.testing.assert_allclose(job.value(), second, rtol=2e-6)


# ---- in place or not, SelectedRows as parameter, corners


def test_in_place_changes_the_array_itself() -> None:
    param = np.ones(2)
    job = Job("momentum", param).step(np.ones(2))
    assert job.scope.get("Param") is param
    np.testing.assert_allclose(param, [0.9, 0.9])


def test_other_output_variables_get_copies() -> None:
    job = Job("momentum", np.ones(2))
    for name in ("ParamOut", "VelocityOut"):
        job.program.root.vars[name] = Variable(name, persistable=True)
        job.op.outputs[name] = [name]
    job.plan = Plan(job.program, None)
    job.step(np.ones(2))
    np.testing.assert_array_equal([job.value("Param"), job.value("Velocity")], [[1, 1], [0, 0]])
    np.testing.assert_allclose([job.value("ParamOut"), job.value("VelocityOut")], [[0.9, 0.9], [1, 1]])


def test_a_read_only_array_is_replaced() -> None:
    param = np.broadcast_to(np.float64(1.0), (2, 2))
    np.testing.assert_allclose(Job("sgd", param).step(np.ones((2, 2))).value(), np.full((2, 2), 0.9))
    assert (param == 1.0).all()


def test_the_gradient_is_never_changed() -> None:
    for op_type in OPTIMIZERS:
        grad = np.ones((2, 2))
        Job(op_type, np.ones((2, 2))).step(grad)
        assert (grad == 1.0).all(), op_type


def test_sgd_on_selected_rows_needs_every_row() -> None:
    param = rows([0, 2, 4], [[1, 1], [2, 2], [3, 3]], 5)
    job = Job("sgd", param).step(rows([2, 4, 2], [[1, 2], [3, 4], [5, 6]], 5))
    assert job.scope.get("Param") is param
    np.testing.assert_allclose(param.value, [[1, 1], [1.4, 1.2], [2.7, 2.6]])
    for bad in ([3], [0, 1, 2, 4], [5], [-1]):
        with pytest.raises(
            OutOfRangeError, match=rf"row {next(i for i in bad if i not in (0, 2, 4))} .*'Grad'.*'Param'"
        ):
            job.step(rows(bad, np.ones((len(bad), 2)), 5))
    job.step(rows([], np.empty((0, 2)), 5))
    with pytest.raises(ProgramError, match="only with a SelectedRows gradient"):
        job.step(np.ones((3, 2)))


def test_ftrl_ignores_a_step_with_learning_rate_zero() -> None:
    job = Job("ftrl", np.array([1.0, -2.0]), rate=0.0).step(np.ones(2))
    np.testing.assert_array_equal(job.value(), [1.0, -2.0])
    job.scope.set("LearningRate", np.array([0.1]))
    assert np.isfinite(job.step(np.ones(2)).value()).all()


def test_proximal_adagrad_without_any_gradient_yet_only_shrinks() -> None:
    job = Job("proximal_adagrad", np.array([1.0]), {"l1": 1.0, "l2": 0.0}).step(np.zeros(1))
    np.testing.assert_allclose(job.value(), [0.9])


def test_dpsgd_noise_is_one_number_new_in_each_step() -> None:
    job, moves = Job("dpsgd", np.zeros(3), {"sigma": 1.0, "batch_size": 1.0, "seed": 5}), []
    for _ in range(3):
        before = job.value().copy()
        moves.append(job.step(np.zeros(3)).value() - before)
    assert all(np.ptp(move) < 1e-15 for move in moves)
    assert len({round(float(move[0]), 9) for move in moves}) == 3


def test_adam_takes_betas_from_tensors() -> None:
    betas = {"Beta1Tensor": np.array([0.5]), "Beta2Tensor": np.array([0.75])}
    assert_same(
        Job("adam", np.ones(2), {"beta1": 0.5, "beta2": 0.75}).step(np.ones(2)),
        Job("adam", np.ones(2), fills={"beta1_pow_acc": 0.5, "beta2_pow_acc": 0.75}, **betas).step(np.ones(2)),
        [0, 1],
    )


# ---- records


@pytest.mark.parametrize("op_type", [*OPTIMIZERS, "dgc_momentum"])
def test_records_are_complete(op_type: str) -> None:
    op_def = registry.get(op_type)
    outputs, inputs = {arg.name for arg in op_def.outputs}, {arg.name for arg in op_def.inputs}
    assert outputs == set(op_def.inplace), "every output updates an input"
    for accumulator in op_def.accumulators:
        assert accumulator.input in inputs
        assert op_def.inplace[accumulator.output] == accumulator.input if accumulator.output else accumulator.whole
        assert not isinstance(accumulator.fill, str) or accumulator.fill in op_def.attrs
    assert op_def.needs_whole_param == (op_type in WHOLE_NORM)
    assert op_def.cases
