"""gRPC, imported once it was told how to poll.

The thread that waits for something is to read the socket itself. gRPC's newer event engine hands every read to threads of
its own, which costs a fifth of the time of a step's transfers (docs/decisions/0023). A process that chose its experiments
keeps them.
"""

from __future__ import annotations

import os

os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")

import grpc

__all__ = ["grpc"]
