"""Negative classes for `nce`: three distributions, drawn as Fluid draws them when there is a seed.

Fluid seeds C++'s Mersenne twisters anew in every run, so with a seed every run draws the same classes. Without one we
take the words from numpy.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Final

import numpy as np

from fluidlite.dtypes import Array

#: draws ``count`` random words: uint64, or uint32 for the custom distribution
Words = Callable[[int], Array]

_SIZE: Final = 312
_HALF: Final = 156
_MATRIX: Final = np.uint64(0xB5026F5AA96619E9)
_UPPER: Final = np.uint64(0xFFFFFFFF80000000)
_LOWER: Final = np.uint64(0x7FFFFFFF)
_ONE: Final = np.uint64(1)


def uniform(words: Words, shape: tuple[int, int], classes: int) -> Array:
    """Classes of ``shape``, each as likely as any other."""
    drawn = words(shape[0] * shape[1]) // np.uint64((2**64 - 1) // classes)
    return np.minimum(drawn.astype(np.int64), classes - 1).reshape(shape)


def log_uniform(words: Words, shape: tuple[int, int], classes: int) -> Array:
    """Classes of ``shape``, class c with probability log((c + 2) / (c + 1)) / log(classes): for Zipf-like frequencies."""
    highest = classes - 1
    fraction = words(shape[0] * shape[1]).astype(np.float64) / 2.0**64
    drawn = np.exp(fraction * np.log(highest + 1)).astype(np.int64) - 1
    out: Array = (drawn % max(highest, 1)).reshape(shape)
    return out


def custom(words: Words, shape: tuple[int, int], alias: Array, alias_probabilities: Array) -> Array:
    """Classes of ``shape`` by the alias method: a class drawn uniformly, or its alias (Walker 1977).

    A sample takes three 32-bit words: one for the class, two for the number that decides.
    """
    drawn = words(3 * shape[0] * shape[1]).reshape(-1, 3).astype(np.uint64)
    classes = np.minimum(drawn[:, 0] // np.uint64((2**32 - 1) // len(alias)), np.uint64(len(alias) - 1))
    fraction = (drawn[:, 1] + drawn[:, 2].astype(np.float64) * 2.0**32) / 2.0**64
    chosen: Array = np.where(fraction > alias_probabilities[classes], alias[classes], classes.astype(np.int64))
    return chosen.reshape(shape)


def log_uniform_probability(chosen: Array, classes: int) -> Array:
    """The probability of each class under `log_uniform`."""
    probability: Array = np.log((chosen + 2.0) / (chosen + 1.0)) / np.log(classes)
    return probability


def words32(seed: int) -> Words:
    """The outputs of ``std::mt19937``."""
    return lambda count: np.random.RandomState(seed % 2**32).randint(0, 2**32, count, np.uint32)


def words64(seed: int) -> Words:
    """The outputs of ``std::mt19937_64``."""
    return lambda count: _outputs(seed % 2**64, -(-count // _SIZE))[:count]


@functools.lru_cache(maxsize=8)
def _outputs(seed: int, rounds: int) -> Array:
    """The first ``rounds`` * 312 outputs.

    Matsumoto, Nishimura, "Mersenne Twister", ACM TOMACS 8 (1998); the 64-bit version of 2004.
    """
    state = _seeded(seed)
    parts = [np.empty(0, np.uint64)]
    for _ in range(rounds):
        state = _twisted(state)
        out = state ^ ((state >> np.uint64(29)) & np.uint64(0x5555555555555555))
        out ^= (out << np.uint64(17)) & np.uint64(0x71D67FFFEDA60000)
        out ^= (out << np.uint64(37)) & np.uint64(0xFFF7EEE000000000)
        parts.append(out ^ (out >> np.uint64(43)))
    return np.concatenate(parts)


def _seeded(seed: int) -> Array:
    words = [seed]
    for i in range(1, _SIZE):
        words.append((6364136223846793005 * (words[-1] ^ (words[-1] >> 62)) + i) % 2**64)
    return np.array(words, np.uint64)


def _twisted(old: Array) -> Array:
    """The next state. Its second half needs its first, the last word both."""
    new = np.empty_like(old)
    new[:_HALF] = _mixed(old[:_HALF], old[1 : _HALF + 1], old[_HALF:])
    new[_HALF:-1] = _mixed(old[_HALF:-1], old[_HALF + 1 :], new[: _HALF - 1])
    new[-1:] = _mixed(old[-1:], new[:1], new[_HALF - 1 : _HALF])
    return new


def _mixed(upper: Array, lower: Array, other: Array) -> Array:
    word = (upper & _UPPER) | (lower & _LOWER)
    mixed: Array = other ^ (word >> _ONE) ^ ((word & _ONE) * _MATRIX)
    return mixed
