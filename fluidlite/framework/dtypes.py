"""Dtypes as the user gives them: what is none is refused with the user's line."""

from __future__ import annotations

from fluidlite import dtypes
from fluidlite.errors import DtypeError
from fluidlite.framework.state import user_line


def dtype_name(dtype: object) -> str:
    """`dtypes.dtype_name`. Raises DtypeError."""
    try:
        return dtypes.dtype_name(dtype)
    except DtypeError as error:
        raise DtypeError(f"{error} ({user_line()})") from None


def dtype_number(dtype: object) -> int:
    """`dtypes.dtype_number`. Raises DtypeError."""
    return dtypes.DTYPE_NUMBERS[dtype_name(dtype)]
