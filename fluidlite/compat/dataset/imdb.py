"""``paddle.dataset.imdb``: reviews of films as words, good (label 0) or bad (1); 25000 to train on, 25000 to test."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from fluidlite.compat.dataset import common
from fluidlite.compat.dataset.archives import members, opened_tar
from fluidlite.compat.dataset.common import Reader

__all__ = ["build_dict", "fetch", "test", "tokenize", "train", "word_dict"]

URL = "https://dataset.bj.bcebos.com/imdb%2FaclImdb_v1.tar.gz"
MD5 = "7c2ac02c03563afcf9b574c7e56c153a"
_PUNCTUATION: Final = string.punctuation.encode()
UNKNOWN: Final = "<unk>"


def tokenize(pattern: re.Pattern[str]) -> Iterator[list[bytes]]:
    """The words (bytes, in lower case, without punctuation) of each member whose name matches, in the archive's order."""
    with opened_tar(common.download(URL, "imdb", MD5)) as archive:
        for name, stream in members(archive):
            if pattern.match(name):
                yield stream.read().rstrip(b"\n\r").translate(None, _PUNCTUATION).lower().split()


def build_dict(pattern: re.Pattern[str], cutoff: int) -> dict[Any, int]:
    """Word (bytes) -> number, for words that occur more than ``cutoff`` times, the most frequent first; then "<unk>"."""
    counts = Counter(word for words in tokenize(pattern) for word in words)
    kept = sorted((word for word, count in counts.items() if count > cutoff), key=lambda word: (-counts[word], word))
    return {**{word: number for number, word in enumerate(kept)}, UNKNOWN: len(kept)}


def reader_creator(pos_pattern: re.Pattern[str], neg_pattern: re.Pattern[str], word_idx: Mapping[Any, int]) -> Reader:
    """A reader of (numbers of words, label): first all of ``pos_pattern`` with 0, then of ``neg_pattern`` with 1."""
    unknown = word_idx[UNKNOWN]
    samples = [
        ([word_idx.get(word, unknown) for word in words], label)
        for label, pattern in enumerate((pos_pattern, neg_pattern))
        for words in tokenize(pattern)
    ]
    return lambda: iter(samples)


def _reviews(part: str, word_idx: Mapping[Any, int]) -> Reader:
    positive, negative = (re.compile(rf"aclImdb/{part}/{kind}/.*\.txt$") for kind in ("pos", "neg"))
    return reader_creator(positive, negative, word_idx)


def train(word_idx: Mapping[Any, int]) -> Reader:
    """The reviews to train on; see `reader_creator`."""
    return _reviews("train", word_idx)


def test(word_idx: Mapping[Any, int]) -> Reader:
    """The reviews to test with; see `reader_creator`."""
    return _reviews("test", word_idx)


def word_dict() -> dict[Any, int]:
    """`build_dict` of all reviews, for words that occur more than 150 times."""
    return build_dict(re.compile(r"aclImdb/((train)|(test))/((pos)|(neg))/.*\.txt$"), 150)


def fetch() -> None:
    """Check that the archive is there."""
    common.download(URL, "imdb", MD5)
