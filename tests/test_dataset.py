"""Datasets of MultiSlot files: the batches they give, and training from them as from the same arrays."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fluidlite as fluid
from fluidlite import dataset_run
from fluidlite.dataset import DatasetBase
from fluidlite.errors import DataError, FetchError, MissingFileError
from tests.frontend import fresh_programs
from tests.shared_data import REPO


@pytest.fixture(autouse=True)
def _own_programs() -> Iterator[None]:
    with fresh_programs(), fluid.scope_guard(fluid.Scope()):
        yield


def write(folder: Path, *texts: str) -> list[str]:
    paths = [folder / f"part-{number}" for number in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    return [str(path) for path in paths]


def make(kind: str, variables: Sequence[fluid.Variable], files: Sequence[str], batch_size: int) -> Any:
    dataset = fluid.DatasetFactory().create_dataset(kind)
    dataset.set_batch_size(batch_size)
    dataset.set_use_var(variables)
    dataset.set_filelist(files)
    dataset.set_pipe_command("cat")
    dataset.set_thread(1)
    return dataset


def shown(value: Any) -> Any:
    if isinstance(value, fluid.LoDTensor):
        return value.array.tolist(), value.recursive_sequence_lengths()
    return value.tolist()


def batches(dataset: DatasetBase, drop_last: bool = False) -> list[dict[str, Any]]:
    return [{name: shown(value) for name, value in feed.items()} for feed in dataset.feeds(drop_last)]


TWO_FILES = ("2 5 6 2 1.5 2\n1 7 2 3 4\n1 18446744073709551615 2 5 6\n", "1 9 2 7e-1 -8\n1 10 2 1 1\n")


def test_batches_are_those_of_fluid(tmp_path: Path) -> None:
    """Dense where a line fills the shape, sequences elsewhere, across files; the last batch is smaller."""
    variables = [fluid.data("w", [None, 1], "int64", lod_level=1), fluid.data("x", [None, 2])]
    dataset = make("QueueDataset", variables, write(tmp_path, *TWO_FILES), 2)
    expected = [
        {"w": ([[5], [6], [7]], [[2, 1]]), "x": [[1.5, 2.0], [3.0, 4.0]]},
        {"w": ([[-1], [9]], [[1, 1]]), "x": [[5.0, 6.0], [float(np.float32(0.7)), -8.0]]},
        {"w": ([[10]], [[1]]), "x": [[1.0, 1.0]]},
    ]
    assert batches(dataset) == expected
    assert batches(dataset, drop_last=True) == expected[:2]
    loader = fluid.io.DataLoader.from_dataset(dataset, fluid.CPUPlace(), drop_last=True)
    assert [{name: shown(value) for name, value in feed.items()} for (feed,) in loader()] == expected[:2]


def test_a_variable_without_lod_may_be_filled_several_times(tmp_path: Path) -> None:
    """As Fluid does for the 26 slots of one id variable; the lengths say how often."""
    dataset = make("QueueDataset", [fluid.data("x", [None, 2])], write(tmp_path, "4 1 2 3 4\n2 5 6\n0\n"), 3)
    assert batches(dataset) == [{"x": ([[1, 2], [3, 4], [5, 6]], [[2, 1, 0]])}]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lines=st.lists(st.tuples(st.lists(st.integers(-9, 9), max_size=4), st.integers(0, 99)), max_size=25),
    cuts=st.lists(st.integers(0, 25), max_size=3).map(sorted),
    batch_size=st.integers(1, 7),
    kind=st.sampled_from(["QueueDataset", "InMemoryDataset"]),
)
def test_every_line_is_in_one_batch_in_order(
    tmp_path: Path, lines: Any, cuts: list[int], batch_size: int, kind: str
) -> None:
    texts = [f"{len(ids)} {' '.join(map(str, ids))} 1 {number}\n" for ids, number in lines]
    bounds = [0, *cuts, 25]
    parts = ["".join(texts[a:b]) for a, b in itertools.pairwise(bounds)]
    with fresh_programs():
        variables = [fluid.data("ids", [None, 1], "int64", lod_level=1), fluid.data("number", [None, 1])]
        dataset = make(kind, variables, write(tmp_path, *parts), batch_size)
    if kind == "InMemoryDataset":
        dataset.load_into_memory()
        assert dataset.get_memory_data_size() == dataset.get_shuffle_data_size() == len(lines)
    feeds = batches(dataset)
    groups = [lines[at : at + batch_size] for at in range(0, len(lines), batch_size)]
    assert feeds == [
        {
            "ids": ([[each] for ids, _ in group for each in ids], [[len(ids) for ids, _ in group]]),
            "number": [[float(number)] for _, number in group],
        }
        for group in groups
    ]


def test_a_shuffle_keeps_lines_whole_and_follows_the_seed(tmp_path: Path) -> None:
    text = "".join(f"{n % 3} {f'{n} ' * (n % 3)}1 {n}\n" for n in range(50))
    variables = [fluid.data("ids", [None, 1], "int64", lod_level=1), fluid.data("number", [None, 1], "int64")]
    dataset = make("InMemoryDataset", variables, write(tmp_path, text), 50)
    dataset.load_into_memory()

    def order() -> list[int]:
        (feed,) = batches(dataset)
        numbers = [number for (number,) in feed["number"]]
        assert feed["ids"] == ([[n] for n in numbers for _ in range(n % 3)], [[n % 3 for n in numbers]])
        return numbers

    assert order() == list(range(50))
    orders = []
    for seed in (1, 1, 2):
        np.random.seed(seed)  # noqa: NPY002 (as scripts do)
        dataset.local_shuffle()
        orders.append(order())
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == list(range(50))
    dataset.global_shuffle()
    assert sorted(order()) == list(range(50))


def test_memory_is_loaded_and_released(tmp_path: Path) -> None:
    dataset = make("InMemoryDataset", [fluid.data("x", [None, 1])], write(tmp_path, "1 1\n"), 1)
    with pytest.raises(DataError, match="call load_into_memory first"):
        batches(dataset)
    dataset.load_into_memory()
    assert len(batches(dataset)) == 1
    dataset.release_memory()
    assert dataset.get_memory_data_size() == 0
    with pytest.raises(DataError, match="call load_into_memory first"):
        dataset.local_shuffle()


def test_wrong_settings_are_refused() -> None:
    factory = fluid.DatasetFactory()
    with pytest.raises(DataError, match="no dataset 'Foo', but QueueDataset and InMemoryDataset"):
        factory.create_dataset("Foo")
    dataset = factory.create_dataset()
    for shuffle in (dataset.local_shuffle, dataset.global_shuffle):
        with pytest.raises(DataError, match="use an InMemoryDataset"):
            shuffle()
    with pytest.raises(DataError, match="lacks what set_filelist says"):
        batches(dataset)
    dataset.set_filelist(["file"])
    with pytest.raises(DataError, match="lacks what set_use_var says"):
        batches(dataset)
    with pytest.raises(DataError, match="list of files"):
        dataset.set_filelist("file")
    with pytest.raises(DataError, match="batch_size must be positive"):
        dataset.set_batch_size(0)
    with pytest.raises(DataError, match="thread_num must be positive"):
        dataset.set_thread(0)
    with pytest.raises(DataError, match="slot 'x' is float64"):
        dataset.set_use_var([fluid.data("x", [None, 1], "float64")])
    with pytest.raises(DataError, match="takes a list of variables, not 'x' in it"):
        dataset.set_use_var(["x"])  # type: ignore[list-item]


# ---- training


def click_model() -> tuple[fluid.Variable, fluid.Variable, list[fluid.Variable]]:
    """(loss, prediction, [ids, numbers, label])"""
    ids = fluid.data("ids", [None, 1], "int64", lod_level=1)
    numbers, label = fluid.data("numbers", [None, 3]), fluid.data("label", [None, 1])
    rows = fluid.layers.embedding(ids, [100, 4], is_sparse=True, param_attr=fluid.ParamAttr("table"))
    hidden = fluid.layers.concat([fluid.layers.sequence_pool(rows, "sum"), numbers], axis=1)
    logit = fluid.layers.fc(hidden, 1, param_attr=fluid.ParamAttr("weight"))
    loss = fluid.layers.mean(fluid.layers.sigmoid_cross_entropy_with_logits(logit, label))
    return loss, logit, [ids, numbers, label]


def click_lines(count: int) -> tuple[str, list[tuple[list[int], list[float], float]]]:
    random = np.random.default_rng(0)
    rows = [
        (random.integers(0, 100, random.integers(1, 5)).tolist(), random.normal(size=3).tolist(), float(n % 2))
        for n in range(count)
    ]
    line = "{} {} 3 {} 1 {}\n"
    text = "".join(
        line.format(len(ids), " ".join(map(str, ids)), " ".join(map(repr, numbers)), label)
        for ids, numbers, label in rows
    )
    return text, rows


def test_training_from_a_dataset_is_training_from_feeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, rows = click_lines(22)
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        loss, _, variables = click_model()
        fluid.optimizer.SGD(0.5).minimize(loss)
        main, startup = fluid.default_main_program(), fluid.default_startup_program()
    exe = fluid.Executor()
    weights, losses = [], []
    with fluid.scope_guard(fluid.Scope()):
        exe.run(startup)
        feeder = fluid.DataFeeder(variables, program=main)
        for at in range(0, 22, 4):
            losses += exe.run(main, feed=feeder.feed(rows[at : at + 4]), fetch_list=[loss])
        weights.append(fluid.global_scope().get("weight"))
    dataset = make("QueueDataset", variables, write(tmp_path, text), 4)
    scope = fluid.Scope()
    exe.run(startup, scope=scope)
    printed = exe.train_from_dataset(
        main, dataset, scope, fetch_list=[loss, variables[0]], fetch_info=["loss is", "ids"], print_period=2
    )
    assert printed is None
    np.testing.assert_array_equal(scope.get("weight"), weights[0])
    lines = capsys.readouterr().out.splitlines()
    shown_losses = [line for line in lines if "loss is" in line]
    assert shown_losses == [f"batch {n} loss is: {losses[n - 1]}" for n in (2, 4, 6)]
    lengths = [[len(ids) for ids, _, _ in rows[at : at + 4]] for at in (4, 12, 20)]
    assert [line.split(" in sequences of ")[1] for line in lines if "sequences" in line] == [
        f"[{one}]" for one in lengths
    ]


def test_inference_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, _ = click_lines(6)
    loss, logit, variables = click_model()
    fluid.optimizer.SGD(0.5).minimize(loss)
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    before = fluid.global_scope().get("weight").copy()
    dataset = make("QueueDataset", variables, write(tmp_path, text), 3)
    exe.infer_from_dataset(dataset=dataset, fetch_list=[logit], fetch_info=["logit"], print_period=1)
    np.testing.assert_array_equal(fluid.global_scope().get("weight"), before)
    assert capsys.readouterr().out.count("logit: [[") == 2
    exe.train_from_dataset(dataset=dataset)
    assert (fluid.global_scope().get("weight") != before).any()


def test_a_bad_line_ends_the_training_with_its_place(tmp_path: Path) -> None:
    text, _ = click_lines(6)
    files = write(tmp_path, text, text.replace("1 1.0\n", "1 one\n"))
    loss, _, variables = click_model()
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    with pytest.raises(DataError, match=r"part-1, line 2, slot 'label': 'one' is no number"):
        exe.train_from_dataset(dataset=make("QueueDataset", variables, files, 2), fetch_list=[loss])
    with pytest.raises(MissingFileError, match="nowhere"):
        exe.train_from_dataset(dataset=make("QueueDataset", variables, ["nowhere"], 2))
    with pytest.raises(DataError, match="a dataset is needed"):
        exe.train_from_dataset()
    with pytest.raises(FetchError, match="2 texts for 1 variables"):
        exe.train_from_dataset(
            dataset=make("QueueDataset", variables, files, 2), fetch_list=[loss], fetch_info=["a", "b"]
        )


def test_an_error_in_a_step_stops_the_reading(tmp_path: Path) -> None:
    (path,) = write(tmp_path, "1 1\n" * 100_000)
    dataset = make("QueueDataset", [fluid.data("x", [None, 1])], [path], 1)
    threads = set(threading.enumerate())

    class Failing:
        def run(self, program: Any, feed: Any, fetch_list: Any, **more: Any) -> list[Any]:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        dataset_run.run_dataset(Failing(), None, dataset)
    assert not [
        thread for thread in threading.enumerate() if thread not in threads and thread.name == "fluidlite reader"
    ]


def test_who_looks_ahead_is_told_of_the_next_batch(tmp_path: Path) -> None:
    """Each at most once, before the batch before it is run, and nothing behind the last."""
    (path,) = write(tmp_path, "".join(f"1 {n}\n" for n in range(30)))
    dataset = make("QueueDataset", [fluid.data("x", [None, 1])], [path], 1)
    events: list[tuple[str, float]] = []

    class Recording:
        def run(self, program: Any, feed: Any, fetch_list: Any, **more: Any) -> list[Any]:
            events.append(("run", float(feed["x"][0, 0])))
            return []

    def look_ahead(program: fluid.Program, feed: Any, scope: Any) -> None:
        assert program is fluid.default_main_program()
        events.append(("ahead", float(feed["x"][0, 0])))

    dataset_run.run_dataset(Recording(), None, dataset, look_ahead=look_ahead)
    assert [number for what, number in events if what == "run"] == list(range(30))
    told = [number for what, number in events if what == "ahead"]
    assert len(set(told)) == len(told)
    assert all(events[events.index(("ahead", number)) + 1] == ("run", number - 1) for number in told)


def test_rows_are_asked_for_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, _ = click_lines(6)
    _, _, variables = click_model()
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    asked: list[Any] = []
    monkeypatch.setattr(exe, "prefetch", lambda program, feed, scope: asked.append((program, sorted(feed), scope)))
    dataset = make("InMemoryDataset", variables, write(tmp_path, text), 1)
    dataset.load_into_memory()
    exe.train_from_dataset(dataset=dataset)
    assert asked == []
    exe.train_from_dataset(dataset=dataset, look_ahead=True)
    assert len(asked) <= 5
    assert all(each == (fluid.default_main_program(), ["ids", "label", "numbers"], None) for each in asked)


def test_the_example_in_the_docs_learns(tmp_path: Path) -> None:
    code = (REPO / "docs" / "data.md").read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    losses = [float(loss) for loss in re.findall(r"epoch \d loss: \[?(\S+?)\]?\n", done.stdout)]
    assert len(losses) == 5
    assert losses[-1] < losses[0]
