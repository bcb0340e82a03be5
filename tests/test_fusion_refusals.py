"""What fusion passes leave alone: wherever a rewrite might change what anyone can see."""

from __future__ import annotations

from typing import Final

import pytest

from fluidlite import fusion
from fluidlite.core import text

DECLARED: Final = """block 0
  var x: [-1, 3] data
  var y: [-1, 3] data
  param w: [3, 4]
  param b: [4]
  var t0: [-1, 4]
  var t1: [-1, 4]
  var t2: [-1, 4]
  var u: [-1, 4]
  var v: [-1, 4]
  var s: [-1, 8]
  var z: [-1, 4]
  var a: int64[-1, 1] data
  var c: int64[-1, 1] data
  var d: int64[-1, 1]
  var label: int64[-1, 1] data
  var soft: [-1, 4] data
  var losses: [-1, 1]
  var loss: [1]
  var kept: [-1, 4] persistable
  param emb: [9, 4]
  param emb2: [9, 4]
  var g0: selected_rows [9, 4]
  var g1: selected_rows [9, 4]
  var dense_grad: [9, 4]
  var emb@GRAD: selected_rows [9, 4]
  var u@GRAD: [-1, 4] data
  var v@GRAD: [-1, 4] data
  var w@GRAD: [3, 4] data
  var b@GRAD: [4] data
  param tall: [100000, 4]
  var tall@GRAD: [100000, 4] data
  var sparse@GRAD: selected_rows [3, 4] data
  var rate: [1] persistable
  var rate2: [1] persistable
"""
MUL = "mul(X=[x], Y=[w]) -> (Out=[t0])"
ADD = "elementwise_add(X=[t0], Y=[b]) -> (Out=[t1]) {axis=1}"
RELU = "relu(X=[t1]) -> (Out=[t2])"
FIRST = "lookup_table(Ids=[a], W=[emb]) -> (Out=[u]) {is_sparse=true}"
SECOND = "lookup_table(Ids=[c], W=[emb]) -> (Out=[v]) {is_sparse=true}"
FIRST_GRAD = "lookup_table_grad(Ids=[a], Out@GRAD=[u@GRAD], W=[emb]) -> (W@GRAD=[g0]) {is_sparse=true}"
SECOND_GRAD = "lookup_table_grad(Ids=[c], Out@GRAD=[v@GRAD], W=[emb]) -> (W@GRAD=[g1]) {is_sparse=true}"
CONCAT = "concat(X=[u v]) -> (Out=[s]) {axis=1}"
SOFTMAX = "softmax(X=[t1]) -> (Out=[t2])"
ENTROPY = "cross_entropy(X=[t2], Label=[label]) -> (Y=[losses])"
SGD_W = "sgd(Param=[w], Grad=[w@GRAD], LearningRate=[rate]) -> (ParamOut=[w])"
SGD_B = "sgd(Param=[b], Grad=[b@GRAD], LearningRate=[rate]) -> (ParamOut=[b])"


def types(ops: list[str], fetch: list[str] | None = None, choice: fusion.Choice = True, blocks: str = "") -> list[str]:
    """The types of the ops that passes leave of a program."""
    program = text.parse(DECLARED + "".join(f"  {op}\n" for op in ops) + blocks)
    return [op.type for op in fusion.fuse(program, fetch or (), fusion.chosen(choice)).root.ops]


def as_written(ops: list[str]) -> list[str]:
    return [op.partition("(")[0] for op in ops]


def test_what_is_left_alone_is_otherwise_fused() -> None:
    assert types([MUL, ADD, RELU]) == ["fc"]
    assert types([FIRST, SECOND]) == ["fused_lookup_table"]
    assert types([FIRST, SECOND, CONCAT]) == ["fused_lookup_concat"]
    assert types([FIRST_GRAD, SECOND_GRAD, "sum(X=[g0 g1]) -> (Out=[emb@GRAD])"]) == ["fused_lookup_table_grad", "sum"]
    assert types([SOFTMAX, ENTROPY]) == ["fused_softmax_cross_entropy"]
    assert types([SGD_W, SGD_B]) == ["fused_sgd"]


@pytest.mark.parametrize(
    ("ops", "fetch"),
    [
        ([MUL, ADD], ["t0"]),
        ([MUL, ADD, "scale(X=[t0]) -> (Out=[z]) {scale=2.0}"], []),
        ([MUL, "scale(X=[y]) -> (Out=[t0]) {scale=2.0}", ADD], []),
        ([MUL, ADD, "scale(X=[y]) -> (Out=[t0]) {scale=2.0}"], []),
        (["mul(X=[x], Y=[w]) -> (Out=[kept])", ADD.replace("t0", "kept")], []),
        ([MUL, "elementwise_add(X=[t0], Y=[b]) -> (Out=[t1]) {axis=0}"], []),
        ([MUL, "elementwise_add(X=[b], Y=[t0]) -> (Out=[t1])"], []),
        ([MUL.replace("[w]", "[y]"), ADD], []),
        (["mul(X=[x], Y=[w]) -> (Out=[t0]) {y_num_col_dims=2}", ADD], []),
    ],
)
def test_layers(ops: list[str], fetch: list[str]) -> None:
    assert types(ops, fetch) == as_written(ops)


def test_a_layer_whose_middle_is_wanted_is_fused_up_to_there() -> None:
    assert types([MUL, ADD, RELU], ["t1"]) == ["fc", "relu"]
    assert types([MUL, ADD, RELU, "scale(X=[t1]) -> (Out=[z]) {scale=2.0}"]) == ["fc", "relu", "scale"]


