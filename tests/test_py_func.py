"""`layers.py_func`: Python functions in programs, their gradients, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import layers
from fluidlite.core import serde
from fluidlite.errors import FluidliteError, OpRunError, ProgramError
from fluidlite.ops import py_func as op

X = np.array([[0.5, -1.0], [2.0, 0.25]], np.float32)


def run(program: fluid.Program, feed: dict[str, Any], fetch: list[Any]) -> list[Any]:
    executor = fluid.Executor(fluid.CPUPlace())
    return list(executor.run(program, feed=feed, fetch_list=fetch))


def out_like(x: fluid.framework.Variable, name: str) -> fluid.framework.Variable:
    return fluid.default_main_program().current_block().create_var(name, x.dtype, x.shape)


def squared_program(skip: bool) -> tuple[fluid.Program, list[Any]]:
    """x -> py_func (x²) -> mean, with a gradient that shows what it was given."""
    given: list[Any] = []

    def forward(x: Any) -> Any:
        return np.array(x) ** 2

    def backward(*values: Any) -> Any:
        given.append([np.array(value) for value in values])
        return 2 * given[-1][0] * given[-1][-1]

    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()):
        x = layers.data("x", [2, 2], append_batch_size=False, stop_gradient=False)
        out = out_like(x, "out")
        layers.py_func(forward, x, out, backward, skip_vars_in_backward_input=out if skip else None)
        fluid.backward.append_backward(layers.mean(out))
    return main, given


@pytest.mark.parametrize("skip", [False, True])
def test_forward_and_gradient(skip: bool) -> None:
    main, given = squared_program(skip)
    out, grad = run(main, {"x": X}, ["out", "x@GRAD"])
    np.testing.assert_allclose(out, X**2)
    np.testing.assert_allclose(grad, 2 * X / 4)
    assert len(given[0]) == (2 if skip else 3)


def test_several_outputs_no_output_and_lod() -> None:
    seen: list[Any] = []
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()):
        x = layers.data("x", [1], lod_level=1)
        total = out_like(x, "total")
        count = fluid.default_main_program().current_block().create_var("count", "int64", [1])
        layers.py_func(lambda t: (np.array(t).sum(keepdims=True), np.array([len(t.lod()[0])])), x, [total, count])
        layers.py_func(lambda t: seen.append(t.lod()), x, None)
    feed = fluid.create_lod_tensor(np.ones((3, 1), np.float32), [[2, 1]], fluid.CPUPlace())
    got = run(main, {"x": feed}, ["total", "count"])
    assert [value.tolist() for value in got] == [[[3.0]], [3]]
    assert seen == [[[0, 2, 3]]]


def test_a_program_from_a_file_is_refused() -> None:
    main, _ = squared_program(skip=False)
    stranger = fluid.Program()
    with fluid.program_guard(stranger, fluid.Program()):
        x = layers.data("x", [2, 2], append_batch_size=False)
        layers.py_func(np.tanh, x, out_like(x, "other"))
    # the same bytes as another process would read them: its numbers stand for functions that were made for other variables
    stranger.desc.root.ops[0].attrs["forward_callable_id"] = main.desc.root.ops[0].attrs["forward_callable_id"]
    read = fluid.Program.parse_from_string(serde.to_bytes(stranger.desc))
    with pytest.raises(FluidliteError, match=r"no function \d+ was registered for it in this process"):
        run(read, {"x": X}, ["other"])


def test_a_number_that_stands_for_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    main, _ = squared_program(skip=False)
    monkeypatch.setattr(op, "_registered", [])
    with pytest.raises(FluidliteError, match=r"build it with layers\.py_func"):
        run(main, {"x": X}, ["out"])


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: np.array(x, np.float64), "gave float64 for 'out', which is declared float32"),
        (lambda x: (x, x), "gave 2 values for 1 outputs"),
    ],
)
def test_what_a_function_returns_is_checked(function: Any, message: str) -> None:
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()):
        x = layers.data("x", [2, 2], append_batch_size=False)
        layers.py_func(function, x, out_like(x, "out"))
    with pytest.raises(OpRunError, match=message):
        run(main, {"x": X}, ["out"])


def test_arguments_are_checked() -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        x = layers.data("x", [2, 2], append_batch_size=False)
        out = out_like(x, "out")
        other = out_like(x, "other")
        with pytest.raises(ProgramError, match="must be callable"):
            layers.py_func(3, x, out)  # type: ignore[arg-type]
        with pytest.raises(ProgramError, match="other is neither in x nor in out"):
            layers.py_func(np.tanh, x, out, np.tanh, skip_vars_in_backward_input=other)
        with pytest.raises(ProgramError, match="declared with its shape"):
            layers.py_func(np.tanh, x, fluid.default_main_program().current_block().create_var("bare", "float32"))


def test_without_a_backward_function_there_is_no_gradient() -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        x = layers.data("x", [2, 2], append_batch_size=False, stop_gradient=False)
        out = out_like(x, "out")
        layers.py_func(np.tanh, x, out)
        layers.mean(out)
        assert op._grad(fluid.default_main_program().desc.root.ops[0]) == []
