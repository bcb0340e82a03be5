"""Kernels of fully connected layers in C and in numpy: the same bits, specials included."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluidlite.errors import DtypeError, ProgramError, ShapeError
from fluidlite.kernels.in_numpy import dense as in_numpy

_c = pytest.importorskip("fluidlite.kernels._c")
in_c = pytest.importorskip("fluidlite.kernels.in_c.dense")

SPECIAL = (np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-310, -1e-310, 1e-41, -1e-41, 3e38, -3e38)
SETS = pytest.mark.parametrize("dense", [in_numpy, in_c], ids=["numpy", "c"])
shapes = st.tuples(st.sampled_from([0, 1, 2, 7, 33]), st.sampled_from([0, 1, 3, 16, 37, 400]))
seeds = st.integers(0, 2**32)


def same_bits(got: Any, wanted: Any) -> None:
    """The same bytes, but for the bits of a NaN."""
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
    nan = np.isnan(wanted)
    np.testing.assert_array_equal(np.isnan(got), nan)
    assert np.where(nan, 0, got).tobytes() == np.where(nan, 0, wanted).tobytes()


def numbers(rng: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    with np.errstate(all="ignore"):
        return np.where(rng.random(shape) < 0.2, rng.choice(SPECIAL, shape), rng.standard_normal(shape)).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@given(shape=shapes, seed=seeds, turned=st.booleans())
@settings(deadline=None, max_examples=40)
def test_c_equals_numpy(dtype: Any, shape: tuple[int, int], seed: int, turned: bool) -> None:
    rng = np.random.default_rng(seed)
    x, d_out = (numbers(rng, shape, dtype) for _ in range(2))
    bias = numbers(rng, shape[1:], dtype)
    if turned:
        x, d_out = np.asfortranarray(x), np.asfortranarray(d_out)
    with np.errstate(all="ignore"):
        same_bits(in_c.relu(x), in_numpy.relu(x))
        same_bits(in_c.relu_grad(x, d_out), in_numpy.relu_grad(x, d_out))
        for dense in (in_c, in_numpy):
            one, other = x.copy(order="K"), d_out.copy(order="K")
            assert dense.relu_over(one) is one
            assert dense.relu_grad_over(x, other) is other
            same_bits(one, in_numpy.relu(x))
            same_bits(other, in_numpy.relu_grad(x, d_out))
        for act in in_numpy.ACTS:
            one, other = x.copy(), x.copy()
            assert in_c.bias_act(one, bias, act) is one
            assert in_numpy.bias_act(other, bias, act) is other
            same_bits(one, other)
            same_bits(in_c.act_grad(x, d_out, act), in_numpy.act_grad(x, d_out, act))


@SETS
def test_values(dense: Any) -> None:
    x = np.array([[-1.0, 2.0, -0.0, np.nan, np.inf]])
    same_bits(dense.relu(x), np.array([[0.0, 2.0, 0.0, np.nan, np.inf]]))
    d_out = np.array([[-3.0, -3.0, np.inf, 1.0, 2.0]])
    with np.errstate(all="ignore"):
        same_bits(dense.relu_grad(x, d_out), np.array([[-0.0, -3.0, np.nan, 0.0, 2.0]]))
    bias = np.array([0.5, -3.0, 0.0, 1.0, -np.inf])
    with np.errstate(all="ignore"):
        same_bits(dense.bias_act(x.copy(), bias, ""), np.array([[-0.5, -1.0, 0.0, np.nan, np.nan]]))
        same_bits(dense.bias_act(x.copy(), bias[:, None], "relu"), np.array([[0.0, 0.0, 0.0, np.nan, np.nan]]))
    assert dense.act_grad(x, d_out, "") is d_out
    assert dense.relu(np.array(-2.0)) == 0
    assert dense.relu(np.array([-2, 3])).tolist() == [0, 3]


@SETS
def test_refusals(dense: Any) -> None:
    x, bias = np.ones((2, 3)), np.ones(3)
    for bad_x, bad_bias in ((x, np.ones(2)), (x, np.ones(1)), (x, np.ones((2, 3))), (bias, bias)):
        with pytest.raises(ShapeError):
            dense.bias_act(bad_x, bad_bias, "relu")
    with pytest.raises(DtypeError):
        dense.bias_act(x, bias.astype(np.float32), "")
    with pytest.raises(ProgramError, match="tanh"):
        dense.bias_act(x, bias, "tanh")
    with pytest.raises(ProgramError, match="tanh"):
        dense.act_grad(x, x, "tanh")
    with pytest.raises(ShapeError):
        dense.act_grad(x, np.ones((2, 1)), "relu")
    with pytest.raises(DtypeError):
        dense.act_grad(x, x.astype(np.float32), "relu")
    assert x.tolist() == np.ones((2, 3)).tolist()


X = np.ones((2, 3))
FIXED = np.ones((2, 3))
FIXED.flags.writeable = False


@pytest.mark.parametrize(
    ("error", "function", "arguments"),
    [
        (ShapeError, "relu", (X, np.ones(5))),
        (ShapeError, "relu", (X, FIXED)),
        (ShapeError, "relu", (X[:, ::2], np.ones(4))),
        (DtypeError, "relu", (X, np.ones(6, np.float32))),
        (DtypeError, "relu", (X.astype(np.int64), X)),
        (TypeError, "relu", (X,)),
        (ShapeError, "bias_act", (X, np.ones(2), 0)),
        (ShapeError, "bias_act", (X[0], np.ones(3), 0)),
        (ShapeError, "bias_act", (FIXED, np.ones(3), 1)),
        (DtypeError, "bias_act", (X, np.ones(3, np.float32), 1)),
        (ShapeError, "bias_act", (X, np.ones(3), -1)),
        (TypeError, "bias_act", (X, np.ones(3), "relu")),
        (ShapeError, "relu_grad", (X, np.ones(5), np.ones(6))),
        (ShapeError, "relu_grad", (X, np.ones(6), np.ones(5))),
        (ShapeError, "relu_grad", (X, X, FIXED)),
        (DtypeError, "relu_grad", (X, X, np.ones(6, np.float32))),
        (ShapeError, "relu_grad", (None, X, X)),
        (ShapeError, "relu_grad_over", (X, np.ones(5))),
        (ShapeError, "relu_grad_over", (X, X)),
        (ShapeError, "relu_grad_over", (X, FIXED)),
        (DtypeError, "relu_grad_over", (X, np.ones(6, np.float32))),
    ],
)
def test_the_extension_checks_its_arguments(error: Any, function: str, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(error):
        getattr(_c, function)(*arguments)


# ---- what both sets share


@given(seed=seeds, shape=shapes)
@settings(deadline=None, max_examples=40)
def test_sum_rows(seed: int, shape: tuple[int, int]) -> None:
    matrix = np.random.default_rng(seed).standard_normal(shape)
    np.testing.assert_allclose(in_numpy.column_sums(matrix), matrix.sum(axis=0), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@given(seed=seeds, n=st.integers(0, 40), m=st.integers(0, 40))
@settings(deadline=None, max_examples=30)
def test_product_of_a_column_and_a_row_is_that_of_blas(dtype: Any, seed: int, n: int, m: int) -> None:
    rng = np.random.default_rng(seed)
    column, row = numbers(rng, (n, 1), dtype), numbers(rng, (m, 1), dtype).T
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(in_numpy.product(column, row), column @ row)
        np.testing.assert_array_equal(in_numpy.product(row.T, column.T), row.T @ column.T)