def test_a_layer_runs_where_its_inputs_still_have_their_values() -> None:
    overwrite = "scale(X=[y]) -> (Out=[x]) {scale=2.0}"
    assert types([MUL, overwrite, ADD, RELU]) == ["fc", "scale"]
    later = "scale(X=[y]) -> (Out=[b]) {scale=2.0}"
    assert types([MUL, overwrite, later, ADD]) == ["mul", "scale", "scale", "elementwise_add"]


def test_lookups_keep_their_order_with_those_in_blocks() -> None:
    """One in between that does not train finds the rows that exist by then."""
    inside = "lookup_table(Ids=[c], W=[emb]) -> (Out=[z]) {is_test=true}"
    run = "conditional_block(Cond=[label]) -> (Scope=[]) {sub_block=block(1), is_scalar_condition=true}"
    ops = [FIRST, run, SECOND]
    assert types(ops, blocks=f"block 1 parent=0\n  {inside}\n") == as_written(ops)


def test_what_a_block_reads_stays() -> None:
    block = "block 1 parent=0\n  scale(X=[t0]) -> (Out=[z]) {scale=2.0}\n"
    run = "conditional_block(Cond=[label]) -> (Scope=[]) {sub_block=block(1), is_scalar_condition=true}"
    ops = [MUL, run, ADD]
    assert types(ops, blocks=block) == as_written(ops)
    assert types(ops, blocks=block.replace("t0", "y")) == ["conditional_block", "fc"]


@pytest.mark.parametrize(
    "ops",
    [
        [FIRST, SECOND.replace("[emb]", "[emb2]")],
        [FIRST, SECOND.replace("true", "true, padding_idx=1L")],
        [FIRST, SECOND.replace("lookup_table", "lookup_table_v2")],
        [FIRST, "cast(X=[u]) -> (Out=[d]) {in_dtype=5, out_dtype=3}", SECOND.replace("[c]", "[d]")],
        [FIRST, "scale(X=[emb2]) -> (Out=[emb]) {scale=2.0}", SECOND],
        [FIRST, "scale(X=[v]) -> (Out=[z]) {scale=2.0}", SECOND],
        [FIRST, SECOND, "lookup_table(Ids=[a], W=[emb]) -> (Out=[z]) {is_test=true}"],
    ],
)
def test_lookups(ops: list[str]) -> None:
    assert types(ops) == as_written(ops)


@pytest.mark.parametrize(
    ("ops", "fetch"),
    [
        ([FIRST_GRAD, SECOND_GRAD, "sum(X=[g0 g1]) -> (Out=[emb@GRAD])"], ["g1"]),
        ([FIRST_GRAD, SECOND_GRAD, "sum(X=[g0 dense_grad g1]) -> (Out=[emb@GRAD])"], []),
        ([FIRST_GRAD, SECOND_GRAD, "sum(X=[g0 g1 dense_grad]) -> (Out=[dense_grad])"], []),
        ([FIRST_GRAD, SECOND_GRAD, "sum(X=[g0 g1]) -> (Out=[emb@GRAD])", "scale(X=[g0]) -> (Out=[g0])"], []),
        ([FIRST_GRAD, SECOND_GRAD.replace("true", "true, padding_idx=0L"), "sum(X=[g0 g1]) -> (Out=[emb@GRAD])"], []),
    ],
)
def test_gradients_of_lookups(ops: list[str], fetch: list[str]) -> None:
    assert types(ops, fetch) == as_written(ops)


@pytest.mark.parametrize(
    ("ops", "fetch"),
    [
        ([FIRST, SECOND, CONCAT], ["u"]),
        ([FIRST, SECOND, CONCAT.replace("axis=1", "axis=0")], []),
        ([FIRST, SECOND, "concat(X=[u v u]) -> (Out=[s]) {axis=1}"], []),
        ([FIRST, SECOND, "concat(X=[u y v]) -> (Out=[s]) {axis=1}"], []),
        ([FIRST, SECOND, CONCAT, "scale(X=[v]) -> (Out=[z]) {scale=2.0}"], []),
    ],
)
def test_lookups_side_by_side(ops: list[str], fetch: list[str]) -> None:
    assert types(ops, fetch, ["lookup_concat"]) == as_written(ops)


@pytest.mark.parametrize(
    "ops",
    [
        [SOFTMAX, "cross_entropy(X=[t2], Label=[soft]) -> (Y=[losses]) {soft_label=true}"],
        ["softmax(X=[t1]) -> (Out=[t2]) {axis=0}", ENTROPY],
        [SOFTMAX, "scale(X=[y]) -> (Out=[t2]) {scale=2.0}", ENTROPY],
        ["sigmoid_cross_entropy_with_logits(X=[t1], Label=[label]) -> (Out=[t2])", "mean(X=[t2]) -> (Out=[loss])"],
    ],
)
def test_losses(ops: list[str]) -> None:
    assert types(ops) == as_written(ops)


@pytest.mark.parametrize(
    "ops",
    [
        [SGD_W, SGD_B.replace("[rate]", "[rate2]")],
        [SGD_W.replace("w", "tall"), SGD_B],
        [SGD_W.replace("w@GRAD", "sparse@GRAD"), SGD_B],
        [SGD_W.replace("ParamOut=[w]", "ParamOut=[kept]"), SGD_B],
        [SGD_W, "scale(X=[w]) -> (Out=[z]) {scale=2.0}", SGD_B],
        [SGD_W, SGD_W],
    ],
)
def test_updates(ops: list[str]) -> None:
    assert types(ops) == as_written(ops)
