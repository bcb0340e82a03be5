"""Checkpoints in files: round trips, damage, chains, what is kept, and other file systems than the local one."""

from __future__ import annotations

import json
import logging
import re
import shutil
import tracemalloc
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fluidlite.checkpoint import manifest as manifests
from fluidlite.checkpoint import storage
from fluidlite.checkpoint.chunks import CHUNK_BYTES
from fluidlite.checkpoint.cut import Cut, PieceOf
from fluidlite.checkpoint.source import open_checkpoint
from fluidlite.checkpoint.writer import CheckpointWriter
from fluidlite.errors import (
    CorruptFileError,
    DataError,
    MissingFileError,
    ProgramError,
    ShapeError,
    TableError,
    UnwritableFileError,
)
from fluidlite.pserver.cut import load, take_cut
from fluidlite.values.lod import LoDTensor
from fluidlite.values.selected_rows import SelectedRows
from fluidlite.values.sparse_table import SparseTable, TableColumn
from tests.checkpoint_host import (
    FakeHost,
    catalogue_of,
    contents,
    make_host,
    make_table,
    opened,
    push,
    save,
    saved_rows,
)


@pytest.fixture(params=["path", "file://", "memory://"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "memory://":
        name = f"memory://{uuid.uuid4().hex}/job"
        yield name
        import fsspec

        fsspec.filesystem("memory").rm(name.rpartition("/")[0], recursive=True)
    else:
        yield ("" if request.param == "path" else "file://") + str(tmp_path / "job")


def test_what_was_saved_comes_back(url: str) -> None:
    host = make_host([-(2**63), -1, 0, 5, 2**63 - 1], columns=2)
    host.version = 12
    save(url, host, 12)
    fresh = make_host(columns=2)
    restored = load(fresh, url, 0, 1)
    assert contents(fresh.table) == contents(host.table)
    assert (restored.number, restored.version, fresh.version) == (12, 12, 12)
    for name in ("w", "step"):
        np.testing.assert_array_equal(fresh.scope.get(name), host.scope.get(name))
        assert fresh.scope.get(name).dtype == host.scope.get(name).dtype
    push(fresh, [5, 6], 1)  # values are writable, tables go on


ARRAYS = arrays.arrays(
    st.sampled_from(["<f4", ">f8", "<i8", "|u1", "|b1", "<f2", ">i4"]).map(np.dtype),
    arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5),
)


@settings(max_examples=60, deadline=None)
@given(
    values=st.dictionaries(st.text(min_size=1, max_size=6), ARRAYS, max_size=4),
    ids=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=30, unique=True),
    width=st.integers(1, 4),
    dtype=st.sampled_from(["float32", "float64"]),
    servers=st.integers(1, 5),
    name=st.text(min_size=1, max_size=6).filter(lambda text: text != "emb"),
    chunk=st.integers(40, 300),
)
def test_any_contents_come_back(
    tmp_path_factory: pytest.TempPathFactory,
    values: dict[str, Any],
    ids: list[int],
    width: int,
    dtype: str,
    servers: int,
    name: str,
    chunk: int,
) -> None:
    folder = tmp_path_factory.mktemp("job")
    table = SparseTable(name, width, dtype, make_table().init)
    random = np.random.default_rng(0)
    column = TableColumn(f"{name}_0", 1, np.inf, dtype)
    table.attach(column)
    rows = SelectedRows(np.array(ids, np.int64), random.normal(size=(len(ids), width)).astype(dtype), 0)
    table.load(rows)
    column.load(SelectedRows(rows.rows[::2], np.full((len(ids[::2]), 1), np.nan, dtype), 0))
    values = {key: value for key, value in values.items() if key not in (name, column.name)}
    host = FakeHost({**values, name: table, column.name: column})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fluidlite.checkpoint.writer.CHUNK_BYTES", chunk)
        save(folder, host)
    found: dict[int, list[float]] = {}
    for server in range(servers):
        fresh = SparseTable(name, width, dtype, make_table().init)
        taken = FakeHost(
            {**{key: np.zeros_like(value) for key, value in values.items()}, name: fresh}
            | {column.name: TableColumn(column.name, 1, np.inf, dtype)}
        )
        load(taken, folder, server, servers)
        for key, value in values.items():
            np.testing.assert_array_equal(taken.scope.get(key), value)
        if len(fresh):
            assert all(id % 2**64 % servers == server for id in fresh.ids.tolist())
            found |= contents(fresh)
    np.testing.assert_equal(found, contents(table))


