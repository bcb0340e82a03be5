"""Parameter files: one value, or several one after the other, in the records of `fluidlite.values.records`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from io import BufferedIOBase
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import MissingFileError, ProgramError, UnwritableFileError
from fluidlite.values import records
from fluidlite.values.lod import LoDTensor
from fluidlite.values.selected_rows import SelectedRows
from fluidlite.values.sparse_table import SparseTable, TableColumn

Saved: TypeAlias = Array | LoDTensor | SelectedRows
#: bytes of a file name that leave room for a process number
_NAME_ROOM: Final = 200


def saved_form(name: str, value: Any) -> Saved:
    """What a file keeps of a variable's value: a table or an accumulator of one as its rows, in order of creation."""
    if isinstance(value, (SparseTable, TableColumn)):
        return value.export()
    if isinstance(value, (np.ndarray, LoDTensor, SelectedRows)):
        return value
    raise ProgramError(f"variable {name!r} holds a {type(value).__name__}, which no file can keep")


def holds_rows(value: Any) -> bool:
    """Whether the file of a variable that holds this value is a SelectedRows record."""
    return isinstance(value, (SelectedRows, SparseTable, TableColumn))


def save(path: Path, values: Mapping[str, Any], *, overwrite: bool = True, as_fp16: bool = False) -> None:
    """Write the values, by variable name, in the order given. Makes the folder; ``as_fp16`` halves float32 data.

    Raises UnwritableFileError.
    """
    if not overwrite and path.exists():
        raise ProgramError(f"{path} exists and must not be overwritten")
    with replacing(path) as stream:
        write(stream, values, as_fp16=as_fp16)


def write(stream: BufferedIOBase, values: Mapping[str, Any], *, as_fp16: bool = False) -> None:
    """Write the values to an open file, in the order given."""
    for name, value in values.items():
        kept = saved_form(name, value)
        records.write(stream, _as_fp16(kept) if as_fp16 else kept)


@contextmanager
def replacing(path: Path) -> Iterator[BufferedIOBase]:
    """A file to write, which takes the place of ``path`` once it is whole: an error, or the end of the process, leaves
    what was there before. Makes the folder. A pipe or a device stays, and is written to."""
    unfinished = path.with_name(f".{path.name[:_NAME_ROOM]}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        special = path.exists() and not path.is_file() and not path.is_dir()
        with (path if special else unfinished).open("wb") as stream:
            yield stream
        if not special:
            unfinished.replace(path)
    except OSError as error:
        raise UnwritableFileError(f"cannot write {path}: {error}") from error
    finally:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)


def load(path: Path, name: str, *, rows: bool = False, as_fp16: bool = False) -> Saved:
    """The only value of a file. ``rows``: it must be SelectedRows; else it is whatever the file says.

    Raises MissingFileError and CorruptFileError, both naming the file and variable ``name``.
    """
    with opened(path, f"variable {name!r}") as stream:
        source = f"{path} (variable {name!r})"
        if rows:
            value: Saved = records.read_selected_rows(stream, source)
            records.check_end(stream, source)
        else:
            value = records.read_any(stream, source)
    return _as_fp16(value) if as_fp16 else value


def load_slice(path: Path, name: str, first: int, shape: tuple[int, ...]) -> Array:
    """``shape`` elements of the tensor in a file, from element ``first`` on."""
    with opened(path, f"variable {name!r}") as stream:
        return records.read_slice(stream, f"{path} (variable {name!r})", first, shape)


def load_all(path: Path, names: Sequence[str], rows: Sequence[bool], *, as_fp16: bool = False) -> list[Saved]:
    """The values of a combined file; ``rows`` says which are SelectedRows. The file must hold exactly these."""
    with opened(path, f"{len(names)} variables") as stream:
        values = read_all(stream, str(path), names, rows)
    return [_as_fp16(value) for value in values] if as_fp16 else values


def read_all(stream: BufferedIOBase, source: str, names: Sequence[str], rows: Sequence[bool]) -> list[Saved]:
    """The values of a combined file that is open, which must hold exactly these."""
    values: list[Saved] = []
    for name, is_rows in zip(names, rows, strict=True):
        read = records.read_selected_rows if is_rows else records.read_tensor
        values.append(read(stream, f"{source} (variable {name!r})"))
    records.check_end(stream, source)
    return values


@contextmanager
def opened(path: Path, what: str) -> Iterator[BufferedIOBase]:
    """A file open for reading; MissingFileError naming it and ``what`` was wanted."""
    try:
        stream = path.open("rb")
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise MissingFileError(f"{what} cannot be loaded: there is no file {path}") from error
    with stream:
        yield stream


def into_table(current: Any, value: Saved) -> Any:
    """What a variable that held ``current`` holds once ``value`` is loaded.

    A table forgets its rows and takes those of the file; like those of a dense parameter, the accumulators of rows that
    were there before stay. An accumulator of a table takes its values. Anything else is replaced by the value.
    """
    if not isinstance(current, (SparseTable, TableColumn)) or not isinstance(value, SelectedRows):
        return value
    rows = SelectedRows(value.rows, value.value[: len(value.rows)], value.height)
    if isinstance(current, SparseTable):
        current.replace(rows)
    else:
        current.load(rows)
    return current


def _as_fp16(value: Any) -> Any:
    """The value with float32 elements halved."""
    if isinstance(value, LoDTensor):
        return LoDTensor(_as_fp16(value.array), value.lod)
    if isinstance(value, SelectedRows):
        return SelectedRows(value.rows, _as_fp16(value.value), value.height)
    return value.astype(np.float16) if value.dtype == np.float32 else value
