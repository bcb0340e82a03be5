"""``paddle.dataset.sentiment``: 2000 reviews of films (the movie_reviews corpus of NLTK), bad (label 0) or good (1)."""

from __future__ import annotations

import re
import zipfile
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from itertools import chain
from typing import Any, Final

from fluidlite.compat.dataset import common
from fluidlite.errors import CorruptFileError

__all__ = ["fetch", "get_word_dict", "test", "train"]

URL = "https://corpora.bj.bcebos.com/movie_reviews%2Fmovie_reviews.zip"
MD5 = "155de2b77c6834dd8eea7cbe88e93acb"
NUM_TRAINING_INSTANCES = 1600
NUM_TOTAL_INSTANCES = 2000
#: a word, or signs that follow each other
_TOKEN: Final = re.compile(r"\w+|[^\w\s]+")
_REVIEW: Final = re.compile(r"movie_reviews/((?:neg|pos)/[^.].*\.txt)")


@lru_cache(maxsize=1)
def _reviews(path: str) -> dict[str, list[str]]:
    """``neg/name.txt`` or ``pos/name.txt`` -> its words, in the order of the names."""
    try:
        with zipfile.ZipFile(path) as archive:
            found = {match[1]: name for name in archive.namelist() if (match := _REVIEW.fullmatch(name))}
            return {short: _TOKEN.findall(archive.read(found[short]).decode("ascii")) for short in sorted(found)}
    except (zipfile.BadZipFile, UnicodeDecodeError, EOFError) as error:
        raise CorruptFileError(f"{path} is no archive of the movie_reviews corpus: {error}") from error


def _corpus() -> dict[str, list[str]]:
    return _reviews(common.download(URL, "corpora", MD5, "movie_reviews.zip"))


def get_word_dict() -> list[tuple[str, int]]:
    """(word, number), the most frequent first; of equally frequent ones the first seen."""
    counts = Counter(chain.from_iterable(_corpus().values()))
    return [(word, number) for number, word in enumerate(sorted(counts, key=counts.__getitem__, reverse=True))]


def load_sentiment_data() -> list[Any]:
    """(numbers of words, label) of bad and good reviews in turn."""
    numbers = dict(get_word_dict())
    reviews = _corpus()
    bad, good = ([name for name in reviews if name.startswith(kind)] for kind in ("neg", "pos"))
    order = chain.from_iterable(zip(bad, good, strict=False))
    return [([numbers[word.lower()] for word in reviews[name]], int(name.startswith("pos"))) for name in order]


def train() -> Iterator[Any]:
    """The first 1600 reviews: (numbers of words, label). As in Fluid these are samples and no reader of them."""
    return iter(load_sentiment_data()[:NUM_TRAINING_INSTANCES])


def test() -> Iterator[Any]:
    """The other reviews; see `train`."""
    return iter(load_sentiment_data()[NUM_TRAINING_INSTANCES:])


def fetch() -> None:
    """Check that the archive is there."""
    _corpus()
