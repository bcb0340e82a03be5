"""Data for scripts: generators of MultiSlot text, descriptions of feeds, all setters of datasets, HDFS, fetch handlers."""

from __future__ import annotations

import io
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.compat.async_executor import AsyncExecutor
from fluidlite.compat.contrib_files import HDFSClient, multi_download, multi_upload
from fluidlite.compat.data_feed_desc import DataFeedDesc
from fluidlite.compat.data_generator import DataGenerator, MultiSlotDataGenerator, MultiSlotStringDataGenerator
from fluidlite.dataset import DatasetBase, InMemoryDataset, QueueDataset
from fluidlite.errors import DataError, MissingFileError, NotSupported
from tests.frontend import fresh_programs


@pytest.fixture(autouse=True)
def _own_programs() -> Iterator[None]:
    with fresh_programs(), fluid.scope_guard(fluid.Scope()):
        yield


# ---- data generators; what they write is what those of Fluid 1.8.5 write, byte for byte


class Numbers(MultiSlotDataGenerator):
    def generate_sample(self, line: str | None) -> Callable[[], Iterator[Any]]:
        def samples() -> Iterator[Any]:
            for i in range(3):
                yield [("w", [i, 2**40, -1]), ("f", [0.1 * i, 1e-7, 3.0]), ("n", [np.float64(1) / 3, True])]
                yield None

        return samples


class Words(MultiSlotStringDataGenerator):
    def generate_sample(self, line: str | None) -> Callable[[], Iterator[Any]]:
        return lambda: iter([[("w", (line or "").split()), ("l", ["1"])]])

    def generate_batch(self, samples: list[Any]) -> Callable[[], Iterator[Any]]:
        return lambda: iter(samples[::-1])


def test_numbers_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    generator = Numbers()
    generator.set_batch(2)
    generator.run_from_memory()
    assert capsys.readouterr().out == (
        "3 0 1099511627776 -1 3 0.0 1e-07 3.0 2 0.3333333333333333 True\n"
        "3 1 1099511627776 -1 3 0.1 1e-07 3.0 2 0.3333333333333333 True\n"
        "3 2 1099511627776 -1 3 0.2 1e-07 3.0 2 0.3333333333333333 True\n"
    )
    assert generator._proto_info == [("w", "uint64"), ("f", "float"), ("n", "float")]


def test_words_batch_by_batch(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("a b c\n08 17\nx\n"))
    generator = Words()
    generator.set_batch(2)
    generator.run_from_stdin()
    assert capsys.readouterr().out == "2 08 17 1 1\n3 a b c 1 1\n1 x 1 1\n"


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (["text"], "a sample must be a list"),
        ([[("w", [1])], [("w", [1]), ("l", [1])]], "a sample has 2 slots, the first one 1"),
        ([[("w", [1])], [("l", [1])]], "slot 0 of a sample is 'l', of the first one 'w'"),
        ([[(1, [1])]], "name of a slot must be text, not int"),
        ([[("w", (1, 2))]], "'w': its values must be in a list, not tuple"),
        ([[("w", [])]], "'w' has no value"),
        ([[("w", [1, "2"])]], "'w': values must be ints or floats, not str"),
    ],
)
def test_samples_that_are_none(samples: list[Any], message: str) -> None:
    class Given(MultiSlotDataGenerator):
        def generate_sample(self, line: str | None) -> Callable[[], Iterator[Any]]:
            return lambda: iter(samples)

    with pytest.raises(ValueError, match=message):
        Given().run_from_memory()


def test_generators_must_be_defined() -> None:
    with pytest.raises(NotImplementedError, match="define generate_sample"):
        MultiSlotDataGenerator().run_from_memory()
    with pytest.raises(NotImplementedError, match="derive from MultiSlotDataGenerator"):
        DataGenerator()._gen_str([])
    generator = MultiSlotDataGenerator()
    generator._set_line_limit(5)
    for limit in (0, "a"):
        with pytest.raises(DataError, match="line_limit must be"):
            generator._set_line_limit(limit)  # type: ignore[arg-type]


# ---- descriptions of feeds

DESC = """name: "MultiSlotDataFeed"  # as Fluid's examples have it
batch_size: 2
multi_slot_desc {
    slots { name: "words" type: "uint64" is_dense: false is_used: true }
    slots {
         name: 'label'
         type: "uint64"
    }
}
"""


