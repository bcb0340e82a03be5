"""``paddle.dataset`` on small archives in the original layouts: the samples are those of Fluid 1.8.5; nothing is downloaded."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fluidlite.compat.dataset import (
    cifar,
    common,
    conll05,
    imdb,
    imikolov,
    mnist,
    movielens,
    sentiment,
    uci_housing,
    wmt14,
    wmt16,
)
from fluidlite.errors import CorruptFileError, DataError, FleetError, MissingFileError, NotSupported

HERE = Path(__file__).parent
SCRIPT = HERE / "dataset_script.py"
RECORDED = json.loads((HERE / "dataset_samples.json").read_text(encoding="utf-8"))
ORACLE = os.environ.get("FLUIDLITE_ORACLE_PYTHON", "")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache directory of its own."""
    monkeypatch.setattr(common, "DATA_HOME", str(tmp_path))
    return tmp_path


def printed(tmp_path: Path, *python: str) -> dict[str, Any]:
    """What the script prints under some python."""
    home = tmp_path / "home"
    home.mkdir()
    run = [*python, str(SCRIPT), str(home)]
    done = subprocess.run(run, capture_output=True, text=True, cwd=tmp_path, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return printed(tmp_path_factory.mktemp("dataset"), sys.executable, "-m", "fluidlite.compat")


@pytest.mark.parametrize("name", RECORDED)
def test_samples_are_those_of_fluid(name: str, ours: dict[str, Any]) -> None:
    assert ours[name] == RECORDED[name]


@pytest.mark.skipif(not ORACLE, reason="FLUIDLITE_ORACLE_PYTHON names no python with Fluid 1.8.5")
def test_recorded_samples_are_what_fluid_prints(tmp_path: Path) -> None:
    assert printed(tmp_path, ORACLE) == RECORDED


def test_a_missing_file_is_named_with_its_url_place_and_md5(home: Path) -> None:
    with pytest.raises(MissingFileError) as caught:
        mnist.train()
    for part in (mnist.TRAIN_IMAGE_URL, str(home / "mnist" / "train-images-idx3-ubyte.gz"), mnist.TRAIN_IMAGE_MD5):
        assert part in str(caught.value)
    assert list(home.iterdir()) == []


def test_a_file_with_another_md5_is_refused(home: Path) -> None:
    (home / "imdb").mkdir()
    (home / "imdb" / "imdb%2FaclImdb_v1.tar.gz").write_bytes(b"half of it")
    with pytest.raises(CorruptFileError, match=rf"MD5 .*, not {imdb.MD5}: get it again from {imdb.URL}"):
        imdb.word_dict()


def test_download_finds_a_file(home: Path) -> None:
    (home / "mine").mkdir()
    (home / "mine" / "data.bin").write_bytes(b"abc")
    path = str(home / "mine" / "data.bin")
    assert common.download("http://somewhere/data.bin", "mine", "900150983cd24fb0d6963f7d28e17f72") == path
    assert common.download("http://somewhere/other", "mine", None, "data.bin") == path


def test_the_environment_names_the_cache_directory() -> None:
    code = "import paddle.dataset.common as c; print(c.DATA_HOME); import paddle; print(paddle.dataset.common is c)"
    site = str(HERE.parent / "fluidlite" / "compat" / "site")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([site, str(HERE.parent)]),
        "FLUIDLITE_DATA_HOME": "/data",
    }
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["/data", "True"], done.stderr


#: what reads the file of each data set, and the attributes of its module that hold the file's URL and MD5
READERS: dict[str, tuple[Any, str, str, str, Callable[[], object]]] = {
    "uci_housing": (uci_housing, "URL", "MD5", "uci_housing", uci_housing.train),
    "imdb": (imdb, "URL", "MD5", "imdb", imdb.word_dict),
    "imikolov": (imikolov, "URL", "MD5", "imikolov", imikolov.build_dict),
    "movielens": (movielens, "URL", "MD5", "movielens", lambda: list(movielens.train()())),
    "cifar": (cifar, "CIFAR10_URL", "CIFAR10_MD5", "cifar", lambda: list(cifar.train10()())),
    "wmt14": (wmt14, "URL_TRAIN", "MD5_TRAIN", "wmt14", lambda: wmt14.get_dict(5)),
}


