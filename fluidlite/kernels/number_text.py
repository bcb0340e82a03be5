"""Which texts are numbers, and which numbers they are: one token at a time. What the fast parsers must agree with."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

_INTEGER: Final = re.compile(rb"[+-]?[0-9]+")
_FLOAT: Final = re.compile(rb"[+-]?(([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?|inf|infinity|nan)", re.IGNORECASE)


def integer(token: bytes) -> int | None:
    """The integer in -2^63 .. 2^63 - 1 of a decimal text, those from 2^63 to 2^64 - 1 as the one of the same bits.

    None for other texts and other integers.
    """
    # Python refuses thousands of digits; leading zeros are the only ones that do not matter
    if not _INTEGER.fullmatch(token) or len(token.lstrip(b"+-0")) > 20:
        return None
    value = int(token.lstrip(b"+-0") or b"0") * (-1 if token.startswith(b"-") else 1)
    if not -(2**63) <= value < 2**64:
        return None
    return value - 2**64 if value >= 2**63 else value


def float32(token: bytes) -> np.float32 | None:
    """The double nearest to a decimal text, "inf" or "nan", rounded to float32 (to infinity beyond it); None for others."""
    if not _FLOAT.fullmatch(token):
        return None
    with np.errstate(over="ignore"):
        return np.float32(float(token))