def described(tmp_path: Path, text: str = DESC) -> DataFeedDesc:
    path = tmp_path / "data.prototxt"
    path.write_text(text, encoding="utf-8")
    return DataFeedDesc(path)


def test_descriptions_of_feeds(tmp_path: Path) -> None:
    desc = described(tmp_path)
    desc.set_batch_size(128)
    desc.set_dense_slots(["label"])
    desc.set_use_slots(["label"])
    assert (desc.batch_size, desc.pipe_command) == (128, "cat")
    # as Fluid 1.8.5 prints it
    assert desc.desc() == (
        'name: "MultiSlotDataFeed"\nbatch_size: 128\nmulti_slot_desc {\n'
        '  slots {\n    name: "words"\n    type: "uint64"\n    is_dense: false\n    is_used: true\n  }\n'
        '  slots {\n    name: "label"\n    type: "uint64"\n    is_dense: true\n    is_used: true\n  }\n}\n'
        'pipe_command: "cat"\n'
    )
    assert described(tmp_path, desc.desc()).desc() == desc.desc()
    with pytest.raises(DataError, match="no slot 'other'; there are words, label"):
        desc.set_use_slots(["other"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('name "x"', "'name' is followed by '\"x\"', not by ':'"),
        ("multi_slot_desc {", "it ends inside a message"),
        ("name: [1]", "has no value"),
        ("batch_size: many", "'batch_size' has no value 'many'"),
        (": 1", "':' where a field is expected"),
        ('name: "open', "line 1 is not protobuf's text form"),
    ],
)
def test_descriptions_that_are_none(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        described(tmp_path, text)


def test_training_by_a_description(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "data").write_text("2 1 2 1 1\n1 3 1 0\n1 4 1 1\n", encoding="utf-8")
    words = fluid.data("words", [None, 1], "int64", lod_level=1)
    label = fluid.data("label", [None, 1], "int64")
    pooled = fluid.layers.sequence_pool(fluid.layers.cast(words, "float32"), "sum")
    total = fluid.layers.reduce_sum(fluid.layers.concat([pooled, fluid.layers.cast(label, "float32")], axis=1))
    executor = AsyncExecutor(fluid.CPUPlace())
    executor.run_startup_program()
    desc = described(tmp_path)
    with pytest.raises(DataError, match="slots label are not used"):
        executor.run(fluid.default_main_program(), desc, [str(tmp_path / "data")], 1, [total])
    desc.set_use_slots(["label"])
    executor.run(fluid.default_main_program(), desc, [str(tmp_path / "data")], 2, [total], debug=True)
    assert capsys.readouterr().out.splitlines() == [
        "batch 1 reduce_sum_0.tmp_0: [7.]",
        "batch 2 reduce_sum_0.tmp_0: [5.]",
    ]


# ---- datasets


def loaded(tmp_path: Path, lines: int = 6) -> InMemoryDataset:
    (tmp_path / "data").write_text("".join(f"1 {i} 2 {i} {i}\n" for i in range(lines)), encoding="utf-8")
    dataset = InMemoryDataset()
    dataset.set_use_var([fluid.data("a", [None, 1], "int64", lod_level=1), fluid.data("b", [None, 2])])
    dataset.set_batch_size(lines)
    dataset.set_filelist([tmp_path / "data"])
    dataset.load_into_memory()
    return dataset


def columns(dataset: DatasetBase) -> tuple[list[int], list[float]]:
    (feed,) = list(dataset.feeds())
    return feed["a"].array.ravel().tolist(), np.asarray(feed["b"])[:, 0].tolist()


def test_what_datasets_say_of_themselves() -> None:
    slots = [fluid.data("a", [None, 1], "int64", lod_level=1), fluid.data("b", [None, 2])]
    for dataset, kind in ((QueueDataset(), "MultiSlotDataFeed"), (InMemoryDataset(), "MultiSlotInMemoryDataFeed")):
        assert dataset.desc() == f'name: "{kind}"\nbatch_size: 1\npipe_command: "cat"\n'
        dataset.set_use_var(slots)
        # as Fluid 1.8.5 prints it
        assert dataset.desc() == (
            f'name: "{kind}"\nbatch_size: 1\nmulti_slot_desc {{\n'
            '  slots {\n    name: "a"\n    type: "uint64"\n    is_used: true\n  }\n'
            '  slots {\n    name: "b"\n    type: "float"\n    is_dense: true\n    is_used: true\n    shape: -1\n    shape: 2\n'
            '  }\n}\npipe_command: "cat"\n'
        )


def test_slots_are_shuffled_for_their_worth(tmp_path: Path) -> None:
    dataset = loaded(tmp_path)
    dataset.slots_shuffle(["a"])
    assert columns(dataset) == ([0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5])
    dataset.set_fea_eval(1000)
    np.random.seed(1)  # noqa: NPY002 (what scripts seed)
    dataset.slots_shuffle(["a"])
    first, second = columns(dataset)
    assert first != sorted(first) == second == [0, 1, 2, 3, 4, 5]
    with pytest.raises(DataError, match="no slot 'c'; there are a, b"):
        dataset.slots_shuffle(["c"])
    with pytest.raises(DataError, match="cannot be shuffled"):
        QueueDataset().slots_shuffle(["a"])
    empty = InMemoryDataset()
    empty.set_fea_eval(1)
    with pytest.raises(DataError, match="call load_into_memory first"):
        empty.slots_shuffle([])


def test_loading_ahead(tmp_path: Path) -> None:
    dataset = loaded(tmp_path)
    dataset.release_memory()
    with pytest.raises(DataError, match="nothing is being loaded"):
        InMemoryDataset().wait_preload_done()
    dataset.preload_into_memory(thread_num=2)
    dataset.wait_preload_done()
    assert (dataset.get_memory_data_size(), dataset.threads) == (6, 2)
    dataset.set_filelist([tmp_path / "missing"])
    dataset.preload_into_memory()
    with pytest.raises(MissingFileError, match="missing"):
        dataset.wait_preload_done()


def test_trainers_shuffle_their_own_lines(tmp_path: Path) -> None:
    dataset = loaded(tmp_path)
    with pytest.warns(UserWarning, match="trainers do not exchange lines"):
        dataset.global_shuffle(fleet=object(), thread_num=4)
    assert sorted(columns(dataset)[0]) == [0, 1, 2, 3, 4, 5]


def test_settings_without_effect_are_accepted(tmp_path: Path) -> None:
    dataset = loaded(tmp_path)
    dataset.set_hdfs_config("hdfs://host:1", "user,password")
    dataset.set_download_cmd("cat")
    dataset.set_queue_num(4)
    dataset.set_fleet_send_batch_size(800)
    dataset.set_fleet_send_sleep_seconds(2)
    dataset.set_generate_unique_feasigns(True, 1)
    dataset.set_merge_by_sid(False)
    dataset.set_feed_type("MultiSlotInMemoryDataFeed")
    for method in (
        dataset.set_parse_ins_id,
        dataset.set_parse_content,
        dataset.set_parse_logkey,
        dataset.set_enable_pv_merge,
    ):
        method(False)
    assert columns(dataset)[0] == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda d: d.set_rank_offset("r"), "set_rank_offset: lines are not grouped by page view"),
        (lambda d: d.set_pv_batch_size(1), "set_pv_batch_size"),
        (lambda d: d.set_parse_ins_id(True), "set_parse_ins_id: lines have no id in front"),
        (lambda d: d.set_parse_content(True), "set_parse_content"),
        (lambda d: d.set_parse_logkey(True), "set_parse_logkey"),
        (lambda d: d.set_enable_pv_merge(True), "set_enable_pv_merge"),
        (lambda d: d.set_merge_by_lineid(2), "set_merge_by_lineid"),
        (lambda d: d.set_feed_type("PaddleBoxDataFeed"), "'PaddleBoxDataFeed'"),
        (lambda d: d.set_filelist(["hdfs:/data/part-0"]), "remote files"),
    ],
)
def test_settings_that_change_the_data_are_refused(call: Callable[[InMemoryDataset], None], message: str) -> None:
    with pytest.raises(NotSupported, match=message):
        call(InMemoryDataset())


