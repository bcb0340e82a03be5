"""Programs as ``ProgramDesc`` bytes: reads files of Fluid 1.0 and later, writes the form of 1.8.

Bytes keep less than a `Program` in memory does, as in Fluid: parameters come back as plain persistable variables, and
the random seed, ``stop_gradient``, ``is_data`` (but for variables with ``need_check_feed``) and origins are not
written. They keep more than this version understands: whatever a message holds besides the fields read here stays in
the ``unknown`` bytes of its program, block, op or variable, and is merged back when written.

Fluid writes variables and attributes in the order of a hash table and spells some defaults out. What was read is written
in the form that it had (`OpForm`, `VarForm`), so that a file that is read and written has the same bytes; what was built
here has its attributes by name. What Fluid asks for beside them, `fluidlite.ops.fluid_form` knows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError, Message

from fluidlite.core import later_attrs
from fluidlite.core.ir import Attr, AttrType, Block, Operator, Program, Variable
from fluidlite.dtypes import DTYPE_NAMES, UNKNOWN_DTYPE, VarKind, dtype_number
from fluidlite.errors import CorruptFileError, ProgramError
from fluidlite.proto_gen import framework_pb2 as pb

#: attribute type -> the field of ``OpDesc.Attr`` that holds its value
_VALUE_FIELDS: Final[dict[AttrType, str]] = {
    AttrType.INT: "i",
    AttrType.FLOAT: "f",
    AttrType.STRING: "s",
    AttrType.INTS: "ints",
    AttrType.FLOATS: "floats",
    AttrType.STRINGS: "strings",
    AttrType.BOOLEAN: "b",
    AttrType.BOOLEANS: "bools",
    AttrType.BLOCK: "block_idx",
    AttrType.LONG: "l",
    AttrType.BLOCKS: "blocks_idx",
    AttrType.LONGS: "longs",
}
_LISTS: Final = frozenset({"ints", "floats", "strings", "bools", "blocks_idx", "longs"})
#: kind of variable -> the field of ``VarType`` that describes its tensor
_TENSOR_FIELDS: Final[dict[VarKind, str]] = {
    VarKind.LOD_TENSOR: "lod_tensor",
    VarKind.SELECTED_ROWS: "selected_rows",
    VarKind.LOD_TENSOR_ARRAY: "tensor_array",
}
_KIND_NUMBERS: Final = frozenset(map(int, VarKind))
#: required enum fields that look absent when their number is one of a later version
_MAY_BE_UNKNOWN: Final = re.compile(r"(attrs\[\d+\]\.type|\.type\.type|data_type|element_type)$")
_KNOWN_ATTRS: Final = frozenset(map(int, AttrType))
_FRAME: Final = re.compile(r'File "([^"]+)", line (\d+)')


class OpForm(NamedTuple):
    """How a file wrote an op."""

    #: its attributes in their order
    order: tuple[str, ...]
    #: those of types that came after 1.8: what they were read as, and their bytes
    later: Mapping[str, tuple[Attr, bytes]]
    spells_target: bool


class VarForm(NamedTuple):
    """Which fields of a variable a file wrote that have their default."""

    persistable: bool
    need_check_feed: bool
    lod_level: bool
    #: the whole description of a tensor; control variables of transpiled programs have none
    tensor: bool


#: the form of an op for files; leaves the op itself as it is
Completion = Callable[[Operator], Operator]

_FORM_OF_OP: Final = OpForm((), {}, spells_target=False)
_FORM_OF_VAR: Final = VarForm(persistable=True, need_check_feed=False, lod_level=True, tensor=True)


def to_bytes(program: Program, complete: Completion = lambda op: op) -> bytes:
    """The ``ProgramDesc`` bytes: variables and ops in their order, attributes as they were read, else by name.

    An op that was built here is written as ``complete`` returns it. Raises ProgramError for a value that its field cannot
    hold.
    """
    desc = pb.ProgramDesc()
    for block in program.blocks:
        _write_block(desc.blocks.add(), block, complete)
    if program.version:
        desc.version.version = program.version
    _merge(desc, program.unknown, "the program")
    return _serialized(desc)


def from_bytes(data: bytes, source: str = "the program") -> Program:
    """A program from ``ProgramDesc`` bytes.

    The version is taken from field 4, else from field 2 (Fluid before 1.6), else 0. Raises CorruptFileError naming
    ``source`` (a file) when the bytes are no program or its blocks do not form a tree.
    """
    desc = pb.ProgramDesc()
    try:
        desc.ParseFromString(data)
        return _read_program(desc)
    except (DecodeError, ValueError) as error:
        raise CorruptFileError(f"{source} is not a program (ProgramDesc): {error}") from error


def _write_block(desc: pb.BlockDesc, block: Block, complete: Completion) -> None:
    desc.idx, desc.parent_idx = block.idx, block.parent
    if block.forward != -1:
        desc.forward_block_idx = block.forward
    for var in block.vars.values():
        try:
            _write_var(desc.vars.add(), var)
        except (TypeError, ValueError) as error:
            raise ProgramError(f"variable {var.name!r} of block {block.idx} cannot be written: {error}") from error
    for op in block.ops:
        try:
            _write_op(desc.ops.add(), complete(op) if op.form is None else op)
        except (TypeError, ValueError) as error:
            raise ProgramError(
                f"op {op.type!r} of block {block.idx} cannot be written: {error} ({op.origin})"
            ) from error
    _merge(desc, block.unknown, f"block {block.idx}")


def _write_var(desc: pb.VarDesc, var: Variable) -> None:
    form = var.form or _FORM_OF_VAR
    desc.name = var.name
    if var.persistable or form.persistable:
        desc.persistable = var.persistable
    if var.need_check_feed or form.need_check_feed:
        desc.need_check_feed = var.need_check_feed
    desc.type.type = int(var.kind)  # type: ignore[assignment]
    field = _TENSOR_FIELDS.get(var.kind)
    described = var.shape is not None or var.dtype != "float32" or var.lod_level
    if field is not None and (described or form.tensor):
        holder = getattr(desc.type, field)
        tensor = holder
        if var.kind is not VarKind.SELECTED_ROWS:
            if var.lod_level or form.lod_level:
                holder.lod_level = var.lod_level
            tensor = holder.tensor
        _write_tensor(tensor, var)
    _merge(desc, var.unknown, f"variable {var.name!r}")


def _write_tensor(desc: pb.VarType.TensorDesc, var: Variable) -> None:
    desc.dims.extend(var.shape or ())
    if var.dtype != UNKNOWN_DTYPE:  # its number is among the unknown bytes
        desc.data_type = dtype_number(var.dtype)  # type: ignore[assignment]


def _write_op(desc: pb.OpDesc, op: Operator) -> None:
    desc.type = op.type
    for messages, arguments in ((desc.inputs, op.inputs), (desc.outputs, op.outputs)):
        for name, names in arguments.items():
            messages.add(parameter=name, arguments=names)
    form = op.form or _FORM_OF_OP
    for name in _attr_order(op, form):
        try:
            read_as, content = form.later.get(name, (None, b""))
            if read_as == op.attrs[name]:
                desc.attrs.add().MergeFromString(content)
            else:
                _write_attr(desc.attrs.add(name=name), op.attrs[name])
        except (TypeError, ValueError) as error:
            raise ValueError(f"attribute {name!r}: {error}") from error
    if op.is_target or form.spells_target:
        desc.is_target = op.is_target
    _merge(desc, op.unknown, f"op {op.type!r}")


def _attr_order(op: Operator, form: OpForm) -> list[str]:
    """As the file had them that the op was read from, then those that were added since."""
    known = [name for name in form.order if name in op.attrs]
    return [*known, *sorted(op.attrs.keys() - set(known))]


def _write_attr(desc: pb.OpDesc.Attr, attr: Attr) -> None:
    desc.type = int(attr.type)  # type: ignore[assignment]
    field = _VALUE_FIELDS[attr.type]
    if field in _LISTS:
        getattr(desc, field).extend(attr.value)
    else:
        setattr(desc, field, attr.value)


def _merge(desc: Message, unknown: bytes, what: str) -> None:
    if not unknown:
        return
    try:
        desc.MergeFromString(unknown)
    except DecodeError as error:
        raise ProgramError(f"the unknown bytes of {what} are no message: {error}") from error


def _read_program(desc: pb.ProgramDesc) -> Program:
    find_missing = desc.FindInitializationErrors  # type: ignore[attr-defined]  # not in the stubs
    missing = [path for path in find_missing() if not _MAY_BE_UNKNOWN.search(path)]
    if missing:
        raise ValueError(f"required fields are missing: {', '.join(missing[:5])}")
    if not desc.blocks:
        raise ValueError("it has no blocks")
    version = desc.version if desc.HasField("version") else desc.version_before_1_6
    return Program(
        blocks=[_read_block(block, position) for position, block in enumerate(desc.blocks)],
        version=version.version,
        unknown=_rest(desc, "blocks", "version", "version_before_1_6"),
    )


def _read_block(desc: pb.BlockDesc, position: int) -> Block:
    if desc.idx != position:
        raise ValueError(f"block {position} calls itself {desc.idx}")
    if not -1 <= desc.parent_idx < max(position, 0) or (position > 0 and desc.parent_idx < 0):
        raise ValueError(f"block {position} cannot have parent {desc.parent_idx}")
    block = Block(
        idx=position,
        parent=desc.parent_idx,
        forward=desc.forward_block_idx,
        ops=[_read_op(op) for op in desc.ops],
    )
    for var_desc in desc.vars:
        var = _read_var(var_desc)
        if var.name in block.vars:
            raise ValueError(f"block {position} declares variable {var.name!r} twice")
        block.vars[var.name] = var
    block.unknown = _rest(desc, "idx", "parent_idx", "vars", "ops", "forward_block_idx")
    return block


def _read_var(desc: pb.VarDesc) -> Variable:
    var = Variable(
        name=_text(desc.name),
        kind=VarKind.RAW,
        persistable=desc.persistable,
        is_data=desc.need_check_feed,
        need_check_feed=desc.need_check_feed,
        form=VarForm(desc.HasField("persistable"), desc.HasField("need_check_feed"), lod_level=False, tensor=False),
    )
    number = int(desc.type.type)
    if desc.type.HasField("type") and number in _KIND_NUMBERS:
        var.kind = VarKind(number)
        desc.type.ClearField("type")
    field = _TENSOR_FIELDS.get(var.kind)
    if field is not None and desc.type.HasField(field):
        var.form = var.form._replace(tensor=True)
        _read_holder(getattr(desc.type, field), var)
        _drop_if_empty(desc.type, field)
    _drop_if_empty(desc, "type")
    var.unknown = _rest(desc, "name", "persistable", "need_check_feed")
    return var


def _read_holder(holder: Any, var: Variable) -> None:
    """Take dtype, shape and LoD level out of the message that describes a variable's tensor."""
    tensor = holder
    if var.kind is not VarKind.SELECTED_ROWS:
        var.lod_level = holder.lod_level
        var.form = var.form._replace(lod_level=holder.HasField("lod_level"))
        holder.ClearField("lod_level")
        tensor = holder.tensor
    var.dtype = UNKNOWN_DTYPE
    if tensor.HasField("data_type") and tensor.data_type in DTYPE_NAMES:
        var.dtype = DTYPE_NAMES[tensor.data_type]
        tensor.ClearField("data_type")
    var.shape = tuple(tensor.dims) or None
    tensor.ClearField("dims")
    if tensor is not holder:
        _drop_if_empty(holder, "tensor")


