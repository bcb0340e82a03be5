"""Convolution, pooling and lrn: against loops over single cells, in parts, and what they refuse."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fluidlite.errors import FluidliteError, ProgramError, ShapeError
from fluidlite.ops import conv2d
from fluidlite.ops.infer import infer_op
from fluidlite.ops.windows import AdaptiveWindows, Windows, covered
from tests.op_harness import add_gradient, build, input_gradient


def run(op: str, inputs: dict[str, Any], **attrs: Any) -> Any:
    """The first output of an op."""
    bench = build(op, {name: [value] for name, value in inputs.items()}, attrs)
    return bench.run().read(next(bench.op.output_arguments()))


def cells_of(windows: Windows, index: int) -> list[int | None]:
    """The cells of one window, None for those that do not exist."""
    cells = [index * windows.stride - windows.before + j * windows.dilation for j in range(windows.length)]
    return [cell if 0 <= cell < windows.size else None for cell in cells]


@st.composite
def windows(draw: st.DrawFn, *, dilated: bool = False, ceil_mode: bool = False) -> Windows:
    """Windows that fit into their dimension."""
    length, dilation = draw(st.integers(1, 3)), draw(st.integers(1, 2)) if dilated else 1
    before, after = draw(st.integers(0, length - 1)), draw(st.integers(0, length - 1))
    size = draw(st.integers(max(1, (length - 1) * dilation + 1 - before - after), 6))
    return Windows(size, length, draw(st.integers(1, length)), before, after, dilation, ceil_mode)


@given(windows(dilated=True) | windows(ceil_mode=True))
def test_windows_say_where_their_cells_are(drawn: Windows) -> None:
    for offset in range(drawn.length):
        places, cells = drawn.at(offset)
        found = dict(zip(np.arange(drawn.count)[places], np.arange(drawn.size)[cells], strict=True))
        wanted = {i: cells_of(drawn, i)[offset] for i in range(drawn.count)}
        assert found == {i: cell for i, cell in wanted.items() if cell is not None}
    assert covered(drawn).tolist() == [sum(cell is not None for cell in cells_of(drawn, i)) for i in range(drawn.count)]


@pytest.mark.parametrize(("size", "count"), [(7, 3), (6, 3), (3, 5), (1, 2), (4, 1)])
def test_adaptive_windows_cover_the_dimension(size: int, count: int) -> None:
    drawn = AdaptiveWindows(size, count)
    found: list[list[int]] = [[] for _ in range(count)]
    for offset in range(drawn.length):
        for place, cell in zip(*(np.asarray(p).tolist() for p in drawn.at(offset)), strict=True):
            found[place].append(cell)
    for i in range(count):
        assert found[i] == list(range(math.floor(i * size / count), math.ceil((i + 1) * size / count)))


@given(windows(dilated=True), windows(dilated=True), st.tuples(*[st.integers(1, 2)] * 3))
def test_conv2d_sums_the_cells_of_windows(rows: Windows, columns: Windows, counts: tuple[int, int, int]) -> None:
    groups, channels, filters = counts
    random = np.random.default_rng(0)
    images = random.normal(size=(2, groups * channels, rows.size, columns.size))
    weights = random.normal(size=(groups * filters, channels, rows.length, columns.length))
    found = run(
        "conv2d",
        {"Input": images, "Filter": weights},
        groups=groups,
        strides=[rows.stride, columns.stride],
        paddings=[rows.before, rows.after, columns.before, columns.after],
        dilations=[rows.dilation, columns.dilation],
    )
    wanted = np.zeros((2, groups * filters, rows.count, columns.count))
    for m, i, j in itertools.product(range(groups * filters), range(rows.count), range(columns.count)):
        first = m // filters * channels
        for (a, row), (b, column) in itertools.product(enumerate(cells_of(rows, i)), enumerate(cells_of(columns, j))):
            if row is not None and column is not None:
                wanted[:, m, i, j] += images[:, first : first + channels, row, column] @ weights[m, :, a, b]
    np.testing.assert_allclose(found, wanted, atol=1e-12)


@given(st.booleans().flatmap(lambda ceil: st.tuples(*[windows(ceil_mode=ceil)] * 2)), st.booleans())
def test_pool2d_reduces_the_cells_of_windows(both: tuple[Windows, Windows], exclusive: bool) -> None:
    rows, columns = both
    assume(covered(rows).all() and covered(columns).all())
    images = np.random.default_rng(0).normal(size=(1, 2, rows.size, columns.size))
    attrs = {
        "ksize": [rows.length, columns.length],
        "strides": [rows.stride, columns.stride],
        "paddings": [rows.before, rows.after, columns.before, columns.after],
        "ceil_mode": rows.ceil_mode,
        "exclusive": exclusive,
    }
    largest = run("pool2d", {"X": images}, pooling_type="max", **attrs)
    mean = run("pool2d", {"X": images}, pooling_type="avg", **attrs)
    for i, j in itertools.product(range(rows.count), range(columns.count)):
        row_cells, column_cells = ([c for c in cells_of(*w) if c is not None] for w in ((rows, i), (columns, j)))
        window = images[:, :, row_cells][:, :, :, column_cells]
        np.testing.assert_array_equal(largest[:, :, i, j], window.max(axis=(2, 3)))
        size = window.shape[2] * window.shape[3] if exclusive else rows.length * columns.length
        np.testing.assert_allclose(mean[:, :, i, j], window.sum(axis=(2, 3)) / size, atol=1e-12)


def test_parts_of_a_batch_give_what_the_batch_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    given = {"Input": [random.normal(size=(5, 2, 4, 4))], "Filter": [random.normal(size=(2, 1, 3, 3))]}
    bench = build("conv2d", given, {"groups": 2, "paddings": [1, 1]})
    add_gradient(bench, {"Output_out0": random.normal(size=(5, 2, 4, 4))})

    def results() -> list[Any]:
        env = bench.run()
        return [env.read("Output_out0"), *(input_gradient(bench, env, name)[0] for name in given)]

    whole = results()
    monkeypatch.setattr(conv2d, "_COLUMN_BYTES", 2 * 2 * 9 * 16 * 8)
    for one, other in zip(whole, results(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


@pytest.mark.parametrize("wanted", ["Input", "Filter"])
def test_one_gradient_alone(wanted: str) -> None:
    given = {"Input": [np.ones((1, 1, 3, 3))], "Filter": [np.ones((1, 1, 2, 2))]}
    bench = build("conv2d", given, {})
    add_gradient(bench, {"Output_out0": np.ones((1, 1, 2, 2))}, no_grad=[name for name in given if name != wanted])
    env = bench.run()
    assert (input_gradient(bench, env, "Input")[0] is None) == (wanted == "Filter")
    assert (input_gradient(bench, env, "Filter")[0] is None) == (wanted == "Input")


def test_of_equal_cells_the_first_of_a_window_gets_the_gradient() -> None:
    bench = build("pool2d", {"X": [np.zeros((1, 1, 3, 3))]}, {"pooling_type": "max", "ksize": [2, 2]})
    add_gradient(bench, {"Out_out0": np.array([[[[1.0, 2.0], [4.0, 8.0]]]])})
    gradient = input_gradient(bench, bench.run(), "X")[0]
    assert gradient.tolist() == [[[[1.0, 2.0, 0.0], [4.0, 8.0, 0.0], [0.0, 0.0, 0.0]]]]


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


X, F = zeros(1, 2, 4, 4), zeros(4, 2, 2, 2)
POOL = {"pooling_type": "max", "ksize": [2, 2]}
REFUSALS: list[tuple[str, dict[str, Any], dict[str, Any], type[FluidliteError], str]] = [
    ("conv2d", {"Input": X, "Filter": zeros(1, 2, 5, 1)}, {}, ShapeError, "over 5 cells does not fit into 4 cells"),
    ("conv2d", {"Input": X, "Filter": zeros(1, 3, 2, 2)}, {}, ShapeError, r"filters \[1, 3, 2, 2\] in 1 group"),
    ("conv2d", {"Input": X, "Filter": zeros(3, 1, 2, 2)}, {"groups": 2}, ShapeError, "in 2 group"),
    ("conv2d", {"Input": X, "Filter": F}, {"groups": 0}, ShapeError, "in 0 group"),
    ("conv2d", {"Input": X[0], "Filter": F}, {}, ShapeError, "must have 4 dimensions"),
    ("conv2d", {"Input": X, "Filter": F}, {"strides": [1, 0]}, ShapeError, r"strides \[1, 0\]"),
    ("conv2d", {"Input": X, "Filter": F}, {"dilations": [1]}, ShapeError, r"dilations \[1\]"),
    ("conv2d", {"Input": X, "Filter": F}, {"paddings": [1, 1, 1]}, ShapeError, r"paddings \[1, 1, 1\]"),
    ("conv2d", {"Input": X, "Filter": F}, {"paddings": [-1, 0]}, ShapeError, r"paddings \[-1, 0\]"),
    ("conv2d", {"Input": X, "Filter": F}, {"padding_algorithm": "same"}, ProgramError, "'same', not EXPLICIT"),
    ("conv2d", {"Input": X, "Filter": F}, {"data_format": "NCWH"}, ProgramError, "'NCWH', not NCHW or NHWC"),
    ("conv2d", {"Input": X, "Filter": F}, {"fuse_relu": True}, ProgramError, "fuse_relu is for MKL-DNN"),
    ("conv2d", {"Input": X, "Filter": F, "ResidualData": X}, {}, ProgramError, "ResidualData_0 is for MKL-DNN"),
    ("pool2d", {"X": X}, {**POOL, "pooling_type": "sum"}, ProgramError, "'sum' is neither max nor avg"),
    ("pool2d", {"X": X}, {**POOL, "ksize": [5, 1]}, ShapeError, "over 5 cells"),
    ("pool2d", {"X": X}, {**POOL, "ksize": [0, 1]}, ShapeError, "ksize"),
    ("pool2d", {"X": X}, {**POOL, "paddings": [2, 0]}, ShapeError, "lie in the padding, 2 and 2"),
    ("pool2d", {"X": X[0]}, POOL, ShapeError, "must have 4 dimensions"),
    ("lrn", {"X": X}, {"n": 2}, ProgramError, "n must be odd"),
    ("lrn", {"X": X[0]}, {}, ShapeError, "must have 4 dimensions"),
]


@pytest.mark.parametrize(("op", "inputs", "attrs", "error", "text"), REFUSALS)
def test_refused_while_building(
    op: str, inputs: dict[str, Any], attrs: dict[str, Any], error: type[FluidliteError], text: str
) -> None:
    with pytest.raises(error, match=text) as caught:
        build(op, {name: [value] for name, value in inputs.items()}, attrs)
    assert f"op {op!r}" in str(caught.value)
    assert "(case)" in str(caught.value)


def test_an_image_that_turns_out_too_small() -> None:
    """The size is known only when the program runs."""
    bench = build("conv2d", {"Input": [zeros(1, 1, 3, 3)], "Filter": [zeros(1, 1, 3, 3)]}, {})
    with pytest.raises(ShapeError, match="does not fit into 2 cells"):
        bench.run({"Input_0": zeros(1, 1, 2, 3)})


def test_unknown_sizes_stay_unknown() -> None:
    bench = build("pool2d", {"X": [zeros(2, 3, 4, 5)]}, POOL, unknown_batch=True)
    assert bench.block.vars["Out_out0"].shape == (-1, 3, 3, 4)
    bench.block.vars["X_0"].shape = (-1, 3, -1, 5)
    infer_op(bench.program, bench.block, bench.op)
    assert bench.block.vars["Out_out0"].shape == (-1, 3, -1, 4)
