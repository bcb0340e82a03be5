"""One process of the job that `benchmarks.chaos` disturbs; roles by Fluid's environment variables.

Model ``ctr``: look-ups in an auto-grown table, a hidden layer, Adagrad: bits tell whether every step counted once and in
its place. Model ``sums``: gradients are whole numbers, and SGD with rate 1 adds them up, in any order.
"""

from __future__ import annotations

import argparse
import os
import random
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import numpy as np

import fluidlite as fluid
from fluidlite.errors import UnreachableError
from fluidlite.ports import TrainerPorts, job_id
from fluidlite.protocol.service import Pending
from fluidlite.rpc.client import GrpcChannel
from fluidlite.rpc.port import TrainerPort
from fluidlite.rpc.retry import Patience

T = TypeVar("T")
SLOTS: Final = 6
BATCH: Final = 32
IDS: Final = 5000
WIDTH: Final = 8
#: a peer that is started again is away for a second or two
PATIENCE: Final = Patience(connect=60.0, retry=60.0, backoff=0.01, backoff_max=0.2)


class Unreliable:
    """A way to a server on which a share of the requests never arrive, and of the replies never come back."""

    def __init__(self, channel: GrpcChannel, dropped: float) -> None:
        self._channel = channel
        self._dropped = dropped
        self._random = random.Random()  # noqa: S311

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    def register(self, *request: Any) -> Any:
        self._lose("request")
        welcome = self._channel.register(*request)
        self._lose("reply")
        return welcome

    def pull(self, *request: Any) -> Pending[Any]:
        return self._ask(lambda: self._channel.pull(*request))

    def commit(self, *request: Any) -> Pending[Any]:
        return self._ask(lambda: self._channel.commit(*request))

    def decide(self, *request: Any) -> Pending[Any]:
        return self._ask(lambda: self._channel.decide(*request))

    def assign(self, *request: Any) -> Pending[Any]:
        return self._ask(lambda: self._channel.assign(*request))

    def complete(self, *request: Any) -> Pending[Any]:
        return self._ask(lambda: self._channel.complete(*request))

    def _ask(self, start: Callable[[], Pending[T]]) -> Pending[T]:
        self._lose("request")
        pending = start()

        def answer() -> T:
            reply = pending()
            self._lose("reply")
            return reply

        return answer

    def _lose(self, what: str) -> None:
        if self._random.random() < self._dropped:
            raise UnreachableError(f"{what} dropped")


def build(model: str) -> None:
    """Append the model to the default programs."""
    ids = fluid.data("ids", [None, SLOTS], "int64")
    zeros = fluid.initializer.Constant(0.0)
    if model == "sums":
        rows = fluid.embedding(ids, [IDS, WIDTH], is_distributed=True, param_attr=fluid.ParamAttr("emb", zeros))
        weight = fluid.layers.create_parameter([WIDTH, 1], "float32", attr=fluid.ParamAttr("w", zeros))
        ones = fluid.layers.fill_constant([1, WIDTH], "float32", 1.0)
        loss = fluid.layers.reduce_sum(rows) + fluid.layers.reduce_sum(fluid.layers.mul(ones, weight))
        fluid.optimizer.SGD(1.0).minimize(loss)
        return
    label = fluid.data("label", [None, 1], "float32")
    rows = fluid.embedding(ids, [IDS, WIDTH], is_distributed=True, param_attr=fluid.ParamAttr("emb"))
    flat = fluid.layers.reshape(rows, [-1, SLOTS * WIDTH])
    hidden = fluid.layers.dropout(fluid.layers.fc(flat, 16, act="relu"), 0.3)
    logit = fluid.layers.fc(hidden, 1)
    loss = fluid.layers.mean(fluid.layers.sigmoid_cross_entropy_with_logits(logit, label))
    fluid.optimizer.Adagrad(0.05).minimize(loss)


def feed_of(model: str, trainer: int, step: int) -> dict[str, Any]:
    """The batch of one step of one trainer."""
    draw = np.random.default_rng([trainer, step])
    feed = {"ids": draw.integers(-IDS, IDS, (BATCH, SLOTS))}
    if model == "ctr":
        feed["label"] = (feed["ids"].sum(1, keepdims=True) % 3 == 0).astype(np.float32)
    return feed


def main(argv: Sequence[str] | None = None) -> None:
    """The process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=["ctr", "sums"], default="ctr")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--sync", action="store_true")
    parser.add_argument(
        "--drop", type=float, default=0.0, help="share of the requests, and of the replies, that get lost"
    )
    parser.add_argument("--every", type=int, default=0, help="versions between two checkpoints")
    parser.add_argument("--out", required=True, help="folder for the checkpoints, the last of which is the result")
    args = parser.parse_args(argv)
    build(args.model)
    endpoints = os.environ["PADDLE_PSERVERS_IP_PORT_LIST"]
    trainer, trainers = int(os.environ.get("PADDLE_TRAINER_ID", "0")), int(os.environ["PADDLE_TRAINERS_NUM"])
    transpiler = fluid.DistributeTranspiler(
        fluid.DistributeTranspilerConfig(checkpoint_dir=args.out, checkpoint_every=args.every)
    )
    transpiler.transpile(trainer, pservers=endpoints, trainers=trainers, sync_mode=args.sync)
    if os.environ["TRAINING_ROLE"] == "PSERVER":
        endpoint = f"{os.environ['POD_IP']}:{os.environ['PADDLE_PORT']}"
        program, startup = transpiler.get_pserver_programs(endpoint)
        server = fluid.Executor()
        server.run(startup)
        server.run(program)
        return
    with fluid.Executor(ports=TrainerPorts(lambda t, n: _port(t, n, args.drop), host=None)) as exe:  # type: ignore[arg-type]
        exe.run(fluid.default_startup_program())
        for step in range(exe.resume(), args.steps):
            exe.run(feed=feed_of(args.model, trainer, step))
            print(f"step {step}", flush=True)


def _port(trainer: int, trainers: int, dropped: float) -> TrainerPort:
    def connect(endpoint: str) -> Any:
        return Unreliable(GrpcChannel(endpoint, PATIENCE), dropped)

    return TrainerPort(connect, trainer=trainer, trainers=trainers, job=job_id(), patience=PATIENCE)


if __name__ == "__main__":
    main()
