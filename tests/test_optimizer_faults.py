"""Optimizer ops: faults that users of peers reported, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from fluidlite.core.ir import Operator, Program, Variable
from fluidlite.dtypes import VarKind
from fluidlite.errors import DtypeError, OutOfRangeError, ProgramError, ShapeError, TableError
from fluidlite.ops.infer import infer_op
from fluidlite.values.initial import Constant
from fluidlite.values.selected_rows import SelectedRows, to_dense
from fluidlite.values.sparse_table import SparseTable, TableColumn
from tests.optimizer_job import EVERY_ROW, OPTIMIZERS, WHOLE_NORM, Job, assert_same, rows, table_of

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