def test_fetch_handlers_are_called_by_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dataset = loaded(tmp_path)
    dataset.set_batch_size(2)
    block = fluid.default_main_program().global_block()
    total = fluid.layers.reduce_sum(block.var("b"))
    ids = fluid.layers.scale(block.var("a"), 2)
    seen: list[tuple[float, int]] = []

    class Handler(fluid.FetchHandler):
        def handler(self, res_dict: dict[str, Any]) -> None:
            seen.append((res_dict["total"].item(), len(res_dict["ids"].lod[0])))

    executor = fluid.Executor()
    executor.train_from_dataset(dataset=dataset, fetch_handler=Handler({"total": total, "ids": ids}, period_secs=0))
    assert seen == [(2.0, 3), (10.0, 3), (18.0, 3)]
    executor.infer_from_dataset(dataset=dataset, fetch_handler=Handler({"total": total}, period_secs=3600))
    assert len(seen) == 3
    executor.train_from_dataset(
        dataset=dataset, fetch_handler=fluid.FetchHandler({"total": total}, 0), fetch_list=[total], print_period=3
    )
    assert capsys.readouterr().out.splitlines() == [
        *("total: [2.]", "total: [10.]"),
        *("batch 3 reduce_sum_0.tmp_0: [18.]", "total: [18.]"),
    ]
    with pytest.raises(DataError, match="needs var_dict"):
        fluid.FetchHandler()
    fluid.FetchHandler.help()
    assert "def handler(self, res_dict)" in capsys.readouterr().out


