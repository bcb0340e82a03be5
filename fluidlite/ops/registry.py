"""The record of an operator (`OpDef`) and the one table of all records.

An op declares everything there is to know about it in one place, its own module under `fluidlite.ops`, and registers
it once. Shape inference, execution, gradients, transpiling, tests, the reference page and the check of programs read
from files all work from the record.
"""

from __future__ import annotations

import difflib
import inspect
import keyword
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import FunctionType
from typing import Any, Final, NamedTuple

import numpy as np

from fluidlite.core.declarations import EVERY_OP
from fluidlite.core.ir import Attr, AttrType, Operator
from fluidlite.errors import ProgramError, UnknownOpError

Kernel = Callable[..., Any]
Infer = Callable[[Any], None]
GradMaker = Callable[[Operator], list[Operator]]


class GradientBlock(NamedTuple):
    """The gradient of a block, as far as the gradient of the op that runs it needs it."""

    idx: int
    ops: Sequence[Operator]
    #: whether the block, or one that it falls back to, declares a name
    declares: Callable[[str], bool]


BlockGradMaker = Callable[[Operator, GradientBlock], Operator]

REQUIRED: Final = object()
#: attributes that layers may give to any op
COMMON_ATTRS: Final[dict[str, AttrType]] = {
    **EVERY_OP,
    "use_mkldnn": AttrType.BOOLEAN,
    "use_cudnn": AttrType.BOOLEAN,
    "use_quantizer": AttrType.BOOLEAN,
    "mkldnn_data_type": AttrType.STRING,
    "is_test": AttrType.BOOLEAN,
}


@dataclass(frozen=True)
class Argument:
    """One input or output name of an op, parsed from ``"X"``, ``"X*"`` (many), ``"X?"`` (optional), ``"X~"``
    (an output that only the gradient needs)."""

    name: str
    many: bool = False
    optional: bool = False
    intermediate: bool = False

    @staticmethod
    @cache
    def parse(text: str) -> Argument:
        name = text.rstrip("*?~")
        marks = text[len(name) :]
        return Argument(name, "*" in marks, "?" in marks, "~" in marks)


@dataclass(frozen=True)
class AttrSpec:
    """Type and default (or REQUIRED) of an attribute, with a line of documentation."""

    type: AttrType
    default: Any = REQUIRED
    doc: str = ""

    @property
    def required(self) -> bool:
        return self.default is REQUIRED


def int_attr(default: Any = REQUIRED, doc: str = "") -> AttrSpec:
    return AttrSpec(AttrType.INT, default, doc)


def long_attr(default: Any = REQUIRED, doc: str = "") -> AttrSpec:
    return AttrSpec(AttrType.LONG, default, doc)


def float_attr(default: Any = REQUIRED, doc: str = "") -> AttrSpec:
    return AttrSpec(AttrType.FLOAT, default if default is REQUIRED else _as_float32(default), doc)


def bool_attr(default: Any = REQUIRED, doc: str = "") -> AttrSpec:
    return AttrSpec(AttrType.BOOLEAN, default, doc)


def string_attr(default: Any = REQUIRED, doc: str = "") -> AttrSpec:
    return AttrSpec(AttrType.STRING, default, doc)


def ints_attr(default: Any = (), doc: str = "") -> AttrSpec:
    return AttrSpec(AttrType.INTS, default, doc)


def longs_attr(default: Any = (), doc: str = "") -> AttrSpec:
    return AttrSpec(AttrType.LONGS, default, doc)


def floats_attr(default: Any = (), doc: str = "") -> AttrSpec:
    return AttrSpec(AttrType.FLOATS, tuple(_as_float32(value) for value in default), doc)


def strings_attr(default: Any = (), doc: str = "") -> AttrSpec:
    return AttrSpec(AttrType.STRINGS, default, doc)


def block_attr(doc: str = "") -> AttrSpec:
    return AttrSpec(AttrType.BLOCK, REQUIRED, doc)


