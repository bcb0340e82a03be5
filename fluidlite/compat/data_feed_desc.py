"""``fluid.DataFeedDesc``: how lines of data are read, in protobuf's text form."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from fluidlite.errors import DataError

#: a field has values in the order in which the file gives them
Message = dict[str, list[Any]]
_TOKEN: Final = re.compile(r'\s+|#[^\n]*|("(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'|[{}:;,<>]|[^\s{}:;,<>"\'#]+)')
_WORDS: Final[dict[str, Any]] = {"true": True, "false": False}


class DataFeedDesc:
    """What a file of ``data_feed.proto`` in text form says: slots with name, type, is_dense, is_used; batch_size.

    Raises DataError for text in another form, MissingFileError's base FileNotFoundError for no such file.
    """

    def __init__(self, proto_file: str | Path) -> None:
        content = Path(proto_file).read_text(encoding="utf-8")
        self._message = _parsed(content, str(proto_file))
        self._message.setdefault("pipe_command", ["cat"])

    @property
    def slots(self) -> list[Message]:
        """The slots, in order."""
        found: list[Message] = []
        for desc in self._message.get("multi_slot_desc", ()):
            found += desc.get("slots", ())
        return found

    @property
    def batch_size(self) -> int:
        """Examples of a batch."""
        return int(self._message.get("batch_size", [32])[-1])

    @property
    def pipe_command(self) -> str:
        """The command that files are sent through."""
        return str(self._message["pipe_command"][-1])

    def set_batch_size(self, batch_size: int) -> None:
        """Change the batch size."""
        self._message["batch_size"] = [batch_size]

    def set_dense_slots(self, dense_slots_name: Sequence[str]) -> None:
        """Mark slots as dense; the others stay as they are. DataError for a name that is no slot."""
        self._mark("is_dense", dense_slots_name)

    def set_use_slots(self, use_slots_name: Sequence[str]) -> None:
        """Mark slots as used. DataError for a name that is no slot."""
        self._mark("is_used", use_slots_name)

    def _mark(self, field: str, names: Sequence[str]) -> None:
        by_name = {slot["name"][-1]: slot for slot in self.slots if "name" in slot}
        for name in names:
            if name not in by_name:
                raise DataError(f"there is no slot {name!r}; there are {', '.join(by_name) or 'none'}")
            by_name[name][field] = [True]

    def desc(self) -> str:
        """The whole in text form."""
        return "".join(f"{line}\n" for line in _shown(self._message, ""))


#: the fields in the order in which they are printed: that of their numbers in data_feed.proto
_ORDER: Final = (
    *("name", "batch_size", "multi_slot_desc", "slots", "type", "is_dense", "is_used", "shape"),
    *("pipe_command", "thread_num", "rank_offset", "pv_batch_size"),
)


def _shown(message: Message, indent: str) -> Iterator[str]:
    for field in sorted(message, key=lambda field: _ORDER.index(field) if field in _ORDER else len(_ORDER)):
        for value in message[field]:
            if isinstance(value, dict):
                yield f"{indent}{field} {{"
                yield from _shown(value, f"{indent}  ")
                yield f"{indent}}}"
            else:
                text = f'"{value}"' if isinstance(value, str) else str(value).lower()
                yield f"{indent}{field}: {text}"


def _parsed(content: str, where: str) -> Message:
    tokens = _tokens(content, where)
    return _message(tokens, where, closing="")


def _tokens(content: str, where: str) -> Iterator[str]:
    at = 0
    while at < len(content):
        found = _TOKEN.match(content, at)
        if found is None:
            raise DataError(f"{where}: line {content.count(chr(10), 0, at) + 1} is not protobuf's text form")
        at = found.end()
        if found[1]:
            yield found[1]
    yield ""


def _message(tokens: Iterator[str], where: str, closing: str) -> Message:
    message: Message = {}
    for field in tokens:
        if field == closing:
            return message
        if field in (";", ","):
            continue
        if not field:
            break
        if not field.isidentifier():
            raise DataError(f"{where}: {field!r} where a field is expected")
        sign = next(tokens)
        value: Any = next(tokens) if sign == ":" else sign
        if value == "{":
            value = _message(tokens, where, "}")
        elif sign != ":":
            raise DataError(f"{where}: field {field!r} is followed by {sign!r}, not by ':' or '{{'")
        else:
            value = _value(value, field, where)
        message.setdefault(field, []).append(value)
    raise DataError(f"{where}: it ends inside a message")


def _value(text: str, field: str, where: str) -> Any:
    if text[:1] in ('"', "'"):
        return text[1:-1].encode("latin-1", "backslashreplace").decode("unicode_escape")
    if text in _WORDS:
        return _WORDS[text]
    try:
        return int(text)
    except ValueError:
        raise DataError(f"{where}: field {field!r} has no value {text!r}") from None
