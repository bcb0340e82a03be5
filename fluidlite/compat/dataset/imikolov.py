"""``paddle.dataset.imikolov``: sentences of the Penn Treebank, as n-grams or whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from fluidlite.compat.dataset import common
from fluidlite.compat.dataset.archives import member, opened_tar
from fluidlite.compat.dataset.common import Reader
from fluidlite.errors import DataError

__all__ = ["DataType", "build_dict", "fetch", "test", "train", "word_count"]

URL = "https://dataset.bj.bcebos.com/imikolov%2Fsimple-examples.tgz"
MD5 = "30177ea32e27c525793142b6bf2c8e2d"
_TRAIN: Final = "./simple-examples/data/ptb.train.txt"
_VALID: Final = "./simple-examples/data/ptb.valid.txt"
_BEGIN, _END, _UNKNOWN = "<s>", "<e>", "<unk>"


class DataType:
    """What a sample is."""

    NGRAM = 1
    SEQ = 2


def word_count(f: Iterable[bytes], word_freq: Counter[Any] | None = None) -> Counter[Any]:
    """How often words occur in lines; each line also counts one "<s>" and one "<e>"."""
    counts = word_freq if word_freq is not None else Counter()
    for line in f:
        counts.update((*line.split(), _BEGIN, _END))
    return counts


def build_dict(min_word_freq: int = 50) -> dict[Any, int]:
    """Word -> number, for words that occur more than ``min_word_freq`` times, the most frequent first; then "<unk>".

    Words of the text are bytes and the marks are text, as in Fluid on Python 3.
    """
    with opened_tar(common.download(URL, "imikolov", MD5)) as archive:
        counts = word_count(member(archive, _TRAIN))
        counts = word_count(member(archive, _VALID), counts)
    counts.pop(_UNKNOWN, None)
    kept = (word for word, count in counts.items() if count > min_word_freq)
    order = sorted(kept, key=lambda word: (-counts[word], isinstance(word, str), word))
    return {**{word: number for number, word in enumerate(order)}, _UNKNOWN: len(order)}


def reader_creator(filename: str, word_idx: Mapping[Any, int], n: int, data_type: int) -> Reader:
    """NGRAM: a reader of tuples of ``n`` numbers of words that follow each other, "<s>" and "<e>" around each line.

    SEQ: of (the line behind "<s>", the line before "<e>"), without lines of more than ``n`` numbers where ``n`` > 0.
    Raises DataError for another ``data_type``, and for n-grams of fewer than 0 words.
    """
    if data_type not in (DataType.NGRAM, DataType.SEQ):
        raise DataError(f"imikolov: data_type must be DataType.NGRAM or DataType.SEQ, not {data_type!r}")
    if data_type == DataType.NGRAM and n < 0:
        raise DataError(f"imikolov: an n-gram has at least 0 words, not {n}")
    unknown = word_idx[_UNKNOWN]

    def numbers(words: Iterable[Any]) -> list[int]:
        return [word_idx.get(word, unknown) for word in words]

    def reader() -> Iterator[Any]:
        with opened_tar(common.download(URL, "imikolov", MD5)) as archive:
            for line in member(archive, filename):
                words = line.split()
                if data_type == DataType.NGRAM:
                    whole = numbers((_BEGIN, *words, _END))
                    yield from (tuple(whole[end - n : end]) for end in range(n, len(whole) + 1))
                elif n <= 0 or len(words) + 1 <= n:
                    line_numbers = numbers(words)
                    yield [word_idx[_BEGIN], *line_numbers], [*line_numbers, word_idx[_END]]

    return reader


def train(word_idx: Mapping[Any, int], n: int, data_type: int = DataType.NGRAM) -> Reader:
    """The lines to train on; see `reader_creator`."""
    return reader_creator(_TRAIN, word_idx, n, data_type)


def test(word_idx: Mapping[Any, int], n: int, data_type: int = DataType.NGRAM) -> Reader:  # noqa: PT028 (no test)
    """The lines to test with; see `reader_creator`."""
    return reader_creator(_VALID, word_idx, n, data_type)


def fetch() -> None:
    """Check that the archive is there."""
    common.download(URL, "imikolov", MD5)
