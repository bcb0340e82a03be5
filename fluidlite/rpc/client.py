"""The trainer's end of the gRPC transport: one channel per server, on it a long-lived stream each for pulls
and pushes, and a call each for what is rare."""

from __future__ import annotations

import threading
import weakref
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from fluidlite.errors import ForgottenError, PeerLostError, UnreachableError
from fluidlite.proto_gen import pserver_pb2 as pb
from fluidlite.protocol import encode
from fluidlite.protocol.messages import (
    CommitReply,
    Decision,
    Gradient,
    Identity,
    PullReply,
    PullRequest,
    Push,
    Registration,
    RowRequest,
    StepHeader,
    TableRequest,
    Value,
    Welcome,
)
from fluidlite.protocol.service import Pending
from fluidlite.rpc.failures import attempt
from fluidlite.rpc.lane import Lane
from fluidlite.rpc.library import grpc
from fluidlite.rpc.options import client_options, method
from fluidlite.rpc.pipe import opener
from fluidlite.rpc.port import TrainerPort
from fluidlite.rpc.retry import Patience
from fluidlite.rpc.signatures import SentLists
from fluidlite.rpc.traffic import Meter, Traffic
from fluidlite.rpc.wire import messages_of
from fluidlite.values.memory import keep_freed_memory

#: signs of life per lease: two may get lost
_BEATS_PER_LEASE: Final = 3
#: seconds; some waits take no longer ones
_LONGEST_LEASE: Final = 1e6


@dataclass(slots=True)
class _Ahead:
    """The parts of a step that left ahead of its commit, and on which stream: the server holds them as long as it lasts."""

    sequence: int = -1
    stream: object = None
    numbers: set[int] = field(default_factory=set)


