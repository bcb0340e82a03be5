"""Whatever bytes a file holds (also where its check sums are right): a typed refusal or a value, and little memory."""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fluidlite as fluid
from fluidlite.checkpoint.compare import differences, find_row
from fluidlite.errors import CorruptFileError
from fluidlite.ops.keeping import Keeping
from fluidlite.proto_gen import pserver_pb2 as pb
from fluidlite.protocol import encode
from fluidlite.protocol.events import Came, Event, decode_event
from fluidlite.protocol.messages import Gradient, Push, Registration, StepHeader
from fluidlite.protocol.packet import Payload
from fluidlite.pserver.cut import load
from fluidlite.pserver.host import Host, make_service
from fluidlite.pserver.journal import Journal, segment_path
from fluidlite.pserver.keeper import Keeper
from fluidlite.values import files
from fluidlite.values.lod import LoDTensor
from fluidlite.values.selected_rows import SelectedRows
from tests.byte_faults import damaged, messages, no_failures, refused_or_read
from tests.checkpoint_host import catalogue_of, make_host, opened, push, save
from tests.pserver_program import pserver_program
from tests.test_fuzz_server import FIRST, KNOWN, SECOND
from tests.training_jobs import Local, Programs

relaxed = settings(max_examples=150, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


# ---- parameters and models


def build() -> fluid.Variable:
    ids = fluid.data("ids", [None, 1], "int64", lod_level=1)
    rows = fluid.layers.embedding(ids, [9, 2], is_sparse=True, is_distributed=True, param_attr="emb")
    out = fluid.layers.fc(fluid.layers.sequence_pool(rows, "sum"), 1, param_attr="w", bias_attr="b")
    loss = fluid.layers.mean(out)
    fluid.optimizer.Adagrad(0.1).minimize(loss)
    return loss


class Model:
    """A trained model, its files, and whoever loads them."""

    def __init__(self, folder: Path) -> None:
        self.programs = Programs(build)
        self.local = Local(self.programs)
        self.local.step({"ids": LoDTensor(np.array([[1], [2**40], [1]]), ((0, 1, 3),))})
        self.folder = folder
        with fluid.scope_guard(self.local.scope):
            executor, main = self.local.executor, self.programs.main
            fluid.io.save_persistables(executor, str(folder / "apart"), main)
            fluid.io.save_persistables(executor, str(folder / "one"), main, filename="all")
            loss = main.global_block().var(self.programs.loss)
            fluid.io.save_inference_model(str(folder / "model"), ["ids"], [loss], executor, main)

    def load(self, how: str) -> None:
        with fluid.scope_guard(self.local.scope if how != "model" else fluid.Scope()):
            if how == "model":
                fluid.io.load_inference_model(str(self.folder / "model"), self.local.executor)
            else:
                filename = "all" if how == "one" else None
                fluid.io.load_persistables(
                    self.local.executor, str(self.folder / how), self.programs.main, filename=filename
                )


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return Model(folder)


@pytest.mark.parametrize("how", ["apart", "one", "model"])
@relaxed
@given(data=st.data())
def test_files_of_a_model_are_refused_or_read(model: Model, how: str, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(sorted(path for path in (model.folder / how).iterdir() if path.is_file())))
    whole = path.read_bytes()
    path.write_bytes(data.draw(st.binary(max_size=60) | damaged(whole)))
    try:
        refused_or_read(lambda: model.load(how))
    finally:
        path.write_bytes(whole)
    model.load(how)


def test_rows_in_the_place_of_an_array_are_refused(model: Model) -> None:
    with fluid.scope_guard(model.local.scope):
        path = model.folder / "apart" / "b"
        whole = path.read_bytes()
        files.save(path, {"b": SelectedRows(np.array([0]), np.zeros(1, np.float32), 1)})
        with pytest.raises(CorruptFileError, match=r"b holds rows by id, but variable 'b' is an array"):
            model.load("apart")
        path.write_bytes(whole)
        model.load("apart")


# ---- checkpoints whose check sums are right

JUNK = (
    st.none()
    | st.booleans()
    | st.floats()
    | st.text(max_size=4)
    | st.builds(list)
    | st.builds(dict)
    | st.builds(lambda: [[0, 1]])
)
NUMBERS = st.sampled_from([0, 1, 2, 3, -1, 2**31, 2**40, 2**62, 2**63 - 1, 2**70])
WORDS = st.sampled_from(
    ["emb", "emb_0", "w", "step", "<f8", "<i8", "<f2", "|b1", ">f4", "(1", "f4,f4", "O", "<U9", "M8[s]"]
)


@st.composite
def altered(draw: st.DrawFn, document: Any) -> Any:
    """A JSON document with a few values that are others, gone or there twice."""
    document = json.loads(json.dumps(document))
    for _ in range(draw(st.integers(1, 2))):
        target, keys = draw(st.sampled_from(list(_places(document))))
        key = draw(st.sampled_from(keys))
        value = target[key]
        fitting = NUMBERS if isinstance(value, int) else WORDS if isinstance(value, str) else JUNK
        what = draw(st.sampled_from(["value", "value", "junk", "gone", "twice"]))
        if what in ("value", "junk"):
            target[key] = draw(fitting if what == "value" else JUNK | NUMBERS | WORDS)
        elif what == "gone":
            del target[key]
        elif isinstance(target, list):
            target.append(value)
    return document


def _places(document: Any) -> Iterator[tuple[Any, list[Any]]]:
    keys: list[Any] = list(document) if isinstance(document, dict) else list(range(len(document)))
    if keys:
        yield document, keys
    for key in keys:
        if isinstance(document[key], (dict, list)):
            yield from _places(document[key])


def sealed(document: Any) -> bytes:
    """The text of a manifest whose CRC is right, whatever it says."""
    body = json.dumps({key: value for key, value in document.items() if key != "crc32"})[:-1].encode()
    return body + b',\n "crc32": "%08x"\n}\n' % zlib.crc32(body)


@pytest.fixture(scope="module")
def job(folder: Path) -> Path:
    host = make_host(range(5), columns=2)
    host.scope.set("seq", LoDTensor(np.ones((3, 1)), ((0, 1, 3),)))

    save(folder / "job", host)
    push(host, [1, 99], 2)
    save(folder / "job", host, 2)
    return folder / "job"


def read_all(job: Path) -> None:
    source = opened(job, 2)
    catalogue_of(job).problems(catalogue_of(job).checkpoint(2))
    for name in source.tables:
        find_row(source, name, 1)
    list(differences(source, opened(job, 1)))
    for server, servers in ((0, 1), (1, 2)):
        host = make_host(columns=2)
        host.scope.set("seq", np.ones((3, 1)))
        load(host, job, server, servers, number=2)
        load(make_host(columns=2), job, server, servers, number=2, tables=["emb"])


@relaxed
@given(data=st.data())
def test_manifests_with_the_right_crc_are_refused_or_read(job: Path, data: st.DataObject) -> None:
    (path,) = (job / "checkpoint-000000002").glob("server-*.json")
    whole = path.read_bytes()
    path.write_bytes(sealed(data.draw(altered(json.loads(whole)))))
    try:
        refused_or_read(lambda: read_all(job))
    finally:
        path.write_bytes(whole)


# ---- what a server remembers


def make_server(folder: Path, checkpoints: bool) -> Keeper:
    program, listen, scope = pserver_program(sync=False, lr_decay_block_id=-1)
    host = Host(program, listen, scope)
    keeping = Keeping(log_dir=str(folder / "log"), checkpoint_dir=str(folder / "ck") if checkpoints else "")
    keeper = Keeper(keeping, 0, 1, host)
    try:
        service = make_service(host, keeper=keeper)
        for who in (FIRST, SECOND):
            sequence = service.register(Registration(who, 2)).next_sequence
            encode.encode_welcome(service.register(Registration(who, 2)))
            service.commit(Push(StepHeader(who, sequence, 0, 0, 1), [Gradient("", "w@GRAD", np.ones(3))], []))()
        service.close()
    finally:
        keeper.close()
    return keeper


EVENTS = st.tuples(
    messages(
        pb.Entry, {**KNOWN, "job": ["job"], "trainer": [0, 1, 1, 7, -1], "incarnation": [1, 2**62], "sequence": [0, 1]}
    ),
    st.binary(max_size=8) | st.sampled_from([bytes(n) for n in (24, 32, 48, 64)]),
)


def event_of(entry: pb.Entry, payload: bytes) -> Event | None:
    found: list[Event] = []
    refused_or_read(lambda: found.append(decode_event(entry.SerializeToString(), Payload(payload))))
    return found[0] if found else None


@relaxed
@given(entries=st.lists(EVENTS, min_size=1, max_size=4))
def test_any_log_with_the_right_crcs_is_refused_or_taken(
    tmp_path_factory: pytest.TempPathFactory, entries: list[tuple[pb.Entry, bytes]]
) -> None:
    folder = tmp_path_factory.mktemp("log")
    journal = Journal(folder / "log" / "server-0-of-1", 0, {"server": 0, "servers": 1, "history": 5})
    journal.append(Came(SECOND))
    for entry in entries:
        event = event_of(*entry)
        if event is not None:
            journal.append(event)
    journal.close()
    assert segment_path(folder / "log" / "server-0-of-1", 0).exists()
    with no_failures():
        refused_or_read(lambda: make_server(folder, checkpoints=False))


@pytest.fixture(scope="module")
def kept(folder: Path) -> Path:
    make_server(folder / "kept", checkpoints=True)
    return folder / "kept"


@relaxed
@given(data=st.data())
def test_any_state_of_a_server_in_a_checkpoint_is_refused_or_taken(
    kept: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("state") / "kept"
    shutil.copytree(kept, folder)
    (path,) = (folder / "ck").rglob("server-*.json")
    document = json.loads(path.read_bytes())
    document["extra"] = data.draw(altered(document["extra"]))
    path.write_bytes(sealed(document))
    with no_failures():
        refused_or_read(lambda: make_server(folder, checkpoints=True))
