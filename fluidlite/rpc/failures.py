"""What gRPC reports, as typed errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from fluidlite.errors import PeerLostError, RemoteError, UnreachableError
from fluidlite.rpc.library import grpc

#: the answer to a call that these codes end will not change
_FINAL: Final = {
    grpc.StatusCode.UNIMPLEMENTED: "it is no fluidlite pserver of this version",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "a message is larger than it accepts",
}


def attempt(call: Callable[[], Any], late: type[PeerLostError] = PeerLostError) -> Any:
    """The result of a call; what gRPC reports as a typed error, a missed deadline as ``late``."""
    try:
        return call()
    except grpc.RpcError as error:
        raise typed(error.code(), error.details(), late) from None
    except ValueError as error:  # what gRPC raises for a closed channel
        raise PeerLostError(str(error)) from None


def typed(code: grpc.StatusCode, details: str, late: type[PeerLostError] = PeerLostError) -> RemoteError:
    """The error that a status is."""
    if code in _FINAL:
        return RemoteError(f"{_FINAL[code]} ({details})")
    if code == grpc.StatusCode.DEADLINE_EXCEEDED:
        return late(f"no answer in time ({details})")
    return UnreachableError(f"{code.name.lower()}: {details}")
