"""Manifest: what one server wrote of one checkpoint, as JSON that a person can read and whose last line is its CRC."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np

from fluidlite.checkpoint.chunks import FileInfo, stored_dtype
from fluidlite.errors import CorruptFileError, ProgramError
from fluidlite.values.lod import Lod
from fluidlite.values.row_snapshot import ColumnPlace

FORMAT: Final = "fluidlite checkpoint 1"
#: bytes of a manifest that are read
MOST_BYTES: Final = 1 << 28
_MOST_SERVERS: Final = 1 << 16
_CRC: Final = ',\n "crc32": "{:08x}"\n}}\n'
_CRC_BYTES: Final = len(_CRC.format(0))
_NUMBERS: Final = "biuf"
_NAME: Final = re.compile(r"server-([0-9]{1,9})-of-([0-9]{1,9})\.json")
_T = TypeVar("_T")


class Link(NamedTuple):
    """A checkpoint of the same server that another one builds on."""

    number: int
    id: str


class DenseInfo(NamedTuple):
    """An array of the dense file. ``origin``: the variable of the whole model that it is, or is a piece of, from row
    ``first_row`` on (None: it is whole). ``dtype`` is little-endian. ``chunk``, ``offset``: where its chunks begin."""

    name: str
    origin: str
    first_row: int | None
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    chunk: int
    offset: int
    lod: Lod = ()

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


class TableInfo(NamedTuple):
    """The rows of one table that a server wrote: ``rows`` of its ``total_rows``, those changed since another checkpoint
    where ``changed_since`` names one. Records are ``record_width`` numbers, the values first. ``init`` says in words how
    new rows start."""

    name: str
    width: int
    dtype: np.dtype[Any]
    height: int
    seed: int
    init: Mapping[str, Any]
    record_width: int
    columns: tuple[ColumnPlace, ...]
    total_rows: int
    rows: int
    changed_since: Link | None
    file: FileInfo

    @property
    def row_bytes(self) -> int:
        """Bytes of a row in its file: id and record."""
        return 8 + self.record_width * self.dtype.itemsize


@dataclass(frozen=True)
class Manifest:
    """What server ``server`` of ``servers`` wrote of checkpoint ``number``, at its ``version``.

    ``id`` is new with every writing, and part of the names of its files. ``run`` names the job. ``loose``: rows that
    belong to no table, as tables without columns. ``written``: the time, for people.
    """

    number: int
    server: int
    servers: int
    version: int
    id: str
    run: str
    written: str
    dense: tuple[DenseInfo, ...]
    dense_file: FileInfo
    tables: tuple[TableInfo, ...]
    loose: tuple[TableInfo, ...]
    extra: Mapping[str, Any]

    @property
    def link(self) -> Link:
        return Link(self.number, self.id)

    @property
    def files(self) -> tuple[FileInfo, ...]:
        """The files that this manifest names, of this checkpoint alone."""
        return (self.dense_file, *(table.file for table in (*self.tables, *self.loose)))

    def table(self, name: str) -> TableInfo | None:
        """What was written of a table."""
        return next((table for table in self.tables if table.name == name), None)


def folder_name(number: int) -> str:
    """The folder of a checkpoint.

    >>> folder_name(12)
    'checkpoint-000000012'
    """
    return f"checkpoint-{number:09d}"


def file_name(server: int, servers: int) -> str:
    """The name of a manifest in the folder of its checkpoint."""
    return f"server-{server}-of-{servers}.json"


def whose(name: str) -> tuple[int, int] | None:
    """(server, servers) of a manifest's name, None for other names."""
    found = _NAME.fullmatch(name)
    if found is None or not int(found[1]) < int(found[2]) <= _MOST_SERVERS:
        return None
    return int(found[1]), int(found[2])


def to_bytes(manifest: Manifest) -> bytes:
    """The text of a manifest; its last line holds the CRC-32 of all before."""
    try:
        text = ",\n ".join(f"{json.dumps(name)}: {_lines(value)}" for name, value in _as_json(manifest).items())
    except (TypeError, ValueError, RecursionError) as error:
        raise ProgramError(f"what is to be remembered in checkpoint {manifest.number} is no JSON: {error}") from error
    body = f"{{\n {text}".encode()
    return body + _CRC.format(zlib.crc32(body)).encode()


def from_bytes(content: bytes, source: str) -> Manifest:
    """The manifest of a text; CorruptFileError naming ``source`` where a byte is not what was written."""
    body, end = content[:-_CRC_BYTES], content[-_CRC_BYTES:]
    if end != _CRC.format(zlib.crc32(body)).encode():
        raise CorruptFileError(f"{source} is damaged: its CRC is not the one that was written")
    try:
        return _from_json(json.loads(content))
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise CorruptFileError(f"{source} is no manifest of a checkpoint: {type(error).__name__}: {error}") from error


def init_in_words(init: object) -> dict[str, Any]:
    """How rows start, for people: the rule and its numbers."""
    fields = dataclasses.fields(init) if dataclasses.is_dataclass(init) else ()
    numbers = {f.name: getattr(init, f.name) for f in fields}
    return {"rule": type(init).__name__, **{k: v for k, v in numbers.items() if isinstance(v, (int, float, str))}}


def as_text(init: Mapping[str, Any]) -> str:
    """The same in one line.

    >>> as_text({"rule": "Uniform", "low": -1.0, "high": 1.0})
    'Uniform(low=-1.0, high=1.0)'
    """
    return f"{init.get('rule')}({', '.join(f'{name}={value}' for name, value in init.items() if name != 'rule')})"


