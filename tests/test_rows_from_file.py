"""Tables and parameters that start from a file: which rows arrive where, and what is refused."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import fluidlite as fluid
from fluidlite import LocalCluster
from fluidlite.core import serde
from fluidlite.errors import (
    CorruptFileError,
    DataError,
    FluidliteError,
    MissingFileError,
    OutOfRangeError,
    ProgramError,
)
from fluidlite.framework import Program
from fluidlite.initializer import Bilinear, FromFile, Uniform
from fluidlite.values import rows_file
from fluidlite.values.initial import Constant
from fluidlite.values.rows_file import RowsFile
from fluidlite.values.sparse_table import SparseTable
from tests.frontend import fresh_programs

IDS = np.array([-(2**63), -1, 0, 7, 2**40])
VALUES = np.arange(10, dtype=np.float32).reshape(5, 2) / 8


@pytest.fixture(params=["path", "memory://"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "path":
        yield str(tmp_path)
        return
    import fsspec

    name = f"memory://{uuid.uuid4().hex}"
    fsspec.filesystem("memory").makedirs(name)
    yield name
    fsspec.filesystem("memory").rm(name, recursive=True)


def put(url: str, content: str | np.ndarray[Any, Any]) -> str:
    import fsspec

    with fsspec.open(url, "wb") as stream:
        if isinstance(content, str):
            stream.write(content.encode())
        else:
            np.save(stream, content)
    return url


def loaded(file: RowsFile, shards: int = 1, width: int = 2) -> dict[int, list[float]]:
    """The rows that the servers of a job have, each checked to be on its server."""
    found: dict[int, list[float]] = {}
    for shard in range(shards):
        table = SparseTable("t", width, "float32", Constant(9.0))
        rows_file.into_table(table, file, shard, shards)
        part = table.export()
        assert all(id % 2**64 % shards == shard for id in part.rows.tolist())
        found |= dict(zip(part.rows.tolist(), part.value.tolist(), strict=True))
    return found


def expected(ids: Any = IDS, values: Any = VALUES) -> dict[int, list[float]]:
    return dict(zip(np.asarray(ids).tolist(), values.tolist(), strict=True))


@pytest.mark.parametrize("shards", [1, 3])
def test_a_matrix_and_its_ids(folder: str, shards: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_file, "_BLOCK_BYTES", 16)
    matrix = put(f"{folder}/m.npy", VALUES.astype(">f8"))
    assert loaded(RowsFile(matrix, put(f"{folder}/i.npy", IDS)), shards) == expected()
    assert loaded(RowsFile(matrix, put(f"{folder}/u.npy", IDS.view(np.uint64))), shards) == expected()
    assert loaded(RowsFile(matrix), shards) == expected(range(5))


VECTORS = "the 0 0.125\nof 0.25 0.375\n. . 0.5 0.625\nnew york 0.75 0.875\n\xe4 1 1.125\n"


@pytest.mark.parametrize("head", ["", "5 2\n"], ids=["as GloVe", "as word2vec"])
@pytest.mark.parametrize("shards", [1, 3])
def test_word_vectors(folder: str, shards: int, head: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_file, "_BLOCK_BYTES", 32)
    text = put(f"{folder}/v.txt", head + VECTORS.replace("\n", " \r\n" if head else "\n"))
    assert loaded(RowsFile(text), shards) == expected(range(5))
    by_line = put(f"{folder}/lines", "unknown\nnew york\n\xe4\n")
    assert loaded(RowsFile(text, words_url=by_line), shards) == expected([1, 2], VALUES[3:])
    by_id = put(f"{folder}/ids", f"of\t-5\n. .\t{2**62}\n")
    assert loaded(RowsFile(text, words_url=by_id), shards) == expected([-5, 2**62], VALUES[1:3])


BAD: list[tuple[str, dict[str, Any], type[FluidliteError], str]] = [
    ("m.npy", {"m.npy": np.ones((3, 4), "f4")}, DataError, "not rows of 2 floats"),
    ("m.npy", {"m.npy": np.ones((3, 2), "i4")}, DataError, "not rows of 2 floats"),
    ("m.npy", {"m.npy": np.ones(2, "f4")}, DataError, "not rows of 2 floats"),
    ("m.npy", {"m.npy": np.asfortranarray(np.ones((3, 2), "f4"))}, DataError, "C order"),
    ("m.npy", {"m.npy": np.array([[1, np.nan]], "f4")}, DataError, "row 0 has a number that is not finite"),
    ("m.npy", {"m.npy": np.array([[1, 2], [np.inf, 1]])}, DataError, "row 1 has a number that is not finite"),
    ("m.npy", {"m.npy": "no matrix"}, CorruptFileError, r"m\.npy is no \.npy file"),
    ("m.npy", {}, MissingFileError, r"there is no file .*m\.npy"),
    ("m.npy", {"m.npy": np.ones((2, 2)), "ids": np.array([5, 5])}, DataError, "row 1 has id 5, which came before"),
    ("m.npy", {"m.npy": np.ones((2, 2)), "ids": np.array([5])}, DataError, "not the ids of 2 rows"),
    ("m.npy", {"m.npy": np.ones((2, 2)), "ids": np.array([0.5, 2])}, DataError, "not the ids of 2 rows"),
    ("m.npy", {"m.npy": np.ones((2, 2)), "words": "a\nb\n"}, DataError, "is a matrix"),
    ("v.txt", {"v.txt": "a 1 2\n", "ids": np.array([1])}, DataError, "is text"),
    ("v.txt", {"v.txt": "a 1 2 3\n"}, DataError, "line 1 has 3 fields after the word, the table's width is 2"),
    ("v.txt", {"v.txt": "a 1 2\nb 1\n"}, DataError, "line 2 has 1 fields"),
    ("v.txt", {"v.txt": "a 1 2\nb 1 2 3\n"}, DataError, "line 2 has 3 fields"),
    ("v.txt", {"v.txt": "a 1 2\nb 1 x\n"}, DataError, "line 2 has something between its numbers"),
    ("v.txt", {"v.txt": "a 1 2\n\nb 1 nan\n"}, DataError, "line 3 has a number that is not finite"),
    ("v.txt", {"v.txt": "2 3\na 1 2 3\n"}, DataError, "vectors of 3 numbers"),
    ("v.txt", {"v.txt": "3 2\na 1 2\n"}, CorruptFileError, "has 1 words, its first line says 3"),
    ("v.txt", {"v.txt": "a 1 2\na 1 2\n", "words": "a\n"}, DataError, "line 2 has id 0, which came before"),
    ("v.txt", {"v.txt": "a 1 2\n", "words": "a\na\n"}, DataError, "line 2 has the word 'a' again"),
    ("v.txt", {"v.txt": "a 1 2\n", "words": "a\tx\n"}, DataError, "line 1 has no id after the tab"),
    ("v.txt", {"v.txt": "a 1 2\n", "words": f"a\t{2**63}\n"}, DataError, "no int64"),
]


@pytest.mark.parametrize(("name", "files", "error", "message"), BAD, ids=[message for *_, message in BAD])
def test_what_is_wrong_is_named(
    tmp_path: Path, name: str, files: dict[str, Any], error: type[FluidliteError], message: str
) -> None:
    urls = {file: put(str(tmp_path / file), content) for file, content in files.items()}
    with pytest.raises(error, match=message):
        loaded(RowsFile(str(tmp_path / name), urls.get("ids", ""), urls.get("words", "")))


@settings(max_examples=200, deadline=None)
@example(content=b"\0\0\0[\0\0\0\0", cut=124, name="m.npy")  # a header that numpy cannot even tokenize
@given(content=st.binary(max_size=200), cut=st.integers(0, 300), name=st.sampled_from(["m.npy", "v.txt"]))
def test_any_bytes_are_refused_or_read(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, cut: int, name: str
) -> None:
    """Random bytes, and a right file that is cut or goes on."""
    path = tmp_path_factory.mktemp("rows") / name
    put(str(path), VALUES if name == "m.npy" else VECTORS)
    whole = path.read_bytes()
    for damaged in (content, whole[:cut] + content[: len(content) // 2]):
        path.write_bytes(damaged)
        try:
            loaded(RowsFile(str(path)))
        except FluidliteError as error:
            assert name in str(error)  # noqa: PT017


def test_a_header_allocates_nothing(tmp_path: Path) -> None:
    path = tmp_path / "m.npy"
    with path.open("wb") as stream:
        header = {"descr": "<f4", "fortran_order": False, "shape": (10**14, 2)}
        np.lib.format.write_array_header_1_0(stream, header)
        stream.write(VALUES.tobytes())
    with pytest.raises(CorruptFileError, match="ends before its last row"):
        loaded(RowsFile(str(path)))


def programs(init: Any, *, distributed: bool) -> tuple[Program, Program, str]:
    with fresh_programs() as (main, startup):
        ids = fluid.data("ids", [None, 1], "int64")
        attr = fluid.ParamAttr("emb", initializer=init)
        rows = fluid.layers.embedding(ids, [8, 2], is_sparse=True, is_distributed=distributed, param_attr=attr)
        fluid.optimizer.SGD(0.5).minimize(fluid.layers.mean(rows))
        return main, startup, rows.name


@pytest.mark.parametrize("servers", [1, 3])
def test_each_server_of_a_job_takes_its_rows(tmp_path: Path, servers: int) -> None:
    matrix, ids = put(str(tmp_path / "m.npy"), VALUES), put(str(tmp_path / "i.npy"), IDS)
    main, startup, rows = programs(FromFile(matrix, ids=ids, default=Uniform(2.0, 3.0)), distributed=True)
    with LocalCluster(main, startup, pservers=servers) as job:
        held = [scope.get("emb").export().rows.tolist() for scope in job.scopes.values()]
        assert sorted(id for ids_here in held for id in ids_here) == sorted(IDS.tolist())
        feed = np.array([*IDS, 5])[:, None]
        ((got,),) = job.run([{"ids": feed}], [rows])
        np.testing.assert_array_equal(got.reshape(-1, 2)[:5], VALUES)
        assert (got.reshape(-1, 2)[5] >= 2).all()
        ((later,),) = job.run([{"ids": feed}], [rows])
        assert (later < got).all()


@pytest.mark.parametrize("servers", [1, 2])
def test_a_fixed_parameter_takes_rows_too(tmp_path: Path, servers: int) -> None:
    matrix = put(str(tmp_path / "m.npy"), VALUES)
    main, startup, rows = programs(FromFile(matrix), distributed=False)
    config = fluid.DistributeTranspilerConfig()
    config.min_block_size = 2
    feed = {"ids": np.arange(8)[:, None]}
    whole = np.concatenate([VALUES, np.zeros((3, 2), np.float32)])
    with LocalCluster(main, startup, pservers=servers, config=config) as job:
        ((got,),) = job.run([feed], [rows])
        np.testing.assert_array_equal(got.reshape(8, 2), whole)
    with fluid.scope_guard(fluid.Scope()):
        executor = fluid.Executor()
        executor.run(startup)
        np.testing.assert_array_equal(executor.run(main, feed, [rows])[0].reshape(8, 2), whole)


def test_an_id_outside_a_fixed_parameter_is_refused(tmp_path: Path) -> None:
    array = np.zeros((3, 2), np.float32)
    file = RowsFile(put(str(tmp_path / "m.npy"), VALUES))
    with pytest.raises(OutOfRangeError, match="row 3 has id 3, but 'w' has 3 rows"):
        rows_file.into_array("w", array, file)


def test_the_program_that_says_so_can_be_saved(tmp_path: Path) -> None:
    _, startup, _ = programs(FromFile("s3://bucket/v.txt", words="words.txt"), distributed=True)
    again = serde.from_bytes(startup.desc.serialize_to_string())
    assert [op.type for op in again.root.ops][-2:] == ["fill_constant", "rows_from_file"]
    assert again.root.ops[-1].attr("url") == "s3://bucket/v.txt"


def test_what_cannot_be_initialised_so_is_refused() -> None:
    with pytest.raises(ProgramError, match="other rows cannot start by Bilinear"):
        FromFile("v.npy", default=Bilinear())
    with fresh_programs(), pytest.raises(ProgramError, match="rows of a matrix"):
        fluid.layers.create_parameter([4], "float32", default_initializer=FromFile("v.npy"))