class GrpcChannel:
    """Implements `rpc.port.Channel` over gRPC. Nothing is sent before the first call."""

    def __init__(self, endpoint: str, patience: Patience) -> None:
        keep_freed_memory()
        self._patience = patience
        self._channel: Any = grpc.insecure_channel(endpoint, options=client_options(patience.keepalive))
        self._stop = threading.Event()
        self._life: Any = None
        self._meters: defaultdict[str, Meter] = defaultdict(Meter)
        self._lists = SentLists()
        #: held while parts or a commit are handed to the stream
        self._pushing = threading.Lock()
        self._ahead = _Ahead()
        # Apart, so that a commit that waits for other trainers holds up no pull.
        self._pulls, self._pushes = self._lane("Pull"), self._lane("Push")
        # Also at exit: gRPC can deadlock when it tears down an open stream to a dead server by itself.
        self._finalizer = weakref.finalize(self, _shut, self._stop, (self._pulls, self._pushes), self._channel)

    @property
    def traffic(self) -> Mapping[str, Traffic]:
        amounts = {verb.lower(): meter.read() for verb, meter in self._meters.copy().items()}
        return {verb: amount for verb, amount in amounts.items() if any(amount)}

    def register(self, registration: Registration, timeout: float) -> Welcome:
        call = self._channel.unary_unary(method("Register"))
        meter = self._meters["Register"]
        request = meter.sent(encode.encode_registration(registration))
        reply = attempt(lambda: call(request, timeout=timeout, wait_for_ready=True), late=UnreachableError)
        return encode.decode_welcome(meter.received(reply))

    def pull(self, identity: Identity, requests: Sequence[PullRequest], ahead: bool = False) -> Pending[PullReply]:
        whole = any(isinstance(request, TableRequest) for request in requests)
        timeout = self._patience.table if whole else self._patience.pull
        signed = [self._signed(request) for request in requests]
        decode = partial(encode.decode_pull_reply, requests=requests)
        return self._pulls.ask(encode.encode_pull(identity, signed), timeout, decode, ahead)

    def _signed(self, request: PullRequest) -> PullRequest:
        """With a signature, where gradients for the same rows may follow."""
        if not isinstance(request, RowRequest) or request.read_only:
            return request
        signature = self._lists.sign(request.ids)
        return replace(request, signature=signature) if signature else request

    def part(self, header: StepHeader, number: int, gradient: Gradient) -> None:
        with self._pushing:
            stream = self._pushes.post(encode.encode_part(header, number, gradient))
            if (self._ahead.sequence, self._ahead.stream) != (header.sequence, stream):
                self._ahead = _Ahead(header.sequence, stream)
            self._ahead.numbers.add(number)

    def commit(self, push: Push) -> Pending[CommitReply]:
        short = replace(push, gradients=[self._shortened(gradient) for gradient in push.gradients])
        answer = self._push(short)
        if not any(gradient.signature for gradient in short.gradients):
            return answer

        def known_or_in_full() -> CommitReply:
            try:
                return answer()
            except ForgottenError:
                self._lists.forget()
                return self._push(push)()

        return known_or_in_full

    def _push(self, push: Push) -> Pending[CommitReply]:
        """The step, but for what went ahead on the stream that is still open. Another step takes its place there."""
        with self._pushing:
            ahead, self._ahead = self._ahead, _Ahead()
            there = ahead.sequence == push.header.sequence and self._pushes.is_on(ahead.stream)
            sent = ahead.numbers if there else ()
            return self._pushes.ask(encode.encode_push(push, sent), None, encode.decode_commit_reply)

    def decide(self, decision: Decision) -> Pending[CommitReply]:
        return self._pushes.ask(encode.encode_decision(decision), None, encode.decode_commit_reply)

    def _shortened(self, gradient: Gradient) -> Gradient:
        """With a signature, where its rows were pulled."""
        signature = b"" if gradient.rows is None else self._lists.find(gradient.rows)
        return replace(gradient, signature=signature) if signature else gradient

    def assign(self, identity: Identity, name: str, value: Value) -> Pending[None]:
        meter = self._meters["Assign"]
        messages = map(meter.sent, messages_of(encode.encode_assign(identity, name, value)))
        call = attempt(
            lambda: self._channel.stream_unary(method("Assign")).future(messages, timeout=self._patience.table)
        )
        return lambda: encode.check_outcome(encode.parse(pb.AssignReply, meter.received(attempt(call.result))).outcome)

    def barrier(self, identity: Identity, number: int) -> Pending[None]:
        request = pb.BarrierRequest(identity=encode.encode_identity(identity), number=number)
        call = self._unary("Barrier", request.SerializeToString(), None)
        return lambda: encode.check_outcome(encode.parse(pb.BarrierReply, call()).outcome)

    def checkpoint(self, identity: Identity, number: int, folder: str) -> Pending[int]:
        request = pb.CheckpointRequest(identity=encode.encode_identity(identity), number=number, folder=folder)
        call = self._unary("Checkpoint", request.SerializeToString(), None)

        def answer() -> int:
            reply = encode.parse(pb.CheckpointReply, call())
            encode.check_outcome(reply.outcome)
            return int(reply.version)

        return answer

    def complete(self, identity: Identity) -> Pending[None]:
        request = pb.CompleteRequest(identity=encode.encode_identity(identity))
        call = self._unary("Complete", request.SerializeToString(), self._patience.control)
        return lambda: encode.check_outcome(encode.parse(pb.CompleteReply, call()).outcome)

    def show_life(self, identity: Identity, lease: float) -> None:
        """Beats leave from the thread that gRPC gives to the stream. A broken stream is opened again at once: the server
        takes a broken one for a dead trainer."""
        if self._life is None or self._life.done():
            self._open_life(identity, lease)

    def close(self) -> None:
        self._finalizer()

    def _open_life(self, identity: Identity, lease: float) -> None:
        over = threading.Event()
        stop = self._stop
        meter = self._meters["Heartbeat"]
        beat = pb.HeartbeatRequest(identity=encode.encode_identity(identity)).SerializeToString()

        def beats() -> Iterator[bytes]:
            while not (stop.is_set() or over.is_set()):
                yield meter.sent(beat)
                over.wait(min(lease, _LONGEST_LEASE) / _BEATS_PER_LEASE)  # `close` ends the call

        def reopen(call: Any) -> None:
            over.set()
            if call.code() == grpc.StatusCode.UNAVAILABLE and not stop.is_set():
                with suppress(PeerLostError):  # closed meanwhile
                    self._open_life(identity, lease)

        stream = self._channel.stream_unary(method("Heartbeat"))
        self._life = attempt(lambda: stream.future(beats(), wait_for_ready=True))
        self._life.add_done_callback(reopen)

    def _unary(self, verb: str, request: bytes, timeout: float | None) -> Pending[bytes]:
        meter = self._meters[verb]
        call = attempt(lambda: self._channel.unary_unary(method(verb)).future(meter.sent(request), timeout=timeout))
        return lambda: meter.received(attempt(call.result))

    def _lane(self, verb: str) -> Lane:
        return Lane(opener(self._channel, method(verb)), self._meters[verb])


def _shut(stop: threading.Event, lanes: Iterable[Lane], channel: grpc.Channel) -> None:
    stop.set()
    for lane in lanes:
        lane.close()
    channel.close()


def grpc_port(*, trainer: int, trainers: int = 0, job: str = "job", patience: Patience | None = None) -> TrainerPort:
    """A port to pservers over gRPC; endpoints are ``host:port``."""
    waits = patience if patience is not None else Patience()
    return TrainerPort(
        lambda endpoint: GrpcChannel(endpoint, waits), trainer=trainer, trainers=trainers, job=job, patience=waits
    )
