"""The exchanged types as headers and arrays, and back. Whatever does not decode is refused, never believed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Sequence
from itertools import zip_longest
from typing import Final, TypeVar

from google.protobuf.message import DecodeError, Message

from fluidlite.dtypes import DTYPE_NAMES, Array, dtype_number
from fluidlite.errors import (
    FluidliteError,
    ForgottenError,
    LeaseLostError,
    OutdatedStepError,
    PeerLostError,
    RemoteError,
    RequestRefusedError,
    ServerFailedError,
    StaleError,
)
from fluidlite.proto_gen import pserver_pb2 as pb
from fluidlite.protocol.messages import (
    CommitReply,
    Decision,
    Declared,
    DenseRequest,
    Gradient,
    Identity,
    PullReply,
    PullRequest,
    Push,
    Registration,
    RowRequest,
    Status,
    StepHeader,
    TableRequest,
    Use,
    Value,
    Welcome,
)
from fluidlite.protocol.narrow import NARROW
from fluidlite.protocol.packet import Packet, Payload, check_rows, describe, put_value
from fluidlite.values.selected_rows import SelectedRows

M = TypeVar("M", bound=Message)

# Most specific first: the first that fits is the status of an error.
_STATUS_OF: tuple[tuple[type[RemoteError], Status], ...] = (
    (RequestRefusedError, Status.REFUSED),
    (LeaseLostError, Status.LEFT),
    (OutdatedStepError, Status.OUTDATED),
    (StaleError, Status.STALE),
    (PeerLostError, Status.LOST),
    (ServerFailedError, Status.FAILED),
    (ForgottenError, Status.FORGOTTEN),
)
_ERROR_OF: dict[int, type[RemoteError]] = {status: error for error, status in _STATUS_OF}
#: characters of a text that travel, and numbers that one lists
_MOST_TEXT, _MOST_NAMED = 1 << 16, 20
#: long enough that no two lists get the same one
SIGNATURE_BYTES: Final = 16
_USES: dict[int, Use] = {use.value: use for use in Use}


def parse(kind: type[M], data: bytes) -> M:
    """A protobuf message from bytes; RequestRefusedError when they are none."""
    message = kind()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise RequestRefusedError(f"malformed {kind.__name__}: {error}") from None
    return message


def outcome_of(error: Exception) -> pb.Outcome:
    """How a server reports an error. What is no RemoteError is a failure of the server."""
    text = str(error) if isinstance(error, FluidliteError) else f"{type(error).__name__}: {error}"
    status = next((status for kind, status in _STATUS_OF if isinstance(error, kind)), Status.FAILED)
    return pb.Outcome(code=status.name, text=text[:_MOST_TEXT].encode(errors="replace").decode())


def error_of(outcome: pb.Outcome) -> RemoteError:
    """The error that a server reported, for whoever asked."""
    return _ERROR_OF.get(outcome.code, ServerFailedError)(outcome.text)


def check_outcome(outcome: pb.Outcome) -> None:
    """Raise the error that a server reported, if any."""
    if outcome.code:
        raise error_of(outcome)


@functools.lru_cache
def encode_identity(identity: Identity) -> pb.Identity:
    """Always the same message; nobody changes it."""
    return pb.Identity(job=identity.job, trainer=identity.trainer, incarnation=identity.incarnation)


def decode_identity(message: pb.Identity) -> Identity:
    return Identity(message.job, message.trainer, message.incarnation)


def encode_registration(registration: Registration) -> bytes:
    message = pb.RegisterRequest(
        identity=encode_identity(registration.identity),
        protocol=registration.protocol,
        trainers=registration.trainers,
        declared=[
            pb.Declared(name=d.name, use=d.use.name, array=pb.Array(dtype=dtype_number(d.dtype), shape=d.shape))
            for d in registration.declared
        ],
    )
    return message.SerializeToString()


def decode_registration(data: bytes) -> Registration:
    message = parse(pb.RegisterRequest, data)
    return Registration(
        decode_identity(message.identity),
        message.trainers,
        tuple(_decode_declared(declared) for declared in message.declared),
        message.protocol,
    )


def _decode_declared(message: pb.Declared) -> Declared:
    if message.use not in _USES:
        raise RequestRefusedError(f"malformed declaration of {message.name!r}: use {message.use}")
    return Declared(message.name, _USES[message.use], _dtype(message.array.dtype), tuple(message.array.shape))


def _dtype(number: int) -> str:
    if number not in DTYPE_NAMES:
        raise RequestRefusedError(f"unknown dtype number {number}")
    return DTYPE_NAMES[number]


def encode_welcome(welcome: Welcome) -> bytes:
    message = pb.RegisterReply(
        version=welcome.version,
        next_sequence=welcome.next_sequence,
        trainers=welcome.trainers,
        sync=welcome.sync,
        lease=welcome.lease,
        history=welcome.history,
        undecided=welcome.undecided,
    )
    return message.SerializeToString()


def decode_welcome(data: bytes) -> Welcome:
    message = parse(pb.RegisterReply, data)
    check_outcome(message.outcome)
    if not message.lease > 0:
        raise RequestRefusedError(f"malformed welcome: a lease of {message.lease} s")
    return Welcome(
        message.version,
        message.next_sequence,
        message.trainers,
        message.sync,
        message.lease,
        message.history,
        message.undecided if message.HasField("undecided") else None,
    )


def encode_pull(identity: Identity, requests: Sequence[PullRequest]) -> Packet:
    header = pb.PullRequestHeader(identity=encode_identity(identity))
    arrays: list[Array] = []
    for request in requests:
        item = header.items.add()
        if isinstance(request, RowRequest):
            _put_rows(item.rows, request)
            arrays.append(request.ids)
        elif isinstance(request, DenseRequest):
            item.dense = request.name
        else:
            item.table = request.table
    return Packet(header.SerializeToString(), arrays)


def _put_rows(rows: pb.RowRequest, request: RowRequest) -> None:
    rows.table, rows.width, rows.dtype = request.table, request.width, dtype_number(request.dtype)
    rows.ids.CopyFrom(describe(request.ids))
    if request.read_only:
        rows.read_only = True
    if request.wire_dtype:
        rows.wire_dtype = dtype_number(request.wire_dtype)
    if request.signature:
        rows.signature = request.signature


def decode_pull(header: bytes, payload: Payload, endpoint: str) -> tuple[Identity, list[PullRequest]]:
    message = parse(pb.PullRequestHeader, header)
    requests = [_decode_item(item, payload, endpoint) for item in message.items]
    payload.finish()
    return decode_identity(message.identity), requests


def _decode_item(item: pb.PullItem, payload: Payload, endpoint: str) -> PullRequest:
    kind = item.WhichOneof("item")
    if kind == "dense":
        return DenseRequest(endpoint, item.dense)
    if kind == "table":
        return TableRequest(endpoint, item.table)
    if kind is None:
        raise RequestRefusedError("malformed pull: an empty item")
    rows = item.rows
    ids, dtype = payload.take(rows.ids), _dtype(rows.dtype)
    if len(rows.signature) not in (0, SIGNATURE_BYTES):
        raise RequestRefusedError(f"malformed pull: a signature of {len(rows.signature)} bytes")
    return RowRequest(
        endpoint, rows.table, ids, rows.width, dtype, rows.read_only, _wire_dtype(rows.wire_dtype), rows.signature
    )


def _wire_dtype(number: int) -> str:
    name = _dtype(number) if number else ""
    if name and name not in NARROW:
        raise RequestRefusedError(f"rows cannot travel as {name}, only as {' or '.join(NARROW)}")
    return name


def encode_pull_reply(reply: PullReply, requests: Sequence[PullRequest] = ()) -> Packet:
    """Rows travel as the ``requests`` that they answer say."""
    arrays: list[Array] = []
    values = [_put_answer(value, arrays, request) for value, request in zip_longest(reply.values, requests)]
    return Packet(pb.PullReplyHeader(version=reply.version, values=values).SerializeToString(), arrays)


def _put_answer(value: Value, arrays: list[Array], request: PullRequest | None) -> pb.Value:
    if isinstance(request, RowRequest) and request.wire_dtype:
        return put_value(value, arrays, request.wire_dtype, f"rows of {request.table!r}")
    return put_value(value, arrays)


def decode_pull_reply(header: bytes, payload: Payload, requests: Sequence[PullRequest] | None = None) -> PullReply:
    """``requests``: what was asked, so that the answer must fit."""
    message = parse(pb.PullReplyHeader, header)
    check_outcome(message.outcome)
    reply = PullReply(message.version, tuple(payload.take_value(value) for value in message.values))
    if requests is not None:
        _check_answers(reply, requests)
    return reply


def _check_answers(reply: PullReply, requests: Sequence[PullRequest]) -> None:
    if len(reply.values) != len(requests):
        raise ServerFailedError(f"{len(requests)} values were asked for, {len(reply.values)} came")
    for request, value in zip(requests, reply.values, strict=True):
        if isinstance(request, TableRequest):
            fits = isinstance(value, SelectedRows)
        elif isinstance(request, DenseRequest):
            fits = not isinstance(value, SelectedRows)
        else:
            shape = len(request.ids), request.width
            fits = not isinstance(value, SelectedRows) and value.shape == shape and value.dtype == request.dtype
        if not fits:
            raise ServerFailedError(f"the answer is not what was asked for by {type(request).__name__}")


def encode_push(push: Push, sent: Container[int] = ()) -> Packet:
    """A whole step in one transfer, but for the gradients whose numbers are in ``sent``: they went ahead."""
    arrays: list[Array] = []
    commit = pb.Commit(parts=len(push.gradients), wanted=push.wanted, undecided=not push.decided)
    message = pb.PushRequestHeader(start=_encode_start(push.header), commit=commit)
    for number, gradient in enumerate(push.gradients):
        if number not in sent:
            _put_part(message, number, gradient, arrays)
    return Packet(message.SerializeToString(), arrays)


def encode_part(header: StepHeader, number: int, gradient: Gradient) -> Packet:
    """One gradient of a step, ahead of its commit."""
    arrays: list[Array] = []
    message = pb.PushRequestHeader(start=_encode_start(header))
    _put_part(message, number, gradient, arrays)
    return Packet(message.SerializeToString(), arrays)


def encode_decision(decision: Decision) -> Packet:
    """What became of a step, in a transfer of its own."""
    return Packet(pb.PushRequestHeader(decision=decision_message(decision)).SerializeToString(), [])


def decision_message(decision: Decision) -> pb.Decision:
    return pb.Decision(
        identity=encode_identity(decision.identity),
        sequence=decision.sequence,
        apply=decision.apply,
        wanted=decision.wanted,
    )


def decode_decision(message: pb.Decision) -> Decision:
    return Decision(decode_identity(message.identity), message.sequence, message.apply, list(message.wanted))


def _put_part(message: pb.PushRequestHeader, number: int, gradient: Gradient, arrays: list[Array]) -> None:
    if gradient.rows is None or gradient.signature:
        value: Value = gradient.value
    else:
        value = SelectedRows(gradient.rows, gradient.value, gradient.height)
    wire_dtype = gradient.wire_dtype if gradient.rows is not None else ""
    described = put_value(value, arrays, wire_dtype, f"gradient {gradient.name!r}")
    if gradient.signature:
        described.height = gradient.height
    message.parts.add(number=number, name=gradient.name, value=described, signature=gradient.signature)


def _encode_start(header: StepHeader) -> pb.Start:
    return pb.Start(
        identity=encode_identity(header.identity),
        sequence=header.sequence,
        step=header.step,
        version_seen=header.version_seen,
        learning_rate=header.learning_rate,
        steps=header.steps if header.steps != 1 else 0,
    )


def _unsigned(identity: Identity, signature: bytes) -> Array:
    raise ForgottenError("no ids were signed")


class OpenStep:
    """A step on its way in: transfers with its start, its parts and its commit, in one or in many; or a decision.

    ``ids_of`` gives the ids that a trainer signed, or raises ForgottenError.
    """

    def __init__(self, endpoint: str, ids_of: Callable[[Identity, bytes], Array] = _unsigned) -> None:
        self._endpoint = endpoint
        self._ids_of = ids_of
        self._start: pb.Start | None = None
        self._parts: dict[int, Gradient] = {}

    def add(self, header: bytes, payload: Payload) -> Push | Decision | None:
        """Take the next transfer; the whole step when it brings the commit."""
        message = parse(pb.PushRequestHeader, header)
        if message.HasField("decision"):
            payload.finish()
            return decode_decision(message.decision)
        if message.HasField("start"):
            self._begin(message.start)
        if self._start is None:
            raise RequestRefusedError("malformed push: no start before its parts")
        for part in message.parts:
            self._add_part(self._start, part, payload)
        payload.finish()
        return self._close(self._start, message.commit) if message.HasField("commit") else None

    def _begin(self, start: pb.Start) -> None:
        """The step goes on, or another one takes its place: its trainer gave the first one up."""
        if self._start is not None and self._start.sequence != start.sequence:
            self._parts.clear()
        self._start = start

    def _add_part(self, start: pb.Start, part: pb.Part, payload: Payload) -> None:
        if part.number in self._parts:
            raise RequestRefusedError(f"malformed push: part {part.number} came twice")
        value = payload.take_value(part.value)
        if part.signature and not isinstance(value, SelectedRows):
            rows = self._ids_of(decode_identity(start.identity), part.signature)
            check_rows(rows, value)
            value = SelectedRows(rows, value, part.value.height)
        if isinstance(value, SelectedRows):
            gradient = Gradient(self._endpoint, part.name, value.value, value.rows, value.height)
        else:
            gradient = Gradient(self._endpoint, part.name, value)
        self._parts[part.number] = gradient

    def _close(self, start: pb.Start, commit: pb.Commit) -> Push:
        if sorted(self._parts) != list(range(len(self._parts))) or len(self._parts) != commit.parts:
            came = ", ".join(map(str, sorted(self._parts)[:_MOST_NAMED]))
            raise RequestRefusedError(
                f"incomplete push: {commit.parts} parts committed, {len(self._parts)} came: {came}"
            )
        rate = start.learning_rate if start.HasField("learning_rate") else None
        header = StepHeader(
            decode_identity(start.identity),
            start.sequence,
            start.step,
            start.version_seen,
            commit.parts,
            rate,
            start.steps or 1,
        )
        gradients = [self._parts[number] for number in range(commit.parts)]
        return Push(header, gradients, list(commit.wanted), not commit.undecided)


def encode_commit_reply(reply: CommitReply) -> Packet:
    arrays: list[Array] = []
    dense = [pb.Named(name=name, value=put_value(value, arrays)) for name, value in reply.dense.items()]
    return Packet(pb.PushReplyHeader(version=reply.version, dense=dense).SerializeToString(), arrays)


def decode_commit_reply(header: bytes, payload: Payload) -> CommitReply:
    message = parse(pb.PushReplyHeader, header)
    check_outcome(message.outcome)
    return CommitReply(message.version, {named.name: payload.take(named.value.array) for named in message.dense})


def encode_assign(identity: Identity, name: str, value: Value) -> Packet:
    arrays: list[Array] = []
    header = pb.AssignRequestHeader(identity=encode_identity(identity), name=name, value=put_value(value, arrays))
    return Packet(header.SerializeToString(), arrays)


def decode_assign(header: bytes, payload: Payload) -> tuple[Identity, str, Value]:
    message = parse(pb.AssignRequestHeader, header)
    value = payload.take_value(message.value)
    payload.finish()
    return decode_identity(message.identity), message.name, value
