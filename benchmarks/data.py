"""The click data that every system gets: 26 id slots, 13 numbers, a label that depends on both.

With the peers' scripts at hand their generator makes the file, so that all train on the same bytes; otherwise ours
makes another one of the same distribution.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.environment import data_folder, peers_folder

SLOTS: Final = 26
NUMBERS: Final = 13
_EXAMPLES: Final = 512 * 400
_SHARED, _OWN = "ctr_z1.npz", "ctr_own_{vocab}_{examples}.npz"

Array = np.ndarray[Any, np.dtype[Any]]


def data_file(vocab: int = 1_000_000, examples: int = _EXAMPLES) -> Path:
    """The file to train on, made when it is missing."""
    folder, peers = data_folder(), peers_folder()
    folder.mkdir(parents=True, exist_ok=True)
    if peers is not None and (vocab, examples) == (1_000_000, _EXAMPLES):
        path = folder / _SHARED
        if not path.exists():
            subprocess.run([sys.executable, peers / "common.py", "--data", path], check=True, capture_output=True)  # noqa: S603
        return path
    path = folder / _OWN.format(vocab=vocab, examples=examples)
    if not path.exists():
        make_data(path, vocab, examples)
    return path


def make_data(path: Path, vocab: int, examples: int) -> None:
    """Write ids (n, 26) int64, Zipf with exponent 1.05 per slot and hashed into [0, vocab); dense (n, 13) float32,
    softplus of normal numbers; label (n, 1) float32, drawn from a hidden logistic model."""
    random = np.random.default_rng(20240)
    weights = np.cumsum(np.arange(1, vocab + 1) ** -1.05)
    ranks = np.searchsorted(weights, random.random((examples, SLOTS)) * weights[-1]).astype(np.uint64)
    ids = (scramble(ranks + (np.arange(1, SLOTS + 1, dtype=np.uint64) << np.uint64(40))) % np.uint64(vocab)).astype(
        np.int64
    )
    dense = np.logaddexp(0, random.standard_normal((examples, NUMBERS))).astype(np.float32)
    hidden = (scramble(ids.astype(np.uint64)) % np.uint64(2001)).astype(float) / 1000 - 1
    score = 0.6 * hidden.sum(axis=1) + 0.4 * (dense - 0.8) @ np.linspace(-1, 1, NUMBERS) - 0.8
    label = (random.random(examples) < 1 / (1 + np.exp(-score))).astype(np.float32)[:, None]
    unfinished = path.with_suffix(".unfinished.npz")
    np.savez(unfinished, ids=ids, dense=dense, label=label)
    unfinished.replace(path)


def scramble(values: Array) -> Array:
    """A bijection of uint64 whose bits look random (the finisher of MurmurHash3, Appleby)."""
    mixed = values ^ (values >> np.uint64(33))
    mixed = mixed * np.uint64(0xFF51AFD7ED558CCD)
    mixed ^= mixed >> np.uint64(33)
    mixed = mixed * np.uint64(0xC4CEB9FE1A85EC53)
    return np.asarray(mixed ^ (mixed >> np.uint64(33)))


def batches(path: Path, size: int, trainer: int = 0, trainers: int = 1) -> Iterator[tuple[Array, Array, Array]]:
    """Endless (ids, dense, label); batch b of the file goes to trainer b % trainers."""
    with np.load(path) as stored:
        ids, dense, label = stored["ids"], stored["dense"], stored["label"]
    count, batch = len(ids) // size, trainer
    while True:
        part = slice(batch % count * size, (batch % count + 1) * size)
        yield ids[part], dense[part], label[part]
        batch += trainers


def unique_rows(vocab: int, rows: int, trainer: int = 0) -> Iterator[Array]:
    """Endless (rows,) int64 of distinct ascending ids, uniform over the vocabulary; 16 lists in rotation."""
    random = np.random.RandomState(99 + trainer)  # the generator that gives the peers' lists
    pool = [np.sort(random.choice(vocab, rows, replace=False)).astype(np.int64) for _ in range(16)]
    while True:
        yield from pool
