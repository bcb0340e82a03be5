"""Readers in programs: the ops and names of Fluid 1.8.5, batches by `py_reader`, and programs read from files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.core import reader_desc, text, text_parser
from fluidlite.core.reader_desc import ReaderItem
from fluidlite.errors import EOFException, FeedError, ProgramError, ReaderError, ShapeError, UninitializedError
from fluidlite.framework import NameGenerator, readers
from tests.frontend import fresh_programs, lines, op_lines

#: how Fluid 1.8.5 describes the items of `a_reader` in the program
ITEMS = "0x122c2a2a0a130a0f080510ffffffffffffffffff01100310000a130a0f080310ffffffffffffffffff0110011001"


@pytest.fixture(autouse=True)
def _own_programs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(readers, "names", NameGenerator())
    with fresh_programs(), fluid.scope_guard(fluid.Scope()):
        yield


def a_reader(name: str | None = None, buffered: bool = True) -> Any:
    return fluid.layers.py_reader(8, [(-1, 3), (-1, 1)], ["float32", "int64"], [0, 1], name, buffered)


def batches() -> Iterator[list[tuple[list[float], list[int]]]]:
    for first in (1, 5):
        yield [([first] * 3, [first, 2]), ([0.5] * 3, [3])]


def sums_of(x: fluid.Variable, ids: fluid.Variable) -> list[fluid.Variable]:
    pooled = fluid.layers.sequence_pool(fluid.layers.cast(ids, "float32"), "sum")
    return [fluid.layers.reduce_sum(x), pooled]


def passed(
    executor: fluid.Executor, fetches: list[Any], program: fluid.Program | None = None
) -> list[list[list[float]]]:
    """What the runs of one pass fetch."""
    found = []
    while True:
        try:
            found.append([value.ravel().tolist() for value in executor.run(program, fetch_list=fetches)])
        except EOFException:
            return found


EXPECTED = [[[4.5], [3.0, 3.0]], [[16.5], [7.0, 3.0]]]


# ---- programs


def test_py_reader_is_the_program_of_fluid() -> None:
    fluid.layers.read_file(a_reader("train"))
    assert lines(fluid.default_main_program()) == [
        "create_double_buffer_reader(UnderlyingReader=train_reader) -> Out=train_double_buffer",
        "read(Reader=train_double_buffer) -> Out=read_file_0.tmp_0 read_file_0.tmp_1",
    ]
    (created,) = op_lines(fluid.default_startup_program())
    assert "create_py_reader" in created
    assert "shape_concat=[-1, 3, -1, 1]" in created
    block = fluid.default_main_program().global_block()
    assert list(block.vars) == ["train_reader", "train_double_buffer", "read_file_0.tmp_0", "read_file_0.tmp_1"]
    for name in ("train_reader", "train_double_buffer"):
        assert text.show_var(block.var(name).desc) == f"var {name}: reader persistable stop_gradient unknown={ITEMS}"
    shown = [text.show_var(block.var(f"read_file_0.tmp_{index}").desc) for index in range(2)]
    assert shown == [
        "var read_file_0.tmp_0: [-1, 3] stop_gradient",
        "var read_file_0.tmp_1: int64[-1, 1] lod=1 stop_gradient",
    ]
    startup = fluid.default_startup_program().global_block()
    assert text.show_var(startup.var("train_reader").desc) == f"var train_reader: reader persistable unknown={ITEMS}"


def test_automatic_names_of_readers() -> None:
    reader = fluid.layers.double_buffer(a_reader(buffered=False), place=fluid.CPUPlace())
    assert reader.name == "create_double_buffer_reader_0"
    assert a_reader().name == "double_buffer_1"  # a name was kept for the first, too
    x, y = fluid.data("x", [None, 3]), fluid.layers.data("y", [1], dtype="int64", lod_level=1)
    loaders = [
        fluid.io.DataLoader.from_generator([x, y], 8, iterable=False),
        fluid.io.PyReader([x, y], 8, use_double_buffer=False, iterable=False),
    ]
    assert [loader.reader for loader in loaders] == ["create_py_reader_0", "create_py_reader_1"]
    ops = fluid.default_main_program().global_block().ops
    assert [op.type for op in ops][-5:] == [
        *("create_py_reader", "create_double_buffer_reader", "read"),
        *("create_py_reader", "read"),
    ]
    assert (ops[-5].input("blocking_queue"), ops[-4].output("Out")) == (
        ["lod_tensor_blocking_queue_0"],
        ["double_buffer_0"],
    )
    assert [ops[-5].attr(name) for name in ("ranks", "lod_levels", "dtypes", "need_check_feed")] == [
        *([2, 2], [0, 1], [5, 3]),
        [1, 0],
    ]
    assert ops[-1].output("Out") == ["x", "y"]


def test_texts_and_files_keep_readers() -> None:
    x, ids = fluid.layers.read_file(a_reader("r"))
    fetches = sums_of(x, ids)
    program = fluid.default_main_program()
    again = fluid.Program.parse_from_string(program.serialize_to_string())
    assert again.serialize_to_string() == program.serialize_to_string()
    assert text_parser.parse(text.show(program.desc)).root.vars == program.desc.root.vars
    feed = {x.name: np.ones([1, 3], np.float32), ids.name: fluid.create_lod_tensor([[7]], [[1]])}
    values = fluid.Executor().run(again, feed, [var.name for var in fetches])
    assert [value.ravel().tolist() for value in values] == [[3.0], [7.0]]
    with pytest.raises(UninitializedError, match=r"'read_file_0\.tmp_[01]' of op .* was never written; .*feed it"):
        fluid.Executor().run(again, fetch_list=[fetches[0].name])
    fluid.Executor().run(fluid.Program.parse_from_string(fluid.default_startup_program().serialize_to_string()))


def test_descriptions_of_readers() -> None:
    items = [ReaderItem("float32", (-1, 3), 0), ReaderItem("int64", (-1, 1), 1)]
    assert reader_desc.encode(items).hex() == ITEMS[2:]
    assert reader_desc.decode(reader_desc.encode(items)) == items
    assert reader_desc.decode(b"") == []


def test_trainers_keep_their_readers() -> None:
    x, ids = fluid.layers.read_file(a_reader("r"))
    pooled = fluid.layers.sequence_pool(fluid.layers.embedding(ids, [10, 2], is_sparse=True), "sum")
    loss = fluid.layers.mean(fluid.layers.fc([x, pooled], 1))
    fluid.optimizer.SGD(0.1).minimize(loss)
    transpiler = fluid.DistributeTranspiler()
    transpiler.transpile(0, pservers="127.0.0.1:6174,127.0.0.1:6175", trainers=1)
    trainer = transpiler.get_trainer_program()
    assert [op.type for op in trainer.global_block().ops][:2] == ["create_double_buffer_reader", "read"]
    assert [loader.reader for loader in trainer.loaders] == ["r_reader"]
    main, startup = transpiler.get_pserver_programs("127.0.0.1:6174")
    assert not [op.type for program in (main, startup) for op in program.global_block().ops if "reader" in op.type]


# ---- runs


@pytest.mark.parametrize("buffered", [False, True])
def test_batches_of_samples(buffered: bool) -> None:
    reader = a_reader("r", buffered)
    fetches = sums_of(*fluid.layers.read_file(reader))
    reader.decorate_paddle_reader(batches)
    executor = fluid.Executor()
    executor.run(fluid.default_startup_program())
    with pytest.raises(ReaderError, match=r"feeds item 0, item 1 is not started: call its start\(\)"):
        executor.run(fetch_list=fetches)
    for _ in range(2):
        reader.start()
        assert passed(executor, fetches) == EXPECTED
        reader.reset()
    reader.start()
    test_program = fluid.default_main_program().clone(for_test=True)
    assert passed(executor, [var.name for var in fetches], test_program) == EXPECTED
    reader.reset()


def test_batches_of_tensors_and_a_reader_like_data() -> None:
    x, ids = fluid.data("x", [None, 3]), fluid.data("ids", [None, 1], "int64", lod_level=1)
    reader = fluid.layers.create_py_reader_by_data(8, [x, ids], name="by_data")
    fetches = sums_of(*fluid.layers.read_file(fluid.layers.double_buffer(reader, name="again")))

    def tensors() -> Iterator[list[Any]]:
        yield [np.ones([2, 3], np.float32), fluid.create_lod_tensor([[1, 2], [3]], [[2, 1]])]

    reader.decorate_tensor_provider(tensors)
    reader.start()
    assert passed(fluid.Executor(), fetches) == [[[6.0], [3.0, 3.0]]]
    reader.reset()


def test_what_is_fed_comes_before_readers() -> None:
    reader = a_reader("r")
    x, ids = fluid.layers.read_file(reader)
    fetches = sums_of(x, ids)
    feed = {x.name: np.zeros([1, 3], np.float32), ids.name: fluid.create_lod_tensor([[7]], [[1]])}
    assert fluid.Executor().run(feed=feed, fetch_list=fetches)[1].tolist() == [[7.0]]


def test_a_batch_that_does_not_fit_says_which_item() -> None:
    reader = a_reader("r")
    fetches = sums_of(*fluid.layers.read_file(reader))
    reader.decorate_batch_generator(lambda: iter([[np.ones([1, 4], np.float32), np.ones([1, 1], np.int64)]]))
    reader.start()
    with pytest.raises(FeedError, match=r"does not fit variable 'item 0'.*must be \[-1, 3\]"):
        fluid.Executor().run(fetch_list=fetches)
    reader.reset()


def test_one_item_is_one_variable() -> None:
    reader = fluid.layers.py_reader(1, [[-1, 2]], ["float32"])
    x = fluid.layers.read_file(reader)
    assert isinstance(x, fluid.Variable)
    reader.decorate_sample_list_generator(lambda: iter([[([1.0, 2.0],)]]))
    reader.start()
    assert passed(fluid.Executor(), [x]) == [[[1.0, 2.0]]]


def test_errors_of_readers() -> None:
    with pytest.raises(ProgramError, match="1 shapes, 2 dtypes and 1 lod_levels"):
        fluid.layers.py_reader(1, [[-1, 2]], ["float32", "int64"])
    with pytest.raises(ReaderError, match="capacity of one or more batches, not 0"):
        fluid.layers.py_reader(0, [[-1, 2]], ["float32"])
    x = fluid.data("x", [None, 3])
    with pytest.raises(ProgramError, match="read_file needs a reader, not 'x'"):
        fluid.layers.read_file(x)
    block = fluid.default_main_program().global_block()
    reader = a_reader("r")
    with pytest.raises(ProgramError, match="its reader gives 2 items, not 1"):
        block.append_op("read", {"Reader": [reader]}, {"Out": [x]})
    attrs = {"shape_concat": [1, 2], "ranks": [1], "lod_levels": [0], "dtypes": [5]}
    with pytest.raises(ShapeError, match="do not fit each other"):
        block.append_op("create_py_reader", {"blocking_queue": ["q"]}, {"Out": [reader]}, attrs)


def test_infer_out_can_be_off() -> None:
    block = fluid.default_main_program().global_block()
    x = block.create_var("x", "float32", [5])
    block.append_op("read", {"Reader": [a_reader("r")]}, {"Out": [x]}, {"infer_out": False})
    assert x.shape == (5,)


def test_a_variable_loaded_from_a_file(tmp_path: Any) -> None:
    x = fluid.layers.fill_constant([2], "float32", 3.0)
    fluid.default_main_program().global_block().append_op("save", {"X": x}, attrs={"file_path": str(tmp_path / "x")})
    fluid.Executor().run()
    with fluid.program_guard(fluid.Program()):
        out = fluid.layers.create_tensor("float32")
        fluid.layers.load(out, str(tmp_path / "x"))
        assert fluid.Executor().run(fetch_list=[out])[0].tolist() == [3.0, 3.0]