def _read_op(desc: pb.OpDesc) -> Operator:
    op = Operator(
        type=_text(desc.type),
        inputs=_read_arguments(desc.inputs),
        outputs=_read_arguments(desc.outputs),
        is_target=desc.is_target,
    )
    foreign = []
    later: dict[str, tuple[Attr, bytes]] = {}
    for attr in desc.attrs:
        if attr.HasField("type") and attr.type in _KNOWN_ATTRS:
            op.attrs[_text(attr.name)] = _read_attr(attr)
        elif (read_as := later_attrs.read(attr)) is not None:
            op.attrs[_text(attr.name)] = read_as
            later[attr.name] = (read_as, _serialized(attr))
        else:
            foreign.append(attr)
    op.form = OpForm(tuple(op.attrs), later, desc.HasField("is_target"))
    leftover = pb.OpDesc(attrs=foreign)
    op.unknown = _serialized(leftover) + _rest(desc, "inputs", "outputs", "type", "attrs", "is_target")
    op.origin = _origin(op.attr("op_callstack", ()))
    return op


def _read_arguments(messages: Iterable[pb.OpDesc.Var]) -> dict[str, list[str]]:
    return {_text(var.parameter): [_text(name) for name in var.arguments] for var in messages}


def _read_attr(desc: pb.OpDesc.Attr) -> Attr:
    type = AttrType(desc.type)
    field = _VALUE_FIELDS[type]
    value = getattr(desc, field)
    if type is AttrType.STRING:
        value = _text(value)
    elif type is AttrType.STRINGS:
        value = map(_text, value)
    return Attr(type, tuple(value) if field in _LISTS else value)


def _text(value: str | bytes) -> str:
    """Some protobuf runtimes hand out a string that is not UTF-8 as bytes, others raise UnicodeDecodeError."""
    if isinstance(value, bytes):
        raise ValueError(f"{value!r} is not UTF-8")
    return value


def _origin(callstack: tuple[str, ...]) -> str:
    """The user's line in a call stack that Fluid wrote (innermost frame first)."""
    for entry in callstack:
        frame = _FRAME.search(entry)
        if frame is not None and "paddle/fluid" not in frame[1].replace("\\", "/"):
            return f"{frame[1]}:{frame[2]}"
    return ""


def _rest(desc: Message, *read: str) -> bytes:
    """What a message holds besides the fields read."""
    for field in read:
        desc.ClearField(field)
    return _serialized(desc)


def _drop_if_empty(desc: Message, field: str) -> None:
    if not _serialized(getattr(desc, field)):
        desc.ClearField(field)


def _serialized(desc: Message) -> bytes:
    """Lenient about required fields: enum numbers of later versions sit among the unknown fields."""
    return desc.SerializePartialToString(deterministic=True)
