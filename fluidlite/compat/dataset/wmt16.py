"""``paddle.dataset.wmt16``: descriptions of pictures in English and German (Multi30K)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

from fluidlite.compat.dataset import common
from fluidlite.compat.dataset.archives import member, opened_tar
from fluidlite.compat.dataset.common import Reader
from fluidlite.errors import DataError

__all__ = ["fetch", "get_dict", "test", "train", "validation"]

DATA_URL = "http://paddlemodels.bj.bcebos.com/wmt/wmt16.tar.gz"
DATA_MD5 = "0c38be43600334966403524a40dcd81e"
TOTAL_EN_WORDS = 11250
TOTAL_DE_WORDS = 19220
START_MARK, END_MARK, UNK_MARK = "<s>", "<e>", "<unk>"
_MARKS: Final = (START_MARK, END_MARK, UNK_MARK)
_LANGUAGES: Final = ("en", "de")


def _file() -> str:
    return common.download(DATA_URL, "wmt16", DATA_MD5, "wmt16.tar.gz")


def _pairs(path: str, name: str) -> Iterator[list[str]]:
    """[English, German] of each line that is a pair."""
    with opened_tar(path) as archive:
        for line in member(archive, name):
            pair = line.decode("utf-8").strip().split("\t")
            if len(pair) == 2:
                yield pair


@lru_cache(maxsize=8)
def _words(path: str, lang: str, size: int) -> tuple[str, ...]:
    """The marks, then the most frequent words of a language, ``size`` together; of equally frequent ones the first seen."""
    column = _LANGUAGES.index(lang)
    counts = Counter(word for pair in _pairs(path, "wmt16/train") for word in pair[column].split())
    return (*_MARKS, *sorted(counts, key=counts.__getitem__, reverse=True)[: max(0, size - len(_MARKS))])


def _dict(path: str, lang: str, size: int) -> dict[str, int]:
    return {word: number for number, word in enumerate(_words(path, lang, _limited(lang, size)))}


def _limited(lang: str, size: int) -> int:
    return min(size, TOTAL_EN_WORDS if lang == "en" else TOTAL_DE_WORDS)


def _reader(name: str, src_dict_size: int, trg_dict_size: int, src_lang: str) -> Reader:
    """A reader of (source between "<s>" and "<e>", target behind "<s>", target before "<e>") as numbers of words."""
    if src_lang not in _LANGUAGES:
        raise DataError(f"wmt16: src_lang must be one of {', '.join(_LANGUAGES)}, not {src_lang!r}")
    path, column = _file(), _LANGUAGES.index(src_lang)

    def reader() -> Iterator[Any]:
        source = _dict(path, src_lang, src_dict_size)
        target = _dict(path, _LANGUAGES[1 - column], trg_dict_size)
        start, end, unknown = (source[mark] for mark in _MARKS)
        for pair in _pairs(path, name):
            read = [source.get(word, unknown) for word in pair[column].split()]
            written = [target.get(word, unknown) for word in pair[1 - column].split()]
            yield [start, *read, end], [start, *written], [*written, end]

    return reader


def train(src_dict_size: int, trg_dict_size: int, src_lang: str = "en") -> Reader:
    """The pairs to train on: (source, target, target one word ahead) as numbers. Raises DataError for another language."""
    return _reader("wmt16/train", src_dict_size, trg_dict_size, src_lang)


def test(src_dict_size: int, trg_dict_size: int, src_lang: str = "en") -> Reader:  # noqa: PT028 (no test)
    """The pairs to test with; see `train`."""
    return _reader("wmt16/test", src_dict_size, trg_dict_size, src_lang)


def validation(src_dict_size: int, trg_dict_size: int, src_lang: str = "en") -> Reader:
    """The pairs to choose a model by; see `train`."""
    return _reader("wmt16/val", src_dict_size, trg_dict_size, src_lang)


def get_dict(lang: str, dict_size: int, reverse: bool = False) -> dict[Any, Any]:
    """Word -> number of a language, or number -> word with ``reverse``. Raises DataError for another language."""
    if lang not in _LANGUAGES:
        raise DataError(f"wmt16: lang must be one of {', '.join(_LANGUAGES)}, not {lang!r}")
    numbers = _dict(_file(), lang, dict_size)
    return {number: word for word, number in numbers.items()} if reverse else numbers


def fetch() -> None:
    """Check that the archive is there."""
    _file()
