"""``paddle.dataset.mnist``: handwritten digits of 28 x 28 pixels; 60000 to train on, 10000 to test."""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from fluidlite.compat.dataset import common
from fluidlite.compat.dataset.common import Reader
from fluidlite.errors import CorruptFileError

__all__ = ["fetch", "test", "train"]

URL_PREFIX = "https://dataset.bj.bcebos.com/mnist/"
TEST_IMAGE_URL = URL_PREFIX + "t10k-images-idx3-ubyte.gz"
TEST_IMAGE_MD5 = "9fb629c4189551a2d022fa330f9573f3"
TEST_LABEL_URL = URL_PREFIX + "t10k-labels-idx1-ubyte.gz"
TEST_LABEL_MD5 = "ec29112dd5afa0611ce80d1b7f02629c"
TRAIN_IMAGE_URL = URL_PREFIX + "train-images-idx3-ubyte.gz"
TRAIN_IMAGE_MD5 = "f68b3c2dcbeaaa9fbdd348bbdeb94873"
TRAIN_LABEL_URL = URL_PREFIX + "train-labels-idx1-ubyte.gz"
TRAIN_LABEL_MD5 = "d53e105ee54ea40749a09fcbcd1e9432"


def reader_creator(image_filename: str, label_filename: str, buffer_size: int = 100) -> Reader:
    """A reader of (pixels [rows * columns] float32 in [-1, 1], label int) of two IDX files, ``buffer_size`` samples at once.

    Raises CorruptFileError, when it is read, for files that are no such pair.
    """

    def reader() -> Iterator[Any]:
        images, labels = _idx(image_filename, 3), _idx(label_filename, 1)
        if len(images) < len(labels):
            raise CorruptFileError(
                f"{image_filename} holds {len(images)} images, {label_filename} {len(labels)} labels"
            )
        for first in range(0, len(labels), buffer_size):
            some = labels[first : first + buffer_size]
            pixels = images[first : first + len(some)].reshape(len(some), -1).astype(np.float32)
            for image, label in zip(pixels / 255.0 * 2.0 - 1.0, some, strict=True):
                yield image, int(label)

    return reader


def _idx(filename: str, rank: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The bytes of an IDX file, as its header shapes them."""
    try:
        with gzip.open(filename, "rb") as stream:
            content = stream.read()
        shape = struct.unpack_from(f">{rank}I", content, 4)
        return np.frombuffer(content, np.uint8, int(np.prod(shape)), 4 * (rank + 1)).reshape(shape)
    except (OSError, EOFError, zlib.error, struct.error, ValueError) as error:
        raise CorruptFileError(f"{filename} is no gzipped IDX file of rank {rank}: {error}") from error


def train() -> Reader:
    """A reader of the samples to train on; see `reader_creator`."""
    return reader_creator(
        common.download(TRAIN_IMAGE_URL, "mnist", TRAIN_IMAGE_MD5),
        common.download(TRAIN_LABEL_URL, "mnist", TRAIN_LABEL_MD5),
    )


def test() -> Reader:
    """A reader of the samples to test with; see `reader_creator`."""
    return reader_creator(
        common.download(TEST_IMAGE_URL, "mnist", TEST_IMAGE_MD5),
        common.download(TEST_LABEL_URL, "mnist", TEST_LABEL_MD5),
    )


def fetch() -> None:
    """Check that all files are there."""
    train()
    test()
