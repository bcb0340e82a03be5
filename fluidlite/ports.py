"""The ports of an ordinary process: gRPC to the servers, or a gRPC server. Nothing is opened before it is needed."""

from __future__ import annotations

from typing import Any

from fluidlite.core.ir import Operator, Program
from fluidlite.ops.context import HostPort, ServerPort


class ProcessPorts:
    """Implements `ops.context.Ports` over gRPC."""

    def __init__(self) -> None:
        self._server: ServerPort | None = None

    def server(self, op: Operator) -> ServerPort:
        raise NotImplementedError

    @property
    def host(self) -> HostPort:
        raise NotImplementedError

    def close(self) -> None:
        pass
