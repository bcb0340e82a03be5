"""``paddle.dataset.movielens``: a million ratings of films (MovieLens 1M), with what is known of users and films."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np

from fluidlite.compat.dataset import common
from fluidlite.compat.dataset.common import Reader
from fluidlite.errors import CorruptFileError

__all__ = [
    "MovieInfo",
    "UserInfo",
    "age_table",
    "fetch",
    "get_movie_title_dict",
    "max_job_id",
    "max_movie_id",
    "max_user_id",
    "movie_categories",
    "movie_info",
    "test",
    "train",
    "user_info",
]

URL = "https://dataset.bj.bcebos.com/movielens%2Fml-1m.zip"
MD5 = "c4d9eecfca2ab87c1945afe126590906"
age_table = [1, 18, 25, 35, 45, 50, 56]
#: a title with its year
_TITLE: Final = re.compile(r"^(.*)\((\d+)\)$")


class MovieInfo:
    """What is known of a film."""

    def __init__(self, index: str | int, categories: list[str], title: str) -> None:
        self.index = int(index)
        self.categories = categories
        self.title = title

    def value(self) -> list[Any]:
        """[number, numbers of its categories, numbers of the words of its title]."""
        words, categories = get_movie_title_dict(), movie_categories()
        return [self.index, [categories[c] for c in self.categories], [words[w.lower()] for w in self.title.split()]]

    def __repr__(self) -> str:
        return f"<MovieInfo id({self.index}), title({self.title}), categories({self.categories})>"


class UserInfo:
    """What is known of a user; ``age`` is a position in `age_table`."""

    def __init__(self, index: str | int, gender: str, age: str | int, job_id: str | int) -> None:
        self.index = int(index)
        self.is_male = gender == "M"
        self.age = age_table.index(int(age))
        self.job_id = int(job_id)

    def value(self) -> list[int]:
        """[number, 0 for male and 1 for female, position of the age, number of the job]."""
        return [self.index, 0 if self.is_male else 1, self.age, self.job_id]

    def __repr__(self) -> str:
        gender = "M" if self.is_male else "F"
        return f"<UserInfo id({self.index}), gender({gender}), age({age_table[self.age]}), job({self.job_id})>"


class _Known(NamedTuple):
    movies: dict[int, MovieInfo]
    users: dict[int, UserInfo]
    words: dict[str, int]
    categories: dict[str, int]


@lru_cache(maxsize=1)
def _read(path: str) -> _Known:
    """Words and categories are numbered in alphabetical order; in Fluid their numbers differ from run to run."""
    movies, users = {}, {}
    for number, title, categories in _lines(path, "movies.dat", 3):
        found = _TITLE.match(title)
        if found is None:
            raise CorruptFileError(f"{path}: film {number} has a title without year: {title!r}")
        movies[int(number)] = MovieInfo(number, categories.split("|"), found[1])
    for number, gender, age, job, _ in _lines(path, "users.dat", 5):
        users[int(number)] = UserInfo(number, gender, age, job)
    words = {word.lower() for movie in movies.values() for word in movie.title.split()}
    categories_ = {name for movie in movies.values() for name in movie.categories}
    return _Known(movies, users, _numbered(words), _numbered(categories_))


def _lines(path: str, name: str, fields: int) -> Iterator[list[str]]:
    """The fields of each line of a member of the archive."""
    try:
        with zipfile.ZipFile(path) as archive, archive.open(f"ml-1m/{name}") as stream:
            for line in stream:
                found = line.decode("latin-1").strip().split("::")
                if len(found) != fields:
                    raise CorruptFileError(f"{path}: a line of {name} has {len(found)} fields, not {fields}")
                yield found
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise CorruptFileError(f"{path} is no archive of MovieLens 1M: {error}") from error


def _numbered(names: Iterable[str]) -> dict[str, int]:
    return {name: number for number, name in enumerate(sorted(names))}


def _known() -> _Known:
    return _read(common.download(URL, "movielens", MD5))


def _reader(rand_seed: int = 0, test_ratio: float = 0.1, is_test: bool = False) -> Reader:
    def reader() -> Iterator[Any]:
        path = common.download(URL, "movielens", MD5)
        known = _read(path)
        draws = np.random.RandomState(rand_seed)
        for user, movie, rating, _ in _lines(path, "ratings.dat", 4):
            if (draws.random_sample() < test_ratio) == is_test:
                score = float(rating) * 2 - 5.0
                yield [*known.users[int(user)].value(), *known.movies[int(movie)].value(), [score]]

    return reader


def train(rand_seed: int = 0, test_ratio: float = 0.1) -> Reader:
    """A reader of [user, gender, age, job, film, its categories, words of its title, [rating from -3 to 5]].

    ``test_ratio`` of the ratings, drawn by ``rand_seed``, are left to `test`.
    """
    return _reader(rand_seed, test_ratio)


def test(rand_seed: int = 0, test_ratio: float = 0.1) -> Reader:  # noqa: PT028 (no test)
    """A reader of the ratings that `train` leaves out."""
    return _reader(rand_seed, test_ratio, is_test=True)


def get_movie_title_dict() -> dict[str, int]:
    """Word of a title -> number."""
    return _known().words


def movie_categories() -> dict[str, int]:
    """Category -> number."""
    return _known().categories


def movie_info() -> dict[int, MovieInfo]:
    """Number -> film."""
    return _known().movies


def user_info() -> dict[int, UserInfo]:
    """Number -> user."""
    return _known().users


def max_movie_id() -> int:
    """The highest number of a film."""
    return max(movie_info())


def max_user_id() -> int:
    """The highest number of a user."""
    return max(user_info())


def max_job_id() -> int:
    """The highest number of a job."""
    return max(user.job_id for user in user_info().values())


def fetch() -> None:
    """Check that the archive is there."""
    common.download(URL, "movielens", MD5)
