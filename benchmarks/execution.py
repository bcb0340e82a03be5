"""Figures of the executor: what it adds to the kernels, and what the package costs before anything runs."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np

import fluidlite as fluid
from benchmarks.environment import REPO, benchmark_environment
from benchmarks.figures import Figure, Sample, SampleError, Settings, Target, Values
from benchmarks.timing import median_ms
from fluidlite.ops import registry
from fluidlite.runtime.scope import Scope

_SIZES: Final = (429, 400, 400, 1)
_BATCH: Final = 512
_OPS: Final = 300
_IMPORT: Final = """
import time
start = time.perf_counter()
import fluidlite
seconds = time.perf_counter() - start
from benchmarks.environment import peak_mb
print(seconds, peak_mb())
"""


@contextmanager
def open_dense(settings: Settings) -> Iterator[Sequence[Sample]]:
    """A step by the executor, the matrix products in it, and the step by torch where there is one."""
    step, products = dense_step(), bare_products()
    samples: list[Sample] = [
        lambda: {"fluidlite": median_ms(step, settings.steps)},
        lambda: {"bare GEMMs": median_ms(products, settings.steps)},
    ]
    if settings.pythons.get("torch"):
        samples.append(lambda: {"torch eager": torch_ms(settings)})
    yield samples


def dense_step() -> Callable[[], object]:
    """Forward, backward and sgd of the net through the executor, loss fetched."""
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        hidden = fluid.data("x", [None, _SIZES[0]], "float32")
        label = fluid.data("label", [None, 1], "float32")
        for size in _SIZES[1:-1]:
            hidden = fluid.layers.fc(hidden, size, act="relu")
        logit = fluid.layers.fc(hidden, _SIZES[-1])
        loss = fluid.layers.mean(fluid.layers.sigmoid_cross_entropy_with_logits(logit, label))
        fluid.optimizer.SGD(0.01).minimize(loss)
    exe, scope = fluid.Executor(), Scope()
    exe.run(startup, scope=scope)
    random = np.random.default_rng(0)
    feed = {
        "x": random.random((_BATCH, _SIZES[0]), np.float32),
        "label": random.integers(0, 2, (_BATCH, 1)).astype(np.float32),
    }
    return lambda: exe.run(main, feed=feed, fetch_list=[loss], scope=scope)


def bare_products() -> Callable[[], object]:
    """The same matrix products and nothing else: forward, by weights, and by inputs except for the first layer."""
    random = np.random.default_rng(0)
    weights = [random.random(shape, np.float32) for shape in itertools.pairwise(_SIZES)]
    inputs = [random.random((_BATCH, size), np.float32) for size in _SIZES]

    def products() -> None:
        for x, w in zip(inputs, weights, strict=False):
            x @ w
        for layer in range(len(weights) - 1, -1, -1):
            inputs[layer].T @ inputs[layer + 1]
            if layer:
                inputs[layer + 1] @ weights[layer].T

    return products


def torch_ms(settings: Settings) -> float:
    """Median milliseconds of the step by torch, in its own environment."""
    script = Path(__file__).with_name("torch_dense.py")
    numbers = map(str, (settings.steps, _BATCH, *_SIZES))
    return _numbers_of(settings.pythons["torch"], str(script), *numbers)[0]


@contextmanager
def open_overhead(settings: Settings) -> Iterator[Sequence[Sample]]:
    """A chain of tiny ops by the executor, and the calls of the same kernels."""
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()), fluid.unique_name.guard():
        out = fluid.data("x", [1], "float32")
        for _ in range(_OPS):
            out = fluid.layers.scale(out, scale=1.0, bias=0.0)
    exe, scope = fluid.Executor(), Scope()
    feed = {"x": np.ones(1, np.float32)}
    kernel = registry.get("scale").kernel
    assert kernel is not None
    call: Callable[..., Any] = kernel

    def bare() -> None:
        value = feed["x"]
        for _ in range(_OPS):
            value = call(None, X=value, ScaleTensor=None, scale=1.0, bias=0.0, bias_after_scale=True)

    def run() -> None:
        exe.run(main, feed=feed, fetch_list=[out], scope=scope)

    yield [
        lambda: {"fluidlite": median_ms(run, settings.steps) * 1e3 / _OPS},
        lambda: {"bare kernels": median_ms(bare, settings.steps) * 1e3 / _OPS},
    ]


@contextmanager
def open_import(settings: Settings) -> Iterator[Sequence[Sample]]:
    """``import fluidlite`` in a new interpreter, its files compiled and read before; memory is the whole process's."""
    _numbers_of(sys.executable, "-c", _IMPORT)

    def sample() -> Values:
        seconds, peak = _numbers_of(sys.executable, "-c", _IMPORT)
        return {"import s": seconds, "process MB": peak}

    yield [sample]


def _numbers_of(*command: str) -> list[float]:
    """The numbers that a command prints."""
    done = subprocess.run(command, cwd=REPO, env=benchmark_environment(), capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise SampleError(f"{Path(command[0]).name} failed: {done.stderr.strip().splitlines()[-1:]}")
    return [float(part) for part in done.stdout.split()]


FIGURES: Final = (
    Figure(
        "dense-step",
        "dense net 429-400-400-1, batch 512, forward, backward and sgd, loss fetched",
        "ms",
        open_dense,
        (
            Target("Executor against the bare GEMMs", "fluidlite", 1.15, ("bare GEMMs",)),
            Target("Executor against torch eager", "fluidlite", 0.9, ("torch eager",)),
        ),
        steps=100,
    ),
    Figure(
        "executor-overhead",
        "program of 300 tiny ops",
        "µs per op",
        open_overhead,
        (Target("µs per op beyond the kernels", "fluidlite", 1.0, ("bare kernels",), difference=True),),
        steps=1000,
    ),
    Figure(
        "import",
        "`import fluidlite`",
        "s, MB",
        open_import,
        (Target("seconds", "import s", 0.35), Target("MB of the process", "process MB", 60.0)),
    ),
)
