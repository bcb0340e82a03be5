"""Both kinds of pipe keep messages whole and in order, wait for nobody, and end when they should."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from fluidlite.errors import PeerLostError, RemoteError, UnreachableError
from fluidlite.rpc import pipe
from fluidlite.rpc.options import client_options, server_options
from fluidlite.rpc.pipe import DirectPipe, Pipe, ThreadedPipe

Make = Callable[..., Pipe]


def echo(messages: Iterator[bytes], context: Any) -> Iterator[bytes]:
    """Every message as it came; ``end`` ends the call, ``fail`` in an error, ``wait`` takes no more, ``twice`` is two."""
    for message in messages:
        if message == b"end":
            return
        if message == b"fail":
            context.abort(grpc.StatusCode.DATA_LOSS, "as asked")
        if message == b"wait":
            context.waits.wait(60)  # type: ignore[attr-defined]
        yield message
        if message == b"twice":
            yield message


class Server:
    """An echo that can be told to go on and to stop."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self._server = grpc.server(ThreadPoolExecutor(8), options=server_options())

        def handler(messages: Iterator[bytes], context: Any) -> Iterator[bytes]:
            context.waits = self.go_on
            return echo(messages, context)

        method = grpc.stream_stream_rpc_method_handler(handler)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("s", {"Echo": method}),))
        self.endpoint = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def stop(self) -> None:
        self.go_on.set()
        self._server.stop(0).wait()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.stop()


@pytest.fixture
def channel(server: Server) -> Iterator[Any]:
    with grpc.insecure_channel(server.endpoint, options=client_options(10.0)) as made:
        yield made


@pytest.fixture(params=[DirectPipe, ThreadedPipe])
def make(request: pytest.FixtureRequest, channel: Any) -> Iterator[Make]:
    pipes: list[Pipe] = []

    def build(path: str = "/s/Echo") -> Pipe:
        pipes.append(request.param(channel, path))
        return pipes[-1]

    yield build
    for made in pipes:
        made.cancel()


def send(pipe: Pipe, *messages: bytes) -> None:
    pipe.send(iter(messages))
    pipe.flush()


def test_messages_come_back_in_order(make: Make) -> None:
    pipe = make()
    for number in range(20):
        send(pipe, b"%d" % number, b"twice", b"")
    for number in range(20):
        assert [pipe.receive() for _ in range(4)] == [b"%d" % number, b"twice", b"twice", b""]


def test_large_messages_pass_in_both_directions_at_once(make: Make) -> None:
    """More than what fits on the way: whoever sends must not wait until somebody reads what comes back."""
    pipe = make()
    messages = [bytes([number]) * (3 << 20) for number in range(4)]
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(send, pipe, *messages, b"last")
        assert [pipe.receive() for _ in range(5)] == [*messages, b"last"]
        sent.result(20)


def test_what_nobody_reads_yet_holds_up_no_small_message(make: Make) -> None:
    pipe = make()
    for number in range(50):
        send(pipe, b"%d" % number)
    assert [pipe.receive() for _ in range(50)] == [b"%d" % number for number in range(50)]


def test_messages_are_made_when_they_leave(make: Make) -> None:
    """No more than a few of a long transfer are in memory."""
    pipe, made = make(), 0

    def messages() -> Iterator[bytes]:
        nonlocal made
        for number in range(30):
            made += 1
            yield b"wait" if not number else bytes(4 << 20)

    pipe.send(messages())
    with ThreadPoolExecutor(1) as pool:
        flushing = pool.submit(pipe.flush)
        assert made < 10
        pipe.cancel()
        flushing.result(20)
    assert made < 10


def test_many_threads_send_and_one_reads(make: Make) -> None:
    pipe = make()
    with ThreadPoolExecutor(8) as pool:
        jobs = [pool.submit(send, pipe, *(b"%d %d" % (thread, at) for at in range(25))) for thread in range(8)]
        got = [pipe.receive() for _ in range(200)]
        for job in jobs:
            job.result(20)
    for thread in range(8):
        mine = [message for message in got if message is not None and message.startswith(b"%d " % thread)]
        assert mine == [b"%d %d" % (thread, at) for at in range(25)]


def test_the_end_of_the_call_is_none_again_and_again(make: Make) -> None:
    pipe = make()
    send(pipe, b"a", b"end")
    assert [pipe.receive() for _ in range(4)] == [b"a", None, None, None]
    assert not pipe.active
    send(pipe, b"ignored")
    assert pipe.receive() is None


def test_the_failure_of_the_call_is_raised_behind_what_came_before(make: Make) -> None:
    pipe = make()
    send(pipe, b"a", b"fail")
    assert pipe.receive() == b"a"
    for _ in range(2):
        with pytest.raises(UnreachableError, match="data_loss: as asked"):
            pipe.receive()
    assert not pipe.active


def test_an_unknown_method_is_final(make: Make) -> None:
    pipe = make("/s/Other")
    with pytest.raises(RemoteError, match="it is no fluidlite pserver") as caught:
        pipe.receive()
    assert not isinstance(caught.value, PeerLostError)


def test_cancel_wakes_who_waits(make: Make) -> None:
    pipe = make()
    send(pipe, b"a")
    assert pipe.receive() == b"a"
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(pipe.receive)
        pipe.cancel()
        with pytest.raises(UnreachableError, match="cancelled"):
            waiting.result(20)
    pipe.cancel()
    assert not pipe.active
    with pytest.raises(UnreachableError, match="cancelled"):
        pipe.receive()


def test_cancel_ends_a_call_that_nobody_waits_for(make: Make) -> None:
    pipe = make()
    send(pipe, b"wait", bytes(1 << 20))
    pipe.cancel()
    assert not pipe.active


def test_a_server_that_goes_ends_the_call(make: Make, server: Server) -> None:
    pipe = make()
    send(pipe, b"a")
    assert pipe.receive() == b"a"
    server.stop()
    with pytest.raises(UnreachableError):
        pipe.receive()


def test_a_closed_channel_opens_no_pipe(channel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    channel.close()
    for cygrpc in (pipe.cygrpc, None):
        monkeypatch.setattr(pipe, "cygrpc", cygrpc)
        with pytest.raises(PeerLostError, match="closed"):
            pipe.opener(channel, "/s/Echo")()


def test_an_interrupt_leaves_a_pipe_that_can_be_cancelled(channel: Any) -> None:
    made = DirectPipe(channel, "/s/Echo")
    take = made._call.next_event

    class Interrupted:
        def __init__(self, call: Any) -> None:
            self._real = call

        def __getattr__(self, name: str) -> Any:
            return getattr(self._real, name)

        def next_event(self) -> Any:
            take()
            raise KeyboardInterrupt

    send(made, b"a")
    made._call = Interrupted(made._call)
    with pytest.raises(KeyboardInterrupt):
        made.receive()
    made.cancel()
    assert not made.active


def test_without_the_private_calls_the_public_ones_are_used(channel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (DirectPipe, ThreadedPipe):
        made = pipe.opener(channel, "/s/Echo")()
        made.cancel()
        assert type(made) is kind
        monkeypatch.setattr(pipe, "cygrpc", None)
