"""Optimizer steps in C and in numpy: the same bits for every rule, dtype and layout, specials included."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluidlite.errors import DtypeError, OutOfRangeError, ShapeError
from fluidlite.kernels.in_numpy import updates as in_numpy
from fluidlite.kernels.in_numpy.formulas import FORMULAS
from fluidlite.kernels.rules import Rule
from fluidlite.values import row_update
from fluidlite.values.row_update import RowUpdate

_c = pytest.importorskip("fluidlite.kernels._c")
in_c = pytest.importorskip("fluidlite.kernels.in_c.updates")

#: rule -> (number of accumulators, scalars that people use)
RULES: dict[str, tuple[int, tuple[float, ...]]] = {
    "sgd": (0, (0.1,)),
    "momentum": (1, (0.1, 0.9)),
    "nesterov": (1, (0.1, 0.9)),
    "adagrad": (1, (0.1, 1e-6)),
    "decayed_adagrad": (1, (0.1, 0.95, 1e-6)),
    "rmsprop": (2, (0.1, 0.9, 1e-10, 0.7)),
    "centered_rmsprop": (3, (0.1, 0.9, 1e-10, 0.7)),
    "adadelta": (2, (0.95, 1e-6)),
    "adam": (2, (0.003, 0.9, 0.999, 1e-8)),
    "adamax": (2, (0.003, 0.9, 0.999, 1e-8)),
    "ftrl": (2, (0.1, 0.01, 0.02)),
}
DTYPES = (np.float32, np.float64)
WIDTHS = (1, 3, 16, 200)
SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 1e-310, -1e-310, 1e-41, -1e-41, 1e-30, 3e38, -3e38, 1e300)
#: numbers that round in float32, that are 0 there, or infinite
scalar = st.floats(0, 2) | st.sampled_from([0.0, 1.0, 1e-50, 1e-40, 0.1, 0.9, -0.5, np.inf, np.nan])
LAYOUTS = ("alone", "dense", "gaps", "reversed")
rules = pytest.mark.parametrize("name", RULES)


def same_bits(got: Any, wanted: Any) -> None:
    """The same bytes, but for the bits of a NaN: which of two NaN a sum keeps is for the processor to say."""
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
    nan = np.isnan(wanted)
    np.testing.assert_array_equal(np.isnan(got), nan)
    assert np.where(nan, 0, got).tobytes() == np.where(nan, 0, wanted).tobytes()


def numbers(rng: Any, shape: tuple[int, ...], dtype: Any, special: float) -> Any:
    """Numbers of many sizes, a share of them special."""
    with np.errstate(all="ignore"):
        plain = rng.standard_normal(shape) * 10.0 ** rng.integers(-6, 4, shape)
        return np.where(rng.random(shape) < special, rng.choice(SPECIAL, shape), plain).astype(dtype)


def spans_of(layout: str, parts: int, width: int) -> tuple[list[tuple[int, int]], int]:
    """Where the parts of a record lie, and how wide it is."""
    gap = {"alone": 0, "dense": 0, "gaps": 3, "reversed": 1}[layout]
    starts = [gap + part * (width + gap) for part in range(parts)]
    spans = [(start, width) for start in (reversed(starts) if layout == "reversed" else starts)]
    return spans, gap + parts * (width + gap)


def by_rows(rule: Callable[..., None], matrix: Any, rows: Any, gradient: Any, spans: Any) -> Any:
    """The plain form: the rule on each record, one after the other."""
    out = matrix.copy()
    for row, of_row in zip(rows, gradient, strict=True):
        parts = [out[row, start : start + width] for start, width in spans]
        rule(parts[0], of_row, *parts[1:])
    return out


def test_every_formula_is_a_kernel_in_c_too() -> None:
    assert set(RULES) == set(FORMULAS)


# ---- records of a table


@rules
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
@given(seed=st.integers(0, 2**32), width=st.sampled_from(WIDTHS), special=st.sampled_from([0.0, 0.3]))
@settings(deadline=None, max_examples=12)
def test_records(name: str, dtype: Any, layout: str, seed: int, width: int, special: float) -> None:
    accumulators, scalars = RULES[name]
    if layout == "alone" and accumulators:
        layout = "dense"
    rng = np.random.default_rng(seed)
    spans, record_width = spans_of(layout, 1 + accumulators, width)
    matrix = numbers(rng, (40, record_width), dtype, special)
    rows = rng.permutation(40)[: rng.integers(0, 41)]
    if seed % 2:
        rows.sort()
    gradient = numbers(rng, (len(rows), width), dtype, special)
    rule = Rule(name, scalars)
    with np.errstate(all="ignore"):
        wanted = by_rows(rule, matrix, rows, gradient, spans)
        blocks = matrix.copy()
        RowUpdate(record_width, matrix.dtype, spans)._run_blocks(blocks, rows, gradient, rule)
    assert in_c.update_records(rule, matrix, rows, gradient, tuple(start for start, _ in spans))
    same_bits(blocks, wanted)
    same_bits(matrix, wanted)


@rules
@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data(), seed=st.integers(0, 2**32))
@settings(deadline=None, max_examples=25)
def test_any_scalars(name: str, dtype: Any, data: Any, seed: int) -> None:
    accumulators, usual = RULES[name]
    rule = Rule(name, tuple(data.draw(scalar) for _ in usual))
    rng = np.random.default_rng(seed)
    got = [numbers(rng, (7, 5), dtype, 0.2) for _ in range(1 + accumulators)]
    gradient = numbers(rng, (7, 5), dtype, 0.2)
    wanted = [array.copy() for array in got]
    with np.errstate(all="ignore"):
        in_numpy.update_arrays(rule, None, gradient, wanted)
    in_c.update_arrays(rule, None, gradient, got)
    for one, other in zip(got, wanted, strict=True):
        same_bits(one, other)


@rules
@pytest.mark.parametrize("dtype", DTYPES)
def test_zeros_and_infinities_with_limits_of_the_scalars(name: str, dtype: Any) -> None:
    accumulators, usual = RULES[name]
    cases = [np.array(values, dtype) for values in itertools.product((0.0, -0.0, np.inf, 1.0), repeat=2 + accumulators)]
    gradient, *arrays = (np.ascontiguousarray(column) for column in np.array(cases).T)
    for scalars in (usual, *itertools.product((0.0, -0.5), repeat=len(usual))):
        got, wanted = [a.copy() for a in arrays], [a.copy() for a in arrays]
        with np.errstate(all="ignore"):
            in_numpy.update_arrays(Rule(name, scalars), None, gradient, wanted)
        in_c.update_arrays(Rule(name, scalars), None, gradient, got)
        for one, other in zip(got, wanted, strict=True):
            same_bits(one, other)


def test_more_rows_than_a_block_holds() -> None:
    rng = np.random.default_rng(1)
    got = rng.standard_normal((9000, 48)).astype(np.float32) ** 2
    wanted, rows = got.copy(), rng.permutation(9000)[:7001]
    gradient = rng.standard_normal((7001, 16)).astype(np.float32)
    rule = Rule("adam", RULES["adam"][1])
    update = RowUpdate(48, got.dtype, [(0, 16), (32, 16), (16, 16)])
    update._run_blocks(wanted, rows, gradient, rule)
    assert in_c.update_records(rule, got, rows, gradient, (0, 32, 16))
    same_bits(got, wanted)


# ---- arrays


@rules
@pytest.mark.parametrize("dtype", DTYPES)
@given(
    seed=st.integers(0, 2**32),
    shape=st.sampled_from([(1,), (5,), (9, 1), (9, 3), (33, 16), (6, 2, 3), (4, 200), (0, 3), (3, 0)]),
    some=st.booleans(),
)
@settings(deadline=None, max_examples=20)
def test_arrays(name: str, dtype: Any, seed: int, shape: tuple[int, ...], some: bool) -> None:
    accumulators, scalars = RULES[name]
    rng = np.random.default_rng(seed)
    rows = rng.permutation(shape[0])[: rng.integers(0, shape[0] + 1)] if some else None
    gradient = numbers(rng, shape if rows is None else (len(rows), *shape[1:]), dtype, 0.2)
    got = [numbers(rng, shape, dtype, 0.2) for _ in range(1 + accumulators)]
    wanted = [array.copy() for array in got]
    with np.errstate(all="ignore"):
        in_numpy.update_arrays(Rule(name, scalars), rows, gradient, wanted)
    in_c.update_arrays(Rule(name, scalars), rows, gradient, got)
    for one, other in zip(got, wanted, strict=True):
        same_bits(one, other)


def test_arrays_that_the_extension_does_not_take_go_to_numpy() -> None:
    rule = Rule("momentum", (0.5, 0.5))
    for make in (
        lambda: np.ones((4, 6), np.float16),
        lambda: np.ones((8, 6))[::2],
        lambda: np.ones((4, 6), order="F"),
        lambda: np.array(1.0),
    ):
        value, velocity = make(), make()
        in_c.update_arrays(rule, None, make(), [value, velocity])
        np.testing.assert_array_equal(velocity, np.full(value.shape, 1.5))
        np.testing.assert_array_equal(value, np.full(value.shape, 0.25))


def test_unaligned_arrays() -> None:
    value, rows, gradient = (np.zeros(nbytes + 1, np.uint8)[1:] for nbytes in (80, 24, 48))
    value, rows, gradient = value.view(np.float64).reshape(5, 2), rows.view(np.int64), gradient.view(np.float64)
    gradient = gradient.reshape(3, 2)
    gradient[...], rows[...] = 1, (4, 1, 0)
    in_c.update_arrays(Rule("sgd", (1.0,)), rows, gradient, [value])
    fine = np.zeros((5, 2))
    in_c.update_arrays(Rule("sgd", (1.0,)), rows, gradient, [fine])
    assert fine[:, 1].tolist() == value[:, 1].tolist() == [-1, -1, 0, 0, -1]
    assert not in_c.update_records(Rule("sgd", (1.0,)), value, rows, gradient, (0,))


def test_a_strided_gradient_and_other_integer_rows() -> None:
    value = np.zeros((5, 2))
    in_c.update_arrays(Rule("sgd", (1.0,)), np.array([4, 0, 1], np.int32)[::2], np.ones((2, 4))[:, ::2], [value])
    np.testing.assert_array_equal(value[:, 0], [0, -1, 0, 0, -1])


def test_arrays_that_share_memory_are_updated_as_numpy_does() -> None:
    base = np.arange(6.0)
    wanted = base[1:] - 0.5 * base[:-1]
    in_c.update_arrays(Rule("sgd", (0.5,)), None, base[:-1], [base[1:]])
    np.testing.assert_array_equal(base[1:], wanted)
    both = np.ones(3)
    in_c.update_arrays(Rule("sgd", (0.25,)), None, both, [both])
    np.testing.assert_array_equal(both, 0.75)
    matrix = np.ones((3, 2))
    assert not in_c.update_records(Rule("sgd", (0.25,)), matrix, np.array([0, 1]), matrix[:2], (0,))
    RowUpdate(2, matrix.dtype, [(0, 2)]).run(matrix, np.array([0, 1]), matrix[:2], Rule("sgd", (0.25,)))
    np.testing.assert_array_equal(matrix, [[0.75, 0.75], [0.75, 0.75], [1.0, 1.0]])


def test_a_step_that_is_no_rule_runs_as_it_is() -> None:
    def step(p: Any, g: Any) -> None:
        p += 2 * g

    value, matrix = np.zeros(3), np.zeros((3, 4))
    in_c.update_arrays(step, None, np.ones(3), [value])
    assert value.tolist() == [2, 2, 2]
    RowUpdate(4, matrix.dtype, [(1, 2)]).run(matrix, np.array([2]), np.ones((1, 2)), step)
    assert matrix[2].tolist() == [0, 2, 2, 0]


def test_buffers_are_made_when_they_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix, rule = np.zeros((3, 4), np.float32), Rule("sgd", (1.0,))
    update = RowUpdate(4, matrix.dtype, [(0, 2)])
    monkeypatch.setattr(row_update, "update_records", in_c.update_records)
    update.run(matrix, np.array([1]), np.ones((1, 2), np.float32), rule)
    assert update.nbytes == 0
    monkeypatch.setattr(row_update, "update_records", in_numpy.update_records)
    update.run(matrix, np.array([1]), np.ones((1, 2), np.float32), rule)
    assert update.nbytes > 0
    assert matrix[1].tolist() == [-2, -2, 0, 0]


# ---- refusals, before anything is changed

F, D = np.float32, np.float64


@pytest.mark.parametrize(
    ("error", "scalars", "rows", "gradient", "arrays", "starts"),
    [
        (ShapeError, (0.1,), [0], np.ones((1, 2)), (np.ones((3, 2)),) * 2, None),
        (ShapeError, (), [0], np.ones((1, 2)), (np.ones((3, 2)),), None),
        (ShapeError, [0.1], [0], np.ones((1, 2)), (np.ones((3, 2)),), None),
        (TypeError, ("x",), [0], np.ones((1, 2)), (np.ones((3, 2)),), None),
        (TypeError, (0.1,), [0], np.ones((1, 2)), [np.ones((3, 2))], None),
        (TypeError, (0.1,), [0], np.ones((1, 2)), (np.ones((3, 2)),), [0]),
        (DtypeError, (0.1,), [0], np.ones((1, 2), F), (np.ones((3, 2)),), None),
        (DtypeError, (0.1,), [0], np.ones((1, 2), np.int64), (np.ones((3, 2), np.int64),), None),
        (DtypeError, (0.1,), [0], np.ones((1, 2), ">f8"), (np.ones((3, 2), ">f8"),), None),
        (DtypeError, (0.1,), [0.0], np.ones((1, 2)), (np.ones((3, 2)),), None),
        (ShapeError, (0.1,), [0, 1], np.ones((1, 2)), (np.ones((3, 2)),), None),
        (ShapeError, (0.1,), [0], np.ones((1, 3)), (np.ones((3, 2)),), None),
        (ShapeError, (0.1,), [0], np.ones(2), (np.ones((3, 2)),), None),
        (ShapeError, (0.1,), [[0]], np.ones((1, 2)), (np.ones((3, 2)),), None),
        (ShapeError, (0.1,), None, np.ones((3, 3)), (np.ones((3, 2)),), None),
        (ShapeError, (0.1,), None, np.ones((3, 2)), (np.ones((3, 4))[:, ::2],), None),
        (ShapeError, (0.1,), None, np.array(1.0), (np.ones(()),), (0,)),
        (OutOfRangeError, (0.1,), [3], np.ones((1, 2)), (np.ones((3, 2)),), None),
        (OutOfRangeError, (0.1,), [-1], np.ones((1, 2)), (np.ones((3, 2)),), None),
        (OutOfRangeError, (0.1,), [2**62], np.ones((1, 2)), (np.ones((3, 2)),), (0,)),
        (OutOfRangeError, (0.1,), [0], np.ones((1, 2)), (np.ones((0, 2)),), None),
        (ShapeError, (0.1,), [0], np.ones((1, 2)), (np.ones((3, 2)),), (1,)),
        (ShapeError, (0.1,), [0], np.ones((1, 2)), (np.ones((3, 2)),), (-1,)),
        (ShapeError, (0.1,), [0], np.ones((1, 2)), (np.ones((3, 2)),), (2**62,)),
        (OverflowError, (0.1,), [0], np.ones((1, 2)), (np.ones((3, 2)),), (2**80,)),
        (ShapeError, (0.1,), [0], np.ones((1, 3)), (np.ones((3, 2)),), (0,)),
        (ShapeError, (0.1,), [0], np.ones((1, 2)), (np.ones((3, 2)),), ()),
        (ShapeError, (0.1,), None, np.ones((3, 2)), (np.ones((3, 2)),), (0,)),
        (ShapeError, (0.1,), [0], np.ones((1, 2)), (np.ones(6),), (0,)),
        (ShapeError, (0.1,), [0], np.ones(2), (np.ones((3, 2)),), (0,)),
        (ShapeError, (0.1,), [0], np.ones((1, 2)), (np.ones((3, 2)),) * 2, (0,)),
        (ShapeError, (0.1,), [0], None, (np.ones((3, 2)),), None),
        (ShapeError, (0.1,), [0], np.ones((1, 2)), (None,), None),
    ],
)
def test_refusals(error: Any, scalars: Any, rows: Any, gradient: Any, arrays: Any, starts: Any) -> None:
    before = [None if array is None else array.copy() for array in arrays]
    with pytest.raises(error):
        _c.update("sgd", scalars, None if rows is None else np.array(rows), gradient, arrays, starts)
    for array, old in zip(arrays, before, strict=True):
        assert array is None or array.tobytes() == old.tobytes()


def test_more_refusals() -> None:
    value, rate = np.ones((3, 4)), (0.1,)
    fixed = value.copy()
    fixed.flags.writeable = False
    with pytest.raises(ShapeError, match="writable"):
        in_c.update_arrays(Rule("sgd", rate), None, np.ones((3, 4)), [fixed])
    with pytest.raises(KeyError):
        _c.update("no", rate, None, np.ones((3, 4)), (value,), None)
    with pytest.raises(TypeError):
        _c.update(3, rate, None, np.ones((3, 4)), (value,), None)
    with pytest.raises(TypeError):
        _c.update("sgd", rate, None)
    with pytest.raises(ShapeError):
        _c.update("momentum", (0.1, 0.9), None, np.ones((3, 4)), (value, np.ones((4, 3))), None)
    with pytest.raises(ShapeError, match="does not fit"):
        _c.update("momentum", (0.1, 0.9), np.array([0]), np.ones((1, 2)), (value,), (0, 1))
    with pytest.raises(ShapeError, match="does not fit"):
        _c.update("momentum", (0.1, 0.9), np.array([0]), np.ones((1, 2)), (value,), (2, 1))
    with pytest.raises(DtypeError):
        _c.update("momentum", (0.1, 0.9), None, np.ones((3, 4)), (value, np.ones((3, 4), np.float32)), None)
    assert value.tobytes() == np.ones((3, 4)).tobytes()
