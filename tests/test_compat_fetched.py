"""What a script for Fluid may do with the arrays that `exe.run` returns."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fluidlite import layers
from fluidlite.compat import run
from fluidlite.compat.compiler import CompiledProgram
from fluidlite.compat.fetched import Executor, FetchedArray
from fluidlite.framework import Program, default_main_program, program_guard


def test_a_mean_is_a_number_and_an_array() -> None:
    with program_guard(Program(), Program()):
        mean = layers.mean(layers.fill_constant([4], "float32", 0.25))
        (value,) = Executor().run(fetch_list=[mean])
    assert float(value) == 0.25
    assert "%.2f %d" % (value, value) == "0.25 0"  # noqa: UP031 (as scripts do)
    assert not math.isnan(value)
    assert value.shape == (1,)
    assert type(value[0]) is type(value.mean()) is type(np.max(value)) is np.float32
    assert f"{float(0.0 + value * 2)}" == "0.5"


def test_an_array_of_several_elements_is_no_number() -> None:
    with pytest.raises(ValueError, match="size 1"):
        float(np.zeros(2).view(FetchedArray))


def test_what_is_asked_for_as_tensors_stays_a_tensor() -> None:
    with program_guard(Program(), Program()):
        mean = layers.mean(layers.fill_constant([4], "float32", 0.25))
        (value,) = Executor().run(fetch_list=[mean], return_numpy=False)
    assert not isinstance(value, np.ndarray)
    assert np.array(value).tolist() == [0.25]


def test_numpys_refusal_has_a_hint() -> None:
    error = TypeError("only 0-dimensional arrays can be converted to Python scalars")
    assert "numpy<2.4" in run.hint_for(error)
    assert run.hint_for(TypeError("something else")) == ""


def test_it_is_printed_as_any_array() -> None:
    assert repr([np.ones(1, np.float32).view(FetchedArray)]) == "[array([1.], dtype=float32)]"


def test_unmerged_values_are_those_of_the_one_device() -> None:
    with program_guard(Program(), Program()):
        mean = layers.mean(layers.fill_constant([4], "float32", 0.25))
        compiled = CompiledProgram(default_main_program()).with_data_parallel()
        (apart,) = Executor().run(compiled, fetch_list=[mean], return_merged=False)  # type: ignore[arg-type]
        (plain,) = Executor().run(fetch_list=[mean], return_merged=False)
    assert isinstance(apart, list)
    assert (np.array(apart).tolist(), plain.tolist()) == ([[0.25]], [0.25])
