"""Gradients of random programs equal numeric ones (float64)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fluidlite.layers as L
from fluidlite.backward import append_backward, gradients
from fluidlite.dtypes import Array
from fluidlite.framework import Program, Variable
from fluidlite.param_attr import ParamAttr
from fluidlite.values.selected_rows import SelectedRows, to_dense
from tests.frontend import Session, fresh_programs

ROWS, COLUMNS, HEIGHT = 3, 4, 5
SHAPES = {
    "a": (ROWS, COLUMNS),
    "b": (ROWS, COLUMNS),
    "weight": (COLUMNS, COLUMNS),
    "bias": (COLUMNS,),
    "dense_table": (HEIGHT, COLUMNS),
    "sparse_table": (HEIGHT, COLUMNS),
}


def parameter(name: str) -> Variable:
    return L.create_parameter(SHAPES[name], "float64", name)


def lookup(table: str) -> Variable:
    ids = L.data("ids", [ROWS, 1], dtype="int64", append_batch_size=False)
    sparse = table == "sparse_table"
    return L.embedding(ids, SHAPES[table], is_sparse=sparse, dtype="float64", param_attr=ParamAttr(table))


def halves_swapped(x: Variable) -> Variable:
    left, right = L.split(x, 2, dim=1)
    return L.concat([right, left], axis=1)


def left_half_twice(x: Variable) -> Variable:
    left, _ = L.split(x, 2, dim=1)
    return L.concat([left, left], axis=1)


#: every step takes two [ROWS, COLUMNS] variables and gives one
STEPS: dict[str, Callable[[Variable, Variable], Variable]] = {
    "add": L.elementwise_add,
    "sub": L.elementwise_sub,
    "mul": L.elementwise_mul,
    "tanh": lambda x, _: L.tanh(x),
    "sigmoid": lambda x, _: L.sigmoid(x),
    "softmax": lambda x, _: L.softmax(x),
    "scale": lambda x, _: L.scale(x, -1.5, 0.25),
    "sums": lambda x, y: L.sums([x, y, x]),
    "matmul": lambda x, _: L.matmul(x, parameter("weight")),
    "bias": lambda x, _: L.elementwise_add(x, parameter("bias"), axis=1),
    "rows": lambda x, _: L.elementwise_mul(x, lookup("dense_table")),
    "sparse_rows": lambda x, _: L.elementwise_add(x, lookup("sparse_table")),
    "swap": lambda x, _: halves_swapped(x),
    "left": lambda x, _: left_half_twice(x),
    "mean_rows": lambda x, y: L.elementwise_add(x, L.reduce_mean(y, dim=1, keep_dim=True)),
}
plans = st.lists(
    st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 100), st.integers(0, 100)), min_size=1, max_size=7
)


def build(plan: list[tuple[str, int, int]]) -> Variable:
    """A loss from a random graph: any step may use any result before it, also none."""
    pool = [parameter("a"), parameter("b")]
    for step, first, second in plan:
        pool.append(STEPS[step](pool[first % len(pool)], pool[second % len(pool)]))
    return L.mean(L.sums([pool[-1], pool[len(pool) // 2]]))


def numeric(
    main: Program, loss: Variable, start: dict[str, Array], feed: dict[str, Any], name: str, way: Array
) -> float:
    """The derivative of the loss when a parameter moves along ``way``."""
    step = 1e-6
    ends = [
        float(Session(values={**start, name: start[name] + sign * step * way}).run(main, feed, [loss])[0][0])
        for sign in (1.0, -1.0)
    ]
    return (ends[0] - ends[1]) / (2 * step)


relaxed = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@relaxed
@given(plan=plans, seed=st.integers(0, 2**32 - 1))
def test_append_backward_is_the_derivative_of_the_loss(plan: list[tuple[str, int, int]], seed: int) -> None:
    rng = np.random.default_rng(seed)
    start = {name: rng.uniform(-1, 1, shape) for name, shape in SHAPES.items()}
    feed = {"ids": rng.integers(0, HEIGHT, (ROWS, 1))}
    with fresh_programs() as (main, _):
        loss = build(plan)
        forward = main.clone()
        pairs = append_backward(loss)
    feed = feed if main.global_block().has_var("ids") else {}
    found = Session(values=start).run(main, feed, [grad for _, grad in pairs])
    for (param, _), value in zip(pairs, found, strict=True):
        gradient = to_dense(value) if isinstance(value, SelectedRows) else value
        assert gradient.dtype == np.float64
        assert gradient.shape == SHAPES[param.name]
        way = rng.uniform(-1, 1, gradient.shape)
        expected = numeric(forward, loss, start, feed, param.name, way)
        np.testing.assert_allclose(np.sum(gradient * way), expected, rtol=1e-5, atol=1e-8)


@relaxed
@given(plan=plans, seed=st.integers(0, 2**32 - 1))
def test_a_second_pass_and_gradients_agree_with_the_first(plan: list[tuple[str, int, int]], seed: int) -> None:
    rng = np.random.default_rng(seed)
    start = {name: rng.uniform(-1, 1, shape) for name, shape in SHAPES.items()}
    with fresh_programs() as (main, _):
        loss = build(plan)
        params, first = zip(*append_backward(loss), strict=True)
        second = [grad for _, grad in append_backward(loss)]
        third = [grad for grad in gradients(loss, list(params)) if grad is not None]
    feed = {"ids": rng.integers(0, HEIGHT, (ROWS, 1))} if main.global_block().has_var("ids") else {}
    values = Session(values=start).run(main, feed, [*first, *second, *third])
    dense = [to_dense(value) if isinstance(value, SelectedRows) else value for value in values]
    count = len(params)
    for a, b, c in zip(dense[:count], dense[count : 2 * count], dense[2 * count :], strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(a, c)
