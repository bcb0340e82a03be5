"""Optimizers: what minimize appends, for which parameters, and the values that training gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fluidlite.layers as L
from fluidlite import framework, optimizer
from fluidlite.core.ir import OpRole
from fluidlite.dtypes import Array
from fluidlite.errors import GradientError, ProgramError, UninitializedError
from fluidlite.framework import Program, Variable
from fluidlite.initializer import Constant, NumpyArrayInitializer, Uniform
from fluidlite.optimizer import Optimizer
from fluidlite.param_attr import ParamAttr
from tests.frontend import Session, fresh_programs, lines, op_types

Make = Callable[[], Optimizer]


def two_layer_loss(**first: Any) -> Variable:
    """mean(x w v), w [2, 2] and v [2, 1] of ones; keywords go to the ParamAttr of w."""
    ones = Constant(1.0)
    h = L.fc(L.data("x", [2]), 2, param_attr=ParamAttr("w", initializer=ones, **first), bias_attr=False)
    return L.mean(L.fc(h, 1, param_attr=ParamAttr("v", initializer=ones), bias_attr=False))


X = np.float32([[1.0, 2.0]])


def dense_steps(make: Make, steps: int = 3) -> list[Array]:
    """p after each step, p0 = [1, -2, 0.5] and gradient [0.5, -1, 0] (spec, section 9.2)."""
    with fresh_programs() as (main, startup):
        c = L.data("c", [3], append_batch_size=False)
        p0 = NumpyArrayInitializer(np.float32([1.0, -2.0, 0.5]))
        p = L.create_parameter([3], "float32", "p", default_initializer=p0)
        make().minimize(L.reduce_sum(L.elementwise_mul(p, c)))
    session = Session(startup)
    found = []
    for _ in range(steps):
        session.run(main, {"c": np.float32([0.5, -1.0, 0.0])})
        found.append(session.value("p"))
    return found


DENSE: list[tuple[str, Make, list[list[float]]]] = [
    ("sgd", lambda: optimizer.SGD(0.1), [[0.95, -1.9, 0.5], [0.9, -1.8, 0.5], [0.85, -1.7, 0.5]]),
    (
        "momentum",
        lambda: optimizer.Momentum(0.1, 0.9),
        [[0.95, -1.9, 0.5], [0.855, -1.71, 0.5], [0.7195, -1.439, 0.5]],
    ),
    (
        "nesterov",
        lambda: optimizer.Momentum(0.1, 0.9, use_nesterov=True),
        [[0.905, -1.81, 0.5], [0.7695, -1.539, 0.5], [0.59755, -1.1951, 0.5]],
    ),
    (
        "lars",
        lambda: optimizer.LarsMomentum(0.1, 0.9),
        [[0.9998975, -1.999795, 0.4999999], [0.9997029, -1.999406, 0.4999999], [0.9994252, -1.99885, 0.4999997]],
    ),
    (
        "adagrad",
        lambda: optimizer.Adagrad(0.1),
        [[0.9000002, -1.9, 0.5], [0.8292896, -1.829289, 0.5], [0.7715546, -1.771554, 0.5]],
    ),
    (
        "adagrad_from_0.1",
        lambda: optimizer.Adagrad(0.1, initial_accumulator_value=0.1),
        [[0.9154847, -1.904654, 0.5], [0.8509351, -1.835647, 0.5], [0.7967026, -1.778851, 0.5]],
    ),
    ("adam", lambda: optimizer.Adam(0.1), [[0.9, -1.9, 0.5], [0.8000004, -1.8, 0.5], [0.7000012, -1.700001, 0.5]]),
    ("adamax", lambda: optimizer.Adamax(0.1), [[0.9, -1.9, 0.5], [0.8, -1.8, 0.5], [0.7, -1.7, 0.5]]),
    (
        "decayed_adagrad",
        lambda: optimizer.DecayedAdagrad(0.1),
        [[0.5527904, -1.552788, 0.5], [0.2325362, -1.232533, 0.5], [-0.03225276, -0.9677436, 0.5]],
    ),
    (
        "rmsprop",
        lambda: optimizer.RMSProp(0.1),
        [[0.5528044, -1.552791, 0.5], [0.2325546, -1.232536, 0.5], [-0.03223199, -0.9677469, 0.5]],
    ),
    (
        "rmsprop_momentum",
        lambda: optimizer.RMSProp(0.1, momentum=0.9),
        [[0.5528044, -1.552791, 0.5], [-0.1699215, -0.8300481, 0.5], [-1.085161, 0.08520985, 0.5]],
    ),
    (
        "rmsprop_centered",
        lambda: optimizer.RMSProp(0.1, centered=True),
        [[0.5411879, -1.541173, 0.5], [0.2040837, -1.204064, 0.5], [-0.08187917, -0.9180971, 0.5]],
    ),
    ("ftrl", lambda: optimizer.Ftrl(0.1), [[0.9, -1.9, 0], [0.8292893, -1.829289, 0], [0.7715543, -1.771554, 0]]),
    (
        "ftrl_l1_l2",
        lambda: optimizer.Ftrl(0.1, l1=0.1, l2=0.1),
        [[0.8461539, -1.852941, 0], [0.7773882, -1.783216, 0], [0.7209564, -1.72614, 0]],
    ),
    (
        "ftrl_power",
        lambda: optimizer.Ftrl(0.1, lr_power=-0.3),
        [[0.9242142, -1.9, 0], [0.8626569, -1.818775, 0], [0.80815, -1.746853, 0]],
    ),
    (
        "lamb",
        lambda: optimizer.Lamb(0.1),
        [[0.8382393, -1.837724, 0.499745], [0.6912806, -1.690417, 0.4995725], [0.5575333, -1.556398, 0.4994377]],
    ),
    (
        "dpsgd",
        lambda: optimizer.Dpsgd(0.1, clip=0.9, batch_size=1.0, sigma=0.0),
        [[0.9597508, -1.919502, 0.5], [0.9195015, -1.839003, 0.5], [0.8792523, -1.758505, 0.5]],
    ),
]


@pytest.mark.parametrize(("make", "expected"), [case[1:] for case in DENSE], ids=[case[0] for case in DENSE])
def test_dense_values_of_fluid(make: Make, expected: list[list[float]]) -> None:
    np.testing.assert_allclose(dense_steps(make), expected, rtol=2e-6, atol=1e-6)


def test_adadelta_follows_the_paper_where_fluid_does_not() -> None:
    """Defect 3: in place, Fluid steps by the update that contains itself."""
    p, g = np.array([1.0, -2.0, 0.5]), np.array([0.5, -1.0, 0.0])
    s = d = np.zeros(3)
    expected = []
    for _ in range(3):
        s = 0.95 * s + 0.05 * g * g
        u = -np.sqrt((d + 1e-6) / (s + 1e-6)) * g
        d = 0.95 * d + 0.05 * u * u
        p = p + u
        expected.append(p)
    np.testing.assert_allclose(dense_steps(lambda: optimizer.Adadelta(0.1)), expected, rtol=1e-5)


IDS = [np.array([[3], [1], [3]]), np.array([[1], [0]])]
COEFFICIENTS = [np.float32([[1, 2], [3, 4], [5, 6]]), np.float32([[1, 1], [2, 2]])]


def lookup_steps(make: Make, *, is_sparse: bool = True, is_distributed: bool = False) -> list[Array]:
    """Rows 0..4 of a table of ones after steps with ids [3, 1, 3] and [1, 0] (spec, section 9.2)."""
    with fresh_programs() as (main, startup):
        ids, c = L.data("ids", [1], dtype="int64"), L.data("c", [2])
        attr = ParamAttr("emb", initializer=Constant(1.0))
        rows = L.embedding(ids, [5, 2], is_sparse=is_sparse, is_distributed=is_distributed, param_attr=attr)
        make().minimize(L.reduce_sum(L.elementwise_mul(rows, c)))
    session = Session(startup)
    found = []
    for step_ids, step_c in zip(IDS, COEFFICIENTS, strict=True):
        session.run(main, {"ids": step_ids, "c": step_c})
        found.append(rows_of(session, is_distributed))
    return found


def rows_of(session: Session, is_distributed: bool) -> Array:
    table = session.value("emb")
    return table.lookup(np.arange(5), read_only=False).copy() if is_distributed else table


SPARSE: list[tuple[str, Make]] = [
    ("sgd", lambda: optimizer.SGD(0.1)),
    ("momentum", lambda: optimizer.Momentum(0.1, 0.9)),
    ("nesterov", lambda: optimizer.Momentum(0.1, 0.9, use_nesterov=True)),
    ("adagrad", lambda: optimizer.Adagrad(0.1)),
    ("adam", lambda: optimizer.Adam(0.1)),
    ("rmsprop", lambda: optimizer.RMSProp(0.1)),
    ("lamb", lambda: optimizer.Lamb(0.1)),
]


@pytest.mark.parametrize("make", [case[1] for case in SPARSE], ids=[case[0] for case in SPARSE])
def test_sparse_gradients_train_like_dense_ones(make: Make) -> None:
    sparse, dense = lookup_steps(make), lookup_steps(make, is_sparse=False)
    np.testing.assert_allclose(sparse, dense, rtol=1e-6)


TABLE: list[tuple[str, Make]] = [
    ("sgd", lambda: optimizer.SGD(0.1)),
    ("adagrad", lambda: optimizer.Adagrad(0.1)),
    ("adam_lazy", lambda: optimizer.Adam(0.1, lazy_mode=True)),
    ("adamax", lambda: optimizer.Adamax(0.1)),
    ("decayed_adagrad", lambda: optimizer.DecayedAdagrad(0.1)),
    ("adadelta", lambda: optimizer.Adadelta(0.1)),
    ("ftrl", lambda: optimizer.Ftrl(0.1)),
]


@pytest.mark.parametrize("make", [case[1] for case in TABLE], ids=[case[0] for case in TABLE])
def test_a_table_trains_like_a_sparse_parameter_of_which_only_touched_rows_move(make: Make) -> None:
    np.testing.assert_allclose(lookup_steps(make, is_distributed=True), lookup_steps(make), rtol=1e-6)


@pytest.mark.parametrize("make", [SPARSE[1][1], SPARSE[5][1]], ids=["momentum", "rmsprop"])
def test_skipped_rows_of_a_table_stay_as_they_are(make: Make) -> None:
    first, second = lookup_steps(make, is_distributed=True)
    np.testing.assert_array_equal(second[[2, 3, 4]], first[[2, 3, 4]])
    np.testing.assert_allclose(first, lookup_steps(make)[0], rtol=1e-6)


def test_b055_ftrl_trains_sparse_embeddings() -> None:
    """Fluid raises at run time; here touched rows get the dense result."""
    first, _ = lookup_steps(lambda: optimizer.Ftrl(0.1))
    dense, _ = lookup_steps(lambda: optimizer.Ftrl(0.1), is_sparse=False)
    np.testing.assert_allclose(first[[1, 3]], dense[[1, 3]], rtol=1e-6)
    assert (first[[0, 2, 4]] == 1.0).all()


def test_c32_lazy_adam_moves_touched_rows_only_the_default_moves_all() -> None:
    lazy = lookup_steps(lambda: optimizer.Adam(0.1, lazy_mode=True))
    default = lookup_steps(lambda: optimizer.Adam(0.1))
    np.testing.assert_array_equal(lazy[1][3], lazy[0][3])
    assert (default[1][3] < default[0][3]).all()

    m = v = np.zeros((5, 2))
    w = np.ones((5, 2))
    for t, (ids, c) in enumerate(zip(IDS, COEFFICIENTS, strict=True), 1):
        g = np.zeros((5, 2))
        np.add.at(g, ids[:, 0], c)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        w = w - 0.1 * np.sqrt(1 - 0.999**t) / (1 - 0.9**t) * m / (np.sqrt(v) + 1e-8)
        np.testing.assert_allclose(default[t - 1], w, rtol=1e-5)


# what minimize appends


def test_ops_stand_sorted_by_parameter_name_with_their_roles_and_scopes() -> None:
    with fresh_programs() as (main, startup):
        ops, pairs = optimizer.Momentum(0.1, 0.9).minimize(two_layer_loss())
    assert [(param.name, grad.name) for param, grad in pairs] == [("w", "w@GRAD"), ("v", "v@GRAD")]
    assert lines(main, OpRole.OPTIMIZE) == [
        f"momentum(Grad={p}@GRAD, LearningRate=learning_rate_0, Param={p}, Velocity={p}_velocity_0)"
        f" -> ParamOut={p}, VelocityOut={p}_velocity_0"
        for p in "vw"
    ]
    assert [op.type for op in ops] == ["momentum", "momentum"]
    descs = [op.desc for op in ops]
    assert [op.role_var for op in descs] == [("v", "v@GRAD"), ("w", "w@GRAD")]
    assert [op.attr("op_namescope") for op in descs] == ["/optimizer/", "/optimizer_1/"]
    assert descs[0].attr("mu") == float(np.float32(0.9))
    assert [line.split("Out=")[1] for line in lines(startup)] == [
        *("learning_rate_0", "w_velocity_0", "v_velocity_0"),
        *("v", "w"),
    ]


def test_accumulators_are_named_after_parameter_optimizer_and_kind() -> None:
    with fresh_programs() as (main, startup):
        adam = optimizer.Adam(0.1, beta1=0.8, name="second")
        adam.minimize(two_layer_loss())
    block = main.global_block()
    for name, shape in (("moment1", (2, 2)), ("moment2", (2, 2)), ("beta1_pow_acc", (1,)), ("beta2_pow_acc", (1,))):
        var = block.var(f"w_second_{name}_0")
        assert var.persistable
        assert var.shape == shape
    assert adam.accumulators_of(block.all_parameters()[0])["Moment1"].name == "w_second_moment1_0"
    session = Session(startup)
    assert session.value("w_second_beta1_pow_acc_0") == np.float32(0.8)
    session.run(main, {"x": X})
    np.testing.assert_allclose(session.value("w_second_beta1_pow_acc_0"), 0.64, rtol=1e-6)


def test_adamax_advances_its_power_by_an_op_of_its_own() -> None:
    with fresh_programs() as (main, startup):
        ops, _ = optimizer.Adamax(0.1, beta1=0.5).minimize(two_layer_loss())
    assert [op.type for op in ops] == ["adamax", "adamax", "scale", "scale"]
    assert ops[-1].desc.role_var == ("w", "w@GRAD")
    session = Session(startup)
    session.run(main, {"x": X})
    assert session.value("w_beta1_pow_acc_0") == 0.25


def test_lamb_leaves_parameters_out_of_weight_decay() -> None:
    with fresh_programs():
        ops, _ = optimizer.Lamb(0.1, exclude_from_weight_decay_fn=lambda p: p.name == "v").minimize(two_layer_loss())
    assert [op.attr("weight_decay") for op in ops] == [0.0, float(np.float32(0.01))]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_learning_rate_has_the_dtype_of_the_parameters(dtype: str) -> None:
    with fresh_programs() as (main, startup):
        p = L.create_parameter([2], dtype, "p", default_initializer=Constant(1.0))
        optimizer.SGD(0.5).minimize(L.mean(p))
    assert main.global_block().var("learning_rate_0").dtype == dtype
    session = Session(startup)
    session.run(main)
    assert session.value("p").dtype == np.dtype(dtype)
    assert session.value("p").tolist() == [0.75, 0.75]


def test_a_parameters_own_learning_rate_scales_that_of_the_optimizer() -> None:
    with fresh_programs() as (main, startup):
        ops, _ = optimizer.SGD(0.5).minimize(two_layer_loss(learning_rate=0.25))
    assert [op.type for op in ops] == ["sgd", "scale", "sgd"]
    scale = ops[1].desc
    assert scale.role == OpRole.LR_SCHED | OpRole.OPTIMIZE
    assert scale.attr("op_namescope") == "/optimizer_1/scale_with_param_lr/"
    assert scale.role_var == ()
    session = Session(startup)
    session.run(main, {"x": X})
    np.testing.assert_allclose(session.value("w"), 1.0 - 0.5 * 0.25 * np.repeat(X.T, 2, axis=1))


def test_b005_a_schedule_and_a_parameters_own_rate_together() -> None:
    with fresh_programs() as (main, startup):
        loss = two_layer_loss(learning_rate=0.5)
        rate = L.exponential_decay(0.1, 1, 0.5)
        ops, _ = optimizer.SGD(rate).minimize(loss)
    assert ops[0].input("LearningRate") == [rate.name]
    assert ops[1].type == "scale"
    assert ops[1].input("X") == [rate.name]
    session = Session(startup, {"v": np.ones((2, 1), np.float32)})
    session.run(main, {"x": X})
    first = session.value("w")
    np.testing.assert_allclose(1.0 - first[:, 0], 0.05 * X[0], rtol=1e-6)


def test_the_gradient_of_a_frozen_parameter_is_not_computed() -> None:
    with fresh_programs() as (main, _):
        optimizer.SGD(0.1).minimize(two_layer_loss(trainable=False))
    assert op_types(main, OpRole.OPTIMIZE) == ["sgd"]
    assert not main.global_block().has_var("w@GRAD")


def test_parameter_list_of_the_optimizer_and_of_minimize() -> None:
    with fresh_programs():
        loss = two_layer_loss()
        assert [p.name for p, _ in optimizer.SGD(0.1, parameter_list=["w"]).minimize(loss)[1]] == ["w"]
        other = optimizer.SGD(0.1, parameter_list=["w"])
        assert [p.name for p, _ in other.minimize(loss, parameter_list=["v"])[1]] == ["v"]


def test_backward_and_apply_gradients_are_the_two_halves_of_minimize() -> None:
    with fresh_programs() as (whole, whole_startup):
        optimizer.Adam(0.1).minimize(two_layer_loss())
    with fresh_programs() as (halves, halves_startup):
        adam = optimizer.Adam(0.1)
        adam.apply_gradients(adam.backward(two_layer_loss()))
    assert whole.desc == halves.desc
    assert whole_startup.desc == halves_startup.desc


def test_initial_values_go_to_the_given_startup_program() -> None:
    main, startup = Program(), Program()
    with framework.program_guard(main, startup):
        loss = two_layer_loss()
    before = lines(framework.default_startup_program())
    optimizer.Momentum(0.1, 0.9).minimize(loss, startup_program=startup)
    assert lines(framework.default_startup_program()) == before
    session = Session(startup)
    session.run(main, {"x": X})
    np.testing.assert_allclose(session.value("v"), 0.7)


def test_the_short_and_the_long_names_are_the_same_classes() -> None:
    for name in ("SGD", "Momentum", "Adagrad", "Adam", "RMSProp", "Ftrl", "Adamax", "DecayedAdagrad", "Adadelta"):
        assert getattr(optimizer, name) is getattr(optimizer, f"{name}Optimizer")
    assert set(optimizer.__all__) >= {"Lamb", "LarsMomentum", "Dpsgd", "LambOptimizer"}


# tables


def table_loss(name: str = "emb", height: int = 10**9, **kwargs: Any) -> Variable:
    ids = L.data(f"{name}_ids", [1], dtype="int64")
    attr = ParamAttr(name, initializer=Uniform(-0.5, 0.5))
    return L.mean(L.embedding(ids, [height, 4], is_sparse=True, is_distributed=True, param_attr=attr, **kwargs))


def test_a_table_gets_the_users_optimizer_and_columns_instead_of_dense_accumulators() -> None:
    with fresh_programs() as (main, startup):
        optimizer.Adam(0.1).minimize(table_loss())
    assert op_types(main, OpRole.OPTIMIZE) == ["adam"]
    fills = {op.output("Out"): op for op in startup.global_block().desc.ops if op.type == "fill_constant"}
    for name in ("emb_moment1_0", "emb_moment2_0"):
        assert fills[name].attr("auto_grown_table") is True
        assert fills[name].attr("table_name") == "emb"
        assert main.global_block().var(name).shape == (10**9, 4)
    for name in ("emb_beta1_pow_acc_0", "learning_rate_0"):
        assert fills[name].attr("auto_grown_table", False) is False
    session = Session(startup)
    session.run(main, {"emb_ids": np.array([[2**62], [-1], [2**62]])})
    assert len(session.value("emb")) == 2


def test_two_tables_in_one_program() -> None:
    with fresh_programs() as (main, startup):
        loss = L.elementwise_add(table_loss("left"), table_loss("right"))
        optimizer.Adagrad(0.1).minimize(loss)
    assert op_types(main, OpRole.OPTIMIZE) == ["adagrad", "adagrad"]
    session = Session(startup)
    session.run(main, {"left_ids": np.array([[5]]), "right_ids": np.array([[6], [7]])})
    assert (len(session.value("left")), len(session.value("right"))) == (1, 2)


@pytest.mark.parametrize(
    "make", [lambda: optimizer.Lamb(0.1), lambda: optimizer.LarsMomentum(0.1, 0.9), optimizer.Dpsgd]
)
def test_optimizers_that_need_a_whole_parameter_refuse_tables(make: Make) -> None:
    with (
        fresh_programs(),
        pytest.raises(ProgramError, match=r"Optimizer cannot train 'emb', a distributed table.*norm"),
    ):
        make().minimize(table_loss())


def test_a_table_used_by_other_ops_than_lookups_is_refused() -> None:
    with fresh_programs() as (main, _):
        loss = L.elementwise_add(table_loss(height=4), L.mean(main.global_block().var("emb")))
        with pytest.raises(ProgramError, match="'emb': the distributed table is used by other ops than lookups"):
            optimizer.SGD(0.1).minimize(loss)


# programs and their states


def test_b073_startup_before_minimize_is_hinted_at() -> None:
    with fresh_programs() as (main, startup):
        loss = two_layer_loss()
        session = Session(startup)
        optimizer.SGD(0.1).minimize(loss)
    with pytest.raises(UninitializedError, match=r"learning_rate_0.*run the startup program \(after minimize\)"):
        session.run(main, {"x": X})


def test_b036_seeding_only_the_startup_program_repeats_parameters() -> None:
    values = []
    for _ in range(2):
        with fresh_programs() as (_, startup):
            startup.random_seed = 5
            L.fc(L.data("x", [3]), 4, param_attr="w")
        values.append(Session(startup).value("w"))
    np.testing.assert_array_equal(values[0], values[1])


def test_b040_a_schedule_of_another_program_is_refused() -> None:
    with fresh_programs():
        rate = L.exponential_decay(0.1, 2, 0.5)
    with fresh_programs() as (main, _):
        loss = two_layer_loss()
        before = lines(main)
        with pytest.raises(ProgramError, match=rf"learning rate '{rate.name}' was made in another program"):
            optimizer.SGD(rate).minimize(loss)
    assert lines(main) == before


def test_b078_a_test_program_cloned_after_minimize_does_not_train() -> None:
    with fresh_programs() as (main, startup):
        h = L.dropout(L.fc(L.data("x", [2]), 2, param_attr="w"), 0.5)
        optimizer.Adam(L.exponential_decay(0.1, 1, 0.5)).minimize(L.mean(h))
        test_program = main.clone(for_test=True)
    assert op_types(test_program) == ["mul", "elementwise_add", "dropout", "mean"]
    assert test_program.global_block().ops[2].attr("is_test") is True
    session = Session(startup)
    before = session.value("w")
    runs = [session.run(test_program, {"x": X}, ["mean_0.tmp_0"])[0] for _ in range(2)]
    np.testing.assert_array_equal(runs[0], runs[1])
    np.testing.assert_array_equal(session.value("w"), before)


def test_a_second_minimize_needs_a_second_optimizer_where_there_are_accumulators() -> None:
    with fresh_programs() as (main, startup):
        loss = two_layer_loss()
        momentum, sgd = optimizer.Momentum(0.1, 0.9), optimizer.SGD(0.1)
        momentum.minimize(loss)
        with pytest.raises(ProgramError, match="cannot train 'v' again"):
            momentum.minimize(loss)
    with fresh_programs() as (main, startup):
        loss = two_layer_loss()
        sgd.minimize(loss)
        sgd.minimize(loss)
        optimizer.Momentum(0.1, 0.9).minimize(loss)
    session = Session(startup)
    session.run(main, {"x": X})
    assert op_types(main, OpRole.OPTIMIZE) == ["sgd"] * 4 + ["momentum"] * 2


def test_one_optimizer_trains_two_programs() -> None:
    sgd = optimizer.Momentum(0.5, 0.9)
    for _ in range(2):
        with fresh_programs() as (main, startup):
            sgd.minimize(two_layer_loss())
        session = Session(startup)
        session.run(main, {"x": X})
        np.testing.assert_allclose(session.value("v"), -0.5)


def test_arguments_of_the_wrong_kind() -> None:
    with pytest.raises(ProgramError, match=r"learning_rate must be a number or a Variable, not '0\.1'"):
        optimizer.SGD("0.1")  # type: ignore[arg-type]
    with pytest.raises(ProgramError, match="grad_clip must be"):
        optimizer.SGD(0.1, grad_clip=1.0)  # type: ignore[arg-type]
    with pytest.raises(ProgramError, match="parameter_list must be a list"):
        optimizer.SGD(0.1, parameter_list="w")
    with pytest.raises(ProgramError, match="minimizes a Variable, not str"):
        optimizer.SGD(0.1).minimize("loss")  # type: ignore[arg-type]
    with pytest.raises(ProgramError, match="no \\(parameter, gradient\\) pairs"):
        optimizer.SGD(0.1).apply_gradients([])


def test_a_loss_without_parameters() -> None:
    with fresh_programs():
        x = L.data("x", [2])
        x.stop_gradient = False
        with pytest.raises(GradientError, match=r"'mean_0\.tmp_0' depends on no parameter to train"):
            optimizer.SGD(0.1).minimize(L.mean(x))
