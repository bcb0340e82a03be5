"""Every invariant of a program, broken once; and all that is broken is listed at once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fluidlite.core import serde, text
from fluidlite.core.declarations import OpDeclaration
from fluidlite.core.ir import Attr, AttrType, Block, Operator, Program, Variable
from fluidlite.core.verify import verify
from fluidlite.errors import ProgramError
from fluidlite.ops import registry
from fluidlite.ops.registry import Argument, AttrSpec, OpDef
from tests.shared_data import MODELS, golden


def _declare(type: str, inputs: str, outputs: str, **attrs: AttrSpec) -> OpDef:
    return OpDef(
        type=type,
        doc="",
        inputs=tuple(map(Argument.parse, inputs.split())),
        outputs=tuple(map(Argument.parse, outputs.split())),
        attrs=attrs,
        infer=None,
        kernel=None,
    )


_DEFS = {
    op_def.type: op_def
    for op_def in (
        _declare("fill", "", "Out", value=AttrSpec(AttrType.FLOAT)),
        _declare("relu", "X", "Out"),
        _declare("relu_grad", "Out Out@GRAD", "X@GRAD"),
        _declare("concat", "X* Axis?", "Out Mask~", axis=AttrSpec(AttrType.INT, 0)),
        _declare("while", "X* Condition", "Out* StepScopes?", sub_block=AttrSpec(AttrType.BLOCK)),
        _declare("send", "X*", "Out*"),
    )
}


def defs(type: str) -> OpDeclaration | None:
    return _DEFS.get(type)


GOOD = """
var x: [-1, 4] data
var w: [4] persistable
var y: [-1, 4]
var z: [-1, 8]
var c: bool [1]
var g
fill() -> (Out=[c]) {value=1.0}
relu(X=[x]) -> (Out=[y]) {future_attribute="kept"}
concat(X=[y w], Axis=[]) -> (Out=[z]) {axis=1L}
while(X=[z], Condition=[c]) -> (Out=[z]) {sub_block=block(1)}
relu_grad(Out=[y], Out@GRAD=[g]) -> (X@GRAD=[@EMPTY@])
send(X=[z]) {op_role=rpc}
block 1
var inner
relu(X=[z]) -> (Out=[inner])
relu(X=[inner]) -> (Out=[z])
"""


def problems(program: Program) -> str:
    with pytest.raises(ProgramError) as caught:
        verify(program, defs)
    return str(caught.value)


def test_a_good_program_passes() -> None:
    verify(text.parse(GOOD), defs)
    verify(Program(), defs)


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("nothing()", "block 0, op 0 'nothing': unknown op"),
        ("var x data\nrelu(X=[x], Y=[x]) -> (Out=[x])", "it has no input 'Y'; it has X"),
        ("var x data\nrelu(X=[x x]) -> (Out=[x])", "input 'X' takes one argument, not 2"),
        ("var x\nrelu() -> (Out=[x])", "input 'X' is missing"),
        ("var x\nconcat(X=[]) -> (Out=[x])", "input 'X' is missing"),
        ("var x data\nrelu(X=[x])", "output 'Out' is missing"),
        ("var x\nfill() -> (Out=[x])", "attribute 'value' is missing"),
        ("var x\nfill() -> (Out=[x]) {value=1}", "attribute 'value' must be FLOAT, not INT"),
        ("send() {op_role=1.5}", "attribute 'op_role' must be INT, not FLOAT"),
        ("var x data\nrelu(X=[x]) -> (Out=[y])", "output Out='y' is not declared in block 0 or above it"),
        ("var y\nrelu(X=[x]) -> (Out=[y])", "input X='x' is not declared"),
        ("var x\nvar y\nrelu(X=[x]) -> (Out=[y])", "op 0 'relu': input X='x' is read before anything writes it"),
        ("var x data\nvar y\nsend(X=[x]) -> (Out=[y y])", "it writes 'y' more than once"),
        ("var x: [-2]", "block 0, variable 'x': shape [-2] has a negative dimension"),
        ("var x lod=-1", "lod_level -1 is negative"),
        ("var c data\nwhile(X=[c], Condition=[c]) {sub_block=block(0)}", "block 0, which is no block after 0"),
        ("var c data\nwhile(X=[c], Condition=[c]) {sub_block=block(3)}", "block 3, which is no block after 0"),
        ("block 1", "the block at position 0 calls itself 1"),
        ("block 0 parent=0", "block 0 cannot have parent 0"),
        ("block 0\nblock 1 parent=1", "block 1 cannot have parent 1"),
        ("block 0\nblock 1 forward=5", "block 1 cannot have forward block 5"),
        ("block 0\nblock 1\nvar a\nblock 2\nsend(X=[a])", "input X='a' is not declared in block 2 or above it"),
    ],
)
def test_each_invariant(written: str, message: str) -> None:
    assert message in problems(text.parse(written))


def _no_blocks(program: Program) -> None:
    program.blocks.clear()


def _wrong_key(program: Program) -> None:
    program.root.vars["a"] = Variable("b")


def _wrong_dtype(program: Program) -> None:
    program.root.vars["a"] = Variable("a", dtype="float8")


def _one_op_twice(program: Program) -> None:
    op = Operator("send", {"X": []}, {}, {}, origin="pass split")
    program.root.vars["x"] = Variable("x", is_data=True)
    op.inputs["X"] = ["x"]
    program.root.ops += [op, op]


def _wrong_value(program: Program) -> None:
    program.root.ops.append(Operator("send", {"X": ["x"]}, {}, {"n": Attr(AttrType.INTS, ("a",))}))


@pytest.mark.parametrize(
    ("breaks", "message"),
    [
        (_no_blocks, "it has no blocks"),
        (_wrong_key, "variable 'a': it is stored under this name but calls itself 'b'"),
        (_wrong_dtype, "variable 'a': dtype 'float8' is none"),
        (_one_op_twice, "op 1 'send' (pass split): it is the very op that stands at block 0, op 0"),
        (_wrong_value, "attribute 'n' is INTS but holds ('a',)"),
    ],
)
def test_what_text_cannot_say(breaks: Callable[[Program], None], message: str) -> None:
    program = Program([Block()])
    breaks(program)
    assert message in problems(program)


def test_a_write_inside_a_sub_block_counts() -> None:
    program = text.parse(
        "var c data\nvar y\nwhile(X=[c], Condition=[c]) {sub_block=block(1)}\nsend(X=[y])\n"
        "block 1\nrelu(X=[c]) -> (Out=[y])"
    )
    verify(program, defs)


@pytest.mark.parametrize("name", MODELS)
def test_golden_programs_of_fluid_pass(name: str) -> None:
    verify(serde.from_bytes(golden("files", name).read_bytes()), registry.find)


def test_everything_broken_is_listed_at_once() -> None:
    listed = problems(text.parse("var x: [-5]\nnothing()\nrelu(X=[a]) -> (Out=[b])"))
    assert listed.startswith("the program breaks 4 invariant(s):\n")
    assert all(part in listed for part in ("[-5]", "unknown op", "X='a'", "Out='b'"))
