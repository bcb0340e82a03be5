"""Values as bytes: the LoDTensor and SelectedRows records of Fluid's parameter files.

All integers are little-endian. A LoDTensor record is

    u32 version 0 | u64 levels | per level: u64 bytes, u64 absolute offsets | tensor

a SelectedRows record ``u32 version 0 | u64 rows | i64 ids | i64 height | tensor``, and the tensor part of both

    u32 version 0 | i32 bytes of TensorDesc | TensorDesc (protobuf: dtype, dims) | raw elements, row-major.

Neither says which of the two it is: the variable's declaration does (or `read_any`, for whole files). Raw data has no
length, so what follows a record in a combined file can only be found by reading it.
"""

from __future__ import annotations

import os
import struct
from io import BufferedIOBase
from typing import Final, NoReturn

import numpy as np

from fluidlite.dtypes import DTYPE_NAMES, Array, dtype_number, numpy_dtype
from fluidlite.errors import CorruptFileError, ShapeError
from fluidlite.values.lod import Lod, LoDTensor, check_lod
from fluidlite.values.selected_rows import SelectedRows

#: bytes written at a time: bounds the copy that a strided or big-endian array needs
_CHUNK: Final = 1 << 24
_MAX_DESC: Final = 1 << 16


def write_tensor(stream: BufferedIOBase, value: Array | LoDTensor) -> None:
    """Write a LoDTensor record; a bare array has no LoD."""
    array, lod = (value.array, value.lod) if isinstance(value, LoDTensor) else (value, ())
    stream.write(struct.pack("<IQ", 0, len(lod)))
    for level in lod:
        offsets = np.array(level, "<u8").tobytes()
        stream.write(struct.pack("<Q", len(offsets)) + offsets)
    _write_array(stream, array)


def write_selected_rows(stream: BufferedIOBase, value: SelectedRows) -> None:
    """Write a SelectedRows record: only the rows there are, whatever the height."""
    stream.write(struct.pack("<IQ", 0, len(value.rows)))
    _write_elements(stream, value.rows.astype(np.int64, copy=False))
    stream.write(struct.pack("<q", value.height))
    _write_array(stream, value.value)


def write(stream: BufferedIOBase, value: Array | LoDTensor | SelectedRows) -> None:
    """Write whichever record fits the value."""
    if isinstance(value, SelectedRows):
        write_selected_rows(stream, value)
    else:
        write_tensor(stream, value)


def read_tensor(stream: BufferedIOBase, source: str) -> Array | LoDTensor:
    """Read a LoDTensor record: a bare array unless it has LoD.

    ``stream`` must be seekable. Raises CorruptFileError naming ``source`` when the record is truncated, has another
    version than 0, or a LoD that does not fit the rows.
    """
    reader = Reader(stream, source)
    lod = reader.lod()
    array = reader.array()
    if not lod:
        return array
    try:
        check_lod(lod, len(array), "the record")
    except ShapeError as error:
        raise CorruptFileError(f"{source}: {error}") from error
    return LoDTensor(array, lod)


def read_selected_rows(stream: BufferedIOBase, source: str) -> SelectedRows:
    """Read a SelectedRows record; errors as `read_tensor`."""
    reader = Reader(stream, source)
    count = reader.header("SelectedRows")
    rows = reader.elements(np.dtype("<i8"), (count,))
    height = reader.number("<q")
    value = reader.array()
    if not value.ndim or len(value) < count:  # Fluid's tables have free rows behind the last id
        reader.fail(f"{count} row ids but values of shape {value.shape}")
    return SelectedRows(rows, value, height)


def read_any(stream: BufferedIOBase, source: str) -> Array | LoDTensor | SelectedRows:
    """The record that takes up the rest of the stream, whichever kind it is: only one of the two can fit."""
    start = stream.tell()
    try:
        tensor = read_tensor(stream, source)
        check_end(stream, source)
    except CorruptFileError as as_tensor:
        stream.seek(start)
        try:
            rows = read_selected_rows(stream, source)
            check_end(stream, source)
        except CorruptFileError:
            raise as_tensor from None
        return rows
    return tensor


def read_slice(stream: BufferedIOBase, source: str, first: int, shape: tuple[int, ...]) -> Array:
    """Part of a LoDTensor record: ``shape`` elements from element ``first`` on (how a server loads its slice)."""
    reader = Reader(stream, source)
    reader.lod()
    dtype, whole = reader.description()
    if first + _numel(shape) > _numel(whole):
        reader.fail(f"elements {first} to {first + _numel(shape)} are asked of a tensor of shape {whole}")
    stream.seek(first * dtype.itemsize, os.SEEK_CUR)
    return reader.elements(dtype, shape)