def blocks_attr(default: Any = (), doc: str = "") -> AttrSpec:
    return AttrSpec(AttrType.BLOCKS, default, doc)


@dataclass(frozen=True)
class Case:
    """An example that is also a test: values by input name (a list for many), expected values by output name."""

    inputs: Mapping[str, Any] = field(default_factory=dict)
    attrs: Mapping[str, Any] = field(default_factory=dict)
    outputs: Mapping[str, Any] = field(default_factory=dict)
    #: number of arguments of outputs that may have many
    n_outputs: Mapping[str, int] = field(default_factory=dict)
    #: inputs whose gradient is compared with a numeric one
    check_grad: tuple[str, ...] = ()
    rtol: float = 1e-6
    note: str = ""


@dataclass(frozen=True)
class Accumulator:
    """State that an optimizer op keeps per parameter.

    ``input``/``output`` are its names on the op; ``name`` the suffix of the variable (``moment1``); ``fill`` its
    initial value (a number, or the name of the attribute that holds it); ``whole`` marks one value per parameter
    ([1], e.g. ``beta1_pow_acc``) instead of one per element.
    """

    input: str
    output: str
    name: str
    fill: float | str = 0.0
    whole: bool = False


@dataclass(frozen=True)
class PullRule:
    """How an op asks servers for values, so that the executor can gather many ops into one request per server.

    ``requests(ctx, **inputs, **attrs)`` -> list of requests (`fluidlite.protocol`), ``finish(ctx, replies, **inputs,
    **attrs)`` -> outputs, as a kernel returns them.
    """

    requests: Kernel
    finish: Kernel


@dataclass(frozen=True)
class Overwrite:
    """A second kernel of an op, for runs in which nobody reads the value of ``input`` afterwards.

    It takes and gives what the op's kernel does, the same bit for bit, and may write to the array that it is given as
    ``input`` (C-contiguous and its own; of many arguments the first) and return it.
    """

    input: str
    kernel: Kernel


@dataclass(frozen=True)
class OpDef:
    """The declaration of an op. See docs/ARCHITECTURE.md, "One op, one record"."""

    type: str
    doc: str
    inputs: tuple[Argument, ...]
    outputs: tuple[Argument, ...]
    attrs: Mapping[str, AttrSpec]
    infer: Infer | None
    kernel: Kernel | None
    grad: GradMaker | None = None
    #: the gradient of an op that runs a block, made with the block's own gradient
    block_grad: BlockGradMaker | None = None
    #: a run of the op's block starts with variables of its own
    private_block: bool = False
    #: LoD: outputs with as many rows as this input take over its LoD
    share_lod: str | None = None
    #: the kernel receives LoDTensor objects (and may return them) instead of bare arrays
    takes_lod: bool = False
    #: inputs that may hold SelectedRows or a SparseTable; the kernel dispatches on the kind of value
    sparse: tuple[str, ...] = ()
    #: output -> input that it may overwrite; everywhere else kernels never write their inputs
    inplace: Mapping[str, str] = field(default_factory=dict)
    #: kernels that use the memory of an input that dies with the op; the first one whose input does is taken
    overwrites: tuple[Overwrite, ...] = ()
    accumulators: tuple[Accumulator, ...] = ()
    is_optimizer: bool = False
    #: the update needs a norm of the whole parameter: never sliced, refused on tables
    needs_whole_param: bool = False
    pull: PullRule | None = None
    #: talks to servers, files or the terminal: keeps its place among others of its kind and is never dropped
    side_effect: bool = False
    cases: tuple[Case, ...] = ()

    def input_arg(self, name: str) -> Argument | None:
        return next((arg for arg in self.inputs if arg.name == name), None)

    def default_attrs(self) -> dict[str, Attr]:
        """The attributes that an op need not give, as it would give them."""
        return {name: Attr(spec.type, spec.default) for name, spec in self.attrs.items() if not spec.required}


