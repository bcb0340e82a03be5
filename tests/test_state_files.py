"""`fluid.save`, `fluid.load` and the pickles of arrays: the same bytes as Fluid's, and nothing in them is run."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import struct
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fluidlite as fluid
from fluidlite.core import serde
from fluidlite.errors import (
    CorruptFileError,
    DtypeError,
    MissingFileError,
    ProgramError,
    ShapeError,
    UninitializedError,
)
from fluidlite.values.state_reader import read_arrays, read_state
from fluidlite.values.state_writer import write_state
from tests.byte_faults import damaged, refused_or_read
from tests.frontend import fresh_programs
from tests.shared_data import golden, golden_array, golden_json

relaxed = settings(max_examples=300, suppress_health_check=list(HealthCheck), deadline=None)
#: of every dtype, and of every form that a pickle writes in its own way
ARRAYS = {
    "empty": np.zeros((0, 3), np.float32),
    "scalar": np.array(3, np.float32),
    "one": np.array([98], np.uint8),
    "same byte": np.array([98], np.int8),
    "flags": np.array([True, False]),
    "long": np.arange(300).reshape(1, 2, 2, 75),
    "wide": np.zeros(70000, np.int32),
    "another empty": np.zeros(0),
    "half": np.zeros(2, np.float16),
    "complex": np.array([1 + 2j], np.complex64),
    "ü\udcff": np.arange(70, dtype=np.int16),
    **{f"v{index}": np.full(2, index, np.float32) for index in range(1100)},
}


@pytest.fixture(autouse=True)
def _own_state() -> Iterator[None]:
    with fresh_programs(), fluid.scope_guard(fluid.Scope()):
        yield


@pytest.fixture
def exe() -> fluid.Executor:
    return fluid.Executor(fluid.CPUPlace())


def written(state: dict[str, Any]) -> bytes:
    stream = io.BytesIO()
    write_state(stream, state)
    return stream.getvalue()


def pickled(value: Any, protocol: int = 2) -> bytes:
    return pickle.dumps(value, protocol=protocol)


def expect_arrays(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert list(found) == list(expected)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype, name
        np.testing.assert_array_equal(found[name], array, err_msg=name, strict=True)


# the bytes


@pytest.mark.parametrize("end", ["pdparams", "pdopt"])
def test_golden_state_files_of_fluid_are_written_byte_for_byte(end: str) -> None:
    described = golden_json("files", "fluid_save", "io.json")
    data = golden("files", "fluid_save", f"ckpt.{end}").read_bytes()
    assert hashlib.sha256(data).hexdigest() == described["files"][f"ckpt.{end}"]["sha256"]
    state = read_arrays(data, end)
    for name, array in state.items():
        np.testing.assert_array_equal(array, golden_array(described["values"][name]))
    assert written(state) == data


def test_arrays_of_every_form_are_written_as_python_and_numpy_1_write_them() -> None:
    """SHA-256 of what CPython 3.7 and numpy 1.21 make of `ARRAYS`."""
    data = written(ARRAYS)
    assert hashlib.sha256(data).hexdigest() == "d4b8d036bf899fe3c3700f58c8b5b9dbaa9080ac904a916d548107a8650e2a80"
    expect_arrays(read_arrays(data, "arrays"), ARRAYS)


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_what_python_pickles_is_read(protocol: int) -> None:
    expect_arrays(read_arrays(pickled(ARRAYS, protocol), "arrays"), ARRAYS)
    ordered = read_arrays(pickled(OrderedDict(ARRAYS), protocol), "arrays")
    expect_arrays(ordered, ARRAYS)
    plain = {
        "a": [1, -1, 2**20, -(2**31), 2**40, -(2**70), 1.5, None, True, "x", b"", b"\xff\x00"],
        "t": (1, 2, 3, (4, ())),
    }
    assert read_state(pickled(plain, protocol), "plain") == plain
    numbers = {"f": np.float64(2.5), "i": np.int32(-7)}
    assert read_state(pickled(numbers, protocol), "numbers") == {"f": 2.5, "i": -7}
    shared = ARRAYS["long"]
    twice = read_state(pickled({"a": shared, "b": shared}, protocol), "twice")
    assert twice["a"] is twice["b"]


def test_arrays_in_fortrans_order_and_of_the_other_byte_order() -> None:
    turned = {"t": np.asfortranarray(np.arange(6, dtype=np.int64).reshape(2, 3)), "b": np.arange(3, dtype=">f4")}
    found = read_state(pickled(turned), "turned")
    np.testing.assert_array_equal(found["t"], turned["t"])
    assert found["b"].dtype == np.float32
    np.testing.assert_array_equal(found["b"], [0, 1, 2])
    expect_arrays(read_state(written(turned), "turned"), {"t": turned["t"], "b": turned["b"].astype("<f4")})


def test_a_state_of_python_2() -> None:
    """As Python 2.7 and numpy 1.16 write ``OrderedDict([("w", float32 [1.0, 2.0])])`` in protocol 2."""
    data = (
        b"\x80\x02ccollections\nOrderedDict\nq\x00]q\x01]q\x02(U\x01wq\x03cnumpy.core.multiarray\n_reconstruct\nq\x04"
        b"cnumpy\nndarray\nq\x05K\x00\x85U\x01b\x87Rq\x06(K\x01K\x02\x85cnumpy\ndtype\nq\x07U\x02f4K\x00K\x01\x87R"
        b"q\x08(K\x03U\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89U\x08\x00\x00\x80?\x00\x00\x00@tbea\x85R."
    )
    expect_arrays(read_arrays(data, "old"), {"w": np.array([1, 2], np.float32)})


def test_arrays_that_paddle_cut_are_joined() -> None:
    parts = {"w@@.0": np.arange(4), "w@@.1": np.arange(4, 6)}
    note = {"w": {"OriginShape": (2, 3), "slices": ["w@@.0", "w@@.1"]}}
    state = read_arrays(pickled({**parts, "UnpackBigParamInfor@@": note}), "cut")
    expect_arrays(state, {"w": np.arange(6).reshape(2, 3)})
    for wrong in (
        {"w": {"OriginShape": (7,), "slices": ["w@@.0"]}},
        {"w": {"slices": ["none"]}},
        {"w": 3},
        {"w": {"OriginShape": (1,), "slices": ["text"]}},
    ):
        with pytest.raises(CorruptFileError, match="cut: the slices of 'w' do not make an array"):
            read_arrays(pickled({**parts, "text": "x", "UnpackBigParamInfor@@": wrong}), "cut")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": np.array(["x"])}, "'a' is an array of <U1; a state file keeps numbers"),
        ({"a": np.array([None])}, "an array of object"),
        ({"a": [1]}, "'a' is a list"),
    ],
)
def test_what_no_state_file_keeps(value: dict[str, Any], message: str) -> None:
    with pytest.raises(DtypeError, match=message):
        written(value)


# what is not run


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("made-by-a-pickle",)


class Evaluated:
    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return eval, self.arguments


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"w": Evil()}, r"it asks for posix\.mkdir; only arrays and plain values are read"),
        ({"w": Evaluated("1 + 1")}, "it wants text to be evaluated"),
        ({"w": Evaluated("data", {"other": 1})}, "it wants text to be evaluated"),
        ({"w": eval}, "a function or an unfinished array in the place of a value"),
        ({"w": np.dtype("f4")}, "a function or an unfinished array in the place of a value"),
        ({"w": np.array([None])}, "dtype 'O8' is no number"),
        ({"w": np.array(["x"])}, "dtype 'U1' is no number"),
        ({"w": np.zeros(1, "M8[s]")}, "dtype 'M8' is no number"),
        ({"w": np.zeros(1, [("a", "f4")])}, "dtype 'V4' is no number"),
        ({"w": np.ma.zeros(2)}, "it asks for numpy.ma"),
        ({"w": {1, 2}}, "set"),
        ({"w": 1j}, "it asks for builtins.complex|it asks for __builtin__.complex"),
        ({(1, 2): 1}, "a tuple as a key"),
    ],
)
@pytest.mark.parametrize("protocol", [2, 4])
def test_what_a_pickle_may_not_hold(value: Any, message: str, protocol: int, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CorruptFileError, match=f"f is no file of arrays: at byte [0-9]+: .*({message}|not accepted)"):
        read_state(pickled(value, protocol), "f")
    assert not list(tmp_path.iterdir())


def test_static_tensors_of_paddle_are_no_code() -> None:
    assert read_state(pickled({"w": Evaluated("data", {"data": np.ones(1)})}), "f")["w"].tolist() == [1.0]


_ARRAY = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
_F4 = b"cnumpy\ndtype\nU\x02f4K\x00K\x01\x87R"
#: an array of two numbers
_WHOLE = _ARRAY + b"(K\x01K\x02\x85" + _F4 + b"\x89U\x08abcdefghtb"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "truncated"),
        (b"}", "truncated"),
        (b".", "a value is missing"),
        (b"}}.", "more than one value"),
        (b"(}.", "more than one value"),
        (b"(.", "a value is missing"),
        (b"h\x00.", "value 0 is used before it is there"),
        (b"\x86.", "a value is missing"),
        (b"t.", "a mark is missing"),
        (b"NK\x01a.", "a NoneType where a list belongs"),
        (b"}(Nu.", "a key without a value"),
        (b"NNR.", "it calls what is no function"),
        (b"cnumpy\nndarray\n)R.", "it calls what is no function"),
        (_ARRAY[:43] + b")R.", "it names something|no file of arrays"),
        (b"cnumpy.core.multiarray\n_reconstruct\n)R.", "an array of a class that is not numpy's"),
        (_ARRAY + b".", "unfinished array"),
        (_ARRAY + b"Nb.", "the content of an array is no tuple"),
        (_ARRAY + b")b.", "is not \\(version, shape, dtype, order, elements\\)"),
        (
            _ARRAY + b"(K\x01J\xff\xff\xff\xff\x85" + _F4 + b"\x89U\x04abcdtb.",
            "whose shape is not made of whole numbers",
        ),
        (_ARRAY + b"(K\x01\x8a\x08" + b"\xff" * 7 + b"\x7f\x85" + _F4 + b"\x89U\x04abcdtb.", "1 elements for an array"),
        (_ARRAY + b"(K\x01K\x01\x85" + _F4 + b"\x89U\x03abctb.", "elements of float32 that are no bytes, or not whole"),
        (_ARRAY + b"(K\x01K\x01\x85" + _F4 + b"\x89]tb.", "elements of float32 that are no bytes"),
        (_F4 + b"(K\x03U\x01<NN}J\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb.", "a dtype that is no plain number"),
        (b"Nb.", "a value is missing"),
        (b"NNb.", "content of an array is no tuple"),
        (b"N)b.", "content for what takes none"),
        (b"X\xff\xff\xff\xffabc.", "4294967295 more bytes are needed, 4 are left"),
        (b"\x8d" + b"\xff" * 8 + b".", "truncated"),
        (b"\x8e" + struct.pack("<Q", 2**62) + b".", "truncated"),
        (b"T\xff\xff\xff\xff.", "-1 more bytes"),
        (b"\x96" + struct.pack("<Q", 2**62) + b".", "opcode b'\\\\x96' is not accepted"),
        (b"X\x01\x00\x00\x00\xff.", "text that is not UTF-8"),
        (b"c" + b"a" * 100, "it names something that no file of arrays does"),
        (b"c_codecs\nencode\nX\x02\x00\x00\x00\xc4\x80U\x06latin1\x86R.", "bytes that are kept as text are above 255"),
        (b"c_codecs\nencode\nU\x01aU\x05utf-8\x86R.", "bytes that are no latin1 text"),
        (b"c__builtin__\ntuple\nN\x85R.", "a tuple of what is none"),
        (b"ccollections\nOrderedDict\n]Na\x85R.", "a dict of what are no pairs"),
        (b"]\x8c\x01a\x93.", "a name that is no text"),
        (b"cnumpy\ndtype\n]\x85R.", "dtype <class 'list'> is no number"),
        (b"cnumpy\ndtype\n" + _WHOLE + b"\x85R.", "dtype <class 'numpy.ndarray'> is no number"),
        (_F4 + b"(K\x03" + _WHOLE + b"NNNK\x00K\x00K\x00tb.", "a dtype that is no plain number"),
        (_F4 + b"(" + _WHOLE * 8 + b"tb.", "a dtype that is no plain number"),
        (_ARRAY + b"(K\x01" + _WHOLE + b"\x85" + _F4 + b"\x89U\x04abcdtb.", "whose shape is not made of whole numbers"),
        (_ARRAY + b"(K\x01K\x01\x85" + _F4 + _WHOLE + b"U\x04abcdtb.", "whose shape is not made of whole numbers"),
        (b"c_codecs\nencode\nU\x01a" + _WHOLE + b"\x86R.", "bytes that are no latin1 text"),
        (b"cbuiltins\neval\n" + _WHOLE + b"}\x86R.", "it wants text to be evaluated"),
        (b"cnumpy.core.multiarray\nscalar\n)R.", "a number without its dtype"),
        (b"cnumpy.core.multiarray\nscalar\n" + _F4 + b"U\x08abcdefgh\x86R.", "2 elements for one number"),
    ],
)
def test_pickles_that_make_no_sense(body: bytes, message: str) -> None:
    with pytest.raises(CorruptFileError, match=message):
        read_state(b"\x80\x02" + body, "f")


@pytest.mark.parametrize("data", [b"", b"\x80", b"\x80\x05N.", b"\x80\x01N.", b"(dp0\n.", b"PK\x03\x04", b"N."])
def test_other_files_are_no_pickles(data: bytes) -> None:
    with pytest.raises(CorruptFileError, match="f is no file of arrays"):
        read_state(data, "f")


@pytest.mark.parametrize("value", [[1], None, {1: np.ones(1)}, "text"])
def test_a_pickle_that_holds_no_values_by_name(value: Any) -> None:
    with pytest.raises(CorruptFileError, match=r"f holds a .*, not values by name"):
        read_arrays(pickled(value), "f")


def test_one_text_that_is_made_into_bytes_again_and_again_is_refused() -> None:
    text = b"X" + struct.pack("<I", 1 << 16) + b"a" * (1 << 16) + b"q\x000"
    again = b"c_codecs\nencode\nh\x00U\x06latin1\x86R"
    data = b"\x80\x02" + text.replace(b"q\x000", b"q\x00") + again * 5000
    assert refused_or_read(lambda: read_state(data, "f"), most=len(data) * 8)


def test_a_value_that_holds_itself_twice_over_and_over_is_not_printed() -> None:
    """Its text would take longer than the world has existed."""
    deep = b"]q\x00" + b"".join(b"](h%ch%ceq%c" % (at, at, at + 1) for at in range(200))
    for use in (b"\x85R.", b"\x8c\x01a\x93.", b"\x86b."):
        data = b"\x80\x02cnumpy\ndtype\n" + deep + use
        assert refused_or_read(lambda data=data: read_state(data, "f"), most=1 << 20)
    data = b"\x80\x02" + _ARRAY + b"(K\x01" + deep + b"\x85" + _F4 + b"\x89U\x00tb."
    assert refused_or_read(lambda: read_state(data, "f"), most=1 << 20)


def test_the_index_of_a_value_takes_no_memory() -> None:
    data = b"\x80\x02Nr\xff\xff\xff\x7fj\xff\xff\xff\x7f\x86."
    assert not refused_or_read(lambda: read_state(data, "f"), most=1 << 20)
    assert read_state(data, "f") == (None, None)


OPCODES = st.sampled_from(
    [bytes([code]) for code in b"(N\x88\x89)\x85\x86\x87t]ae}suRb\x94.0\x81"]
    + [b"K\x01", b"q\x00", b"h\x00", b"q\x01", b"h\x01", b"X\x01\x00\x00\x00a", b"U\x01b", b"C\x01c", b"\x8c\x04data"]
    + [b"J\xff\xff\xff\xff", b"\x8a\x08" + b"\xff" * 8, b"G" + bytes(8), b"\x95" + bytes(8)]
    + [_ARRAY, _F4, b"cnumpy\nndarray\n", b"c_codecs\nencode\n", b"cbuiltins\neval\n", b"cbuiltins\ntuple\n"]
    + [b"ccollections\nOrderedDict\n", b"cnumpy\ndtype\n", b"cnumpy.core.multiarray\nscalar\n", b"cos\nsystem\n"]
    + [_WHOLE, b"((" + _WHOLE, b"NNNK\x00K\x00K\x00t"]
)  # fmt: skip


@relaxed
@given(steps=st.lists(OPCODES, max_size=30), ends=st.booleans())
def test_any_steps_are_refused_or_read(steps: list[bytes], ends: bool) -> None:
    refused_or_read(lambda: read_state(b"\x80\x02" + b"".join(steps) + b"." * ends, "f"))


SMALL = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "n": {"a": [1, "x", (2.5, None)]}, "b": np.array([True])}


@relaxed
@given(data=st.binary(max_size=40) | damaged(*(pickled(SMALL, protocol) for protocol in (2, 3, 4))))
def test_damaged_pickles_are_refused_or_read(data: bytes) -> None:
    refused_or_read(lambda: read_arrays(data, "f"))


# save and load


def train(exe: fluid.Executor) -> None:
    """A net with momentum, after one step."""
    x = fluid.data("x", [None, 3])
    loss = fluid.layers.mean(fluid.layers.fc(fluid.layers.fc(x, 2, act="tanh"), 1))
    fluid.optimizer.Momentum(0.1, 0.9).minimize(loss)
    exe.run(fluid.default_startup_program())
    exe.run(feed={"x": np.ones((2, 3), np.float32)}, fetch_list=[loss])


def values() -> dict[str, Any]:
    names = [var.name for var in fluid.io.get_program_persistable_vars(fluid.default_main_program())]
    return {name: np.array(fluid.global_scope().get(name)) for name in names}


def expect_values(expected: dict[str, Any]) -> None:
    for name, array in values().items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)


def test_golden_files_of_fluid_save_are_loaded_and_saved_byte_for_byte(exe: fluid.Executor, tmp_path: Path) -> None:
    described = golden_json("files", "fluid_save", "io.json")
    train(exe)
    fluid.load(fluid.default_main_program(), str(golden("files", "fluid_save") / "ckpt"), exe)
    expect_values({name: golden_array(tensor) for name, tensor in described["values"].items()})
    fluid.save(fluid.default_main_program(), str(tmp_path / "made" / "ckpt"))
    for end in ("pdparams", "pdopt"):
        data = (tmp_path / "made" / f"ckpt.{end}").read_bytes()
        assert hashlib.sha256(data).hexdigest() == described["files"][f"ckpt.{end}"]["sha256"], end
    ours = serde.from_bytes((tmp_path / "made/ckpt.pdmodel").read_bytes())
    theirs = serde.from_bytes(golden("files", "fluid_save", "ckpt.pdmodel").read_bytes())
    assert [op.type for op in ours.root.ops] == [op.type for op in theirs.root.ops]
    assert set(ours.root.vars) == set(theirs.root.vars)
    assert ours.unknown == theirs.unknown


@pytest.mark.parametrize("ending", ["", ".pdparams", ".pdopt", ".pdmodel"])
def test_what_is_saved_is_loaded(ending: str, exe: fluid.Executor, tmp_path: Path) -> None:
    train(exe)
    before = values()
    main = fluid.default_main_program()
    fluid.io.save(main, str(tmp_path / "m"))
    exe.run(fluid.default_startup_program())
    fluid.io.load(main, f"{tmp_path}/m{ending}")
    expect_values(before)
    state = fluid.io.load_program_state(f"{tmp_path}/m{ending}")
    assert sorted(state) == sorted(before)
    exe.run(fluid.default_startup_program())
    fluid.io.set_program_state(main, state)
    expect_values(before)
    state["fc_0.w_0"][:] = 7
    expect_values(before)


def test_values_of_save_persistables_are_loaded(exe: fluid.Executor, tmp_path: Path) -> None:
    train(exe)
    before, main = values(), fluid.default_main_program()
    variables = fluid.io.get_program_persistable_vars(main)
    fluid.io.save_persistables(exe, tmp_path / "apart")
    fluid.io.save_persistables(exe, tmp_path, filename="all")
    for path, listed in ((tmp_path / "apart", None), (tmp_path / "all", variables)):
        exe.run(fluid.default_startup_program())
        fluid.load(main, path, exe, listed)
        expect_values(before)
        assert sorted(fluid.io.load_program_state(path, listed)) == sorted(before)
    few = fluid.io.load_program_state(tmp_path / "apart", variables[:2])
    assert sorted(few) == sorted(var.name for var in variables[:2])


def test_faults_of_states_are_named(exe: fluid.Executor, tmp_path: Path) -> None:
    main = fluid.default_main_program()
    train(exe)
    fluid.save(main, tmp_path / "m")
    fluid.io.save_persistables(exe, tmp_path, filename="all")
    before = values()
    (tmp_path / "other").mkdir()
    with pytest.raises(MissingFileError, match="other has a file of none of the program's variables, such as "):
        fluid.load(fluid.default_main_program(), str(tmp_path / "other"), exe)
    with pytest.raises(MissingFileError, match=r"there is no file .*/none\.pdparams, no folder"):
        fluid.load(main, tmp_path / "none")
    with pytest.raises(MissingFileError, match="no values can be loaded"):
        fluid.io.load_program_state(tmp_path / "none")
    for call in (
        lambda: fluid.load(main, tmp_path / "all", exe),
        lambda: fluid.io.load_program_state(tmp_path / "all"),
    ):
        with pytest.raises(ProgramError, match="say by var_list which variables are in it"):
            call()
    with pytest.raises(ProgramError, match="must be FOLDER/NAME"):
        fluid.save(main, f"{tmp_path}/no/")
    whole = fluid.io.load_program_state(tmp_path / "m")
    (tmp_path / "m.pdopt").unlink()
    with pytest.raises(MissingFileError, match=r"there is no file .*m\.pdopt"):
        fluid.load(main, tmp_path / "m")
    (tmp_path / "m.pdparams").write_bytes(written({"fc_0.w_0": whole["fc_0.w_0"] + 1}))
    with pytest.raises(MissingFileError, match=r"m\.pdparams has no values for fc_0\.b_0"):
        fluid.load(main, tmp_path / "m")
    expect_values(before)


def test_states_that_do_not_fit_are_refused(exe: fluid.Executor) -> None:
    train(exe)
    main, scope = fluid.default_main_program(), fluid.global_scope()
    with pytest.raises(ShapeError, match=r"the state holds shape \[2\], but variable 'fc_0\.w_0' is \[3, 2\]"):
        fluid.io.set_program_state(main, {"fc_0.w_0": np.ones(2, np.float32)})
    with pytest.raises(DtypeError, match="the state holds float64"):
        fluid.io.set_program_state(main, {"fc_0.w_0": np.ones((3, 2))})
    with pytest.raises(DtypeError, match=r"the value for variable 'fc_0\.w_0' is a list"):
        fluid.io.set_program_state(main, {"fc_0.w_0": [1]})
    with pytest.warns(UserWarning, match="not used, the program has no such variables: a, b"):
        fluid.io.set_program_state(main, {"a": np.ones(1), "b": np.ones(1)})
    scope.set("fc_0.b_0", None)
    with pytest.raises(UninitializedError, match=r"variable 'fc_0\.b_0' has no value"):
        fluid.io.set_program_state(main, {})


def test_a_table_is_kept_by_save_persistables_only(exe: fluid.Executor, tmp_path: Path) -> None:
    ids = fluid.data("ids", [None, 1], "int64")
    fluid.layers.embedding(ids, [100, 2], is_sparse=True, is_distributed=True, param_attr="emb")
    main = fluid.default_main_program()
    with pytest.raises(UninitializedError, match="'emb' has no value to save; run the startup program first"):
        fluid.save(main, tmp_path / "m")
    exe.run(fluid.default_startup_program())
    with pytest.raises(ProgramError, match="variable 'emb' holds a SparseTable, no array: use save_persistables"):
        fluid.save(main, tmp_path / "m")
    assert not list(tmp_path.iterdir())