def _lines(value: Any) -> str:
    """JSON with each item of the outermost list, or object, on a line of its own."""
    if isinstance(value, list) and value:
        return "[\n  " + ",\n  ".join(map(json.dumps, value)) + "\n ]"
    if isinstance(value, dict) and value:
        return "{\n  " + ",\n  ".join(f"{json.dumps(key)}: {json.dumps(part)}" for key, part in value.items()) + "\n }"
    return json.dumps(value)


def _as_json(manifest: Manifest) -> dict[str, Any]:
    return {
        "format": FORMAT,
        **{
            name: getattr(manifest, name) for name in ("number", "server", "servers", "version", "id", "run", "written")
        },
        "tables": [_table_as_json(table) for table in manifest.tables],
        "rows_without_table": [_table_as_json(table) for table in manifest.loose],
        "dense": [_dense_as_json(dense) for dense in manifest.dense],
        "dense_file": _file_as_json(manifest.dense_file),
        "extra": dict(manifest.extra),
    }


def _file_as_json(file: FileInfo) -> dict[str, Any]:
    return {**file._asdict(), "crc32": f"{file.crc32:08x}"}


def _dense_as_json(dense: DenseInfo) -> dict[str, Any]:
    piece = {"piece_of": dense.origin, "first_row": dense.first_row} if dense.origin != dense.name else {}
    lod = {"lod": dense.lod} if dense.lod else {}
    return {
        "name": dense.name,
        **piece,
        "dtype": dense.dtype.str,
        "shape": dense.shape,
        "chunk": dense.chunk,
        "offset": dense.offset,
        **lod,
    }


def _table_as_json(table: TableInfo) -> dict[str, Any]:
    since = table.changed_since
    return {
        **table._asdict(),
        "dtype": table.dtype.str,
        "columns": [column._asdict() for column in table.columns],
        "changed_since": since and since._asdict(),
        "file": _file_as_json(table.file),
    }


def _from_json(data: Any) -> Manifest:
    if _get(data, "format", str) != FORMAT:
        raise ValueError(f"it is {data['format']!r}, not {FORMAT!r}")
    manifest = Manifest(
        number=_count(data, "number"),
        server=_count(data, "server"),
        servers=_count(data, "servers"),
        version=_count(data, "version"),
        id=_get(data, "id", str),
        run=_get(data, "run", str),
        written=_get(data, "written", str),
        dense=tuple(_dense(item) for item in _get(data, "dense", list)),
        dense_file=_file(_get(data, "dense_file", dict)),
        tables=tuple(_table(item) for item in _get(data, "tables", list)),
        loose=tuple(_table(item) for item in _get(data, "rows_without_table", list)),
        extra=_get(data, "extra", dict),
    )
    if manifest.server >= manifest.servers:
        raise ValueError(f"server {manifest.server} of {manifest.servers}")
    if sum(dense.nbytes for dense in manifest.dense) > manifest.dense_file.size:
        raise ValueError("the dense variables are larger than their file")
    return manifest


def _dense(data: Any) -> DenseInfo:
    name = _get(data, "name", str)
    first = data.get("first_row")
    lod = tuple(tuple(int(offset) for offset in level) for level in data.get("lod", ()))
    shape = tuple(_counts(_get(data, "shape", list)))
    origin = _get(data, "piece_of", str) if "piece_of" in data else name
    place = _count(data, "chunk"), _count(data, "offset")
    return DenseInfo(
        name, origin, None if first is None else _count(data, "first_row"), _dtype(data), shape, *place, lod
    )


def _table(data: Any) -> TableInfo:
    since = data["changed_since"]
    columns = [
        ColumnPlace(_get(c, "name", str), _count(c, "start"), _count(c, "width"), float(c["fill"]))
        for c in _get(data, "columns", list)
    ]
    table = TableInfo(
        name=_get(data, "name", str),
        width=_count(data, "width"),
        dtype=_dtype(data),
        height=_count(data, "height"),
        seed=_get(data, "seed", int),
        init=_get(data, "init", dict),
        record_width=_count(data, "record_width"),
        columns=tuple(columns),
        total_rows=_count(data, "total_rows"),
        rows=_count(data, "rows"),
        changed_since=None if since is None else Link(_count(since, "number"), _get(since, "id", str)),
        file=_file(_get(data, "file", dict)),
    )
    if max([table.width, *(c.start + c.width for c in columns)]) > table.record_width:
        raise ValueError(f"table {table.name!r} has columns outside its records")
    if table.rows * table.row_bytes > table.file.size:
        raise ValueError(f"the rows of table {table.name!r} are larger than their file")
    return table


def _file(data: Any) -> FileInfo:
    name = _get(data, "name", str)
    if "/" in name or "\\" in name or name in ("", ".", ".."):
        raise ValueError(f"{name!r} is no name of a file")
    return FileInfo(name, _count(data, "size"), _count(data, "chunks"), int(_get(data, "crc32", str), 16))


def _dtype(data: Any) -> np.dtype[Any]:
    dtype = np.dtype(_get(data, "dtype", str))
    if dtype.kind not in _NUMBERS or dtype != stored_dtype(dtype):
        raise ValueError(f"dtype {dtype.str!r} is no little-endian number")
    return dtype


def _get(data: Any, name: str, kind: type[_T]) -> _T:
    value = data[name]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError(f"{name!r} is {value!r}")
    return value


def _count(data: Any, name: str) -> int:
    return _counts([data[name]])[0]


def _counts(values: Sequence[Any]) -> list[int]:
    for value in values:
        if type(value) is not int or not 0 <= value < 1 << 62:  # so that the next one fits in 64 bits, too
            raise ValueError(f"{value!r} is no count")
    return list(values)