def kwarg(name: str) -> str:
    """The Python parameter that carries an input or attribute: ``Out@GRAD`` -> ``Out_GRAD``, ``lambda`` -> ``lambda_``."""
    plain = name.replace("@", "_").replace("-", "_")
    return plain + "_" if keyword.iskeyword(plain) else plain


_defs: dict[str, OpDef] = {}


def register(
    type: str,
    *,
    doc: str,
    inputs: Sequence[str] = (),
    outputs: Sequence[str] = (),
    attrs: Mapping[str, AttrSpec] | None = None,
    infer: Infer | None = None,
    kernel: Kernel | None = None,
    **rest: Any,
) -> OpDef:
    """Declare an op; refuses a second declaration of the same type and kernels whose parameters are not declared."""
    if type in _defs:
        raise ProgramError(f"op {type!r} is declared twice")
    op_def = OpDef(
        type=type,
        doc=doc,
        inputs=tuple(Argument.parse(text) for text in inputs),
        outputs=tuple(Argument.parse(text) for text in outputs),
        attrs=dict(attrs or {}),
        infer=infer,
        kernel=kernel,
        **rest,
    )
    if kernel is not None:
        parameters_of(kernel, op_def)
    for overwrite in op_def.overwrites:
        parameters_of(overwrite.kernel, op_def)
    if op_def.pull is not None:
        parameters_of(op_def.pull.requests, op_def)
        parameters_of(op_def.pull.finish, op_def, skip=2)
    _defs[type] = op_def
    return op_def


def parameters_of(kernel: Kernel, op_def: OpDef, skip: int = 1) -> tuple[frozenset[str], frozenset[str]]:
    """(inputs, attributes) that a kernel takes, read off its signature; its first ``skip`` parameters are positional
    (``ctx``). A kernel takes what it names, or everything with ``**``."""
    inputs = {kwarg(arg.name): arg.name for arg in op_def.inputs}
    attrs = {kwarg(name): name for name in (*op_def.attrs, "is_test")}
    if not isinstance(kernel, FunctionType):
        raise ProgramError(f"the kernel of op {op_def.type!r} must be a function, not {kernel!r}")
    code = kernel.__code__  # `inspect.signature` says the same twenty times slower, at the import of every op
    if code.co_flags & inspect.CO_VARKEYWORDS:
        return frozenset(inputs.values()), frozenset(op_def.attrs)
    names = code.co_varnames[skip : code.co_argcount + code.co_kwonlyargcount]
    for name in names:
        if name not in inputs and name not in attrs:
            raise ProgramError(f"kernel of op {op_def.type!r} takes {name!r}, which the op does not declare")
    return (
        frozenset(inputs[name] for name in names if name in inputs),
        frozenset(attrs[name] for name in names if name in attrs and name not in inputs),
    )


def find(type: str) -> OpDef | None:
    """The record of an op, or None."""
    return _defs.get(type)


def get(type: str) -> OpDef:
    """The record of an op; an unknown type raises UnknownOpError naming the close ones."""
    found = _defs.get(type)
    if found is None:
        close = difflib.get_close_matches(type, _defs, n=3)
        hint = f"; did you mean {', '.join(close)}?" if close else ""
        raise UnknownOpError(f"unknown op {type!r}{hint}")
    return found


def all_defs() -> list[OpDef]:
    """Every record, by type."""
    return [_defs[type] for type in sorted(_defs)]


def coerce_attr(type: AttrType, value: Any) -> Attr:
    """A value as an attribute of the given type. Floats are rounded to float32, the form that files keep."""
    try:
        return Attr(type, _COERCE[type](value))
    except (TypeError, ValueError, OverflowError) as error:
        raise ProgramError(f"{value!r} is no {type.name} attribute") from error


