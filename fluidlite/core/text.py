"""The text form of a program: `show` writes it, `parse` reads it back, with nothing lost.

.. code-block:: text

    block 0
      var ids: int64[-1, 1] data lod=1
      param emb: [1000, 8] distributed
      var vec: [-1, 8]
      lookup_table(Ids=[ids], W=[emb]) -> (Out=[vec]) {is_sparse=true, padding_idx=-1L}  # model.py:12

What is left out is the default: dtype float32, kind lod_tensor, ``op_role`` forward (``op_role=none`` marks an op
without that attribute). ``3`` is an INT, ``3L`` a LONG, ``3.0`` a FLOAT; a list takes its type from its items, an
empty one is written ``ints()``, ``longs()``, ``floats()``, ``strings()``, ``bools()``, ``blocks()``. Names made of
letters, digits and ``_ @ . /`` stand bare, any other is quoted as in JSON. Commas are optional, comments run from
``#`` to the end of the line. Not part of the form, because not part of a program's content: origins (written as
comments) and the front end's regularizer, clip and constraint objects.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import numpy as np

from fluidlite.core.ir import PROGRAM_VERSION, Attr, AttrType, Block, Operator, OpRole, Parameter, Program, Variable
from fluidlite.core.text_parser import BARE_NAME, LIST_WORDS, parse
from fluidlite.dtypes import VarKind

__all__ = ["parse", "show", "show_block", "show_op", "show_var"]

_BARE: Final = re.compile(BARE_NAME)
#: attributes about the op rather than of it come last
_LAST: Final = ("op_role", "op_role_var", "op_namescope", "op_device", "op_callstack")


def show(program: Program, *, brief: bool = False) -> str:
    """The text form. ``brief`` leaves out call stacks (long in files of real Fluid); `parse` then misses them."""
    header = _options(
        version=(program.version, PROGRAM_VERSION), seed=(program.random_seed, 0), unknown=(program.unknown, b"")
    )
    parts = [f"program{header}\n"] if header else []
    return "\n".join([*parts, *(show_block(block, brief=brief) for block in program.blocks)])


def show_block(block: Block, *, brief: bool = False) -> str:
    """One block: its header, declarations and ops, a line each."""
    root = block.idx == 0
    options = _options(
        parent=(block.parent, -1 if root else None), forward=(block.forward, -1), unknown=(block.unknown, b"")
    )
    lines = [show_var(var) for var in block.vars.values()]
    if block.vars and block.ops:
        lines.append("")
    lines += [show_op(op, brief=brief) for op in block.ops]
    body = "".join(f"  {line}\n" if line else "\n" for line in lines)
    return f"block {block.idx}{options}\n{body}"


def show_var(var: Variable) -> str:
    """A declaration: ``var x: int64[-1, 1] data``, ``param w: [4, 2] lr=0.5``."""
    kind = "" if var.kind is VarKind.LOD_TENSOR else var.kind.name.lower()
    dtype = "" if var.dtype == "float32" else var.dtype
    shape = "" if var.shape is None else f"[{', '.join(map(str, var.shape))}]"
    form = " ".join(part for part in (kind, dtype + shape) if part)
    word = "param" if isinstance(var, Parameter) else "var"
    return f"{word} {_name(var.name)}{f': {form}' if form else ''}{_var_options(var)}"


def show_op(op: Operator, *, brief: bool = False) -> str:
    """An op: ``relu(X=[x]) -> (Out=[y]) {op_role=backward}  # origin``."""
    outputs = f" -> ({_arguments(op.outputs)})" if op.outputs else ""
    attrs = ", ".join(_attrs(op, brief=brief))
    options = _options(target=(op.is_target, False), unknown=(op.unknown, b""))
    origin = f"  # {' '.join(op.origin.split())}" if op.origin else ""
    return f"{_name(op.type)}({_arguments(op.inputs)}){outputs}{f' {{{attrs}}}' if attrs else ''}{options}{origin}"


def _var_options(var: Variable) -> str:
    options: dict[str, tuple[Any, Any]] = {
        "data": (var.is_data, False),
        "check_feed": (var.need_check_feed, False),
        "lod": (var.lod_level, 0),
        "persistable": (var.persistable, isinstance(var, Parameter)),
        "stop_gradient": (var.stop_gradient, False),
    }
    if isinstance(var, Parameter):
        options["trainable"] = (var.trainable, True)
        options["lr"] = (float(var.learning_rate), 1.0)
        options["distributed"] = (var.is_distributed, False)
        options["model_average"] = (var.do_model_average, True)
    return _options(**options, unknown=(var.unknown, b""))


def _options(**options: tuple[Any, Any]) -> str:
    """`` key=value`` for every (value, default) that differs; a true flag is its bare key."""
    parts = (
        key if value is True else f"{key}={_option(value)}"
        for key, (value, default) in options.items()
        if value != default
    )
    return "".join(f" {part}" for part in parts)


def _option(value: Any) -> str:
    if isinstance(value, bytes):
        return f"0x{value.hex()}"
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _arguments(arguments: Mapping[str, Iterable[str]]) -> str:
    return ", ".join(f"{_name(key)}=[{' '.join(map(_name, names))}]" for key, names in arguments.items())


def _attrs(op: Operator, *, brief: bool) -> Iterator[str]:
    for name in sorted(op.attrs.keys() - _LAST):
        yield f"{_name(name)}={_value(op.attrs[name])}"
    if op.attrs.get("op_role") != Attr(AttrType.INT, 0):
        yield f"op_role={_role(op.attrs.get('op_role'))}"
    for name in _LAST[1:]:
        if name in op.attrs and not (brief and name == "op_callstack"):
            yield f"{name}={_value(op.attrs[name])}"


def _role(attr: Attr | None) -> str:
    """Roles by name: ``backward|loss``."""
    if attr is None:
        return "none"
    roles = [role for role in OpRole if attr.type is AttrType.INT and role & attr.value]
    if roles and sum(roles) == attr.value:
        return "|".join(role.name.lower() for role in roles if role.name)
    return _value(attr)


def _value(attr: Attr) -> str:
    if attr.type in _ITEMS:
        return _ITEMS[attr.type](attr.value)
    word = next(word for word, (type, _) in LIST_WORDS.items() if type is attr.type)
    element = LIST_WORDS[word][1]
    items = ", ".join(str(int(value)) if element is AttrType.BLOCK else _ITEMS[element](value) for value in attr.value)
    return f"[{items}]" if items and element is not AttrType.BLOCK else f"{word}({items})"


def _float(value: float) -> str:
    """The shortest decimal that gives the same float32, written as Python writes it: numpy's versions differ in that."""
    with np.errstate(over="ignore"):
        return repr(float(str(np.float32(value))))


def _string(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def _name(name: str) -> str:
    return name if _BARE.fullmatch(name) else _string(name)


_ITEMS: Final[dict[AttrType, Callable[[Any], str]]] = {
    AttrType.INT: lambda value: str(int(value)),
    AttrType.LONG: lambda value: f"{int(value)}L",
    AttrType.FLOAT: _float,
    AttrType.STRING: _string,
    AttrType.BOOLEAN: lambda value: str(bool(value)).lower(),
    AttrType.BLOCK: lambda value: f"block({int(value)})",
}