@pytest.mark.parametrize(
    "content", [b"1 2 3\n", gzip.compress(b"no archive"), b"PK\3\4 cut off"], ids=["text", "gzip", "zip"]
)
@pytest.mark.parametrize("name", READERS)
def test_a_file_that_holds_something_else_is_refused(
    name: str, content: bytes, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, url, md5, folder, read = READERS[name]
    path = home / folder / getattr(module, url).rsplit("/", 1)[-1]
    path.parent.mkdir()
    path.write_bytes(content)
    monkeypatch.setattr(module, md5, common.md5file(path))
    with pytest.raises(CorruptFileError, match=str(path.name)):
        read()


def archive(path: Path, **files: bytes) -> str:
    with tarfile.open(path, "w:gz") as made:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            made.addfile(info, io.BytesIO(content))
    return str(path)


def test_broken_members_are_named(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.tgz", data_batch=b"\x80\x02}.", test_batch=b"\x80\x02cos\nsystem\n.")
    with pytest.raises(CorruptFileError, match="batch without data or labels"):
        list(cifar.reader_creator(path, "data_batch")())
    with pytest.raises(CorruptFileError, match=r"os\.system"):
        list(cifar.reader_creator(path, "test_batch")())
    with pytest.raises(CorruptFileError, match=r"holds 0 files src\.dict"):
        list(wmt14.reader_creator(path, "train", 5)())
    roles = archive(
        tmp_path / "roles.tgz",
        words=gzip.compress(b"It\n\n"),
        strange=gzip.compress(b"be V)\n\n"),
        verbless=gzip.compress(b"be\n\n"),
    )
    for name, message in (("strange", "unexpected label 'V\\)'"), ("verbless", "1 verbs and labels of 0")):
        with pytest.raises(CorruptFileError, match=message):
            list(conll05.corpus_reader(roles, "words", name)())


def test_images_and_labels_must_be_of_one_set(tmp_path: Path) -> None:
    images, labels = tmp_path / "images", tmp_path / "labels"
    images.write_bytes(gzip.compress(bytes([0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 2, 0, 255])))
    labels.write_bytes(gzip.compress(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9])))
    with pytest.raises(CorruptFileError, match=r"1 images, .* 2 labels"):
        list(mnist.reader_creator(str(images), str(labels))())
    labels.write_bytes(gzip.compress(bytes([0, 0, 8, 1, 0, 0, 0, 1, 7])))
    ((pixels, label),) = mnist.reader_creator(str(images), str(labels))()
    assert (pixels.tolist(), pixels.dtype, label) == ([-1.0, 1.0], np.float32, 7)


def test_split_and_cluster_files_reader(tmp_path: Path) -> None:
    samples = [(np.arange(6, dtype=np.float32).reshape(2, 3) * i, [i, "word", b"\xff"], np.int64(i)) for i in range(5)]
    common.split(lambda: iter(samples), 2, str(tmp_path / "part-%05d"))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["part-00000", "part-00001", "part-00002"]
    read = [list(common.cluster_files_reader(str(tmp_path / "part-*"), 2, trainer)()) for trainer in range(2)]
    assert [len(part) for part in read] == [3, 2]
    for (array, rest, number), wanted in zip(read[0] + read[1], [*samples[:2], samples[4], *samples[2:4]], strict=True):
        np.testing.assert_array_equal(array, wanted[0], strict=True)
        assert (rest, number, number.dtype) == (wanted[1], wanted[2], np.int64)
    (tmp_path / "part-00000").write_text("no samples\n", encoding="utf-8")
    with pytest.raises(CorruptFileError, match="part-00000"):
        list(common.cluster_files_reader(str(tmp_path / "part-*"), 1, 0)())


def test_a_mark_as_frequent_as_a_word_comes_behind_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "imikolov").mkdir()
    path = home / "imikolov" / imikolov.URL.rsplit("/", 1)[-1]
    text = {f"./simple-examples/data/ptb.{part}.txt": b"one two\n" * 2 for part in ("train", "valid")}
    archive(path, **text)
    monkeypatch.setattr(imikolov, "MD5", common.md5file(path))
    assert imikolov.build_dict(2) == {b"one": 0, b"two": 1, "<e>": 2, "<s>": 3, "<unk>": 4}


def test_wrong_arguments_are_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FleetError, match="line_count"):
        common.split(lambda: iter([1]), 0)
    with pytest.raises(FleetError, match="loader must be callable"):
        common.cluster_files_reader("*", 1, 0, "json")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="data_type"):
        imikolov.train({"<unk>": 0}, 2, 7)
    with pytest.raises(DataError, match="n-gram"):
        imikolov.train({"<unk>": 0}, -1)
    with pytest.raises(DataError, match="src_lang must be one of en, de, not 'fr'"):
        wmt16.train(5, 5, "fr")
    with pytest.raises(DataError, match="lang"):
        wmt16.get_dict("fr", 5)


def test_functions_without_a_file_to_find() -> None:
    with pytest.raises(NotSupported, match="fetch_all"):
        common.fetch_all()
    with pytest.raises(NotSupported, match="convert"):
        common.convert("out", lambda: iter([]), 1, "part")
    assert sentiment.NUM_TRAINING_INSTANCES == 1600
