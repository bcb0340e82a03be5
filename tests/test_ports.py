"""The ports of a process: what programs declare, and settings from the environment."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import ports
from fluidlite.errors import FluidliteError, PeerLostError
from fluidlite.ports import needs_of
from fluidlite.protocol.messages import Declared, DenseRequest, Use
from fluidlite.rpc.client import grpc_port
from tests.frontend import fresh_programs


def transpiled(endpoint: str) -> fluid.Program:
    ids = fluid.data("ids", [None, 1], "int64")
    rows = fluid.layers.embedding(ids, [100, 4], is_sparse=True, is_distributed=True, param_attr="emb")
    loss = fluid.layers.mean(fluid.layers.fc(rows, 2, param_attr="w", bias_attr=False))
    fluid.optimizer.SGD(0.1).minimize(loss)
    fluid.DistributeTranspiler().transpile(1, pservers=endpoint, trainers=3)
    return fluid.default_main_program()


def unused_endpoint() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def test_what_a_program_exchanges_is_read_off_its_ops() -> None:
    with fresh_programs():
        needs = needs_of(transpiled("server:1").desc)
    assert needs is not None
    assert (needs.trainer, needs.trainers) == (1, 3)
    assert needs.declared == {
        "server:1": [
            Declared("emb", Use.ROWS, "float32", (4,)),
            Declared("w@GRAD", Use.GRADIENT, "float32", (4, 2)),
            Declared("emb@GRAD", Use.ROW_GRADIENT, "float32", (4,)),
            Declared("w", Use.DENSE, "float32", (4, 2)),
        ]
    }


def test_a_local_program_exchanges_nothing() -> None:
    with fresh_programs():
        fluid.layers.relu(fluid.data("x", [None, 1]))
        assert needs_of(fluid.default_main_program().desc) is None


def test_an_unreachable_server_is_named_within_the_seconds_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLUIDLITE_CONNECT_SECONDS", "0.3")
    endpoint = unused_endpoint()
    with fresh_programs(), fluid.Executor() as exe:
        transpiled(endpoint)
        with pytest.raises(PeerLostError, match=f"register at pserver {endpoint}: the server did not come up within"):
            exe.run(fluid.default_startup_program())


def test_a_setting_that_is_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLUIDLITE_CONNECT_SECONDS", "soon")
    with fresh_programs(), fluid.Executor() as exe:
        main = transpiled(unused_endpoint())
        with pytest.raises(FluidliteError, match="FLUIDLITE_CONNECT_SECONDS must be a number of seconds, not 'soon'"):
            exe.run(main, {"ids": np.array([[1]])})


def test_a_server_at_port_0_writes_its_real_endpoint_into_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fresh_programs():
        x = fluid.data("x", [None, 2])
        fluid.optimizer.SGD(0.1).minimize(fluid.layers.mean(fluid.layers.fc(x, 1, param_attr="w")))
        transpiler = fluid.DistributeTranspiler()
        transpiler.transpile(0, pservers="127.0.0.1:0", trainers=1)
    program, startup = transpiler.get_pserver_programs("127.0.0.1:0")
    file, written = tmp_path / "endpoint", threading.Event()
    publish = ports.publish

    def published(endpoint: str) -> None:
        publish(endpoint)
        written.set()

    monkeypatch.setenv("FLUIDLITE_ENDPOINT_FILE", str(file))
    monkeypatch.setenv("FLUIDLITE_JOB", "a job")
    monkeypatch.setattr(ports, "publish", published)
    scope, server = fluid.Scope(), fluid.Executor()
    server.run(startup, scope=scope)
    thread = threading.Thread(target=server.run, args=(program,), kwargs={"scope": scope})
    thread.start()
    assert written.wait(20)
    endpoint = file.read_text(encoding="utf-8")
    assert list(tmp_path.iterdir()) == [file]
    trainer = grpc_port(trainer=0, trainers=1, job="a job")
    assert trainer.pull([DenseRequest(endpoint, "w")])[0].shape == (2, 1)
    trainer.complete()
    thread.join(20)
    assert not thread.is_alive()
