"""``paddle.dataset.common``: where files of data sets are, and readers over pieces of a data set."""

from __future__ import annotations

import base64
import glob
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, Final, NoReturn, TypeAlias

import numpy as np

from fluidlite.errors import CorruptFileError, FleetError, MissingFileError, NotSupported

__all__ = ["DATA_HOME", "cluster_files_reader", "convert", "download", "md5file", "split"]

#: makes the samples of one pass
Reader: TypeAlias = Callable[[], Iterable[Any]]

#: the cache directory; a script may set it, and so may the environment variable FLUIDLITE_DATA_HOME
DATA_HOME = os.environ.get("FLUIDLITE_DATA_HOME") or str(Path("~/.cache/paddle/dataset").expanduser())
_CHUNK: Final = 1 << 20


def md5file(fname: str | Path) -> str:
    """The MD5 of a file, in hexadecimal."""
    digest = hashlib.md5(usedforsecurity=False)
    with Path(fname).open("rb") as stream:
        for chunk in iter(lambda: stream.read(_CHUNK), b""):
            digest.update(chunk)
    return digest.hexdigest()


def download(url: str, module_name: str, md5sum: str | None, save_name: str | None = None) -> str:
    """The path of a file in the cache directory, ``<DATA_HOME>/<module_name>/<last part of the URL, or save_name>``.

    Nothing is downloaded. Raises MissingFileError naming the URL, the place and the MD5 for a file that is not there, and
    CorruptFileError for one with another MD5.
    """
    path = Path(DATA_HOME) / module_name / (save_name or url.rsplit("/", 1)[-1])
    if not path.is_file():
        raise MissingFileError(
            f"fluidlite downloads nothing: get {url} (MD5 {md5sum or 'not known'}) and put it at {path}; "
            "another cache directory can be set by FLUIDLITE_DATA_HOME or paddle.dataset.common.DATA_HOME"
        )
    if md5sum:
        found = md5file(path)
        if found != md5sum:
            raise CorruptFileError(f"{path} has the MD5 {found}, not {md5sum}: get it again from {url}")
    return str(path)


def fetch_all() -> NoReturn:
    """Not supported: nothing is downloaded."""
    raise NotSupported("paddle.dataset.common.fetch_all is not supported by fluidlite, which downloads nothing")


def split(
    reader: Reader,
    line_count: int,
    suffix: str = "%05d.pickle",
    dumper: Callable[[Any, IO[Any]], object] | None = None,
) -> None:
    """Write the samples of a reader to files of ``line_count`` samples, named by ``suffix`` and their number.

    ``dumper(samples, file)`` writes a list of samples to a file open for text; by default they are written as lines of JSON,
    which `cluster_files_reader` reads (Fluid pickles them, which its Python 3 cannot do). Raises FleetError for a
    ``line_count`` below 1 and a ``dumper`` that cannot be called.
    """
    if line_count < 1 or not callable(dumper or dump):
        raise FleetError(f"split: line_count must be at least 1 ({line_count!r}) and dumper callable ({dumper!r})")
    lines: list[Any] = []
    number = 0
    for sample in reader():
        lines.append(sample)
        if len(lines) == line_count:
            _write(suffix % number, lines, dumper or dump)
            lines, number = [], number + 1
    if lines:
        _write(suffix % number, lines, dumper or dump)


def _write(path: str, lines: list[Any], dumper: Callable[[Any, IO[Any]], object]) -> None:
    with Path(path).open("w", encoding="utf-8") as stream:
        dumper(lines, stream)


def cluster_files_reader(
    files_pattern: str,
    trainer_count: int,
    trainer_id: int,
    loader: Callable[[IO[Any]], Iterable[Any]] | None = None,
) -> Reader:
    """A reader of every ``trainer_count``-th file that `split` wrote, in the order of their names, from ``trainer_id`` on.

    ``loader(file)`` reads the samples of a file open for text; by default the form that `split` writes by default.
    """
    if loader is not None and not callable(loader):
        raise FleetError(f"cluster_files_reader: loader must be callable, not {loader!r}")

    def reader() -> Iterator[Any]:
        for path in sorted(glob.glob(files_pattern))[trainer_id::trainer_count]:  # noqa: PTH207 (a pattern with folders)
            with Path(path).open(encoding="utf-8") as stream:
                yield from (loader or load)(stream)

    return reader


def convert(output_path: str, reader: Reader, line_count: int, name_prefix: str) -> NoReturn:
    """Not supported: Fluid 1.8 has no RecordIO any more."""
    raise NotSupported("paddle.dataset.common.convert is not supported by fluidlite: RecordIO is left out; use split")


def dump(samples: list[Any], stream: IO[str]) -> None:
    """Write samples as lines of JSON; arrays keep dtype and shape, tuples and bytes stay what they are."""
    for sample in samples:
        stream.write(json.dumps(_plain(sample)) + "\n")


def load(stream: IO[str]) -> Iterator[Any]:
    """Read what `dump` wrote. Raises CorruptFileError."""
    for line in stream:
        try:
            yield _sample(json.loads(line))
        except (ValueError, TypeError, KeyError) as error:
            raise CorruptFileError(f"{stream.name} does not hold samples as split writes them: {error}") from error


def _plain(value: Any) -> Any:
    """What JSON can hold; what it has no form for becomes an object of one key."""
    if isinstance(value, np.ndarray):
        content = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
        return {"array": [value.dtype.str, list(value.shape), content]}
    if isinstance(value, np.generic):
        return {"number": [value.dtype.str, value.item()]}
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, tuple):
        return {"tuple": [_plain(item) for item in value]}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _sample(plain: Any) -> Any:
    if isinstance(plain, list):
        return [_sample(item) for item in plain]
    if not isinstance(plain, dict):
        return plain
    ((kind, held),) = plain.items()
    if kind == "tuple":
        return tuple(_sample(item) for item in held)
    if kind == "bytes":
        return base64.b64decode(held)
    if kind == "number":
        return np.dtype(held[0]).type(held[1])
    return np.frombuffer(base64.b64decode(held[2]), np.dtype(held[0])).reshape(held[1]).copy()
