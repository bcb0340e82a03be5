"""Dtypes and variable kinds: their names, numpy types and numbers in Fluid's ``framework.proto``."""

from __future__ import annotations

import enum
import warnings
from numbers import Real
from typing import Any, Final, TypeAlias

import numpy as np

from fluidlite.errors import DtypeError

#: Any numpy array; dtypes and shapes are checked where values enter a program, not by the type checker.
Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


class VarKind(enum.IntEnum):
    """What a variable holds: the non-dtype values of ``VarType.Type``."""

    LOD_TENSOR = 7
    SELECTED_ROWS = 8
    FEED_MINIBATCH = 9
    FETCH_LIST = 10
    STEP_SCOPES = 11
    LOD_RANK_TABLE = 12
    LOD_TENSOR_ARRAY = 13
    PLACE_LIST = 14
    READER = 15
    RAW = 17
    TUPLE = 18


#: dtype name -> number in ``VarType.Type``. bfloat16 can be named (files of later versions) but not computed with.
DTYPE_NUMBERS: Final[dict[str, int]] = {
    "bool": 0,
    "int16": 1,
    "int32": 2,
    "int64": 3,
    "float16": 4,
    "float32": 5,
    "float64": 6,
    "uint8": 20,
    "int8": 21,
    "bfloat16": 22,
    "complex64": 23,
    "complex128": 24,
}
#: dtype of variables in files of later versions whose number has no name here; any use of it is a DtypeError
UNKNOWN_DTYPE: Final = "unknown_dtype"
DTYPE_NAMES: Final[dict[int, str]] = {number: name for name, number in DTYPE_NUMBERS.items()}


def dtype_name(dtype: object) -> str:
    """The name of a dtype given as a name, numpy dtype, numpy scalar type, Python type or proto number.

    >>> dtype_name(np.float32), dtype_name(5), dtype_name("int64"), dtype_name(bool)
    ('float32', 'float32', 'int64', 'bool')
    """
    if isinstance(dtype, str):
        name = dtype
    elif isinstance(dtype, (int, np.integer)) and not isinstance(dtype, bool):
        name = DTYPE_NAMES.get(int(dtype), "")
    else:
        try:
            name = np.dtype(dtype).name  # type: ignore[call-overload]
        except TypeError:
            name = ""
    if name not in DTYPE_NUMBERS:
        raise DtypeError(f"{dtype!r} is no dtype of a program; known: {', '.join(DTYPE_NUMBERS)}")
    return name


def numpy_dtype(dtype: object) -> np.dtype[Any]:
    """The numpy dtype of anything that `dtype_name` accepts."""
    name = dtype_name(dtype)
    if name == "bfloat16":
        raise DtypeError("bfloat16 has no numpy dtype; cast the variable to float32")
    return np.dtype(name)


def dtype_number(dtype: object) -> int:
    """The ``VarType.Type`` number of anything that `dtype_name` accepts."""
    return DTYPE_NUMBERS[dtype_name(dtype)]


def is_float(dtype: str) -> bool:
    """Whether gradients can flow through variables of this dtype."""
    return dtype in ("float16", "float32", "float64", "bfloat16")


def exact_array(value: Any, dtype: object) -> Array:
    """An array of ``dtype`` from numbers, nested lists of them or an array; integers keep their value.

    Ids above 2^63 (unsigned hashes) keep their bits in int64. Raises DtypeError for what is no number, and for what the
    dtype cannot hold: fractions in place of whole numbers, numbers outside its range.
    """
    wanted = numpy_dtype(dtype)
    try:
        natural = np.asarray(value)
        return natural if natural.dtype == wanted else _converted(value, natural, wanted)
    except (TypeError, ValueError, ArithmeticError) as error:
        raise DtypeError(f"no array of {wanted.name}: {error}") from error


def _converted(value: Any, natural: Array, wanted: np.dtype[Any]) -> Array:
    """``natural`` is what numpy makes of ``value`` by itself; of mixed large integers it makes rounded floats."""
    kind = natural.dtype.kind
    if kind not in "biufcO" or (kind == "O" and not all(isinstance(item, Real) for item in natural.flat)):
        raise TypeError(f"elements of type {natural.dtype.name} are no numbers")
    if kind == "c" and wanted.kind != "c":
        raise TypeError("complex numbers in place of real ones")
    try:
        # NaN and infinities become some whole number; the comparison below finds them too
        with np.errstate(over="raise", invalid="ignore"), warnings.catch_warnings():
            # numpy 1.26 wraps numbers out of range around and warns; the comparison below finds them
            warnings.simplefilter("ignore", DeprecationWarning)
            array = np.asarray(value, np.uint64 if kind == "u" and wanted == np.int64 else wanted)
    except OverflowError:
        if wanted != np.int64:
            raise
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            array = np.asarray(value, np.uint64)
    if wanted.kind in "biu" and not np.array_equal(array, natural):
        raise ValueError("fractions in place of whole numbers, or numbers outside its range")
    return array if array.dtype == wanted else array.view(wanted)
