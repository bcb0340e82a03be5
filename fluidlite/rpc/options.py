"""gRPC settings that both ends must agree on."""

from __future__ import annotations

from typing import Final

SERVICE: Final = "fluidlite.v1.PServer"
#: far above `wire.CHUNK`, for clients that do not cut their messages
_MAX_MESSAGE: Final = 64 << 20
#: streams of one connection at a time; a trainer needs one per verb
_STREAMS: Final = 32
_VANISHED_MS: Final = 30_000
_SIZES: Final = [("grpc.max_receive_message_length", _MAX_MESSAGE), ("grpc.max_send_message_length", _MAX_MESSAGE)]
_ANY_SIZE: Final = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


def method(verb: str) -> str:
    """The path of a verb."""
    return f"/{SERVICE}/{verb}"


def client_options(keepalive: float) -> list[tuple[str, int]]:
    """A trainer asks every ``keepalive`` seconds whether the server's host is still there, and waits as long for the
    answer, be it to a question or to a new connection. A connection that is lost, or to a server that is not up yet, is
    tried again ten times a second: a job starts when its last server listens. Proxies are for the world outside."""
    millis = int(keepalive * 1000)
    return [
        *_SIZES,
        ("grpc.keepalive_time_ms", millis),
        ("grpc.keepalive_timeout_ms", millis),
        ("grpc.http2.ping_timeout_ms", millis),  # else a minute, whatever the line above says
        ("grpc.min_reconnect_backoff_ms", millis),  # how long a connection may take to be made
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 100),
        ("grpc.enable_http_proxy", 0),
        ("grpc.use_local_subchannel_pool", 1),
    ]


def server_options(*, whole_messages: bool = False) -> list[tuple[str, int]]:
    """The server takes any number of pings (else gRPC ends connections with "too_many_pings"), and shares its port
    with nobody. It drops a connection whose other end vanished, later than a lease runs out, and takes from each only
    so many streams at a time that one stranger cannot occupy all of its threads. ``whole_messages``: whole variables come in
    one message (Fluid's own wire), which then has no bound but gRPC's."""
    return [
        *(_ANY_SIZE if whole_messages else _SIZES),
        ("grpc.keepalive_time_ms", _VANISHED_MS),
        ("grpc.keepalive_timeout_ms", _VANISHED_MS),
        ("grpc.http2.ping_timeout_ms", _VANISHED_MS),
        ("grpc.max_concurrent_streams", _STREAMS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 1),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.so_reuseport", 0),
    ]
