"""Fluid's seeded random numbers: values of the specification (section 9.2), and properties of the generator."""

from __future__ import annotations

import numpy as np
import pytest

from fluidlite.values.minstd import MinStd

FLOAT32, FLOAT64 = np.dtype("float32"), np.dtype("float64")


def test_states_follow_the_recurrence() -> None:
    source, state = MinStd(12345), 12345
    for found in source.states(5):
        state = state * 48271 % (2**31 - 1)
        assert found == state


def test_states_do_not_depend_on_how_many_are_drawn_at_once() -> None:
    whole, pieces = MinStd(3), MinStd(3)
    parts = [pieces.states(n) for n in (1, 0, 7, 100)]
    np.testing.assert_array_equal(whole.states(108), np.concatenate(parts))


@pytest.mark.parametrize(("seed", "same_as"), [(0, 1), (2**31 - 1, 1), (2**31, 1), (-5, 2**32 - 5)])
def test_seeds_beyond_the_modulus(seed: int, same_as: int) -> None:
    np.testing.assert_array_equal(MinStd(seed).states(3), MinStd(same_as).states(3))


def test_uniform_is_fluids_bit_for_bit() -> None:
    expected = [-0.9996853, 0.19045424, -0.5810635, -0.5174421, 0.5513798, -0.3443432]
    np.testing.assert_array_equal(MinStd(7).uniform(6, -1, 1, FLOAT32), np.array(expected, np.float32))


def test_normal_is_fluids_bit_for_bit() -> None:
    expected = [-0.66629976, -0.7482237, -0.6952409, 1.113255, 1.3217413, 0.484373]
    np.testing.assert_array_equal(MinStd(7).normal(6, 0, 1, FLOAT32), np.array(expected, np.float32))


def test_float64_normal_takes_two_states_a_number() -> None:
    expected = [-0.21796869585206644, -0.7391736825599995, -0.39074262047428915]
    np.testing.assert_allclose(MinStd(11).normal(3, 0, 1, FLOAT64), expected, rtol=1e-15)


def test_truncated_normal_is_fluids_to_float32() -> None:
    expected = [-1.997223, 0.22984603, -0.76314825, -0.6649201, 0.71645874, -0.42433086]
    np.testing.assert_allclose(MinStd(7).truncated_normal(6, 0, 1, FLOAT32), expected, rtol=2e-6)


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64])
def test_distributions_have_their_moments_and_ranges(dtype: np.dtype) -> None:
    uniform = MinStd(1).uniform(20000, 2, 6, dtype)
    normal = MinStd(2).normal(20001, 3, 0.5, dtype)
    truncated = MinStd(3).truncated_normal(20000, 3, 0.5, dtype)
    assert {values.dtype for values in (uniform, normal, truncated)} == {dtype}
    assert uniform.min() >= 2
    assert uniform.max() < 6
    assert abs(uniform.mean() - 4) < 0.03
    assert abs(normal.mean() - 3) < 0.02
    assert abs(normal.std() - 0.5) < 0.02
    assert 2 <= truncated.min() < truncated.max() <= 4
    assert abs(truncated.std() - 0.44) < 0.01


def test_nothing_is_drawn_for_an_empty_array() -> None:
    for draw in (MinStd(1).uniform, MinStd(1).normal, MinStd(1).truncated_normal):
        assert draw(0, 0, 1, FLOAT32).shape == (0,)
