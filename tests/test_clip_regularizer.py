"""Gradient clips and weight decay: the ops, and the values for dense, sparse and table gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fluidlite.layers as L
from fluidlite import clip, optimizer, regularizer
from fluidlite.core.ir import OpRole
from fluidlite.dtypes import Array, VarKind
from fluidlite.errors import ProgramError
from fluidlite.framework import Program, Variable
from fluidlite.initializer import Constant
from fluidlite.optimizer import Optimizer
from fluidlite.param_attr import ParamAttr
from tests.frontend import Session, fresh_programs, lines, op_types

START = np.float32([[1.0, -2.0], [0.5, 0.25], [-1.0, 3.0], [2.0, 0.0]])


def train(
    make: Callable[[], Optimizer],
    ids: list[int],
    c: list[list[float]],
    *,
    is_sparse: bool = True,
    is_distributed: bool = False,
    steps: int = 1,
    attr: dict[str, Any] | None = None,
) -> Array:
    """Rows of a [4, 2] parameter, from START, after steps of which ``c`` are the gradients of the looked-up rows."""
    with fresh_programs() as (main, startup):
        loss = lookup_loss(is_sparse, is_distributed, attr or {})
        make().minimize(loss)
    session = Session(startup)
    if is_distributed:
        rows = np.arange(4)
        session.value("emb").load(clip_rows(rows))
    else:
        session.scope.set("emb", START.copy())
    for _ in range(steps):
        session.run(main, {"ids": np.int64(ids).reshape(-1, 1), "c": np.float32(c).reshape(-1, 2)})
    table = session.value("emb")
    return table.lookup(np.arange(4), read_only=True).copy() if is_distributed else table


def clip_rows(rows: Array) -> Any:
    from fluidlite.values.selected_rows import SelectedRows

    return SelectedRows(rows, START.copy(), 4)


def lookup_loss(is_sparse: bool, is_distributed: bool = False, attr: dict[str, Any] | None = None) -> Variable:
    ids, c = L.data("ids", [1], dtype="int64"), L.data("c", [2])
    param_attr = ParamAttr("emb", initializer=Constant(1.0), **(attr or {}))
    rows = L.embedding(ids, [4, 2], is_sparse=is_sparse, is_distributed=is_distributed, param_attr=param_attr)
    return L.reduce_sum(L.elementwise_mul(rows, c))


def sgd(**kwargs: Any) -> Callable[[], Optimizer]:
    return lambda: optimizer.SGD(0.1, **kwargs)


KINDS = pytest.mark.parametrize(
    ("is_sparse", "is_distributed"), [(False, False), (True, False), (True, True)], ids=["dense", "sparse", "table"]
)

# clips

IDS, C = [1, 2, 1], [[1.0, 2.0], [0.5, -0.5], [3.0, 2.0]]
MERGED = np.array([[0, 0], [4.0, 4.0], [0.5, -0.5], [0, 0]])


@KINDS
@pytest.mark.parametrize(
    ("clipping", "clipped"),
    [
        (clip.GradientClipByValue(1.0), np.clip(MERGED, -1, 1)),
        (clip.GradientClipByValue(1.0, min=-0.25), np.clip(MERGED, -0.25, 1)),
        (clip.GradientClipByNorm(1.0), MERGED / np.linalg.norm(MERGED)),
        (clip.GradientClipByNorm(100.0), MERGED),
        (clip.GradientClipByGlobalNorm(1.0), MERGED / np.linalg.norm(MERGED)),
        (clip.GradientClipByGlobalNorm(100.0), MERGED),
    ],
    ids=["value", "value_min", "norm", "norm_short", "global", "global_short"],
)
def test_c07_b045_clips_see_duplicate_rows_summed(
    clipping: clip.GradientClipBase, clipped: Array, is_sparse: bool, is_distributed: bool
) -> None:
    found = train(sgd(grad_clip=clipping), IDS, C, is_sparse=is_sparse, is_distributed=is_distributed)
    np.testing.assert_allclose(found, START - 0.1 * clipped, rtol=1e-6)


@pytest.mark.parametrize(
    "clipping", [clip.GradientClipByNorm(1.0), clip.GradientClipByGlobalNorm(1.0)], ids=["norm", "global"]
)
@pytest.mark.parametrize("is_sparse", [False, True])
def test_n27_a_zero_gradient_stays_zero(clipping: clip.GradientClipBase, is_sparse: bool) -> None:
    found = train(sgd(grad_clip=clipping), [1], [[0.0, 0.0]], is_sparse=is_sparse)
    np.testing.assert_array_equal(found, START)


@KINDS
@pytest.mark.parametrize(
    "clipping",
    [clip.GradientClipByValue(1.0), clip.GradientClipByNorm(1.0), clip.GradientClipByGlobalNorm(1.0)],
    ids=["value", "norm", "global"],
)
def test_c01_a_batch_without_ids(clipping: clip.GradientClipBase, is_sparse: bool, is_distributed: bool) -> None:
    found = train(sgd(grad_clip=clipping), [], [], is_sparse=is_sparse, is_distributed=is_distributed)
    np.testing.assert_array_equal(found, START)


def two_gradients() -> tuple[Variable, Variable]:
    """A loss of p [2] and q [1] with gradients [3, 0] and [4]."""
    p = L.create_parameter([2], "float32", "p", default_initializer=Constant(0.0))
    q = L.create_parameter([1], "float32", "q", default_initializer=Constant(0.0))
    return L.elementwise_add(L.scale(L.slice(p, [0], [0], [1]), 3.0), L.scale(q, 4.0)), q


def after_one_step(main: Program, startup: Program) -> tuple[list[float], list[float]]:
    session = Session(startup)
    session.run(main)
    return session.value("p").tolist(), session.value("q").tolist()


def test_global_norm_is_that_of_all_gradients_together() -> None:
    with fresh_programs() as (main, startup):
        loss, _ = two_gradients()
        optimizer.SGD(1.0, grad_clip=clip.GradientClipByGlobalNorm(1.0)).minimize(loss)
    p, q = after_one_step(main, startup)
    np.testing.assert_allclose(p, [-0.6, 0.0], rtol=1e-6)
    np.testing.assert_allclose(q, [-0.8], rtol=1e-6)


@pytest.mark.parametrize(
    ("clipping", "expected"),
    [
        (clip.GradientClipByGlobalNorm(1.0, need_clip=lambda param: param.name == "p"), ([-1.0, 0.0], [-4.0])),
        (clip.GradientClipByNorm(1.0, need_clip=lambda param: param.name == "q"), ([-3.0, 0.0], [-1.0])),
        (clip.GradientClipByGlobalNorm(1.0, need_clip=lambda _: False), ([-3.0, 0.0], [-4.0])),
    ],
    ids=["global", "norm", "none"],
)
def test_need_clip_leaves_parameters_out(clipping: clip.GradientClipBase, expected: Any) -> None:
    with fresh_programs() as (main, startup):
        optimizer.SGD(1.0, grad_clip=clipping).minimize(two_gradients()[0])
    np.testing.assert_allclose(np.concatenate(after_one_step(main, startup)), np.concatenate(expected), rtol=1e-6)


def test_clip_ops_carry_role_scope_and_the_final_gradient() -> None:
    with fresh_programs() as (main, _):
        optimizer.SGD(1.0, grad_clip=clip.GradientClipByValue(1.0)).minimize(two_gradients()[0])
    clips = [op for op in main.global_block().desc.ops if op.type == "clip"]
    assert [op.role for op in clips] == [OpRole.OPTIMIZE] * 2
    assert [op.role_var for op in clips] == [("p", "clip_0.tmp_0"), ("q", "clip_1.tmp_0")]
    assert {op.attr("op_namescope") for op in clips} == {"/gradient_clip/"}
    assert [op.input("Grad") for op in main.global_block().desc.ops if op.type == "sgd"] == [
        "clip_0.tmp_0",
        "clip_1.tmp_0",
    ]


def test_set_gradient_clip_by_group() -> None:
    """Each group has a norm of its own (Fluid 1.8.5 scales every group by the last one's factor)."""
    with fresh_programs() as (main, startup):
        loss, q = two_gradients()
        clip.set_gradient_clip(clip.GradientClipByGlobalNorm(1.0, "first"), ["p"])
        clip.set_gradient_clip(clip.GradientClipByGlobalNorm(2.0, "second"), [q])
        optimizer.SGD(1.0).minimize(loss)
    assert after_one_step(main, startup) == ([-1.0, 0.0], [-2.0])
    scopes = [op.attr("op_namescope") for op in main.global_block().desc.ops if op.type == "square"]
    assert scopes == ["/gradient_clip_@CLIP/", "/gradient_clip_@CLIP_1/"]


def test_set_gradient_clip_of_some_parameters_and_the_optimizers_own_clip_over_it() -> None:
    with fresh_programs() as (main, startup):
        loss, _ = two_gradients()
        clip.set_gradient_clip(clip.GradientClipByValue(0.5), ["q"])
        optimizer.SGD(1.0).minimize(loss)
    assert after_one_step(main, startup) == ([-3.0, 0.0], [-0.5])
    with fresh_programs() as (main, startup):
        loss, _ = two_gradients()
        clip.set_gradient_clip(clip.GradientClipByValue(0.5))
        optimizer.SGD(1.0, grad_clip=clip.GradientClipByValue(2.0)).minimize(loss)
    assert after_one_step(main, startup) == ([-2.0, 0.0], [-2.0])


def test_clips_that_cannot_be() -> None:
    for make in (clip.GradientClipByNorm, clip.GradientClipByGlobalNorm):
        with pytest.raises(ProgramError, match="clip_norm must be positive, not 0"):
            make(0)
    with pytest.raises(ProgramError, match=r"\[2\.0, 1\.0\] is empty"):
        clip.GradientClipByValue(1.0, min=2.0)
    with pytest.raises(ProgramError, match="need_clip must be a function"):
        clip.GradientClipByNorm(1.0, need_clip=["p"])  # type: ignore[arg-type]
    with fresh_programs():
        loss, _ = two_gradients()
        with pytest.raises(ProgramError, match="needs a GradientClipBy"):
            clip.set_gradient_clip(1.0)  # type: ignore[arg-type]
        with pytest.raises(ProgramError, match="'r' is no parameter"):
            clip.set_gradient_clip(clip.GradientClipByNorm(1.0), ["r"])
        clip.set_gradient_clip(clip.GradientClipByGlobalNorm(1.0), ["p"])
        clip.set_gradient_clip(clip.GradientClipByGlobalNorm(2.0), ["q"])
        with pytest.raises(ProgramError, match=r"'default_group' has clip_norm 1\.0, but parameter 'q'"):
            optimizer.SGD(1.0).minimize(loss)


# regularization


@pytest.mark.parametrize("is_sparse", [False, True])
@pytest.mark.parametrize(
    ("decay", "derivative"),
    [(regularizer.L2Decay(0.1), 0.1 * START), (regularizer.L1Decay(0.1), 0.1 * np.sign(START))],
    ids=["l2", "l1"],
)
def test_c04_c06_b046_every_row_of_a_parameter_decays(
    decay: regularizer.WeightDecayRegularizer, derivative: Array, is_sparse: bool
) -> None:
    """As in Fluid 1.8: the gradient of an is_sparse parameter becomes dense."""
    found = train(sgd(regularization=decay), IDS, C, is_sparse=is_sparse)
    np.testing.assert_allclose(found, START - 0.1 * (MERGED + derivative), rtol=1e-6)


@pytest.mark.parametrize(
    ("decay", "derivative"),
    [(regularizer.L2Decay(0.1), 0.1 * START), (regularizer.L1Decay(0.1), 0.1 * np.sign(START))],
    ids=["l2", "l1"],
)
@pytest.mark.parametrize("ids", [[1, 2, 1], [2, 1, 2, 2], [3], []])
def test_touched_rows_of_a_table_decay_once(
    decay: regularizer.WeightDecayRegularizer, derivative: Array, ids: list[int]
) -> None:
    found = train(sgd(regularization=decay), ids, [[0.5, -1.0]] * len(ids), is_distributed=True)
    expected = START.copy()
    for row in set(ids):
        expected[row] -= 0.1 * (ids.count(row) * np.float32([0.5, -1.0]) + derivative[row])
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_decay_of_a_table_stands_where_a_transpiler_can_move_it() -> None:
    with fresh_programs() as (main, _):
        optimizer.Adagrad(0.1, regularization=regularizer.L2Decay(0.1)).minimize(lookup_loss(True, True))
    assert op_types(main, OpRole.OPTIMIZE) == [
        *("merge_selected_rows", "extract_rows", "lookup_sparse_table", "scale", "lookup_table_grad", "sum"),
        "adagrad",
    ]
    ops = [op for op in main.global_block().desc.ops if op.role & OpRole.OPTIMIZE]
    assert {op.role_var for op in ops} == {("emb", "emb@GRAD")}
    assert ops[-2].output("Out") == "emb@GRAD"


def test_b048_a_parameters_own_regularizer_overrides_the_optimizers() -> None:
    own = {"regularizer": regularizer.L2Decay(0.5)}
    found = train(sgd(regularization=regularizer.L1Decay(0.1)), IDS, C, attr=own)
    np.testing.assert_allclose(found, START - 0.1 * (MERGED + 0.5 * START), rtol=1e-6)


def test_the_densified_gradient_gets_a_name_of_its_own() -> None:
    with fresh_programs() as (main, _):
        _, pairs = optimizer.SGD(0.1, regularization=regularizer.L2Decay(0.1)).minimize(lookup_loss(True))
    block = main.global_block()
    assert pairs[0][1].type is VarKind.SELECTED_ROWS
    assert block.var("emb@GRAD@NEWGRAD@").type is VarKind.LOD_TENSOR
    assert lines(main, OpRole.OPTIMIZE) == [
        "scale(X=emb) -> Out=_generated_var_0",
        "sum(X=emb@GRAD _generated_var_0) -> Out=emb@GRAD@NEWGRAD@",
        "sgd(Grad=emb@GRAD@NEWGRAD@, LearningRate=learning_rate_0, Param=emb) -> ParamOut=emb",
    ]


def test_clip_comes_before_decay() -> None:
    with fresh_programs() as (main, startup):
        optimizer.SGD(1.0, regularization=regularizer.L2Decay(1.0), grad_clip=clip.GradientClipByValue(0.5)).minimize(
            two_gradients()[0]
        )
    session = Session(startup, {"p": np.float32([2.0, 4.0]), "q": np.float32([8.0])})
    session.run(main)
    assert session.value("p").tolist() == [-0.5, 0.0]
    assert session.value("q").tolist() == [-0.5]


def test_a_coefficient_must_be_a_number() -> None:
    with pytest.raises(ProgramError, match="regularization_coeff must be a number, not '0'"):
        regularizer.L2Decay("0")  # type: ignore[arg-type]
    assert str(regularizer.L1Decay(0.5)) == "L1Decay, regularization_coeff=0.500000"
    assert regularizer.L2Decay is regularizer.L2DecayRegularizer