def test_arrays_with_lod_and_rows_without_a_table(tmp_path: Path) -> None:
    """An accumulator that was loaded before its first use keeps its rows."""
    waiting = TableColumn("emb_1", 2, 0.0, "float32")
    waiting.load(SelectedRows(np.array([4, 5]), np.ones((2, 2), np.float32), 9))
    host = make_host([4])
    host.scope.values |= {"emb_1": waiting, "l": LoDTensor(np.ones((3, 1)), ((0, 2, 3),))}
    host.scope.values["s"] = SelectedRows(np.array([7, 8, 9]), np.ones((5, 1)), 10)
    save(tmp_path, host)
    fresh = make_host()
    column = TableColumn("emb_1", 2, 0.0, "float32")
    fresh.scope.values |= {"emb_1": column, "l": LoDTensor(np.zeros((3, 1)), ((0, 3),))}
    load(fresh, tmp_path, 0, 2)
    assert fresh.scope.get("l").lod == ((0, 2, 3),)
    assert column.export().rows.tolist() == [4]
    assert fresh.scope.get("s").rows.tolist() == [8]
    assert fresh.scope.get("s").height == 10
    with pytest.raises(ProgramError, match="the program has no table 'emb'"):
        load(FakeHost({}), tmp_path, 0, 1)


def test_a_manifest_can_be_read_by_a_person_and_by_json(tmp_path: Path) -> None:
    host = make_host([1, 2])
    CheckpointWriter(tmp_path, run="tuesday").write(take_cut(host, 5, extra=lambda: {"policy": {"round": 3}}))
    text = (tmp_path / "checkpoint-000000005" / "server-0-of-1.json").read_text()
    data = json.loads(text)
    assert data["extra"] == {"policy": {"round": 3}}
    assert data["run"] == "tuesday"
    assert data["tables"][0]["columns"] == [{"name": "emb_0", "start": 2, "width": 2, "fill": 0.5}]
    assert '{"name": "w", "dtype": "<f4", "shape": [2, 3], "chunk": 1, "offset": 40}' in text
    assert opened(tmp_path).extras == {0: {"policy": {"round": 3}}}


def test_a_cut_that_cannot_be_told_in_json_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match="no JSON"):
        CheckpointWriter(tmp_path).write(take_cut(make_host(), 1, extra=lambda: {"a": object()}))
    with pytest.raises(MissingFileError, match="no good checkpoint"):
        opened(tmp_path)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with checkpoints 1 and 2; 2 is full and has several chunks and arrays."""
    folder = tmp_path_factory.mktemp("two")
    host = make_host(range(20))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fluidlite.checkpoint.writer.CHUNK_BYTES", 128)
        save(folder, host, 1)
        push(host, range(10, 30), 1)
        save(folder, host, 2)
    return folder


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("checkpoint-000000002/*") if path.is_file())


def check_falls_back(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.clear()
    with caplog.at_level(logging.WARNING, "fluidlite"):
        assert opened(folder).number == 1
    assert "checkpoint 2" in caplog.text
    with pytest.raises((CorruptFileError, MissingFileError)):
        opened(folder, 2)


def test_any_flipped_byte_is_found(two: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Every byte of every file."""
    folder = tmp_path / "copy"
    shutil.copytree(two, folder)
    for path in files_of(folder):
        content = path.read_bytes()
        for at in range(len(content)):
            damaged = bytearray(content)
            damaged[at] ^= 1 << (at % 8)
            path.write_bytes(damaged)
            check_falls_back(folder, caplog)
        path.write_bytes(content)
    assert opened(folder).number == 2


