"""Numbers out of lines of text, in numpy: whole blocks at once.

Eight characters are one unaligned uint64, so a run of up to eight digits takes a few operations on such words. Numbers that
this does not cover (exponents, "nan", floats that rounding leaves in doubt) are read one at a time by `number_text`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.kernels import number_text
from fluidlite.kernels.in_numpy.mix import mix

_PAD: Final = 32
_MOST_DIGITS: Final = 19
#: powers of ten as whole numbers, and as the doubles nearest to them
_TENS: Final = 10 ** np.arange(_MOST_DIGITS + 1, dtype=np.uint64)
_POWERS: Final = np.array([float(f"1e{places}") for places in range(_MOST_DIGITS + 1)])
#: more than the relative error of one conversion and one division
_ERROR: Final = 2.0**-50


def _bytes(byte: int) -> np.uint64:
    """A word of eight such bytes."""
    return np.uint64(0x0101010101010101 * byte)


_ZEROS, _SIXES, _HIGH = _bytes(ord("0")), _bytes(0x76), _bytes(0x80)


class Slots(NamedTuple):
    """Lines of MultiSlot text: ``values[slot]`` (total,) int64 or float32, ``lengths`` (lines, slots) int64."""

    values: list[Array]
    lengths: Array


class Criteo(NamedTuple):
    """Lines of Criteo text: ``labels`` (lines,) float32 or None, ``numbers`` (lines, n) float32, ``ids`` (lines, m) int64."""

    labels: Array | None
    numbers: Array
    ids: Array


class _Text:
    """A block of text with words of eight characters at every position, also behind its end."""

    def __init__(self, text: bytes) -> None:
        padded = b"".join((text, b"\n", bytes(_PAD)))
        self.bytes = np.frombuffer(padded, np.uint8)
        self.size = len(text) + 1
        self.words: Array = np.ndarray((len(padded) - 7,), "<u8", padded, 0, (1,))

    def token(self, start: int, end: int) -> bytes:
        return self.bytes[start:end].tobytes()


def parse_slots(text: bytes, floats: Sequence[bool]) -> Slots | None:
    """Lines of ``<n> v1 ... vn`` per slot, a float32 where ``floats`` says so and else an int64; None if malformed.

    Blank lines are left out. See `number_text` for what a number is.
    """
    block = _Text(text)
    starts, ends, at = _tokens(block)
    last = np.append(at, len(starts))[1:]
    places, lengths = [], np.empty((len(at), len(floats)), np.int64)
    for slot in range(len(floats)):
        counts = _counts(block, starts, ends, at, last)
        if counts is None:
            return None
        places.append(_ranges(at + 1, counts))
        lengths[:, slot] = counts
        at = at + 1 + counts
    if not np.array_equal(at, last):
        return None
    values: list[Array] = [np.empty(0)] * len(floats)
    for is_float, parse in ((False, _integers), (True, _floats)):
        mine = [slot for slot, wanted in enumerate(floats) if bool(wanted) is is_float]
        if not mine:
            continue
        which = np.concatenate([places[slot] for slot in mine])
        parsed = parse(block, starts[which], ends[which])
        if parsed is None:
            return None
        bounds = np.cumsum([len(places[slot]) for slot in mine])[:-1]
        for slot, part in zip(mine, np.split(parsed, bounds), strict=True):
            values[slot] = part
    return Slots(values, lengths)


def _tokens(block: _Text) -> tuple[Array, Array, Array]:
    """Where tokens start and end, and which of them are the first of a line."""
    text = block.bytes[: block.size]
    separators = np.flatnonzero((text - np.uint8(9) <= 4) | (text == ord(" ")))
    starts = np.concatenate(([0], separators[:-1] + 1))
    lines = np.cumsum(text[separators] == ord("\n"))
    kept = starts < separators
    # the line of a token: newlines up to the separator before it
    line = np.concatenate(([0], lines[:-1]))[kept]
    first = np.flatnonzero(np.diff(line, prepend=-1))
    return starts[kept], separators[kept], first


def _counts(block: _Text, starts: Array, ends: Array, at: Array, last: Array) -> Array | None:
    """The counts at tokens ``at`` of lines that end before tokens ``last``; None where one is none or too great."""
    if (at >= last).any():
        return None
    starts, ends = starts[at], ends[at]
    digit = block.bytes[starts] - np.uint8(ord("0"))
    counts = digit if (digit <= 9).all() and (ends - starts == 1).all() else _integers(block, starts, ends)
    if counts is None or (counts < 0).any() or (counts > last - at - 1).any():
        return None
    return counts.astype(np.int64)


def _ranges(starts: Array, counts: Array) -> Array:
    """The numbers from each start on, so many as its count, one after the other."""
    ends: Array = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    numbers: Array = np.arange(total) + np.repeat(starts - (ends - counts), counts)
    return numbers


def _integers(block: _Text, starts: Array, ends: Array) -> Array | None:
    """(n,) int64; None if a token is no integer."""
    digits, negative = _without_sign(block, starts)
    value, plain = _digit_runs(block, digits, ends - digits)
    plain &= (ends > digits) & ((value < np.uint64(2**63)) | ~negative)
    integers = np.where(negative, np.uint64(0) - value, value).view(np.int64)
    return _one_by_one(block, starts, ends, integers, ~plain, number_text.integer)


def _floats(block: _Text, starts: Array, ends: Array) -> Array | None:
    """(n,) float32; None if a token is no float."""
    whole_starts, negative = _without_sign(block, starts)
    dots = np.append(np.flatnonzero(block.bytes[: block.size] == ord(".")), block.size)
    dot = np.minimum(dots[np.searchsorted(dots, whole_starts)], ends)
    places = np.maximum(ends - dot - 1, 0)
    whole, plain = _digit_runs(block, whole_starts, dot - whole_starts)
    fraction, also = _digit_runs(block, dot + 1, places)
    digits = dot - whole_starts + places
    plain &= also & (digits > 0) & (digits <= _MOST_DIGITS)
    places[~plain] = 0
    value = (whole * _TENS[places] + fraction) / _POWERS[places]
    value = np.where(negative, -value, value)
    floats = (value * (1 - _ERROR)).astype(np.float32)
    plain &= floats == (value * (1 + _ERROR)).astype(np.float32)
    return _one_by_one(block, starts, ends, floats, ~plain, number_text.float32)


def _without_sign(block: _Text, starts: Array) -> tuple[Array, Array]:
    """Where tokens start behind their sign, and whether it is a minus."""
    first = block.bytes[starts]
    negative = first == ord("-")
    return starts + (negative | (first == ord("+"))), negative


def _digit_runs(block: _Text, starts: Array, lengths: Array) -> tuple[Array, Array]:
    """The numbers (uint64) that runs of up to 19 digits are, none as 0, and whether they are such runs."""
    value, plain = _digit_words(block, starts, np.minimum(lengths, 8))
    plain &= lengths <= _MOST_DIGITS
    for done in (8, 16):
        longer = np.flatnonzero(plain & (lengths > done))
        if not len(longer):
            break
        more = np.minimum(lengths[longer] - done, 8)
        low, fits = _digit_words(block, starts[longer] + done, more)
        value[longer] = value[longer] * _TENS[more] + low
        plain[longer] = fits
    return value, plain


def _digit_words(block: _Text, starts: Array, lengths: Array) -> tuple[Array, Array]:
    """`_digit_runs` of up to eight digits: pairs, fours, then all eight are put together within a word."""
    # the last digit into the highest byte; shifts by all 64 bits are undefined, so by 32 twice
    half = ((8 - lengths) * 4).astype(np.uint64)
    digits = (block.words[starts] ^ _ZEROS) << half << half
    plain = ((digits + _SIXES) | digits) & _HIGH == 0
    for bits, tens, mask in ((8, 10, 0x00FF00FF00FF00FF), (16, 100, 0x0000FFFF0000FFFF), (32, 10000, 0xFFFFFFFF)):
        digits = (digits * np.uint64((tens << bits) + 1) >> np.uint64(bits)) & np.uint64(mask)
    return digits, plain


def _one_by_one(
    block: _Text, starts: Array, ends: Array, values: Array, which: Array, read: Callable[[bytes], object]
) -> Array | None:
    """``values``, those of ``which`` read by ``read``; None if it finds no number."""
    for at in np.flatnonzero(which).tolist():
        value = read(block.token(starts[at], ends[at]))
        if value is None:
            return None
        values[at] = value
    return values


def parse_criteo(
    text: bytes, number_count: int, id_count: int, *, labelled: bool, separator: bytes, missing: float
) -> Criteo | None:
    """Lines of fields between separators: a label where ``labelled``, numbers, ids of up to 8 hexadecimal digits.

    An empty number becomes ``missing``, an empty id 0; other ids are `mix` of slot + 1 and the digits. Blank lines are
    left out. None if malformed.
    """
    block = _Text(text)
    edges = _fields(block, ord(separator), labelled + number_count + id_count)
    if edges is None:
        return None
    starts, ends = edges
    floats = starts[:, : labelled + number_count].ravel(), ends[:, : labelled + number_count].ravel()
    numbers = _floats_or(block, *floats, missing)
    ids = _ids(block, starts[:, labelled + number_count :], ends[:, labelled + number_count :])
    if numbers is None or ids is None:
        return None
    numbers = numbers.reshape(len(starts), labelled + number_count)
    if not labelled:
        return Criteo(None, numbers, ids)
    if (starts[:, 0] == ends[:, 0]).any():
        return None
    return Criteo(numbers[:, 0].copy(), numbers[:, 1:].copy(), ids)


def _fields(block: _Text, separator: int, count: int) -> tuple[Array, Array] | None:
    """Where fields start and end, (lines, count) each; None if a line has more or fewer."""
    text = block.bytes[: block.size]
    edges = np.flatnonzero((text == separator) | (text == ord("\n")))
    newline = text[edges] == ord("\n")
    starts = np.concatenate(([0], edges[:-1] + 1))
    returned = newline & (edges > starts) & (text[edges - 1] == ord("\r"))
    ends = edges - returned
    # a line that is one empty field is blank
    kept = ~(newline & np.concatenate(([True], newline[:-1])) & (starts == ends))
    starts, ends, newline = starts[kept], ends[kept], newline[kept]
    expected = np.zeros(len(starts), np.bool_)
    expected[count - 1 :: count] = True
    if len(starts) % count or not np.array_equal(newline, expected):
        return None
    return starts.reshape(-1, count), ends.reshape(-1, count)


def _floats_or(block: _Text, starts: Array, ends: Array, missing: float) -> Array | None:
    """`_floats` with ``missing`` for empty texts."""
    there = np.flatnonzero(starts < ends)
    numbers = np.full(len(starts), missing, np.float32)
    parsed = _floats(block, starts[there], ends[there])
    if parsed is None:
        return None
    numbers[there] = parsed
    return numbers


def _ids(block: _Text, starts: Array, ends: Array) -> Array | None:
    """(lines, slots) int64; None if a field is more than 8 characters, or not hexadecimal."""
    lengths = ends - starts
    if (lengths > 8).any():
        return None
    bits, plain = _hexadecimal_words(block, starts, lengths)
    if not plain.all():
        return None
    slots = np.arange(1, starts.shape[1] + 1, dtype=np.uint64) << np.uint64(32)
    return np.where(lengths > 0, mix(slots | bits), np.uint64(0)).view(np.int64)


def _hexadecimal_words(block: _Text, starts: Array, lengths: Array) -> tuple[Array, Array]:
    """The numbers (uint64) that runs of up to eight hexadecimal digits are, and whether they are such runs."""
    # zeros in front; see _digit_words
    half = ((8 - lengths) * 4).astype(np.uint64)
    text = (block.words[starts] ^ _ZEROS) << half << half ^ _ZEROS
    lower = text | _bytes(0x20)
    digits = _from(text, ord("0")) & ~_from(text, ord("9") + 1)
    letters = _from(lower, ord("a")) & ~_from(lower, ord("f") + 1)
    plain = (digits | letters) & ~text & _HIGH == _HIGH
    values = (text & _bytes(0x0F)) + ((letters & _HIGH) >> np.uint64(7)) * np.uint64(9)
    for bits, mask in ((4, 0x00FF00FF00FF00FF), (8, 0x0000FFFF0000FFFF), (16, 0xFFFFFFFF)):
        values = (values << np.uint64(bits) | values >> np.uint64(2 * bits)) & np.uint64(mask)
    return values, plain


def _from(text: Array, least: int) -> Array:
    """Words whose bytes have their high bit set where a byte of ``text``, below 128, is ``least`` or more."""
    above: Array = (text & ~_HIGH) + _bytes(0x80 - least)
    return above