# ---- HDFS, by a stand-in for the command of hadoop

HADOOP = """#!/bin/sh
shift
case "$1" in -D*) shift;; esac
command="$1"; shift
case "$command" in
-test) [ "$1" "$2" ];;
-mkdir) mkdir -p "$2";;
-put) [ "$1" = -f ] && shift; cp "$1" "$2";;
-get) cp "$1" "$2";;
-ls)
    [ "$1" = -R ] && shift
    find "$1" -mindepth 1 | sort | while read path; do
        [ -d "$path" ] && kind=d || kind=-
        echo "${kind}rw-r--r-- 1 user group 5 2020-01-01 10:00 $path"
    done;;
*) exit 1;;
esac
"""


@pytest.fixture
def client(tmp_path: Path) -> HDFSClient:
    command = tmp_path / "hadoop" / "bin" / "hadoop"
    command.parent.mkdir(parents=True)
    command.write_text(HADOOP, encoding="utf-8")
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    return HDFSClient(str(tmp_path / "hadoop"), {"fs.default.name": "hdfs://host:1"})


def test_files_come_and_go(client: HDFSClient, tmp_path: Path) -> None:
    remote, local = tmp_path / "remote", tmp_path / "local"
    (remote / "day").mkdir(parents=True)
    for name in ("a", "b", "day/c"):
        (remote / name).write_text(name, encoding="utf-8")
    assert client.lsr(str(remote)) == [str(remote / name) for name in ("a", "b", "day/c")]
    assert client.lsr(str(remote), only_file=False)[2] == str(remote / "day")
    assert client.download(str(remote / "a"), str(local))
    assert not client.download(str(remote / "a"), str(local))
    assert client.download(str(remote / "a"), str(local), overwrite=True)
    assert not client.download(str(remote / "none"), str(local))
    assert not client.download(str(remote / "day"), str(local))
    got = multi_download(client, str(remote), str(tmp_path / "mine"), trainer_id=0, trainers=2)
    assert got == [str(tmp_path / "mine" / name) for name in ("a", "day/c")]
    assert [Path(path).read_text(encoding="utf-8") for path in got] == ["a", "day/c"]
    multi_upload(client, str(tmp_path / "up"), str(tmp_path / "mine"))
    assert (tmp_path / "up" / "day" / "c").read_text(encoding="utf-8") == "day/c"
    assert not client.upload(str(tmp_path / "up"), str(tmp_path / "mine" / "a"))
    assert client.upload(str(tmp_path / "up"), str(tmp_path / "mine" / "a"), overwrite=True)
    assert not client.upload(str(tmp_path / "up"), str(tmp_path / "mine"))


def test_hadoop_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match="say the right hadoop_home"):
        HDFSClient(str(tmp_path / "nowhere"), {}).is_exist("/x")
