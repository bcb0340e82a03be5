"""ProgramDesc bytes: Fluid's own files, exact bytes, other versions, unknown content, and damage."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluidlite.core import edit, serde
from fluidlite.core.ir import Attr, AttrType, Block, Operator, Parameter, Program, Variable
from fluidlite.core.op_compat import add_compatibility_map
from fluidlite.dtypes import UNKNOWN_DTYPE, VarKind
from fluidlite.errors import CorruptFileError, ProgramError
from fluidlite.proto_gen import framework_pb2 as pb
from tests.program_strategies import programs, relaxed
from tests.shared_data import MODELS, golden, golden_json

EMPTY_PROGRAM = bytes.fromhex("0a0d080010" + "ff" * 9 + "01" + "220408" + "85c33d")
_TENSOR_KINDS = (VarKind.LOD_TENSOR, VarKind.LOD_TENSOR_ARRAY, VarKind.SELECTED_ROWS)


def as_written(program: Program) -> Program:
    """The program with what bytes do not keep set to its default."""
    program.random_seed = 0
    for block in program.blocks:
        block.vars = {name: _declaration(var) for name, var in block.vars.items()}
    return program


def _declaration(var: Variable) -> Variable:
    tensor = var.kind in _TENSOR_KINDS
    return Variable(
        name=var.name,
        kind=var.kind,
        dtype=var.dtype if tensor else "float32",
        shape=(var.shape or None) if tensor else None,
        lod_level=var.lod_level if tensor and var.kind is not VarKind.SELECTED_ROWS else 0,
        persistable=var.persistable,
        need_check_feed=var.need_check_feed,
        is_data=var.need_check_feed,
        unknown=var.unknown,
    )


def test_an_empty_program_has_the_bytes_of_fluid() -> None:
    assert serde.to_bytes(Program()) == EMPTY_PROGRAM
    assert serde.from_bytes(EMPTY_PROGRAM) == Program()


@relaxed
@given(programs())
def test_round_trip(program: Program) -> None:
    data = serde.to_bytes(program)
    again = serde.from_bytes(data)
    assert serde.to_bytes(again) == data
    assert again == as_written(program)


@pytest.mark.parametrize("name", MODELS)
def test_golden_programs_of_fluid_round_trip(name: str) -> None:
    data = golden("files", name).read_bytes()
    program = serde.from_bytes(data, name)
    again = serde.from_bytes(serde.to_bytes(program))
    assert again == program
    assert program.version == 1008005
    assert _normal(serde.to_bytes(program)) == _normal(data)


def _normal(data: bytes) -> pb.ProgramDesc:
    """A program with the freedoms of Fluid's writer taken out: order of attributes, defaults left out or not."""
    desc = pb.ProgramDesc.FromString(data)
    for block in desc.blocks:
        for op in block.ops:
            op.attrs.sort(key=lambda attr: attr.name)
            if not op.is_target:
                op.ClearField("is_target")
        for var in block.vars:
            var.persistable = var.persistable
            if var.type.HasField("lod_tensor"):
                var.type.lod_tensor.lod_level = var.type.lod_tensor.lod_level
    return desc


def test_golden_scale_program_of_fluid() -> None:
    record = next(item for item in golden_json("files", "records.json") if item["id"] == "scale_program")
    program = serde.from_bytes(bytes.fromhex(record["program_hex"]))
    assert program.root.ops[0].attr("scale") == 2.0
    assert program.root.vars["x"].is_data
    assert len(serde.to_bytes(program)) == len(record["program_hex"]) // 2


