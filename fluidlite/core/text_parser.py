"""Reads the text form that `fluidlite.core.text` describes and writes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, NoReturn, TypeVar

import numpy as np

from fluidlite.core.ir import PROGRAM_VERSION, Attr, AttrType, Block, Operator, OpRole, Parameter, Program, Variable
from fluidlite.dtypes import DTYPE_NUMBERS, UNKNOWN_DTYPE, VarKind
from fluidlite.errors import TextFormError

#: what needs no quotes: starts with a letter, "_" or "@"
BARE_NAME: Final = r"(?:[^\W\d]|@)[\w@./]*"
#: word of a typed list -> its attribute type and that of its items
LIST_WORDS: Final[dict[str, tuple[AttrType, AttrType]]] = {
    "ints": (AttrType.INTS, AttrType.INT),
    "longs": (AttrType.LONGS, AttrType.LONG),
    "floats": (AttrType.FLOATS, AttrType.FLOAT),
    "strings": (AttrType.STRINGS, AttrType.STRING),
    "bools": (AttrType.BOOLEANS, AttrType.BOOLEAN),
    "blocks": (AttrType.BLOCKS, AttrType.BLOCK),
}
_LIST_OF: Final = {item: whole for whole, item in LIST_WORDS.values()}
_CONSTANTS: Final[dict[str, Any]] = {"true": True, "false": False, "inf": float("inf"), "nan": float("nan")}
_KINDS: Final = {kind.name.lower(): kind for kind in VarKind}
_ROLES: Final = {"forward": OpRole.FORWARD, **{role.name.lower(): role for role in OpRole if role.name}}
_FORWARD: Final = Attr(AttrType.INT, 0)
_NO_ROLE: Final = Attr(AttrType.INT, None)
_TOKEN: Final = re.compile(
    rf"""(?P<space>[ \t\r]+|\#[^\n]*)
       | (?P<newline>\n)
       | (?P<string>"(?:[^"\\\n]|\\.)*")
       | (?P<hex>0x[0-9a-fA-F]*)
       | (?P<number>-inf\b|-?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?L?)
       | (?P<name>{BARE_NAME})
       | (?P<mark>->|[()\[\]{{}}:=,|])""",
    re.VERBOSE,
)


T = TypeVar("T")


class Token(NamedTuple):
    """A piece of the text; ``line`` and ``column`` count from 1."""

    kind: str
    text: str
    line: int
    column: int


def parse(text: str) -> Program:
    """The program that a text form describes.

    Raises TextFormError, which names line and column. Statements before any ``block`` line belong to block 0. Whether
    the program makes sense is the business of `fluidlite.core.verify`.
    """
    return _Parser(text).program()


class _Scanner:
    """The tokens of a text and a place among them."""

    def __init__(self, text: str) -> None:
        self._lines = text.split("\n")
        self._tokens = list(self._tokenize(text))
        self._at = 0

    def _until(self, close: str, item: Callable[[], T]) -> Iterator[T]:
        """Items, with or without commas between them, to a closing bracket. Lines may break inside brackets."""
        while not self._skip(close):
            yield item()
            self._skip(",")

    def _ahead(self, kind: str) -> bool:
        return self._peek().kind == kind

    def _peek(self) -> Token:
        return self._tokens[self._at]

    def _next(self) -> Token:
        token = self._peek()
        self._at += token.kind != "end"
        return token

    def _skip(self, text: str) -> bool:
        """Step over this mark or word if it comes next."""
        token = self._peek()
        found = token.text == text and token.kind in ("mark", "name")
        self._at += found
        return found

    def _expect(self, wanted: str, what: str | None = None) -> Token:
        token = self._next()
        if wanted not in (token.kind, token.text):
            self._expected(what or wanted, token)
        return token

    def _tokenize(self, text: str) -> Iterator[Token]:
        at, line, start, depth = 0, 1, 0, 0
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None or match.lastgroup is None:
                self._fail("unexpected character", Token("mark", text[at], line, at - start + 1))
            token = Token(match.lastgroup, match.group(), line, at - start + 1)
            at = match.end()
            depth += (token.text in tuple("([{")) - (token.text in tuple(")]}"))
            if token.kind == "newline":
                line, start = line + 1, at
            if token.kind != "space" and (token.kind != "newline" or depth <= 0):
                yield token
        yield from [Token("end", "", line, at - start + 1)] * 2

    def _expected(self, what: str, token: Token) -> NoReturn:
        ends = {"newline": "the line ends", "end": "the text ends"}
        found = ends.get(token.kind, f"found {token.text}")
        self._fail(f"expected {what}, but {found}", token)

    def _fail(self, message: str, token: Token) -> NoReturn:
        pointer = f"{self._lines[token.line - 1]}\n{' ' * (token.column - 1)}^"
        raise TextFormError(f"line {token.line}, column {token.column}: {message}\n{pointer}")


class _Parser(_Scanner):
    """One method per form, from the whole program down to a single value."""

    def program(self) -> Program:
        program = Program(blocks=[])
        while not self._ahead("end"):
            if self._ahead("newline"):
                self._next()
                continue
            self._statement(program)
            if not self._ahead("end"):
                self._expect("newline", "the end of the line")
        if not program.blocks:
            program.blocks.append(Block())
        return program

    def _statement(self, program: Program) -> None:
        word, after = self._peek(), self._tokens[self._at + 1]
        statement = _STATEMENTS.get(word.text) if word.kind == "name" and after.text != "(" else None
        if statement is not None:
            self._next()
            statement(self, program)
        else:
            _current(program).ops.append(self._op())

    def header(self, program: Program) -> None:
        options = self._options(version=int, seed=int, unknown=bytes)
        program.version = options.get("version", PROGRAM_VERSION)
        program.random_seed = options.get("seed", 0)
        program.unknown = options.get("unknown", b"")

    def block(self, program: Program) -> None:
        idx = self._int()
        options = self._options(parent=int, forward=int, unknown=bytes)
        parent = options.pop("parent", -1 if idx == 0 else 0)
        program.blocks.append(Block(idx=idx, parent=parent, **options))

    def var(self, program: Program) -> None:
        token = self._peek()
        var = Variable(name=self._name(), **self._form())
        options = self._options(**_VAR_OPTIONS)
        self._declare(program, token, var, options)

    def param(self, program: Program) -> None:
        token = self._peek()
        var = Parameter(name=self._name(), persistable=True, **self._form())
        options = self._options(**_VAR_OPTIONS, **_PARAM_OPTIONS)
        self._declare(program, token, var, options)

    def _declare(self, program: Program, token: Token, var: Variable, options: dict[str, Any]) -> None:
        for key, value in options.items():
            setattr(var, _FIELDS.get(key, key), value)
        block = _current(program)
        if var.name in block.vars:
            self._fail(f"block {block.idx} declares {var.name!r} twice", token)
        block.vars[var.name] = var

    def _form(self) -> dict[str, Any]:
        """``: selected_rows int64[-1, 4]``: kind, dtype and shape, each optional."""
        form: dict[str, Any] = {}
        if not self._skip(":"):
            return form
        start = self._peek()
        if self._peek().text in _KINDS:
            form["kind"] = _KINDS[self._next().text]
        if self._peek().text in DTYPE_NUMBERS or self._peek().text == UNKNOWN_DTYPE:
            form["dtype"] = self._next().text
        if self._skip("["):
            form["shape"] = tuple(self._until("]", self._int))
        if not form:
            self._expected("a kind, dtype or [shape]", start)
        return form

    def _op(self) -> Operator:
        op = Operator(type=self._name())
        self._expect("(")
        op.inputs = self._mapping(")", self._argument)
        if self._skip("->"):
            self._expect("(")
            op.outputs = self._mapping(")", self._argument)
        op.attrs = self._mapping("}", self._attr) if self._skip("{") else {}
        if op.attrs.setdefault("op_role", _FORWARD) is _NO_ROLE:
            del op.attrs["op_role"]
        options = self._options(target=bool, unknown=bytes)
        op.is_target = options.get("target", False)
        op.unknown = options.get("unknown", b"")
        return op

    def _mapping(self, close: str, value: Callable[[str], T]) -> dict[str, T]:
        """``key=value`` items to a closing bracket."""
        items: dict[str, T] = {}
        while not self._skip(close):
            token = self._peek()
            key = self._name()
            if key in items:
                self._fail(f"{key!r} stands here twice", token)
            self._expect("=")
            items[key] = value(key)
            self._skip(",")
        return items

    def _argument(self, _: str) -> list[str]:
        self._expect("[")
        return list(self._until("]", self._name))

    def _attr(self, name: str) -> Attr:
        role = name == "op_role" and self._peek().text in (*_ROLES, "none")
        return self._role() if role else self._value()

    def _role(self) -> Attr:
        if self._skip("none"):
            return _NO_ROLE
        role = 0
        while True:
            token = self._expect("name", "a role")
            if token.text not in _ROLES:
                self._fail(f"no role {token.text!r}; known: {', '.join(_ROLES)}", token)
            role |= _ROLES[token.text]
            if not self._skip("|"):
                return Attr(AttrType.INT, int(role))

    def _value(self) -> Attr:
        start = self._peek()
        if self._skip("["):
            items = list(self._until("]", self._scalar))
            types = {item.type for item in items}
            if len(types) != 1:
                why = "items of different types" if types else "no items; write ints(), strings(), ..."
                self._fail(f"the list has {why}", start)
            return Attr(_LIST_OF[types.pop()], tuple(item.value for item in items))
        if start.kind == "name" and self._tokens[self._at + 1].text == "(":
            return self._typed(self._next())
        return self._scalar()

    def _typed(self, word: Token) -> Attr:
        """``longs(1, 2)``, ``floats()``, ``block(1)``."""
        self._expect("(")
        if word.text == "block":
            index = self._int()
            self._expect(")")
            return Attr(AttrType.BLOCK, index)
        if word.text not in LIST_WORDS:
            self._fail(f"no type {word.text!r}; known: block, {', '.join(LIST_WORDS)}", word)
        whole, element = LIST_WORDS[word.text]
        return Attr(whole, tuple(self._until(")", lambda: self._scalar(element).value)))

    def _scalar(self, wanted: AttrType | None = None) -> Attr:
        """A single value; where ``wanted`` says so, a plain whole number is a LONG, FLOAT or BLOCK."""
        token = self._next()
        attr = self._literal(token)
        if wanted is None or attr.type is wanted:
            return attr
        if attr.type is not AttrType.INT or wanted not in (AttrType.LONG, AttrType.FLOAT, AttrType.BLOCK):
            self._fail(f"{token.text} is no {wanted.name}", token)
        return Attr(wanted, self._float32(token) if wanted is AttrType.FLOAT else attr.value)

    def _literal(self, token: Token) -> Attr:
        if token.kind == "string":
            return Attr(AttrType.STRING, self._unquoted(token))
        if token.kind == "number" and token.text.endswith("L"):
            return Attr(AttrType.LONG, self._converted(int, token, token.text[:-1]))
        value = self._number(token)
        if isinstance(value, bool):
            return Attr(AttrType.BOOLEAN, value)
        if isinstance(value, int):
            return Attr(AttrType.INT, value)
        return Attr(AttrType.FLOAT, self._float32(token))

    def _float32(self, token: Token) -> float:
        with np.errstate(over="ignore"):
            return float(np.float32(float(self._number(token))))

    def _number(self, token: Token) -> Any:
        """true, false or a number, as wide as Python has it."""
        if token.kind == "number":
            return self._converted(int if token.text.lstrip("-").isdigit() else float, token, token.text)
        if token.kind != "name" or token.text not in _CONSTANTS:
            self._expected("a value: a number, true, false, a quoted string or a list", token)
        return _CONSTANTS[token.text]

    def _options(self, **types: type) -> dict[str, Any]:
        """``key=value`` pairs to the end of the line; a bare key is true."""
        options = {}
        while self._ahead("name"):
            token = self._next()
            if token.text not in types:
                self._fail(f"no option {token.text!r} here; known: {', '.join(types)}", token)
            options[token.text] = self._option(types[token.text])
        return options

    def _option(self, type: type) -> Any:
        if not self._skip("="):
            if type is not bool:
                self._expected(f"= and a value ({type.__name__})", self._peek())
            return True
        token = self._next()
        if token.kind == "hex":
            value: Any = self._converted(bytes.fromhex, token, token.text[2:])
        else:
            value = self._number(token)
        if type is float and value.__class__ is int:
            value = float(value)
        if value.__class__ is not type:
            self._expected(f"a value of type {type.__name__}", token)
        return value

    def _int(self) -> int:
        token = self._expect("number", "a whole number")
        return int(self._converted(int, token, token.text))

    def _name(self) -> str:
        token = self._next()
        if token.kind == "string":
            return self._unquoted(token)
        if token.kind != "name":
            self._expected("a name", token)
        return token.text

    def _unquoted(self, token: Token) -> str:
        return str(self._converted(json.loads, token, token.text))

    def _converted(self, convert: Callable[[str], Any], token: Token, text: str) -> Any:
        try:
            return convert(text)
        except (ValueError, OverflowError) as error:
            self._fail(f"{token.text} cannot be read: {error}", token)


def _current(program: Program) -> Block:
    if not program.blocks:
        program.blocks.append(Block())
    return program.blocks[-1]


_VAR_OPTIONS: Final[dict[str, type]] = {
    "data": bool,
    "check_feed": bool,
    "lod": int,
    "persistable": bool,
    "stop_gradient": bool,
    "unknown": bytes,
}
_PARAM_OPTIONS: Final[dict[str, type]] = {"trainable": bool, "lr": float, "distributed": bool, "model_average": bool}
#: option -> field of the declaration, where they differ
_FIELDS: Final = {
    "data": "is_data",
    "check_feed": "need_check_feed",
    "lod": "lod_level",
    "lr": "learning_rate",
    "distributed": "is_distributed",
    "model_average": "do_model_average",
}
_STATEMENTS: Final[dict[str, Callable[[_Parser, Program], None]]] = {
    "program": _Parser.header,
    "block": _Parser.block,
    "var": _Parser.var,
    "param": _Parser.param,
}
