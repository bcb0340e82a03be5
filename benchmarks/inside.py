"""Samples of a figure taken in another process, whose kernels are chosen: ``python -m benchmarks.inside OPENER ...``.

Kernels are chosen once per process, so C and numpy are compared by two processes that take turns. The child opens the
figure once and then takes one measurement for each line that it is sent.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from benchmarks.environment import REPO, benchmark_environment
from benchmarks.figures import Opener, Sample, SampleError, Settings, Values

KERNELS: Final = ("c", "numpy")


@contextmanager
def with_kernels(opener: Opener, kernels: str, settings: Settings) -> Iterator[Sample]:
    """The only sample of ``opener``, a function of a module, with these kernels; values are named ``NAME (kernels)``."""
    words = [opener.__module__, opener.__name__, str(settings.steps), str(settings.scale)]
    env, pipe = benchmark_environment(extra={"FLUIDLITE_KERNELS": kernels}), subprocess.PIPE
    command = [sys.executable, "-m", "benchmarks.inside", *words]
    child = subprocess.Popen(command, cwd=REPO, env=env, stdin=pipe, stdout=pipe, text=True)  # noqa: S603
    try:
        yield lambda: {f"{name} ({kernels})": value for name, value in _ask(child, kernels).items()}
    finally:
        with contextlib.suppress(BrokenPipeError):
            child.communicate()  # closes its stdin


def _ask(child: subprocess.Popen[str], kernels: str) -> Values:
    """One measurement by the child; SampleError when it is gone."""
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        child.stdin.write("go\n")
        child.stdin.flush()
    except BrokenPipeError:
        raise SampleError(f"{kernels} kernels: their process ended") from None
    line = child.stdout.readline()
    if not line:
        raise SampleError(f"{kernels} kernels: their process ended")
    values: dict[str, Any] = json.loads(line)
    return values


def main() -> None:
    """Measure whenever a line comes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("module")
    parser.add_argument("opener")
    parser.add_argument("steps", type=int)
    parser.add_argument("scale", type=float)
    args = parser.parse_args()
    opener: Opener = getattr(importlib.import_module(args.module), args.opener)
    with opener(Settings(steps=args.steps, scale=args.scale)) as (sample,):
        for _ in sys.stdin:
            print(json.dumps(sample()), flush=True)


if __name__ == "__main__":
    main()