def test_fields_are_written_in_order_and_unpacked() -> None:
    op = Operator(
        "op",
        {"X": ["a"]},
        {"Out": ["b"]},
        {"b": Attr(AttrType.INTS, (1, 2)), "a": Attr(AttrType.LONGS, ())},
        is_target=True,
    )
    program = Program([Block(vars={"a": Variable("a", shape=(2, -1))}, ops=[op])])
    desc = b"".join(
        [
            _field(1, _field(1, b"X") + _field(2, b"a")),
            _field(2, _field(1, b"Out") + _field(2, b"b")),
            _field(3, b"op"),
            _field(4, _field(1, b"a") + b"\x10\x0b"),
            _field(4, _field(1, b"b") + b"\x10\x03" + b"\x30\x01\x30\x02"),
            b"\x28\x01",
        ]
    )
    tensor = _field(1, b"\x08\x05\x10\x02\x10" + b"\xff" * 9 + b"\x01") + b"\x10\x00"
    var = _field(1, b"a") + _field(2, b"\x08\x07" + _field(3, tensor)) + b"\x18\x00"
    block = b"\x08\x00\x10" + b"\xff" * 9 + b"\x01" + _field(3, var) + _field(4, desc)
    assert serde.to_bytes(program) == _field(1, block) + EMPTY_PROGRAM[-6:]


def _field(number: int, payload: bytes) -> bytes:
    return bytes([number << 3 | 2, *_varint(len(payload))]) + payload


def _varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128, value >> 7])


def test_parameters_come_back_as_persistable_variables() -> None:
    parameter = Parameter("w", shape=(3,), persistable=True, learning_rate=0.5)
    program = Program([Block(vars={"w": parameter})])
    again = serde.from_bytes(serde.to_bytes(program)).root.vars["w"]
    assert type(again) is Variable
    assert again.persistable
    assert again.shape == (3,)


@pytest.mark.parametrize("field", [2, 4])
def test_the_version_is_read_where_either_age_keeps_it(field: int) -> None:
    block = EMPTY_PROGRAM[:15]
    version = bytes([field << 3 | 2, 2, 8, 7])
    assert serde.from_bytes(block + version).version == 7
    assert serde.from_bytes(block).version == 0
    assert serde.to_bytes(serde.from_bytes(block)) == block


def test_what_later_versions_write_is_kept() -> None:
    desc = pb.ProgramDesc()
    desc.MergeFromString(EMPTY_PROGRAM)
    op = desc.blocks[0].ops.add(type="op")
    newest = _field(1, b"new") + b"\x10\x20" + b"\xb1\x02" + b"\x00" * 8  # an AttrType 32 with a field 38
    op.MergeFromString(_field(4, newest) + b"\x48\x05")  # field 9
    strings = desc.blocks[0].vars.add(name="strings")
    strings.MergeFromString(_field(2, b"\x08\x1a" + _field(9, b"")) + b"\x28\x01")  # STRINGS; is_parameter
    fp8 = desc.blocks[0].vars.add(name="fp8")
    fp8.MergeFromString(_field(2, b"\x08\x07" + _field(3, _field(1, b"\x08\x20\x10\x03"))))  # FP8_E4M3FN
    desc.MergeFromString(_field(5, b"\x0a\x00"))  # op_version_map
    data = desc.SerializePartialToString()

    program = serde.from_bytes(data)
    assert program.root.ops[0].attrs == {}
    assert program.root.vars["strings"].kind is VarKind.RAW
    assert program.root.vars["fp8"].dtype == UNKNOWN_DTYPE
    assert program.root.vars["fp8"].shape == (3,)
    written = serde.to_bytes(program)
    assert serde.from_bytes(written) == program
    for piece in (newest[:7], newest[9:], b"\x48\x05", b"\x08\x1a", b"\x28\x01", b"\x08\x20", _field(5, b"\x0a\x00")):
        assert piece in written


_NARROW, _WIDE = 0.10000000149011612, 0.1


