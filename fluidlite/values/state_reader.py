"""Reads ``.pdparams``, ``.pdopt`` and ``.pdiparams.info``: pickles of arrays, as Fluid 1.x and Paddle 2 and 3 write them.

A pickle is a program for a small stack machine, and Python's own machine lets it import and call anything. This one
knows the opcodes that such files have (protocols 2 to 4) and no others, imports nothing, and calls only the functions of
`_FUNCTIONS`, which are its own: what they can make is None, bool, int, float, str, bytes, tuple, list, dict and numeric
arrays. No size that the bytes declare takes memory before so many bytes are there.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import CorruptFileError

#: the opcode that comes first, and what may follow it
_PROTO: Final = 0x80
_PROTOCOLS: Final = range(2, 5)
_DTYPES: Final = frozenset(["b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"])
#: what a pickle may name; both spellings of numpy's module and of Python's builtins
_NAMES: Final[dict[str, str]] = {
    "numpy.core.multiarray._reconstruct": "array",
    "numpy._core.multiarray._reconstruct": "array",
    "numpy.core.multiarray.scalar": "scalar",
    "numpy._core.multiarray.scalar": "scalar",
    "numpy.ndarray": "ndarray",
    "numpy.dtype": "dtype",
    "_codecs.encode": "encode",
    "collections.OrderedDict": "dict",
    **{f"{module}.{name}": name for module in ("builtins", "__builtin__") for name in ("bytes", "tuple", "eval")},
}
#: the longest ``module.name`` above, with room
_MAX_LINE: Final = 64
#: bytes that an entry of a dict takes in a pickle, at least
_ENTRY: Final = 16


def read_state(data: bytes, source: str) -> Any:
    """What a pickle holds. Raises CorruptFileError naming ``source``, the position and what is not accepted there."""
    return _Machine(data, source).run()


def read_arrays(data: bytes, source: str) -> dict[str, Any]:
    """The dict of a state file: arrays by name, and whatever else the file keeps beside them.

    Paddle 2 and 3 write a tensor as (its name, array) and cut arrays of more than 2^30 elements into slices; both come
    back as the array. Their table of attribute names (``StructuredToParameterName@@``) is left out.
    """
    state = read_state(data, source)
    if not isinstance(state, dict) or not all(isinstance(name, str) for name in state):
        raise CorruptFileError(f"{source} holds a {type(state).__name__}, not values by name")
    state.pop("StructuredToParameterName@@", None)
    _join_slices(state, source)
    return {name: _bare(value) for name, value in state.items()}


def _bare(value: Any) -> Any:
    named = isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str)
    return value[1] if named and isinstance(value[1], np.ndarray) else value


def _join_slices(state: dict[str, Any], source: str) -> None:
    """Put the arrays together that Paddle cut, in the order that it noted."""
    cut = state.pop("UnpackBigParamInfor@@", {})
    if not isinstance(cut, dict):
        raise CorruptFileError(f"{source}: its table of cut arrays is a {type(cut).__name__}")
    for name, note in cut.items():
        try:
            parts = [state.pop(part) for part in note["slices"]]
            if not all(isinstance(part, np.ndarray) for part in parts):
                raise TypeError("a slice is no array")
            state[name] = np.concatenate(parts).reshape(note["OriginShape"])
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptFileError(f"{source}: the slices of {name!r} do not make an array: {error!r}") from error


class _Part:
    """What may be on the stack but not in the result."""


class _Name(_Part):
    def __init__(self, word: str) -> None:
        self.word = word


class _Dtype(_Part):
    def __init__(self, code: str) -> None:
        self.dtype = np.dtype(code)


class _Shell(_Part):
    """An array that has not got its content yet. ``array`` is what it becomes."""

    array: Array | None = None


class _Arguments(_Part):
    """A tuple with a part in it."""

    def __init__(self, items: tuple[Any, ...]) -> None:
        self.items = items


class _Machine:
    """One run over the bytes of a pickle."""

    def __init__(self, data: bytes, source: str) -> None:
        self._data = memoryview(data)
        self._source = source
        self._at = 0
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        #: bytes that may still be made of parts of the file: a pickle can name one part many times
        self._budget = 4 * len(data) + 1024

    def run(self) -> Any:
        """The value at the end."""
        if self.take(1)[0] != _PROTO or self.take(1)[0] not in _PROTOCOLS:
            self.fail("it does not begin like a pickle of protocol 2, 3 or 4")
        while (code := self.take(1)[0]) != _STOP:
            step = _STEPS.get(code)
            if step is None:
                self.fail(f"opcode {bytes([code])!r} is not accepted")
            step(self)
        value = self.pop()
        if self._stack or self._marks:
            self.fail("it ends with more than one value")
        return self.plain(value)

    def fail(self, why: str) -> NoReturn:
        raise CorruptFileError(f"{self._source} is no file of arrays: at byte {self._at}: {why}")

    # bytes

    def take(self, size: int) -> memoryview:
        """The next bytes."""
        if size < 0 or size > len(self._data) - self._at:
            self.fail(f"it is truncated: {size} more bytes are needed, {len(self._data) - self._at} are left")
        self._at += size
        return self._data[self._at - size : self._at]

    def number(self, form: str) -> int:
        """One integer in the form of `struct`."""
        return int(struct.unpack(form, self.take(struct.calcsize(form)))[0])

    def text(self, size: int) -> str:
        try:
            return str(self.take(size), "utf-8", "surrogatepass")
        except UnicodeDecodeError:
            self.fail("text that is not UTF-8")

    def line(self) -> str:
        """The bytes up to the next newline."""
        rest = bytes(self._data[self._at : self._at + _MAX_LINE])
        end = rest.find(b"\n")
        if end < 0:
            self.fail("it names something that no file of arrays does")
        return str(self.take(end + 1)[:-1], "latin1")

    def spend(self, size: int) -> None:
        """Count bytes that a call makes; a pickle that calls again and again with the same part is refused."""
        self._budget -= size
        if self._budget < 0:
            self.fail("it makes more than it holds")

    # the stack

    def push(self, value: Any) -> None:
        self._stack.append(value)

    def pop(self) -> Any:
        if len(self._stack) <= (self._marks[-1] if self._marks else 0):
            self.fail("a value is missing")
        return self._stack.pop()

    def mark(self) -> None:
        self._marks.append(len(self._stack))

    def since_mark(self) -> list[Any]:
        if not self._marks:
            self.fail("a mark is missing")
        start = self._marks.pop()
        items = self._stack[start:]
        del self._stack[start:]
        return items

    def plain(self, value: Any) -> Any:
        """The value, if it may be in the result."""
        if isinstance(value, _Part):
            self.fail("a function or an unfinished array in the place of a value")
        return value

    def top(self, kind: type) -> Any:
        """The value on top, which stays there."""
        value = self.pop()
        if not isinstance(value, kind):
            self.fail(f"a {type(value).__name__} where a {kind.__name__} belongs")
        self.push(value)
        return value

    # steps

    def remember(self, index: int) -> None:
        value = self.pop()
        self._memo[index] = value
        self.push(value)

    def recall(self, index: int) -> None:
        if index not in self._memo:
            self.fail(f"value {index} is used before it is there")
        value = self._memo[index]
        self.push(value.array if isinstance(value, _Shell) and value.array is not None else value)

    def memoize(self) -> None:
        self.remember(len(self._memo))

    def join(self, items: list[Any]) -> None:
        """A tuple."""
        values = tuple(items)
        self.push(_Arguments(values) if any(isinstance(item, _Part) for item in values) else values)

    def extend(self, items: list[Any]) -> None:
        self.top(list).extend(map(self.plain, items))

    def set_items(self, items: list[Any]) -> None:
        target = self.top(dict)
        if len(items) % 2:
            self.fail("a key without a value")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, (str, int)):
                self.fail(f"a {type(key).__name__} as a key")
            target[key] = self.plain(value)

    def name(self, module: Any, name: Any) -> None:
        if not isinstance(module, str) or not isinstance(name, str):
            self.fail("a name that is no text")
        word = _NAMES.get(f"{module}.{name}")
        if word is None:
            self.fail(f"it asks for {module:.80}.{name:.80}; only arrays and plain values are read")
        self.push(_Name(word))

    def call(self) -> None:
        arguments, name = self.pop(), self.pop()
        items = arguments.items if isinstance(arguments, _Arguments) else arguments
        function = _FUNCTIONS.get(name.word) if isinstance(name, _Name) else None
        if function is None or not isinstance(items, tuple):
            self.fail("it calls what is no function")
        self.push(function(self, *items[:4]))

    def build(self) -> None:
        """Give an array or a dtype its content."""
        state, target = self.pop(), self.pop()
        items = state.items if isinstance(state, _Arguments) else state
        if not isinstance(items, tuple):
            self.fail("the content of an array is no tuple")
        if isinstance(target, _Dtype):
            self.push(self._ordered(target, items))
        elif isinstance(target, _Shell) and target.array is None:
            target.array = self._filled(items)
            self.push(target.array)
        else:
            self.fail("content for what takes none")

    def _ordered(self, target: _Dtype, state: tuple[Any, ...]) -> _Dtype:
        """A dtype with its byte order: ``(3, order, None, None, None, -1, -1, 0)``, nothing nested in it."""
        nested = len(state) != 8 or any(item is not None for item in state[2:5])
        order = "" if nested else state[1]
        if not isinstance(order, str) or order not in {"<", ">", "|", "="}:
            self.fail("a dtype that is no plain number")
        if order != "|":
            target.dtype = np.dtype(order + target.dtype.str[1:])
        return target

    def _filled(self, state: tuple[Any, ...]) -> Array:
        """An array from ``(1, shape, dtype, whether in Fortran's order, elements)``."""
        if len(state) != 5 or not isinstance(state[1], tuple) or not isinstance(state[2], _Dtype):
            self.fail("the content of an array is not (version, shape, dtype, order, elements)")
        _, shape, dtype, fortran, raw = state
        if not all(type(dim) is int and dim >= 0 for dim in shape) or not isinstance(fortran, int):
            self.fail("an array whose shape is not made of whole numbers")
        flat: Array = self.elements(raw, dtype.dtype)
        try:
            return flat.reshape(shape, order="F" if fortran else "C")
        except ValueError:
            self.fail(f"{flat.size} elements for an array of shape {shape[:8]}")

    def elements(self, raw: Any, dtype: np.dtype[Any]) -> Array:
        """A flat array of its own from bytes, or from the text in which Python 2 kept bytes."""
        if isinstance(raw, str):
            raw = self.encoded(raw)
        if not isinstance(raw, bytes) or len(raw) % dtype.itemsize:
            self.fail(f"elements of {dtype.name} that are no bytes, or not whole ones")
        self.spend(len(raw))
        flat: Array = np.frombuffer(raw, np.uint8 if dtype.kind == "b" else dtype)
        return flat != 0 if dtype.kind == "b" else flat.astype(dtype.newbyteorder("="))

    def encoded(self, text: str) -> bytes:
        self.spend(len(text))
        try:
            return text.encode("latin1")
        except UnicodeEncodeError:
            self.fail("bytes that are kept as text are above 255")


def _make_array(machine: _Machine, *arguments: Any) -> _Shell:
    if len(arguments) != 3 or not isinstance(arguments[0], _Name) or arguments[0].word != "ndarray":
        machine.fail("an array of a class that is not numpy's")
    return _Shell()


def _make_dtype(machine: _Machine, *arguments: Any) -> _Dtype:
    code = arguments[0] if arguments else None
    if not isinstance(code, str) or code not in _DTYPES:
        machine.fail(f"dtype {code[:40] if isinstance(code, str) else type(code)!r} is no number")
    return _Dtype(code)


def _make_scalar(machine: _Machine, *arguments: Any) -> Any:
    if len(arguments) != 2 or not isinstance(arguments[0], _Dtype):
        machine.fail("a number without its dtype")
    flat = machine.elements(arguments[1], arguments[0].dtype)
    if flat.size != 1:
        machine.fail(f"{flat.size} elements for one number")
    return flat[0].item()


def _make_bytes(machine: _Machine, *arguments: Any) -> bytes:
    """Protocol 2 has no bytes: they are text that is to be encoded, or a call without arguments."""
    if not arguments:
        return b""
    if len(arguments) != 2 or not all(isinstance(item, str) for item in arguments) or arguments[1] != "latin1":
        machine.fail("bytes that are no latin1 text")
    return machine.encoded(arguments[0])


def _make_dict(machine: _Machine, *arguments: Any) -> dict[Any, Any]:
    """Python 3 sets the items afterwards, Python 2 gives a list of pairs."""
    result: dict[Any, Any] = {}
    for pair in arguments[0] if arguments and isinstance(arguments[0], list) else ():
        machine.spend(_ENTRY)
        if not isinstance(pair, (list, tuple)) or len(pair) != 2 or not isinstance(pair[0], (str, int)):
            machine.fail("a dict of what are no pairs")
        result[pair[0]] = pair[1]
    return result


def _make_tuple(machine: _Machine, *arguments: Any) -> tuple[Any, ...]:
    if len(arguments) != 1 or not isinstance(arguments[0], tuple):
        machine.fail("a tuple of what is none")
    return arguments[0]


def _named_data(machine: _Machine, *arguments: Any) -> Any:
    """Paddle writes a static tensor as a call of ``eval``, always of the text ``data``, with the array under that name."""
    text, values = arguments if len(arguments) == 2 else (None, None)
    if not isinstance(text, str) or text != "data" or not isinstance(values, dict) or "data" not in values:
        machine.fail("it wants text to be evaluated")
    return values["data"]


_FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "array": _make_array,
    "dtype": _make_dtype,
    "scalar": _make_scalar,
    "encode": _make_bytes,
    "bytes": _make_bytes,
    "dict": _make_dict,
    "tuple": _make_tuple,
    "eval": _named_data,
}


