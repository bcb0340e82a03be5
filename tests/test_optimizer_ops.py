"""Optimizer ops on the three kinds of parameter: dense, dense with a SelectedRows gradient, auto-grown table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluidlite.core.ir import Operator, Program, Variable
from fluidlite.dtypes import VarKind
from fluidlite.errors import DtypeError, OutOfRangeError, ProgramError, ShapeError, TableError
from fluidlite.ops import registry
from fluidlite.ops.infer import infer_op
from fluidlite.runtime.plan import Plan
from fluidlite.runtime.scope import Scope
from fluidlite.values.initial import Constant, FromArray
from fluidlite.values.selected_rows import SelectedRows, to_dense
from fluidlite.values.sparse_table import SparseTable, TableColumn

OPTIMIZERS = sorted(d.type for d in registry.all_defs() if d.is_optimizer and d.type != "dgc_momentum")
WHOLE_NORM = ("dpsgd", "lamb", "lars_momentum")
ELEMENTWISE = [name for name in OPTIMIZERS if name not in WHOLE_NORM]
#: every row of a dense parameter moves, also those that a SelectedRows gradient does not name
EVERY_ROW = ("adam", "momentum", "rmsprop", *WHOLE_NORM)
ATTRS: dict[str, dict[str, Any]] = {
    "momentum": {"mu": 0.9},
    "lars_momentum": {"mu": 0.9},
    "lamb": {"weight_decay": 0.01},
    "dpsgd": {"sigma": 0.0},
    "rmsprop": {"epsilon": 1e-6, "momentum": 0.5},
    "ftrl": {"l1": 0.1, "l2": 0.2},
    "proximal_gd": {"l1": 0.1, "l2": 0.2},
    "proximal_adagrad": {"l1": 0.1, "l2": 0.2},
}


class Job:
    """One optimizer op on variables of a scope. The accumulators are made as the record declares them."""

    def __init__(
        self,
        op_type: str,
        param: Any,
        attrs: Mapping[str, Any] | None = None,
        *,
        rate: float = 0.1,
        fills: Mapping[str, float] | None = None,
        **values: Any,
    ) -> None:
        self.op_def = registry.get(op_type)
        self.op = Operator(op_type, attrs=registry.attrs_for(self.op_def, ATTRS.get(op_type, {}) | dict(attrs or {})))
        self.scope, self.program = Scope(), Program()
        self._add("Param", param)
        self._add("LearningRate", np.array([rate], self.dtype))
        constants = registry.attr_values(self.op_def, self.op)
        for accumulator in self.op_def.accumulators:
            fill = constants[accumulator.fill] if isinstance(accumulator.fill, str) else accumulator.fill
            fill = (fills or {}).get(accumulator.name, fill)
            self._add(accumulator.input, self._state(accumulator.name, fill, accumulator.whole))
        for name, value in values.items():
            self._add(name, value)
        self._add("Grad", None)
        for output, source in self.op_def.inplace.items():
            self.op.outputs[output] = list(self.op.inputs[source])
        self.program.root.ops.append(self.op)
        self.plan = Plan(self.program, None)

    @property
    def dtype(self) -> Any:
        param = self.scope.get("Param")
        return param.value.dtype if isinstance(param, SelectedRows) else param.dtype

    def step(self, grad: Any) -> Job:
        self.scope.set("Grad", grad)
        self.plan.run(self.scope, {})
        return self

    def value(self, name: str = "Param", ids: Any = None) -> Any:
        """A value as an array; of a table the rows ``ids``."""
        value = self.scope.get(name)
        if isinstance(value, SparseTable):
            return value.lookup(np.asarray(ids))
        if isinstance(value, TableColumn) and value.table is None:
            return np.full((len(ids), value.width), value.fill)
        if isinstance(value, TableColumn):
            return value.table.read(value.table.positions(np.asarray(ids), create=True), value)
        return value if ids is None or value.shape == (1,) else value[ids]

    @property
    def state_names(self) -> list[str]:
        return [accumulator.input for accumulator in self.op_def.accumulators]

    def _state(self, name: str, fill: float, whole: bool) -> Any:
        param = self.scope.get("Param")
        if whole:
            return np.full(1, fill, self.dtype)
        if isinstance(param, SparseTable):
            return TableColumn(name, param.width, fill, param.dtype)
        return np.full(param.shape, fill, self.dtype)

    def _add(self, name: str, value: Any) -> None:
        self.program.root.vars[name] = Variable(name, persistable=True)
        self.op.inputs[name] = [name]
        if value is not None:
            self.scope.set(name, value)


def rows(ids: Any, value: Any, height: int = 0) -> SelectedRows:
    return SelectedRows(np.asarray(ids, np.int64), np.asarray(value, np.float64), height)


def table_of(param: Any) -> SparseTable:
    """A table whose rows start as those of ``param``."""
    return SparseTable("emb", param.shape[1], param.dtype, FromArray(param.copy()))


def assert_same(one: Job, other: Job, ids: Any) -> None:
    for name in ("Param", *one.state_names):
        np.testing.assert_allclose(one.value(name, ids), other.value(name, ids), rtol=1e-12, atol=0, err_msg=name)


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


# ---- faults of peers


@pytest.mark.parametrize("op_type", ["sgd", "adagrad", "adam", "ftrl"])
@pytest.mark.parametrize("kind", ["dense", "table"])
def test_c31_duplicates_give_the_dense_result(op_type: str, kind: str) -> None:
    param, batch = np.ones((3, 2)), rows([2, 0, 2, 1], [[1, 2], [3, 4], [5, 6], [7, 8]], 3)
    job = Job(op_type, param.copy() if kind == "dense" else table_of(param)).step(batch)
    assert_same(Job(op_type, param.copy()).step(to_dense(batch)), job, [0, 1, 2])


@pytest.mark.parametrize(("rate", "scale"), [(1.0, 1.0), (0.001, 1000.0)])
def test_c31_the_learning_rate_enters_after_the_accumulator(rate: float, scale: float) -> None:
    job = Job("adagrad", SparseTable("emb", 1, "float64", Constant(0.0)), {"epsilon": 0.0}, rate=rate)
    job.step(rows([5], [[3.0]])).step(rows([5], [[4.0]]))
    np.testing.assert_array_equal(job.value("Moment", [5]), [[25.0]])
    np.testing.assert_allclose(job.value(ids=[5]) * scale, [[-1.8]], rtol=1e-12)


def test_c32_lazy_adam_leaves_rows_without_gradient_alone_and_plain_adam_moves_them_as_dense() -> None:
    batches = [rows([0, 1], np.ones((2, 1)), 2), rows([0], [[1.0]], 2)]
    jobs = {lazy: Job("adam", np.zeros((2, 1)), {"lazy_mode": lazy}) for lazy in (True, False)}
    dense = Job("adam", np.zeros((2, 1)))
    for batch in batches:
        dense.step(to_dense(batch))
        for job in jobs.values():
            job.step(batch)
    assert_same(dense, jobs[False], [0, 1])
    np.testing.assert_allclose(jobs[True].value()[1], [-0.1], rtol=1e-6)
    assert jobs[False].value()[1] < -0.15


def test_c44_accumulators_do_not_start_like_the_weight() -> None:
    job = Job("adam", SparseTable("emb", 4, "float64", Constant(-5.0)))
    for step in range(5):
        job.step(rows([step, 3], np.full((2, 4), (-1.0) ** step)))
    ids = np.arange(5)
    assert (job.value("Moment2", ids) >= 0).all()
    assert np.isfinite(job.value(ids=ids)).all()


def test_b041_beta_powers_belong_to_one_parameter() -> None:
    busy, idle = Job("adam", np.ones(2)), Job("adam", np.ones(2))
    for _ in range(3):
        busy.step(np.ones(2))
    idle.step(np.ones(2))
    np.testing.assert_allclose([busy.value("Beta1Pow")[0], idle.value("Beta1Pow")[0]], [0.9**4, 0.9**2], rtol=1e-6)
    assert all(acc.whole for acc in busy.op_def.accumulators if "beta" in acc.name)


@pytest.mark.parametrize("kind", ["dense", "table"])
def test_b050_adam_with_duplicate_ids(kind: str) -> None:
    param = np.ones((4, 2))
    job = Job("adam", param.copy() if kind == "dense" else table_of(param))
    job.step(rows([3, 3, 3], [[1, 2], [3, 4], [-9, 5]], 4))
    dense = Job("adam", param.copy()).step(to_dense(rows([3], [[-5, 11]], 4)))
    assert_same(dense, job, [3])


@pytest.mark.parametrize("lazy", [True, False])
@pytest.mark.parametrize("kind", ["dense", "table"])
def test_b051_first_adam_step_has_the_size_of_the_learning_rate(kind: str, lazy: bool) -> None:
    param = np.ones((2, 1))
    job = Job("adam", param if kind == "dense" else table_of(param), {"lazy_mode": lazy})
    np.testing.assert_allclose(job.step(rows([1], [[1.0]], 2)).value(ids=[1]), [[0.9]], rtol=1e-7)


@pytest.mark.parametrize("op_type", OPTIMIZERS)
def test_b053_a_gradient_without_rows(op_type: str) -> None:
    """Width 0 as well: what a shard gets that no id of the batch belongs to."""
    dense = Job(op_type, np.ones((2, 3))).step(np.zeros((2, 3)))
    for width in (3, 0):
        empty = rows([], np.empty((0, width)), 2)
        sparse = Job(op_type, np.ones((2, 3))).step(empty)
        if op_type in EVERY_ROW:
            assert_same(dense, sparse, [0, 1])
        else:
            np.testing.assert_array_equal(sparse.value(), np.ones((2, 3)))
        if op_type not in WHOLE_NORM:
            table = Job(op_type, SparseTable("emb", 3, "float64", Constant(1.0))).step(empty)
            assert len(table.scope.get("Param")) == 0


@pytest.mark.parametrize("kind", ["dense", "table"])
def test_b053_beta_powers_advance_once_per_step_also_without_ids(kind: str) -> None:
    job = Job("adam", np.ones((2, 2)) if kind == "dense" else table_of(np.ones((2, 2))))
    job.step(rows([], np.empty((0, 2)), 2))
    np.testing.assert_allclose([job.value("Beta1Pow")[0], job.value("Beta2Pow")[0]], [0.81, 0.998001], rtol=1e-6)


@pytest.mark.parametrize("op_type", ["ftrl", "decayed_adagrad", "adadelta", "adamax"])
def test_b055_optimizers_that_fluid_refuses_on_sparse_gradients(op_type: str) -> None:
    param = np.arange(1.0, 7.0).reshape(3, 2)
    batch = rows([2, 0, 2], [[1, 2], [3, 4], [5, 6]], 3)
    sparse = Job(op_type, param.copy()).step(batch)
    assert_same(Job(op_type, param.copy()).step(to_dense(batch)), sparse, [0, 2])
    np.testing.assert_array_equal(sparse.value()[1], param[1])


@pytest.mark.parametrize("kind", ["dense", "table"])
def test_b056_adagrad_accumulates_the_square_of_the_sum(kind: str) -> None:
    param = np.zeros((2, 1))
    job = Job("adagrad", param if kind == "dense" else table_of(param)).step(rows([1, 1], [[1.0], [2.0]], 2))
    np.testing.assert_array_equal(job.value("Moment", [1]), [[9.0]])
    np.testing.assert_allclose(job.value(ids=[1]), [[-0.1]], rtol=1e-5)


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


# ---- refusals


@pytest.mark.parametrize("op_type", WHOLE_NORM)
def test_optimizers_that_need_a_norm_are_refused_on_tables(op_type: str) -> None:
    job = Job(op_type, SparseTable("emb", 2, "float64", Constant(1.0)))
    with pytest.raises(TableError, match=f"'{op_type}' needs the norm of the whole parameter, which table 'emb'"):
        job.step(rows([1], [[1.0, 1.0]]))
    assert len(job.scope.get("Param")) == 0


def test_a_table_needs_sparse_gradients_of_its_width_and_dtype_and_its_own_accumulators() -> None:
    emb = SparseTable("emb", 2, "float64", Constant(1.0))
    job = Job("adagrad", emb)
    with pytest.raises(TableError, match="'emb' needs a SelectedRows gradient; 'Grad' is dense"):
        job.step(np.ones((1, 2)))
    with pytest.raises(TableError, match=r"needs values of shape \[1, 2\]"):
        job.step(rows([1], [[1.0]]))
    with pytest.raises(TableError, match=r"dtype float64, got .* float32"):
        job.step(SelectedRows(np.array([1]), np.ones((1, 2), np.float32), 0))
    job.scope.set("Moment", np.zeros((3, 2)))
    with pytest.raises(TableError, match="input Moment must be an accumulator of table 'emb'"):
        job.step(rows([1], [[1.0, 1.0]]))
    assert len(emb) == 0


def test_a_dense_parameter_refuses_a_column_of_a_table() -> None:
    job = Job("adagrad", np.ones((2, 2)))
    job.scope.set("Moment", TableColumn("m", 2, 0.0, "float64"))
    with pytest.raises(ProgramError, match="input Moment is TableColumn, but parameter 'Param' is no table"):
        job.step(np.ones((2, 2)))


@pytest.mark.parametrize("bad", [2, -1, 2**40])
def test_rows_outside_a_dense_parameter_are_refused(bad: int) -> None:
    job = Job("sgd", np.ones((2, 2)))
    with pytest.raises(
        OutOfRangeError, match=rf"row {bad} \(position 1 of 'Grad'\) is outside parameter 'Param' of 2 rows"
    ):
        job.step(SelectedRows(np.array([1, bad]), np.ones((2, 2)), 2))
    np.testing.assert_array_equal(job.value(), np.ones((2, 2)))


def test_shapes_and_dtypes_that_do_not_fit_are_refused() -> None:
    job = Job("momentum", np.ones((2, 2)))
    with pytest.raises(ShapeError, match=r"Grad='Grad' has shape \[2, 3\], parameter 'Param' \[2, 2\]"):
        job.step(np.ones((2, 3)))
    with pytest.raises(ShapeError, match="height 5 of gradient 'Grad' must be the rows 2"):
        job.step(rows([1], [[1.0, 1.0]], 5))
    with pytest.raises(ShapeError, match="'Grad' has shape"):
        job.step(rows([1], [[1.0]], 2))
    with pytest.raises(DtypeError, match="'Grad' is float32, parameter 'Param' is float64"):
        job.step(np.ones((2, 2), np.float32))
    job.scope.set("LearningRate", np.ones(2))
    with pytest.raises(ShapeError, match="LearningRate must have one element"):
        job.step(np.ones((2, 2)))


def _infer(**shapes: tuple[int, ...]) -> Program:
    program, op = Program(), Operator("sgd", {name: [name] for name in shapes}, {"ParamOut": ["ParamOut"]})
    for name, shape in shapes.items():
        program.root.vars[name] = Variable(name, shape=shape)
    program.root.vars["ParamOut"] = Variable("ParamOut")
    infer_op(program, program.root, op)
    return program


def test_inference_copies_the_parameter_and_refuses_what_cannot_fit() -> None:
    assert _infer(Param=(4, 2), Grad=(-1, 2), LearningRate=(1,)).root.vars["ParamOut"].shape == (4, 2)
    with pytest.raises(ShapeError, match="LearningRate='LearningRate' must have one element"):
        _infer(Param=(4, 2), Grad=(4, 2), LearningRate=(2,))
    with pytest.raises(ShapeError, match=r"Param='Param' has shape \[4, 2\], its gradient 'Grad' \[4, 3\]"):
        _infer(Param=(4, 2), Grad=(4, 3), LearningRate=(1,))


def test_inference_leaves_sparse_gradients_alone() -> None:
    program = Program()
    for name, shape in {"Param": (4, 2), "Grad": (7, 2), "LearningRate": (1,)}.items():
        program.root.vars[name] = Variable(name, shape=shape)
    program.root.vars["Grad"].kind = VarKind.SELECTED_ROWS
    inputs = {name: [name] for name in program.root.vars}
    infer_op(program, program.root, Operator("sgd", inputs, {"ParamOut": ["Param"]}))
    assert program.root.vars["Param"].shape == (4, 2)