def attrs_for(op_def: OpDef, values: Mapping[str, Any]) -> dict[str, Attr]:
    """Attributes of an op from plain values: typed by the record, None skipped, unknown names and absent required
    ones refused."""
    attrs = {}
    for name, value in values.items():
        if value is None:
            continue
        spec = op_def.attrs.get(name)
        declared = spec.type if spec is not None else COMMON_ATTRS.get(name)
        if declared is None:
            close = difflib.get_close_matches(name, op_def.attrs, n=3)
            hint = f"; it has {', '.join(close or op_def.attrs) or 'none'}"
            raise ProgramError(f"op {op_def.type!r} has no attribute {name!r}{hint}")
        try:
            attrs[name] = coerce_attr(declared, value)
        except ProgramError as error:
            raise ProgramError(f"attribute {name!r} of op {op_def.type!r}: {error}") from error
    for name, spec in op_def.attrs.items():
        if spec.default is REQUIRED and name not in attrs:
            raise ProgramError(f"op {op_def.type!r} needs attribute {name!r}")
    return attrs


def attr_values(op_def: OpDef, op: Operator) -> dict[str, Any]:
    """The value of every declared attribute of ``op``: its own, else the default."""
    values = {}
    for name, spec in op_def.attrs.items():
        found = op.attrs.get(name)
        if found is not None:
            values[name] = found.value
        elif spec.default is REQUIRED:
            raise ProgramError(f"op {op.type!r} needs attribute {name!r} ({op.origin})")
        else:
            values[name] = spec.default
    values.setdefault("is_test", op.attr("is_test", default=False))
    return values


def _as_int(value: Any) -> int:
    if isinstance(value, (bool, np.bool_)):
        return int(value)
    if isinstance(value, (float, np.floating)) and not float(value).is_integer():
        raise ValueError("not a whole number")
    return int(value)


def _as_str(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("not a string")
    return value


def _as_float32(value: Any) -> float:
    with np.errstate(over="ignore"):
        return float(np.float32(value))


def _sequence(item: Callable[[Any], Any]) -> Callable[[Any], tuple[Any, ...]]:
    def convert(value: Any) -> tuple[Any, ...]:
        if isinstance(value, str):
            raise TypeError("a string is no list")
        return tuple(item(element) for element in value)

    return convert


_COERCE: Final[dict[AttrType, Callable[[Any], Any]]] = {
    AttrType.INT: _as_int,
    AttrType.LONG: _as_int,
    AttrType.BLOCK: _as_int,
    AttrType.FLOAT: _as_float32,
    AttrType.STRING: _as_str,
    AttrType.BOOLEAN: bool,
    AttrType.INTS: _sequence(_as_int),
    AttrType.LONGS: _sequence(_as_int),
    AttrType.BLOCKS: _sequence(_as_int),
    AttrType.FLOATS: _sequence(_as_float32),
    AttrType.STRINGS: _sequence(_as_str),
    AttrType.BOOLEANS: _sequence(bool),
}


def attrs_for_one(type: str, name: str, value: Any) -> Attr:
    """One attribute of an op, typed by its record."""
    op_def = get(type)
    spec = op_def.attrs.get(name)
    declared = spec.type if spec is not None else COMMON_ATTRS.get(name)
    if declared is None:
        raise ProgramError(f"op {type!r} has no attribute {name!r}")
    return coerce_attr(declared, value)


def check_arguments(op_def: OpDef, op: Operator) -> None:
    """Refuse inputs and outputs that the record does not declare, absent required ones, and many where one goes."""
    for word, declared, given in (("input", op_def.inputs, op.inputs), ("output", op_def.outputs, op.outputs)):
        known = {arg.name: arg for arg in declared}
        for name, arguments in given.items():
            if name not in known:
                raise ProgramError(
                    f"op {op.type!r} has no {word} {name!r}; it has {', '.join(known) or 'none'} ({op.origin})"
                )
            if len(arguments) > 1 and not known[name].many:
                raise ProgramError(
                    f"{word} {name!r} of op {op.type!r} takes one argument, not {len(arguments)} ({op.origin})"
                )
    for arg in op_def.inputs:
        if not arg.optional and not op.inputs.get(arg.name) and "@GRAD" not in arg.name:
            raise ProgramError(f"op {op.type!r} needs input {arg.name!r} ({op.origin})")