def _long(machine: _Machine, size: int) -> None:
    machine.push(int.from_bytes(machine.take(size), "little", signed=True))


def _old_text(machine: _Machine, size: int) -> None:
    machine.push(str(machine.take(size), "latin1"))


def _pair(machine: _Machine) -> list[Any]:
    second, first = machine.pop(), machine.pop()
    return [first, second]


def _stack_name(machine: _Machine) -> None:
    module, name = _pair(machine)
    machine.name(module, name)


def _triple(machine: _Machine) -> list[Any]:
    third = machine.pop()
    return [*_pair(machine), third]


def _double(machine: _Machine) -> None:
    machine.push(float(struct.unpack(">d", machine.take(8))[0]))


_STOP: Final = ord(".")
_STEPS: Final[dict[int, Callable[[_Machine], Any]]] = {
    ord(code): step
    for code, step in {
        "(": _Machine.mark,
        "N": lambda m: m.push(None),
        "\x88": lambda m: m.push(value=True),
        "\x89": lambda m: m.push(value=False),
        "J": lambda m: m.push(m.number("<i")),
        "K": lambda m: m.push(m.number("<B")),
        "M": lambda m: m.push(m.number("<H")),
        "\x8a": lambda m: _long(m, m.number("<B")),
        "G": _double,
        "X": lambda m: m.push(m.text(m.number("<I"))),
        "\x8c": lambda m: m.push(m.text(m.number("<B"))),
        "\x8d": lambda m: m.push(m.text(m.number("<Q"))),
        "B": lambda m: m.push(bytes(m.take(m.number("<I")))),
        "C": lambda m: m.push(bytes(m.take(m.number("<B")))),
        "\x8e": lambda m: m.push(bytes(m.take(m.number("<Q")))),
        "T": lambda m: _old_text(m, m.number("<i")),
        "U": lambda m: _old_text(m, m.number("<B")),
        ")": lambda m: m.push(()),
        "\x85": lambda m: m.join([m.pop()]),
        "\x86": lambda m: m.join(_pair(m)),
        "\x87": lambda m: m.join(_triple(m)),
        "t": lambda m: m.join(m.since_mark()),
        "]": lambda m: m.push([]),
        "a": lambda m: m.extend([m.pop()]),
        "e": lambda m: m.extend(m.since_mark()),
        "}": lambda m: m.push({}),
        "s": lambda m: m.set_items(_pair(m)),
        "u": lambda m: m.set_items(m.since_mark()),
        "c": lambda m: m.name(m.line(), m.line()),
        "\x93": _stack_name,
        "R": _Machine.call,
        "b": _Machine.build,
        "q": lambda m: m.remember(m.number("<B")),
        "r": lambda m: m.remember(m.number("<I")),
        "\x94": _Machine.memoize,
        "h": lambda m: m.recall(m.number("<B")),
        "j": lambda m: m.recall(m.number("<I")),
        "\x95": lambda m: m.number("<Q"),  # how long the next piece is: the bytes are all there anyway
    }.items()
}