@pytest.mark.parametrize(
    ("attr", "expected"),
    [
        (pb.OpDesc.Attr(type=pb.FLOAT64, float64=_WIDE), Attr(AttrType.FLOAT, _NARROW)),
        (pb.OpDesc.Attr(type=pb.FLOAT64S, float64s=[_WIDE, 2]), Attr(AttrType.FLOATS, (_NARROW, 2.0))),
        (pb.OpDesc.Attr(type=pb.SCALAR, scalar=pb.Scalar(type=pb.Scalar.FLOAT64, r=_WIDE)), Attr(AttrType.FLOAT, _NARROW)),
        (pb.OpDesc.Attr(type=pb.SCALAR, scalar=pb.Scalar(type=pb.Scalar.LONG, i=2**40)), Attr(AttrType.LONG, 2**40)),
        (pb.OpDesc.Attr(type=pb.SCALAR, scalar=pb.Scalar(type=pb.Scalar.BOOLEAN, b=True)), Attr(AttrType.BOOLEAN, True)),
        (pb.OpDesc.Attr(type=pb.SCALARS, scalars=[pb.Scalar(type=pb.Scalar.LONG, i=i) for i in (3, -1)]), Attr(AttrType.LONGS, (3, -1))),
        (pb.OpDesc.Attr(type=pb.SCALARS), Attr(AttrType.FLOATS, ())),
    ],
)  # fmt: skip
def test_attributes_of_later_types_are_read_and_written_back(attr: pb.OpDesc.Attr, expected: Attr) -> None:
    attr.name = "a"
    last = pb.OpDesc.Attr(name="A", type=pb.INT, i=1)
    data = _program_of(pb.OpDesc(type="op", attrs=[attr, last]))
    program = serde.from_bytes(data)
    op = program.root.ops[0]
    assert op.attrs == {"a": expected, "A": Attr(AttrType.INT, 1)}
    assert serde.to_bytes(program) == data
    op.attrs["a"] = Attr(AttrType.INT, 7)
    changed = pb.OpDesc.Attr(name="a", type=pb.INT, i=7)
    assert serde.to_bytes(edit.clone(program)) == _program_of(pb.OpDesc(type="op", attrs=[changed, last]))


@pytest.mark.parametrize(
    "attr",
    [
        pb.OpDesc.Attr(name="a", type=pb.VAR, var_name="x"),
        pb.OpDesc.Attr(
            name="a",
            type=pb.SCALAR,
            scalar=pb.Scalar(type=pb.Scalar.COMPLEX128, c=pb.Complex(r=1, i=2)),
        ),
        pb.OpDesc.Attr(
            name="a",
            type=pb.SCALARS,
            scalars=[pb.Scalar(type=pb.Scalar.LONG, i=1), pb.Scalar(type=pb.Scalar.FLOAT64, r=1)],
        ),
    ],
    ids=["variable", "complex", "mixed"],
)
def test_attributes_without_counterpart_are_kept_unread(attr: pb.OpDesc.Attr) -> None:
    data = _program_of(pb.OpDesc(type="op", attrs=[attr]))
    program = serde.from_bytes(data)
    assert program.root.ops[0].attrs == {}
    assert serde.to_bytes(program) == data


def _program_of(op: pb.OpDesc) -> bytes:
    return pb.ProgramDesc(blocks=[pb.BlockDesc(idx=0, parent_idx=-1, ops=[op])]).SerializeToString()


@pytest.mark.parametrize("name", MODELS)
def test_a_golden_program_of_fluid_is_written_byte_for_byte(name: str) -> None:
    data = golden("files", name).read_bytes()
    assert serde.to_bytes(serde.from_bytes(data)) == data
    assert serde.to_bytes(edit.clone(serde.from_bytes(data))) == data


def test_what_is_added_to_a_read_op_comes_after_what_it_had() -> None:
    program = serde.from_bytes(golden("files", "mlp_separate/__model__").read_bytes())
    op = next(op for op in program.root.ops if op.type == "mul")
    before = list(op.attrs)
    op.attrs |= {"zz": Attr(AttrType.INT, 1), "aa": Attr(AttrType.INT, 2)}
    del op.attrs[before[1]]
    written = pb.ProgramDesc.FromString(serde.to_bytes(program)).blocks[0].ops[1]
    assert [attr.name for attr in written.attrs] == [before[0], *before[2:], "aa", "zz"]


def test_the_compatibility_map_is_fluids() -> None:
    program = Program()
    add_compatibility_map(program)
    assert program.unknown == serde.from_bytes(golden("files", "mlp_separate/__model__").read_bytes()).unknown
    add_compatibility_map(program)
    assert len(pb.ProgramDesc.FromString(serde.to_bytes(program)).op_compatible_map.pair) == 64