def check_end(stream: BufferedIOBase, source: str) -> None:
    """Refuse what follows the last record."""
    rest = len(stream.read(1))
    if rest:
        raise CorruptFileError(f"{source}: the file goes on after its last value; was it saved with other variables?")


class Reader:
    """Reads the parts of records and says which file is at fault."""

    def __init__(self, stream: BufferedIOBase, source: str) -> None:
        self._stream = stream
        self._source = source
        start = stream.tell()
        self._size = stream.seek(0, os.SEEK_END)
        stream.seek(start)

    def fail(self, message: str) -> NoReturn:
        raise CorruptFileError(f"{self._source}: {message}")

    def number(self, form: str) -> int:
        """One integer in the form of `struct`."""
        return int(struct.unpack(form, self._bytes(struct.calcsize(form)))[0])

    def header(self, what: str) -> int:
        """The version, which must be 0, and the count that follows it."""
        self._version(what)
        return self.number("<Q")

    def lod(self) -> Lod:
        """The head of a LoDTensor record: its levels of absolute offsets."""
        levels = self.header("LoDTensor")
        self._need(8 * levels)
        return tuple(self._level() for _ in range(levels))

    def _level(self) -> tuple[int, ...]:
        size = self.number("<Q")
        if size % 8:
            self.fail(f"a LoD level of {size} bytes, which is no multiple of 8")
        return tuple(self.elements(np.dtype("<u8"), (size // 8,)).tolist())

    def array(self) -> Array:
        """The tensor part."""
        return self.elements(*self.description())

    def description(self) -> tuple[np.dtype[np.generic], tuple[int, ...]]:
        """The head of the tensor part: dtype and shape."""
        self._version("tensor")
        size = self.number("<i")
        if not 0 < size <= _MAX_DESC:
            self.fail(f"a tensor description of {size} bytes")
        from google.protobuf.message import DecodeError

        from fluidlite.proto_gen import framework_pb2 as pb

        desc = pb.VarType.TensorDesc()
        try:
            desc.ParseFromString(self._bytes(size))
        except DecodeError as error:
            raise CorruptFileError(f"{self._source}: the tensor description cannot be read: {error}") from error
        if not desc.HasField("data_type") or desc.data_type not in DTYPE_NAMES or any(dim < 0 for dim in desc.dims):
            self.fail(f"a tensor of dtype {desc.data_type} and dims {list(desc.dims)}")
        return numpy_dtype(int(desc.data_type)).newbyteorder("<"), tuple(desc.dims)

    def elements(self, dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> Array:
        """Raw elements. Checks the size of the file before it takes memory."""
        size = _numel(shape) * dtype.itemsize
        self._need(size)
        try:
            array = np.empty(shape, dtype)
        except ValueError:
            self.fail(f"a tensor of shape {shape}, which no array can have")
        view = array.reshape(-1).view(np.uint8).data
        done = 0
        while done < size:
            count = self._stream.readinto(view[done:])
            if not count:
                self._need(size - done)
            done += count
        return array.astype(dtype.newbyteorder("="), copy=False)

    def _version(self, what: str) -> None:
        version = self.number("<I")
        if version != 0:
            self.fail(f"{what} version {version} is not supported (only 0 is)")

    def _bytes(self, size: int) -> bytes:
        self._need(size)
        return self._stream.read(size)

    def _need(self, size: int) -> None:
        left = self._size - self._stream.tell()
        if size > left:
            self.fail(f"the file is truncated: {size} more bytes are needed, {left} are left")


def _write_array(stream: BufferedIOBase, array: Array) -> None:
    from fluidlite.proto_gen import framework_pb2 as pb

    desc = pb.VarType.TensorDesc(data_type=dtype_number(array.dtype), dims=array.shape)  # type: ignore[arg-type]
    data = desc.SerializeToString()
    stream.write(struct.pack("<Ii", 0, len(data)) + data)
    _write_elements(stream, array)


def _write_elements(stream: BufferedIOBase, array: Array) -> None:
    little = array.dtype.newbyteorder("<")
    if array.flags.c_contiguous and array.dtype == little:
        stream.write(array.reshape(-1).view(np.uint8).data)
        return
    rows = array.reshape(1, -1) if array.ndim == 0 else array
    step = max(1, _CHUNK // max(1, rows[:1].nbytes))
    for start in range(0, len(rows), step):
        stream.write(rows[start : start + step].astype(little).tobytes())


def _numel(shape: tuple[int, ...]) -> int:
    total = 1
    for dim in shape:
        total *= dim
    return total
