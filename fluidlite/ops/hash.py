"""`hash`: xxHash64 of rows of ids, for the hashing trick."""

from __future__ import annotations

from typing import Final

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import ProgramError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.infer import InferContext
from fluidlite.ops.registry import Case, int_attr, long_attr, register

# The primes of xxHash64. Every operation below is modulo 2^64, which is what uint64 arrays do.
_P1: Final = np.uint64(0x9E3779B185EBCA87)
_P2: Final = np.uint64(0xC2B2AE3D27D4EB4F)
_P3: Final = np.uint64(0x165667B19E3779F9)
_P4: Final = np.uint64(0x85EBCA77C2B2AE63)
_P5: Final = np.uint64(0x27D4EB2F165667C5)


def xxhash64(data: Array, seed: int) -> Array:
    """xxHash64 of each row of ``data`` (n, bytes) uint8, bytes a multiple of 4: (n,) uint64.

    Y. Collet, "xxHash fast digest algorithm", XXH64 algorithm description, steps 1 to 6.
    """
    count, size = data.shape
    lanes = np.ascontiguousarray(data[:, : size // 8 * 8]).view("<u8")
    stripes = size // 32 * 4
    value = _stripes(lanes[:, :stripes], seed) if stripes else np.full(count, np.uint64(seed)) + _P5
    value = value + np.uint64(size)
    for lane in lanes[:, stripes:].T:
        value = _rotated(value ^ _round(np.zeros(count, np.uint64), lane), 27) * _P1 + _P4
    if size % 8:
        last = np.ascontiguousarray(data[:, -4:]).view("<u4")[:, 0].astype(np.uint64)
        value = _rotated(value ^ (last * _P1), 23) * _P2 + _P3
    value = (value ^ (value >> np.uint64(33))) * _P2
    value = (value ^ (value >> np.uint64(29))) * _P3
    return value ^ (value >> np.uint64(32))


def _stripes(lanes: Array, seed: int) -> Array:
    """The whole stripes of 32 bytes, four accumulators side by side."""
    start = np.array([seed], np.uint64)
    state = np.concatenate([start + _P1 + _P2, start + _P2, start, start - _P1])
    state = np.repeat(state[None, :], len(lanes), axis=0)
    for first in range(0, lanes.shape[1], 4):
        state = _round(state, lanes[:, first : first + 4])
    value = sum((_rotated(state[:, k], bits) for k, bits in enumerate((1, 7, 12, 18))), np.zeros(len(lanes), np.uint64))
    for k in range(4):
        value = (value ^ _round(np.zeros(len(lanes), np.uint64), state[:, k])) * _P1 + _P4
    return value


def _round(state: Array, lane: Array) -> Array:
    return _rotated(state + lane * _P2, 31) * _P1


def _rotated(value: Array, bits: int) -> Array:
    rotated: Array = (value << np.uint64(bits)) | (value >> np.uint64(64 - bits))
    return rotated


def hash(ctx: KernelContext, X: Array, *, num_hash: int, mod_by: int) -> Array:
    data = np.ascontiguousarray(X).view(np.uint8).reshape(len(X), X.shape[1] * X.itemsize)
    hashes = [xxhash64(data, seed) % np.uint64(mod_by) for seed in range(num_hash)]
    return np.stack(hashes, axis=1).astype(X.dtype).reshape(len(X), num_hash, 1)


def _infer(ctx: InferContext) -> None:
    x = ctx.input("X")
    if ctx.attr("num_hash") < 1 or ctx.attr("mod_by") < 1:
        raise ProgramError(f"op 'hash': num_hash and mod_by must be positive ({ctx.op.origin})")
    if len(ctx.shape("X")) != 2:
        raise ctx.error(f"X {list(ctx.shape('X'))} must be a matrix of ids")
    ctx.set("Out", (ctx.shape("X")[0], ctx.attr("num_hash"), 1), x.dtype, lod_level=x.lod_level)


register(
    "hash",
    doc="Out [n, num_hash, 1]: hash of each row of X [n, width] with seeds 0, 1, ..., modulo `mod_by`. The hash is xxHash64 of "
    "the row's bytes.",
    inputs=["X"],
    outputs=["Out"],
    attrs={"num_hash": int_attr(1), "mod_by": long_attr(100000)},
    infer=_infer,
    kernel=hash,
    share_lod="X",
    cases=(
        Case(
            {"X": np.array([[1], [2]])},
            {"num_hash": 2, "mod_by": 1000},
            {"Out": np.array([[[269], [609]], [[360], [419]]])},
        ),
        Case(
            {"X": np.arange(9).reshape(1, 9) * 7 - 3},
            {"num_hash": 2, "mod_by": 10**9},
            {"Out": np.array([[[758587064], [655744556]]])},
            note="two stripes and a lane; from Fluid 1.8.5",
        ),
        Case(
            {"X": np.arange(11, dtype=np.int32).reshape(1, 11) * 7 - 3},
            {"mod_by": 10**9},
            {"Out": np.array([[[138657238]]], np.int32)},
            note="a stripe, a lane and half a lane; from Fluid 1.8.5",
        ),
    ),
)
