"""A server of a `PSClient`'s example as a process of its own: ``python -m tests.ps_process EXAMPLE SERVER SERVERS TRAINERS``.

It listens at port 0 and prints where.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from fluidlite.ps_client import serve


def main(example: str, server: int, servers: int, trainers: int) -> None:
    sys.path.insert(0, str(Path(example).parent))
    spec = importlib.util.spec_from_file_location("example", example)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    serve(module.model(trainers), "127.0.0.1:0", server, servers, lambda endpoint: print(endpoint, flush=True))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
