"""The text form: exact round trip, readability of what is written, and errors that name line and column."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluidlite.core import text
from fluidlite.core.ir import Attr, AttrType, Block, Operator, OpRole, Parameter, Program, Variable
from fluidlite.dtypes import VarKind
from fluidlite.errors import TextFormError
from tests.program_strategies import programs, relaxed

READABLE = """\
program seed=5

block 0
  var ids: int64[-1, 1] data lod=1 stop_gradient
  param emb: [1000, 8] lr=0.5 distributed
  var emb@GRAD: selected_rows [1000, 8]
  var vec: [-1, 8]

  lookup_table(Ids=[ids], W=[emb]) -> (Out=[vec]) {is_sparse=true, padding_idx=-1L}
  send(X=[emb@GRAD]) {epmap=["127.0.0.1:6174"], op_role=rpc}
  while(X=[vec], Condition=[]) -> (Out=[vec]) {sub_block=block(1), op_role=none}

block 1 parent=0
  scale(X=[vec]) -> (Out=[vec]) {scale=0.1}
"""


@relaxed
@given(programs(unknown=st.binary(max_size=4)))
def test_round_trip_keeps_everything(program: Program) -> None:
    written = text.show(program)
    again = text.parse(written)
    assert again == program
    assert text.show(again) == text.show(_without_origins(program))


def test_what_a_person_writes_is_what_is_shown() -> None:
    assert text.show(text.parse(READABLE)) == READABLE


def test_parsed_values() -> None:
    program = text.parse(READABLE)
    assert program.random_seed == 5
    assert program.blocks[1].parent == 0
    emb = program.root.vars["emb"]
    assert isinstance(emb, Parameter)
    assert (emb.dtype, emb.shape, emb.persistable, emb.learning_rate) == ("float32", (1000, 8), True, 0.5)
    assert program.root.vars["emb@GRAD"].kind is VarKind.SELECTED_ROWS
    lookup, send, loop = program.root.ops
    assert lookup.attrs["padding_idx"] == Attr(AttrType.LONG, -1)
    assert lookup.attrs["op_role"] == Attr(AttrType.INT, 0)
    assert send.role is OpRole.RPC
    assert "op_role" not in loop.attrs
    assert loop.attrs["sub_block"] == Attr(AttrType.BLOCK, 1)
    assert loop.inputs == {"X": ["vec"], "Condition": []}


def test_statements_before_any_block_are_block_0() -> None:
    program = text.parse("var x: [2]\n\nrelu(X=[x]) -> (Out=[x])  # why\n")
    assert len(program.blocks) == 1
    assert program.root.ops == [Operator("relu", {"X": ["x"]}, {"Out": ["x"]}, {"op_role": Attr(AttrType.INT, 0)})]


def test_lines_may_break_inside_brackets() -> None:
    program = text.parse("concat(X=[a,\n  b]) -> (\n Out=[c]) {axis=0,\n  names=strings()}")
    assert program.root.ops[0].inputs == {"X": ["a", "b"]}
    assert program.root.ops[0].attrs["names"] == Attr(AttrType.STRINGS, ())


@pytest.mark.parametrize(
    ("written", "attr"),
    [
        ("1", Attr(AttrType.INT, 1)),
        ("1L", Attr(AttrType.LONG, 1)),
        ("1.0", Attr(AttrType.FLOAT, 1.0)),
        ("-inf", Attr(AttrType.FLOAT, float("-inf"))),
        ("1e-05", Attr(AttrType.FLOAT, 9.999999747378752e-06)),
        ("[1, 2]", Attr(AttrType.INTS, (1, 2))),
        ("longs(1, 2)", Attr(AttrType.LONGS, (1, 2))),
        ("floats(1 2.5)", Attr(AttrType.FLOATS, (1.0, 2.5))),
        ("[true false]", Attr(AttrType.BOOLEANS, (True, False))),
        ("blocks(1, 2)", Attr(AttrType.BLOCKS, (1, 2))),
        ('"a\\nb"', Attr(AttrType.STRING, "a\nb")),
    ],
)
def test_values(written: str, attr: Attr) -> None:
    assert text.parse(f"op() {{a={written}}}").root.ops[0].attrs["a"] == attr


def test_floats_are_written_the_same_on_every_numpy() -> None:
    op = Operator("op", attrs={"a": Attr(AttrType.FLOATS, (2.0**40, 1e16, 1e-5, 0.1, float("nan")))})
    assert "a=[1099511600000.0, 1e+16, 1e-05, 0.1, nan]" in text.show(Program([Block(ops=[op])]))


def test_an_op_without_arguments_and_one_of_a_keyword_name() -> None:
    program = text.parse("var() -> (Out=[x])\nsend_barrier()\n")
    assert [op.type for op in program.root.ops] == ["var", "send_barrier"]


def test_origin_is_a_comment() -> None:
    op = Operator("relu", origin="model.py:3\nsecond line")
    assert text.show_op(op) == "relu() {op_role=none}  # model.py:3 second line"
    assert text.parse(text.show_op(op)).root.ops[0].origin == ""


def test_brief_hides_call_stacks_only() -> None:
    attrs = {"op_callstack": Attr(AttrType.STRINGS, ("File a.py",)), "op_role": Attr(AttrType.INT, 1)}
    op = Operator("relu", attrs=attrs)
    assert text.show_op(op, brief=True) == "relu() {op_role=backward}"
    assert "op_callstack" in text.show_op(op)


def test_names_that_need_quotes() -> None:
    assert text.show_var(Variable("a b")) == 'var "a b"'
    assert text.show_var(Variable("x#1", shape=())) == 'var "x#1": []'
    assert text.show_var(Variable("fc_0.w_0@GRAD")) == "var fc_0.w_0@GRAD"


@pytest.mark.parametrize(
    ("written", "line", "column", "message"),
    [
        ("relu(X=[a)", 1, 10, "expected a name, but found )"),
        ("relu(X=[a]", 1, 11, "expected a name, but the text ends"),
        ("\nvar x: [1, y]", 2, 12, "expected a whole number, but found y"),
        ("var x\nvar x", 2, 5, "block 0 declares 'x' twice"),
        ("var x: nothing", 1, 8, "expected a kind, dtype or [shape]"),
        ("var x persistible", 1, 7, "no option 'persistible'"),
        ("var x trainable=false", 1, 7, "no option 'trainable'"),
        ("var x lod", 1, 10, "expected = and a value (int)"),
        ("param w lr=true", 1, 12, "expected a value of type float"),
        ("f(X=[a], X=[b])", 1, 10, "'X' stands here twice"),
        ("f() {a=[]}", 1, 8, "the list has no items"),
        ("f() {a=[1, 2.0]}", 1, 8, "items of different types"),
        ("f() {a=ints(1.5)}", 1, 13, "1.5 is no INT"),
        ("f() {a=many(1)}", 1, 8, "no type 'many'"),
        ("f() {a=block(x)}", 1, 14, "expected a whole number"),
        ("f() {a=b}", 1, 8, "expected a value"),
        ("f() {op_role=backward|bad}", 1, 23, "no role 'bad'"),
        ('f() {a="\\q"}', 1, 8, "cannot be read"),
        ("f() {a=1} unknown=0x1", 1, 19, "cannot be read"),
        ("f() -> Out", 1, 8, "expected (, but found Out"),
        ("f() f()", 1, 5, "no option 'f'"),
        ("$", 1, 1, "unexpected character"),
    ],
)
def test_errors_name_line_and_column(written: str, line: int, column: int, message: str) -> None:
    with pytest.raises(TextFormError) as caught:
        text.parse(written)
    assert str(caught.value).startswith(f"line {line}, column {column}: ")
    assert message in str(caught.value)


def _without_origins(program: Program) -> Program:
    for _, op in program.all_ops():
        op.origin = ""
    return program
