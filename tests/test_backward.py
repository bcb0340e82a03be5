"""append_backward: the ops it appends, their names and roles, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

import fluidlite.layers as L
from fluidlite import clip
from fluidlite.backward import append_backward
from fluidlite.backward.grad_ops import GradOp
from fluidlite.core.ir import Operator, OpRole
from fluidlite.dtypes import VarKind
from fluidlite.errors import GradientError, ProgramError
from fluidlite.framework import Variable
from fluidlite.initializer import Constant, NumpyArrayInitializer
from fluidlite.param_attr import ParamAttr
from fluidlite.values.selected_rows import SelectedRows, to_dense
from tests.frontend import Session, fresh_programs, lines


def x_times_w(width: int = 4) -> Variable:
    """h = x w, x [-1, 4], w [4, width] of ones."""
    x = L.data("x", [4])
    return L.fc(x, width, bias_attr=False, param_attr=ParamAttr("w", initializer=Constant(1.0)))


def test_contributions_are_summed_in_backward_order_right_before_they_are_read() -> None:
    with fresh_programs() as (main, _):
        h = x_times_w()
        loss = L.mean(L.elementwise_add(L.relu(h), L.tanh(h)))
        pairs = append_backward(loss)
    assert [(param.name, grad.name) for param, grad in pairs] == [("w", "w@GRAD")]
    assert lines(main, OpRole.BACKWARD) == [
        "fill_constant() -> Out=mean_0.tmp_0@GRAD",
        "mean_grad(Out@GRAD=mean_0.tmp_0@GRAD, X=elementwise_add_0.tmp_0) -> X@GRAD=elementwise_add_0.tmp_0@GRAD",
        "elementwise_add_grad(Out@GRAD=elementwise_add_0.tmp_0@GRAD, X=relu_0.tmp_0, Y=tanh_0.tmp_0)"
        " -> X@GRAD=relu_0.tmp_0@GRAD, Y@GRAD=tanh_0.tmp_0@GRAD",
        "tanh_grad(Out=tanh_0.tmp_0, Out@GRAD=tanh_0.tmp_0@GRAD) -> X@GRAD=fc_0.tmp_0@GRAD@RENAME@block0@0",
        "relu_grad(Out=relu_0.tmp_0, Out@GRAD=relu_0.tmp_0@GRAD) -> X@GRAD=fc_0.tmp_0@GRAD@RENAME@block0@1",
        "sum(X=fc_0.tmp_0@GRAD@RENAME@block0@0 fc_0.tmp_0@GRAD@RENAME@block0@1) -> Out=fc_0.tmp_0@GRAD",
        "mul_grad(Out@GRAD=fc_0.tmp_0@GRAD, X=x, Y=w) -> Y@GRAD=w@GRAD",
    ]


def test_roles_and_role_vars() -> None:
    with fresh_programs() as (main, _):
        append_backward(L.mean(x_times_w()))
    ops = {op.type: op for op in main.global_block().desc.ops}
    assert ops["mean"].role == OpRole.LOSS
    assert ops["fill_constant"].role == OpRole.BACKWARD | OpRole.LOSS
    assert ops["mean_grad"].role == OpRole.BACKWARD
    assert ops["mul_grad"].role_var == ("w", "w@GRAD")
    assert ops["mean_grad"].role_var == ()


def test_gradient_variables_look_like_their_variables() -> None:
    with fresh_programs() as (main, _):
        append_backward(L.mean(x_times_w(3)))
    block = main.global_block()
    assert block.var("w@GRAD").shape == (4, 3)
    assert block.var("fc_0.tmp_0@GRAD").shape == (-1, 3)
    assert block.var("mean_0.tmp_0@GRAD").shape == (1,)
    assert not block.var("w@GRAD").persistable


def test_gradient_ops_point_at_the_users_line() -> None:
    with fresh_programs() as (main, _):
        append_backward(L.mean(x_times_w()))
    origins = {op.type: op.origin for op in main.global_block().desc.ops}
    assert origins["mul_grad"] == origins["mul"]
    assert "test_backward.py" in origins["mul_grad"]


def test_b061_one_variable_twice_in_one_op() -> None:
    with fresh_programs() as (main, startup):
        x = L.create_parameter(
            [2, 1], "float32", "x", default_initializer=NumpyArrayInitializer(np.float32([[1], [2]]))
        )
        loss = L.reduce_sum(L.matmul(x, x, transpose_y=True))
        ((_, grad),) = append_backward(loss)
    (value,) = Session(startup).run(main, fetch=[grad])
    assert value.tolist() == [[6.0], [6.0]]


def test_same_variable_three_times() -> None:
    with fresh_programs() as (main, _):
        h = x_times_w()
        append_backward(L.mean(L.sums([h, h, L.relu(h)])))
    sums = [line for line in lines(main, OpRole.BACKWARD) if line.startswith("sum(")]
    pieces = " ".join(f"fc_0.tmp_0@GRAD@RENAME@block0@{k}" for k in range(3))
    assert sums == [f"sum(X={pieces}) -> Out=fc_0.tmp_0@GRAD"]


def test_an_output_that_nobody_reads_has_zero_gradient() -> None:
    with fresh_programs() as (main, startup):
        first, _ = L.split(x_times_w(), 2, dim=1)
        ((_, grad),) = append_backward(L.reduce_sum(first))
    assert "fill_zeros_like(X=split_0.tmp_1) -> Out=split_0.tmp_1@GRAD" in lines(main, OpRole.BACKWARD)
    (value,) = Session(startup).run(main, {"x": np.ones((3, 4), np.float32)}, [grad])
    assert value.tolist() == [[3.0, 3.0, 0.0, 0.0]] * 4


def test_no_gradient_flows_through_stop_gradient() -> None:
    with fresh_programs() as (main, _):
        h = x_times_w()
        stopped = L.relu(h)
        stopped.stop_gradient = True
        append_backward(L.mean(L.elementwise_add(stopped, L.tanh(h))))
    text = "\n".join(lines(main, OpRole.BACKWARD))
    assert "relu_grad" not in text
    assert "X@GRAD" not in text.split("elementwise_add_grad")[1].split("\n")[0].split("->")[1]
    assert "sum(" not in text


def test_parameter_list_and_no_grad_set() -> None:
    with fresh_programs() as (main, _):
        h = x_times_w()
        loss = L.mean(L.fc(h, 2, param_attr="v"))
        pairs = append_backward(loss, parameter_list=["v"], no_grad_set={h})
    assert [param.name for param, _ in pairs] == ["v"]
    assert "w@GRAD" not in main.global_block().vars
    with fresh_programs():
        loss = L.mean(L.fc(x_times_w(), 2, param_attr="v", bias_attr=False))
        assert [param.name for param, _ in append_backward(loss, no_grad_set=["w"])] == ["v"]


def test_frozen_parameters_are_left_out_of_the_result() -> None:
    with fresh_programs():
        frozen = L.fc(L.data("x", [4]), 4, param_attr=ParamAttr("w", trainable=False), bias_attr=False)
        pairs = append_backward(L.mean(L.fc(frozen, 2, param_attr="v", bias_attr=False)))
    assert [param.name for param, _ in pairs] == ["v"]


def test_c24_two_lookups_of_a_table_give_one_sum_of_selected_rows() -> None:
    with fresh_programs() as (main, startup):
        attr = ParamAttr("emb", initializer=Constant(0.5))
        a, b = L.data("a", [1], dtype="int64"), L.data("b", [1], dtype="int64")
        rows = [L.embedding(ids, [10, 2], is_sparse=True, param_attr=attr) for ids in (a, b)]
        ((_, grad),) = append_backward(L.reduce_sum(L.concat(rows, axis=1)))
    assert grad.type is VarKind.SELECTED_ROWS
    assert lines(main, OpRole.BACKWARD)[-3:] == [
        "lookup_table_grad(Ids=b, Out@GRAD=embedding_1.tmp_0@GRAD, W=emb) -> W@GRAD=emb@GRAD@RENAME@block0@0",
        "lookup_table_grad(Ids=a, Out@GRAD=embedding_0.tmp_0@GRAD, W=emb) -> W@GRAD=emb@GRAD@RENAME@block0@1",
        "sum(X=emb@GRAD@RENAME@block0@0 emb@GRAD@RENAME@block0@1) -> Out=emb@GRAD",
    ]
    assert main.global_block().desc.ops[-1].role_var == ("emb", "emb@GRAD")
    feed = {"a": np.array([[3], [1]]), "b": np.array([[3], [7]])}
    (value,) = Session(startup).run(main, feed, [grad])
    assert isinstance(value, SelectedRows)
    assert to_dense(value)[[1, 3, 7]].tolist() == [[1, 1], [2, 2], [1, 1]]


def test_b058_a_parameter_used_by_lookup_and_by_matmul_has_a_dense_gradient() -> None:
    start = np.float32([[0.5, -1.0], [1.0, 0.25], [2.0, -0.5], [0.0, 3.0]])
    with fresh_programs() as (main, startup):
        ids = L.data("ids", [1], dtype="int64")
        rows = L.embedding(
            ids, [4, 2], is_sparse=True, param_attr=ParamAttr("emb", initializer=NumpyArrayInitializer(start))
        )
        loss = L.reduce_sum(L.matmul(rows, main.global_block().var("emb"), transpose_y=True))
        ((_, grad),) = append_backward(loss)
    assert grad.type is VarKind.LOD_TENSOR
    (value,) = Session(startup).run(main, {"ids": np.array([[1], [1]])}, [grad])
    expected = np.tile(2 * start[1], (4, 1))
    expected[1] += 2 * start.sum(axis=0)
    np.testing.assert_allclose(value, expected, rtol=1e-6)


def test_a_second_backward_gets_names_of_its_own() -> None:
    with fresh_programs() as (main, startup):
        h = x_times_w()
        loss = L.mean(L.elementwise_add(L.relu(h), L.tanh(h)))
        grads = [append_backward(loss)[0][1] for _ in range(3)]
    assert [grad.name for grad in grads] == ["w@GRAD", "grad/grad/w@GRAD", "grad/grad/grad/w@GRAD"]
    backward = lines(main, OpRole.BACKWARD)
    assert "fill_constant() -> Out=mean_0.tmp_0@GRAD_0" in backward
    assert (
        "sum(X=grad/grad/fc_0.tmp_0@GRAD@RENAME@block0@0 grad/grad/fc_0.tmp_0@GRAD@RENAME@block0@1)"
        " -> Out=grad/grad/fc_0.tmp_0@GRAD"
    ) in backward
    values = Session(startup).run(main, {"x": np.ones((2, 4), np.float32)}, grads)
    np.testing.assert_array_equal(values[0], values[1])
    np.testing.assert_array_equal(values[0], values[2])


def test_two_losses_share_what_is_before_them() -> None:
    with fresh_programs() as (main, startup):
        h = x_times_w()
        first, second = L.reduce_sum(L.relu(h)), L.reduce_sum(L.scale(h, 3.0))
        grads = [append_backward(loss)[0][1] for loss in (first, second)]
    values = Session(startup).run(main, {"x": np.ones((1, 4), np.float32)}, grads)
    assert (values[1] == 3 * values[0]).all()


def test_error_clip_limits_a_gradient_once_it_is_whole() -> None:
    with fresh_programs() as (main, startup):
        h = x_times_w()
        h.error_clip = clip.ErrorClipByValue(max=1.5)
        loss = L.reduce_sum(L.elementwise_add(h, L.scale(h, 3.0)))
        ((_, grad),) = append_backward(loss, callbacks=[clip.error_clip_callback])
    backward = lines(main)
    at = backward.index("clip(X=fc_0.tmp_0@GRAD) -> Out=fc_0.tmp_0@GRAD")
    assert backward[at - 1].startswith("sum(")
    assert main.global_block().desc.ops[at].role == OpRole.FORWARD
    (value,) = Session(startup).run(main, {"x": np.ones((2, 4), np.float32)}, [grad])
    assert (value == 3.0).all()


def test_error_clip_goes_with_the_backward_ops_of_a_test_program() -> None:
    with fresh_programs() as (main, startup):
        h = x_times_w()
        h.error_clip = clip.ErrorClipByValue(max=1.5)
        loss = L.mean(h)
        append_backward(loss, callbacks=[clip.error_clip_callback])
        test_program = main.clone(for_test=True)
    assert lines(test_program) == ["mul(X=x, Y=w) -> Out=fc_0.tmp_0", "mean(X=fc_0.tmp_0) -> Out=mean_0.tmp_0"]
    (value,) = Session(startup).run(test_program, {"x": np.ones((2, 4), np.float32)}, [loss.name])
    assert value.tolist() == [4.0]


def test_an_error_clip_must_be_one() -> None:
    with fresh_programs():
        h = x_times_w()
        h.error_clip = 1.5
        with pytest.raises(ProgramError, match=r"fc_0\.tmp_0.*ErrorClipByValue"):
            append_backward(L.mean(h), callbacks=[clip.error_clip_callback])


# what is refused


def refused(loss: Variable, match: str) -> None:
    """The loss is refused, and the program stays as it was."""
    before = lines(loss.program)
    with pytest.raises(GradientError, match=match):
        append_backward(loss)
    assert lines(loss.program) == before


def test_a_loss_of_another_shape() -> None:
    with fresh_programs():
        refused(x_times_w(), r"fc_0\.tmp_0.*\[-1, 4\], not \[1\]")


def test_a_loss_that_depends_on_nothing_trainable() -> None:
    with fresh_programs():
        refused(L.mean(L.data("x", [4])), "mean_0.tmp_0.*nothing that can be trained")


def test_a_loss_that_no_op_computes() -> None:
    with fresh_programs():
        refused(L.create_parameter([1], "float32", "p"), "'p' is not computed")


def test_an_op_without_gradient_on_the_way() -> None:
    with fresh_programs():
        loss = L.mean(L.clip_by_norm(x_times_w(), 1.0))
        refused(loss, r"'clip_by_norm' has no gradient.*fc_0\.tmp_0.*test_backward\.py")


def test_an_op_without_gradient_beside_the_way_is_fine() -> None:
    with fresh_programs():
        h = x_times_w()
        rows = L.argmax(h, axis=1)
        shaped = L.fill_constant_batch_size_like(h, [-1, 4], "float32", 1.0)
        loss = L.mean(L.elementwise_add(h, shaped))
        assert append_backward(loss)
        assert rows.stop_gradient


def test_a_variable_written_twice() -> None:
    with fresh_programs():
        h = x_times_w()
        y = L.relu(h)
        L.assign(L.tanh(y), y)
        refused(L.mean(y), r"relu_0\.tmp_0.*'relu'.*again by op 'assign'")


def test_a_sub_block_on_the_way() -> None:
    with fresh_programs():
        h = x_times_w()
        total = L.fill_constant([1], "float32", 0.0)
        total.stop_gradient = False
        with L.Switch() as switch, switch.case(L.less_than(total, L.fill_constant([1], "float32", 1.0))):
            L.assign(L.mean(h), total)
        pairs = append_backward(L.mean(total))
        assert [param.name for param, _ in pairs] == ["w"]


def test_a_loss_inside_a_sub_block() -> None:
    with fresh_programs():
        h = x_times_w()
        one = L.fill_constant([1], "float32", 1.0)
        with L.Switch() as switch, switch.case(L.less_than(one, L.fill_constant([1], "float32", 2.0))):
            inner = L.mean(h)
        with pytest.raises(GradientError, match=r"'mean_0\.tmp_0' belongs to block 1"):
            append_backward(inner)


def test_arguments_of_the_wrong_kind() -> None:
    with fresh_programs():
        loss = L.mean(x_times_w())
        with pytest.raises(ProgramError, match="must be Variables"):
            append_backward("mean_0.tmp_0")  # type: ignore[arg-type]
        with pytest.raises(ProgramError, match="'nothing', which is no parameter"):
            append_backward(loss, parameter_list=["nothing"])
        with pytest.raises(ProgramError, match="checkpoints"):
            append_backward(loss, checkpoints=["fc_0.tmp_0"])
        with pytest.raises(ProgramError, match="no_grad_set must be"):
            append_backward(loss, no_grad_set="w")


def test_an_op_reads_gradients_in_the_order_of_its_inputs() -> None:
    """Not in that of a set, which is another in every process."""
    op = Operator("any_grad", inputs={"Y@GRAD": ["b@GRAD", "a@GRAD"], "Out@GRAD": ["d@GRAD", "c@GRAD"], "X": ["x"]})
    made = GradOp(op, frozenset({"a@GRAD", "b@GRAD", "c@GRAD", "d@GRAD"}), op)
    assert made.in_order() == ["d@GRAD", "c@GRAD", "b@GRAD", "a@GRAD"]
