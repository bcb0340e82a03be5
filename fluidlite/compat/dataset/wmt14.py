"""``paddle.dataset.wmt14``: sentences in English and French."""

from __future__ import annotations

import itertools
import tarfile
from collections.abc import Iterator
from typing import Any, Final

from fluidlite.compat.dataset import common
from fluidlite.compat.dataset.archives import members, opened_tar
from fluidlite.compat.dataset.common import Reader
from fluidlite.errors import CorruptFileError

__all__ = ["fetch", "gen", "get_dict", "test", "train"]

URL_TRAIN = "http://paddlemodels.bj.bcebos.com/wmt/wmt14.tgz"
MD5_TRAIN = "0791583d57d5beb693b9414c5b36798c"
URL_MODEL = "http://paddlemodels.bj.bcebos.com/wmt%2Fwmt14.tgz"
MD5_MODEL = "0cb4a5366189b6acba876491c8724fa3"
START, END, UNK = "<s>", "<e>", "<unk>"
UNK_IDX: Final = 2
#: longer sentences are left out
_LONGEST: Final = 80


def _dicts(path: str, size: int) -> tuple[dict[str, int], dict[str, int]]:
    """The first ``size`` words of each language -> number."""
    with opened_tar(path) as archive:
        return _words(archive, "src.dict", size), _words(archive, "trg.dict", size)


def _words(archive: tarfile.TarFile, suffix: str, size: int) -> dict[str, int]:
    found = [stream for name, stream in members(archive) if name.endswith(suffix)]
    if len(found) != 1:
        raise CorruptFileError(f"{archive.name!r} holds {len(found)} files {suffix}, not one")
    lines = itertools.islice(found[0], size)
    return {line.decode("utf-8").strip(): number for number, line in enumerate(lines)}


def reader_creator(tar_file: str, file_name: str, dict_size: int) -> Reader:
    """A reader of (source between "<s>" and "<e>", target behind "<s>", target before "<e>") as numbers of words.

    Of the members whose names end with ``file_name``; lines that are no pair, and sentences of more than 80, are left out.
    """

    def reader() -> Iterator[Any]:
        source, target = _dicts(tar_file, dict_size)
        with opened_tar(tar_file) as archive:
            for name, stream in members(archive):
                if not name.endswith(file_name):
                    continue
                for line in stream:
                    pair = line.decode("utf-8").strip().split("\t")
                    if len(pair) != 2:
                        continue
                    read = [source.get(word, UNK_IDX) for word in (START, *pair[0].split(), END)]
                    written = [target.get(word, UNK_IDX) for word in pair[1].split()]
                    if max(len(read), len(written)) <= _LONGEST:
                        yield read, [target[START], *written], [*written, target[END]]

    return reader


def _file() -> str:
    return common.download(URL_TRAIN, "wmt14", MD5_TRAIN)


def train(dict_size: int) -> Reader:
    """The pairs to train on; see `reader_creator`."""
    return reader_creator(_file(), "train/train", dict_size)


def test(dict_size: int) -> Reader:
    """The pairs to test with; see `reader_creator`."""
    return reader_creator(_file(), "test/test", dict_size)


def gen(dict_size: int) -> Reader:
    """The pairs to generate for; see `reader_creator`."""
    return reader_creator(_file(), "gen/gen", dict_size)


def get_dict(dict_size: int, reverse: bool = True) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """(source, target) number -> word, or word -> number with ``reverse`` False."""
    source, target = _dicts(_file(), dict_size)
    if not reverse:
        return source, target
    return {number: word for word, number in source.items()}, {number: word for word, number in target.items()}


def fetch() -> None:
    """Check that the archive is there."""
    _file()
