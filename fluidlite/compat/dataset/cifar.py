"""``paddle.dataset.cifar``: photographs of 32 x 32 pixels in 10 or 100 classes; 50000 to train on, 10000 to test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from fluidlite.compat.dataset import common
from fluidlite.compat.dataset.archives import members, opened_tar
from fluidlite.compat.dataset.common import Reader
from fluidlite.errors import CorruptFileError
from fluidlite.values.state_reader import read_state

__all__ = ["fetch", "test10", "test100", "train10", "train100"]

URL_PREFIX = "https://dataset.bj.bcebos.com/cifar/"
CIFAR10_URL = URL_PREFIX + "cifar-10-python.tar.gz"
CIFAR10_MD5 = "c58f30108f718f92721af3b95e74349a"
CIFAR100_URL = URL_PREFIX + "cifar-100-python.tar.gz"
CIFAR100_MD5 = "eb9058c3a382ffc7106e4002c42a8d85"


def reader_creator(filename: str, sub_name: str, cycle: bool = False) -> Reader:
    """A reader of (pixels [3072] float32 in [0, 1], label int) of the members whose names contain ``sub_name``.

    ``cycle``: without end. Raises CorruptFileError, when it is read, for an archive that holds something else.
    """

    def reader() -> Iterator[Any]:
        while True:
            with opened_tar(filename) as archive:
                for name, stream in members(archive):
                    if sub_name in name:
                        yield from _samples(read_state(stream.read(), f"{filename} ({name})"), filename)
            if not cycle:
                return

    return reader


def _samples(batch: Any, filename: str) -> Iterator[Any]:
    labels = batch.get("labels", batch.get("fine_labels")) if isinstance(batch, dict) else None
    if labels is None or "data" not in batch:
        raise CorruptFileError(f"{filename} holds a batch without data or labels")
    for pixels, label in zip(batch["data"], labels, strict=False):
        yield (pixels / 255.0).astype(np.float32), int(label)


def train100() -> Reader:
    """CIFAR-100 to train on; see `reader_creator`."""
    return reader_creator(common.download(CIFAR100_URL, "cifar", CIFAR100_MD5), "train")


def test100() -> Reader:
    """CIFAR-100 to test with; see `reader_creator`."""
    return reader_creator(common.download(CIFAR100_URL, "cifar", CIFAR100_MD5), "test")


def train10(cycle: bool = False) -> Reader:
    """CIFAR-10 to train on; see `reader_creator`."""
    return reader_creator(common.download(CIFAR10_URL, "cifar", CIFAR10_MD5), "data_batch", cycle)


def test10(cycle: bool = False) -> Reader:  # noqa: PT028 (no test)
    """CIFAR-10 to test with; see `reader_creator`."""
    return reader_creator(common.download(CIFAR10_URL, "cifar", CIFAR10_MD5), "test_batch", cycle)


def fetch() -> None:
    """Check that both archives are there."""
    train10()
    train100()
