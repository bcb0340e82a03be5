"""What is wrong with a line: plain loops over its tokens, for text that the kernels refused. They agree on what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fluidlite.kernels import number_text
from fluidlite.reader.columns import Slot

#: (slot or field, what is wrong); the slot is None where the line has too much
Fault = tuple[int | None, str]


def first_fault(text: bytes, fault_of: Callable[[bytes], Fault | None]) -> tuple[int, Fault] | None:
    """(number of the line, counted from 0, its fault) of the first faulty line; None where there is none."""
    for number, line in enumerate(text.split(b"\n")):
        fault = fault_of(line)
        if fault is not None:
            return number, fault
    return None


def slot_fault(line: bytes, slots: Sequence[Slot]) -> Fault | None:
    """What is wrong with a line of MultiSlot text. Blank lines are right."""
    tokens = line.split()
    at = 0
    for place, slot in enumerate(slots if tokens else ()):
        if at == len(tokens):
            return place, "the line ends before its count"
        count = number_text.integer(tokens[at])
        if count is None or count < 0:
            return place, f"{_shown(tokens[at])} is no count"
        values = tokens[at + 1 : at + 1 + count]
        if len(values) < count:
            return place, f"the count is {count}, but {len(values)} values follow on the line"
        if count % slot.width:
            return place, f"{count} values do not fill the shape {list(slot.dims)} of one example once or several times"
        for token in values:
            fault = _not_a_float(token) if slot.is_float else _not_an_integer(token)
            if fault:
                return place, fault
        at += 1 + count
    return (None, f"{len(tokens) - at} tokens after the last slot") if at < len(tokens) else None


def criteo_fault(line: bytes, labelled: bool, number_count: int, id_count: int, separator: bytes) -> Fault | None:
    """What is wrong with a line of Criteo text. Blank lines are right."""
    line = line.removesuffix(b"\r")
    if not line:
        return None
    fields, floats = line.split(separator), labelled + number_count
    if len(fields) != floats + id_count:
        return None, f"{len(fields)} fields, not {floats + id_count}"
    for place, field in enumerate(fields):
        if place >= floats:
            fault = _not_hexadecimal(field)
        elif field or (labelled and place == 0):
            fault = _not_a_float(field)
        else:
            fault = None
        if fault:
            return place, fault
    return None


def _not_an_integer(token: bytes) -> str | None:
    return None if number_text.integer(token) is not None else f"{_shown(token)} is no integer of 64 bits"


def _not_a_float(token: bytes) -> str | None:
    return None if number_text.float32(token) is not None else f"{_shown(token)} is no number"


def _not_hexadecimal(field: bytes) -> str | None:
    right = len(field) <= 8 and all(character in b"0123456789abcdefABCDEF" for character in field)
    return None if right else f"{_shown(field)} is not 1 to 8 hexadecimal digits"


def _shown(token: bytes) -> str:
    text = token[:40].decode("utf-8", "backslashreplace")
    return repr(text + "..." if len(token) > 40 else text)