def test_the_compatibility_map_of_fluid_is_kept() -> None:
    program = serde.from_bytes(golden("files", "mlp_separate/__model__").read_bytes())
    again = pb.ProgramDesc.FromString(serde.to_bytes(program))
    assert again.op_compatible_map.default_required_version == "1.5.0"
    assert len(again.op_compatible_map.pair) == 64


def test_the_origin_comes_from_the_call_stack() -> None:
    stack = (
        '  File "/site-packages/paddle/fluid/framework.py", line 2610, in append_op\n',
        '  File "/home/me/model.py", line 12, in build\n    fluid.layers.relu(x)\n',
        '  File "/home/me/model.py", line 40, in <module>\n',
    )
    op = Operator("relu", attrs={"op_callstack": Attr(AttrType.STRINGS, stack)})
    assert serde.from_bytes(serde.to_bytes(Program([Block(ops=[op])]))).root.ops[0].origin == "/home/me/model.py:12"


def test_every_prefix_and_every_flipped_byte_is_a_program_or_corrupt() -> None:
    op = Operator("scale", {"X": ["ä"]}, {"Out": ["y"]}, {"scale": Attr(AttrType.FLOAT, 2.0)})
    var = Variable("ä", shape=(2, 3), persistable=True)
    data = serde.to_bytes(Program([Block(vars={"ä": var}, ops=[op]), Block(1, 0)]))
    damaged = [data[:cut] for cut in range(len(data))]
    damaged += [
        data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :] for at in range(len(data)) for flip in (1, 8, 128)
    ]
    refused = sum(_is_refused(wrong) for wrong in damaged)
    assert refused > len(damaged) // 3


def _is_refused(data: bytes) -> bool:
    try:
        program = serde.from_bytes(data)
    except CorruptFileError:
        return True
    assert serde.from_bytes(serde.to_bytes(program)) == program
    return False


def test_an_error_names_the_file() -> None:
    with pytest.raises(CorruptFileError, match="models/__model__ is not a program"):
        serde.from_bytes(b"\x0a\x05", "models/__model__")


@given(st.binary(max_size=60))
def test_random_bytes_are_never_a_crash(data: bytes) -> None:
    try:
        serde.from_bytes(data)
    except CorruptFileError:
        return


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ([(1, -1)], "block 0 calls itself 1"),
        ([(0, 0)], "block 0 cannot have parent 0"),
        ([(0, -1), (1, 1)], "block 1 cannot have parent 1"),
        ([(0, -1), (1, -1)], "block 1 cannot have parent -1"),
        ([], "no blocks"),
    ],
)
def test_blocks_that_form_no_tree_are_refused(blocks: list[tuple[int, int]], message: str) -> None:
    desc = pb.ProgramDesc(blocks=[pb.BlockDesc(idx=idx, parent_idx=parent) for idx, parent in blocks])
    with pytest.raises(CorruptFileError, match=message):
        serde.from_bytes(desc.SerializeToString())


def test_a_variable_declared_twice_is_refused() -> None:
    var = pb.VarDesc(name="x", type=pb.VarType(type=pb.VarType.RAW))
    desc = pb.ProgramDesc(blocks=[pb.BlockDesc(idx=0, parent_idx=-1, vars=[var, var])])
    with pytest.raises(CorruptFileError, match="declares variable 'x' twice"):
        serde.from_bytes(desc.SerializeToString())


@pytest.mark.parametrize(
    ("op", "message"),
    [
        (Operator("op", attrs={"n": Attr(AttrType.INT, 2**40)}), "op 'op' of block 0 cannot be written: attribute 'n'"),
        (Operator("op", attrs={"n": Attr(AttrType.INTS, ("a",))}), "attribute 'n'"),
        (Operator("\ud800"), "cannot be written"),
        (Operator("op", unknown=b"\x0a"), "unknown bytes of op 'op'"),
    ],
)
def test_values_that_do_not_fit_are_refused(op: Operator, message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        serde.to_bytes(Program([Block(ops=[op])]))


def test_an_unknown_dtype_of_a_variable_cannot_be_invented() -> None:
    var = dataclasses.replace(Variable("x"), dtype="float8")
    with pytest.raises(ProgramError, match="'x'"):
        serde.to_bytes(Program([Block(vars={"x": var})]))