def test_a_file_cut_anywhere_or_too_long_is_found(two: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(two, folder)
    for path in files_of(folder):
        content = path.read_bytes()
        for size in range(len(content)):
            path.write_bytes(content[:size])
            check_falls_back(folder, caplog)
        path.write_bytes(content + b"\0")
        check_falls_back(folder, caplog)
        path.unlink()
        assert opened(folder).number == 1
        path.write_bytes(content)
    assert opened(folder).number == 2


def test_a_file_of_another_checkpoint_is_found(two: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Chunks that are right in themselves, but not those that the manifest names."""
    folder = tmp_path / "copy"
    shutil.copytree(two, folder)
    host = make_host(range(30))
    host.scope.values["w"] += 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fluidlite.checkpoint.writer.CHUNK_BYTES", 128)
        save(tmp_path / "other", host, 2)
    for path in files_of(folder):
        content = path.read_bytes()
        (other,) = [p for p in files_of(tmp_path / "other") if p.suffix == path.suffix]
        path.write_bytes(other.read_bytes())
        check_falls_back(folder, caplog)
        path.write_bytes(content)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_bytes_as_a_manifest_are_refused_or_read(data: st.DataObject) -> None:
    """Also where the CRC is right: a manifest that someone wrote by hand."""
    import zlib

    document = json.loads(manifests.to_bytes(_some_manifest()))
    document.pop("crc32")
    junk = st.recursive(
        st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=4),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
        max_leaves=5,
    )
    target: Any = document
    for _ in range(data.draw(st.integers(1, 4))):
        keys = list(target) if isinstance(target, dict) else range(len(target)) if isinstance(target, list) else []
        if not keys:
            break
        key = data.draw(st.sampled_from(list(keys)))
        if data.draw(st.booleans()):
            target[key] = data.draw(junk)
            break
        target = target[key]
    body = json.dumps(document)[:-1].encode()
    content = body + b',\n "crc32": "%08x"\n}\n' % zlib.crc32(body)
    try:
        manifests.from_bytes(content, "here")
    except CorruptFileError as error:
        assert "here" in str(error)  # noqa: PT017 (most are refused, not all)


def _some_manifest() -> manifests.Manifest:
    import fsspec

    host = make_host([1])
    where = f"memory://{uuid.uuid4().hex}"
    found = save(where, host)
    fsspec.filesystem("memory").rm(where, recursive=True)
    return found


def test_a_chain_of_incrementals(url: str) -> None:
    host = make_host(range(50))
    writer = CheckpointWriter(url)
    states = {}
    for number in range(1, 6):
        push(host, range(number * 7, number * 7 + 5), number)
        push(host, [1000 + number], 1)
        manifest = save(url, host, number, writer)
        states[number] = contents(host.table)
        assert manifest.tables[0].rows == (len(states[1]) if number == 1 else 6)
    for number, state in states.items():
        assert saved_rows(opened(url, number)) == state
        fresh = make_host([7, 9999])
        load(fresh, url, 0, 1, number)
        assert contents(fresh.table) == state
    assert [c.incremental for c in catalogue_of(url).checkpoints] == [False, True, True, True, True]


def test_a_chain_that_lost_a_link_is_found(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    host = make_host(range(5))
    writer = CheckpointWriter(tmp_path)
    for number in (1, 2, 3):
        push(host, [number], 1)
        save(tmp_path, host, number, writer)
    path = next((tmp_path / "checkpoint-000000002").glob("*.rows"))
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    assert opened(tmp_path).number == 1
    assert "checkpoint 3" in caplog.text
    save(tmp_path, host, 2)  # another checkpoint 2 is not the one that 3 builds on
    assert opened(tmp_path).number == 2
    assert "builds on checkpoint 2" in caplog.text


def test_tables_that_change_their_records_are_saved_whole(tmp_path: Path) -> None:
    host = make_host(range(5))
    writer = CheckpointWriter(tmp_path)
    save(tmp_path, host, 1, writer)
    column = TableColumn("emb_1", 1, 4.0, "float32")
    host.table.attach(column)
    assert save(tmp_path, host, 2, writer).tables[0].changed_since is None
    assert saved_rows(opened(tmp_path)) == contents(host.table)


def test_after_an_error_the_next_checkpoint_is_a_full_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = make_host(range(5))
    writer = CheckpointWriter(tmp_path)
    save(tmp_path, host, 1, writer)
    push(host, [3], 1)

    def fail(*_: Any) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(storage.os, "fsync", fail)
        with pytest.raises(UnwritableFileError, match="disk full"):
            save(tmp_path, host, 2, writer)
    assert opened(tmp_path).number == 1
    assert not list((tmp_path / "checkpoint-000000002").iterdir())
    manifest = save(tmp_path, host, 2, writer)
    assert manifest.tables[0].changed_since is None
    assert saved_rows(opened(tmp_path)) == contents(host.table)


class Killed(BaseException):
    """The process ends: nothing is cleared up."""


def test_a_server_that_is_killed_anywhere_in_a_save_leaves_the_last_one_good(tmp_path: Path) -> None:
    """At every write, fsync, rename and removal; the server that comes back saves the same number again."""
    host = make_host(range(30))
    left = 0

    def step(call: Any) -> Any:
        def counted(*args: Any, **options: Any) -> Any:
            nonlocal left
            if left == 0:
                raise Killed
            left -= 1
            return call(*args, **options)

        return counted

    for moments in range(1000):
        folder = tmp_path / str(moments)
        save(folder, host, 1)
        push(host, [moments % 30], 1)
        left = moments
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("fluidlite.checkpoint.writer.CHUNK_BYTES", 128)
            patch.setattr(storage.os, "fsync", step(storage.os.fsync))
            for name in ("replace", "unlink", "rmdir"):
                patch.setattr(Path, name, step(getattr(Path, name)))
            patch.setattr(storage._WrittenBack, "write", step(storage._WrittenBack.write))
            try:
                save(folder, host, 2, keep_max=1)
            except Killed:
                pass
            else:
                break
        assert opened(folder).number in (1, 2)
        save(folder, host, 2, keep_max=1)
        assert numbers_in(str(folder)) == [2]
        assert saved_rows(opened(folder)) == contents(host.table)
    assert moments > 20
    assert numbers_in(str(folder)) == [2]


def test_a_cut_for_another_base_is_refused(tmp_path: Path) -> None:
    host = make_host(range(5))
    writer = CheckpointWriter(tmp_path)
    save(tmp_path, host, 1, writer)
    cut = take_cut(host, 2, writer.last, track=True)
    with pytest.raises(ProgramError, match="cut for what changed since"):
        CheckpointWriter(tmp_path).write(cut)


def test_the_files_are_durable_before_the_manifest_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    sync, replace = storage.os.fsync, Path.replace

    def watched_sync(descriptor: int) -> None:
        events.append("sync")
        sync(descriptor)

    def watched_replace(self: Path, target: Path) -> Path:
        events.append(f"replace {target.name}")
        return replace(self, target)

    monkeypatch.setattr(storage.os, "fsync", watched_sync)
    monkeypatch.setattr(Path, "replace", watched_replace)
    save(tmp_path, make_host([1]))
    assert events == ["sync"] * 3 + ["replace server-0-of-1.json"] + ["sync"] * 3


def test_on_other_file_systems_the_manifest_comes_last(monkeypatch: pytest.MonkeyPatch) -> None:
    import fsspec

    system = fsspec.filesystem("memory")
    written: list[str] = []
    open_ = type(system).open

    def watched(self: Any, path: str, mode: str = "rb", **options: Any) -> Any:
        if mode == "wb":
            written.append(path.rpartition(".")[2])
        return open_(self, path, mode, **options)

    monkeypatch.setattr(type(system), "open", watched)
    where = f"memory://{uuid.uuid4().hex}"
    save(where, make_host([1]))
    assert written == ["rows", "dense", "json"]
    system.rm(where, recursive=True)


def numbers_in(url: str) -> list[int]:
    return [checkpoint.number for checkpoint in catalogue_of(url).checkpoints]


def test_keep_max(url: str) -> None:
    host = make_host(range(5))
    writer = CheckpointWriter(url, keep_max=2)
    for number in range(1, 6):
        writer.write(take_cut(host, number))
    assert numbers_in(url) == [4, 5]
    assert storage.open_folder(url).names() == ["checkpoint-000000004", "checkpoint-000000005"]


def test_K18_keep_max_0_keeps_all(url: str) -> None:
    host = make_host(range(5))
    writer = CheckpointWriter(url)
    for number in range(1, 5):
        writer.write(take_cut(host, number))
    assert numbers_in(url) == [1, 2, 3, 4]


def test_M04_a_save_holds_chunks_and_no_copy(tmp_path: Path) -> None:
    host = make_host(range(60_000), width=32)
    size = 60_000 * 2 * 32 * 4
    tracemalloc.start()
    try:
        save(tmp_path, host)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 0.1 * size + 4 * CHUNK_BYTES


def test_what_a_kept_incremental_needs_stays(url: str) -> None:
    host = make_host(range(5))
    writer = CheckpointWriter(url, keep_max=2)
    for number in range(1, 7):
        push(host, [number], 1)
        since = None if number in (1, 3, 6) else writer.last
        writer.write(take_cut(host, number, since, track=True))
    # 5 and 6 are kept, 5 builds on 4 and 3
    assert numbers_in(url) == [3, 4, 5, 6]
    assert not catalogue_of(url).problems(catalogue_of(url).checkpoint(5))
    assert saved_rows(opened(url, 6)) == contents(host.table)
    writer.write(take_cut(host, 7))
    assert numbers_in(url) == [6, 7]


def test_a_server_removes_only_what_is_its_own_and_waits_for_the_others(url: str) -> None:
    hosts = [make_host(range(5)), make_host(range(5))]
    writers = [CheckpointWriter(url, server, 2, keep_max=1) for server in range(2)]
    for number in (1, 2):
        writers[0].write(take_cut(hosts[0], number))
    assert numbers_in(url) == [1, 2]  # neither is whole
    writers[1].write(take_cut(hosts[1], 1))
    assert catalogue_of(url).choose().number == 1
    writers[1].write(take_cut(hosts[1], 2))
    assert catalogue_of(url).choose().number == 2
    folder = storage.open_folder(url)
    assert all(name.startswith("server-0-") for name in folder.names("checkpoint-000000001"))
    for writer, host in zip(writers, hosts, strict=True):
        writer.write(take_cut(host, 3))
    writers[0].write(take_cut(hosts[0], 4))
    assert numbers_in(url) == [3, 4]


def test_one_server_that_remains_clears_up_after_three(tmp_path: Path) -> None:
    host = make_host(range(5))
    for number in (1, 2):
        for server in range(3):
            save(tmp_path, host, number, server=server, servers=3)
    writer = CheckpointWriter(tmp_path, keep_max=1)
    for number in (3, 4):
        writer.write(take_cut(host, number))
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-000000004"]


def test_a_checkpoint_counts_when_all_servers_wrote_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    host = make_host([1])
    for number, servers in ((1, (0, 1, 2)), (2, (0, 2))):
        for server in servers:
            save(tmp_path, host, number, server=server, servers=3)
    assert opened(tmp_path).number == 1
    assert "checkpoint 2" in caplog.text
    assert "the manifest of server 1 is missing" in caplog.text
    assert catalogue_of(tmp_path).choose((2, 3)).number == 2
    assert [c.missing for c in catalogue_of(tmp_path).checkpoints] == [(), (1,)]


def test_a_server_that_comes_back_alone_needs_only_its_own_part(tmp_path: Path) -> None:
    hosts = [make_host(range(server, 9, 3)) for server in range(3)]
    for server, host in enumerate(hosts):
        host.version = 10 + server
        save(tmp_path, host, 1, server=server, servers=3)
    for server in (0, 2):
        push(hosts[server], [server], 1)
        hosts[server].scope.values["step"] = np.array([server])
        hosts[server].version = 20 + server
        save(tmp_path, hosts[server], 2, server=server, servers=3)
    save(tmp_path, make_host(range(20)), 3, server=0, servers=1)
    for server, number in enumerate((2, 1, 2)):
        fresh = make_host()
        restored = load(fresh, tmp_path, server, 3, alone=True)
        assert (restored.number, fresh.version) == (number, number * 10 + server)
        assert restored.extras[server] == {}
        assert contents(fresh.table) == contents(hosts[server].table)
        assert fresh.scope.get("step") == hosts[server].scope.get("step")


def test_manifests_of_different_runs_are_no_checkpoint(tmp_path: Path) -> None:
    host = make_host([1])
    save(tmp_path, host, 1, server=0, servers=2, run="a")
    save(tmp_path, host, 1, server=1, servers=2, run="b")
    with pytest.raises(MissingFileError, match="no good checkpoint"):
        opened(tmp_path)


def test_slices_are_joined_and_cut_again(tmp_path: Path) -> None:
    """Whatever cut the parameter before, each of the new servers gets its rows."""
    whole = np.arange(21.0).reshape(7, 3)
    for server, (first, last) in enumerate([(0, 3), (3, 4), (4, 7)]):
        host = FakeHost(
            {f"w.block{server}": whole[first:last], f"beta.block{server}": np.array([0.5]), "lr": np.array([server])},
            {f"w.block{server}": PieceOf("w", first), f"beta.block{server}": PieceOf("beta")},
            version=9 + server,
        )
        save(tmp_path, host, server=server, servers=3)
    for pieces in ([(0, 7)], [(0, 1), (1, 7)], [(0, 2), (2, 3), (3, 5), (5, 7)]):
        for server, (first, last) in enumerate(pieces):
            fresh = FakeHost(
                {"v": np.zeros((last - first, 3)), "b": np.zeros(1), "lr": np.array([-1])},
                {"v": PieceOf("w", first), "b": PieceOf("beta")},
            )
            restored = load(fresh, tmp_path, server, len(pieces))
            np.testing.assert_array_equal(fresh.scope.get("v"), whole[first:last])
            assert fresh.scope.get("b") == [0.5]
            assert fresh.scope.get("lr") == [server if server < 3 else 0]
            assert restored.version == 11


def test_K06_tables_are_taken_alone_and_under_another_name(tmp_path: Path) -> None:
    host = make_host(range(9), columns=2)
    save(tmp_path, host, 4)
    fresh = FakeHost({"users": make_table("users"), "users_0": TableColumn("users_0", 2, 0.0, "float32")}, version=2)
    before = fresh.scope.get("users")
    before.lookup(np.array([77]))
    restored = load(fresh, tmp_path, 1, 2, tables=["emb"], rename={"emb": "users"})
    table = fresh.scope.get("users")
    assert contents(table) == {id: row[:4] for id, row in contents(host.table).items() if id % 2}
    assert (restored.number, fresh.version) == (4, 2)


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    save(tmp_path, make_host(range(3)))
    with pytest.raises(TableError, match=r"width 3 .* width 2"):
        load(make_host(width=3), tmp_path, 0, 1, tables=["emb"])
    with pytest.raises(TableError, match="float64"):
        load(make_host(dtype="float64"), tmp_path, 0, 1, tables=["emb"])
    with pytest.raises(ProgramError, match="no table 'other'; it has emb"):
        load(make_host(), tmp_path, 0, 1, tables=["other"])
    with pytest.raises(ProgramError, match="has no table 'w'"):
        load(make_host(), tmp_path, 0, 1, rename={"emb": "w"})
    more = make_host()
    more.scope.values["v"] = np.zeros(3)
    with pytest.raises(ProgramError, match="no 'v'"):
        load(more, tmp_path, 0, 1)
    other = make_host()
    other.scope.values["w"] = np.zeros((2, 4), np.float32)
    with pytest.raises(ShapeError, match="'w' is"):
        load(other, tmp_path, 0, 1)


def test_a_program_with_another_seed_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save(tmp_path, make_host(range(3)))
    fresh = FakeHost({"emb": make_table(seed=2), "emb_0": TableColumn("emb_0", 2, 0.5, "float32")})
    load(fresh, tmp_path, 0, 1, tables=["emb"])
    assert "saved with seed 1 and Constant(value=1.0); new rows follow the program: seed 2" in caplog.text
    caplog.clear()
    load(FakeHost({"emb": make_table()}), tmp_path, 0, 1, tables=["emb"])
    assert re.search("'emb_0' .* left out", caplog.text)


def test_a_checkpoint_that_is_written_again_replaces_the_first(tmp_path: Path) -> None:
    host = make_host(range(3))
    save(tmp_path, host, 1)
    push(host, [9], 1)
    save(tmp_path, host, 1)
    assert saved_rows(opened(tmp_path)) == contents(host.table)


def test_nothing_is_there(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-000000003").mkdir()
    for name in ("notes.txt", "server-0-of-999999999.json", "server-2-of-2.json"):
        (tmp_path / "checkpoint-000000003" / name).write_text("x")
    for where in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(MissingFileError, match="no good checkpoint; it has none"):
            opened(where)
    with pytest.raises(MissingFileError, match="no checkpoint 3"):
        opened(tmp_path, 3)
    with pytest.raises(DataError, match="nothing://x"):
        opened("nothing://x")


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    host = make_host([1])
    with pytest.raises(UnwritableFileError, match="file"):
        save(tmp_path / "file", host)
    push(host, [1], 1)


def test_without_a_check_damage_is_found_where_it_is_read(tmp_path: Path) -> None:
    host = make_host(range(5))
    save(tmp_path, host)
    path = next(tmp_path.rglob("*.rows"))
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    opened_anyway = open_checkpoint(tmp_path, 1, check=False)
    np.testing.assert_array_equal(opened_anyway.array("w", 0), host.scope.get("w"))
    with pytest.raises(CorruptFileError, match="chunk 0 is damaged"):
        load(make_host(), tmp_path, 0, 1, number=1, check=False)


@pytest.mark.parametrize(("before", "after"), [(3, 6), (4, 6), (2, 3), (1, 4)])
def test_a_server_reads_only_files_that_can_have_its_rows(tmp_path: Path, before: int, after: int) -> None:
    for server in range(before):
        save(tmp_path, make_host(range(server, 48, before)), server=server, servers=before)
    source = opened(tmp_path)
    found: list[int] = []
    for server in range(after):
        chunks = list(source.rows("emb", server, after))
        assert len(chunks) == before // np.gcd(before, after)
        found += [id for _, chunk in chunks for id in chunk.ids.tolist()]
        assert all(id % after == server for _, chunk in chunks for id in chunk.ids.tolist())
    assert sorted(found) == list(range(48))


def test_a_cut_closes_its_snapshots() -> None:
    host = make_host([1, 2])
    cut: Cut = take_cut(host, 1)
    cut.close()
    assert cut.tables[0].take(5) is None
