"""Programs in which what fusion looks for is entangled with what may forbid it, mixed at random.

A `Tangle` is plain data, so a failing example prints as the call that makes it again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from hypothesis import strategies as st

import fluidlite as fluid
from fluidlite.values.lod import lod_from_lengths

WIDTH: Final = 4
HEIGHT: Final = 9
#: data of ids -> its shape; those of rank 2 and size 1 are looked up by `lookup_table`
IDS: Final = {"a": [None, 1], "b": [None, 1], "c": [None, 2]}
OPTIMIZERS: Final[dict[str, Callable[..., Any]]] = {
    "sgd": lambda **rest: fluid.optimizer.SGD(0.1, **rest),
    "momentum": lambda **rest: fluid.optimizer.Momentum(0.1, 0.9, **rest),
    "adam": lambda **rest: fluid.optimizer.Adam(0.1, **rest),
    "lazy adam": lambda **rest: fluid.optimizer.Adam(0.1, lazy_mode=True, **rest),
    "adagrad": lambda **rest: fluid.optimizer.Adagrad(0.1, **rest),
}

Step = Callable[["_Parts"], fluid.Variable]
STEPS: Final[dict[str, Step]] = {}


def step(function: Step) -> Step:
    """Name a step by its function."""
    STEPS[function.__name__] = function
    return function


@dataclass
class _Parts:
    """What a step is made from: two variables [n, WIDTH] from before, a number, the kind of embeddings."""

    x: fluid.Variable
    y: fluid.Variable
    choice: int
    kind: str

    def fc(self, x: fluid.Variable, size: int = WIDTH, **rest: Any) -> fluid.Variable:
        return fluid.layers.fc(x, size, act=(None, "relu", "tanh", "sigmoid")[self.choice % 4], **rest)

    def lookup(self, ids: fluid.Variable) -> fluid.Variable:
        """Rows of one of two parameters, by either op, one of them with a padding id."""
        column = ids.shape[-1] == 1
        layer = fluid.layers.embedding if column else fluid.embedding
        name = f"emb{self.choice % 2}"
        attr = fluid.ParamAttr(name, fluid.initializer.Uniform(-0.5, 0.5, seed=3))
        rest = {"is_sparse": self.kind != "dense", "is_distributed": self.kind == "table", "param_attr": attr}
        padding = 1 if self.choice % 5 == 0 else None
        return layer(ids, [HEIGHT, WIDTH], padding_idx=padding, dtype=self.x.dtype, **rest)


def ids(name: str) -> fluid.Variable:
    return fluid.default_main_program().global_block().var(name)


@step
def layer(parts: _Parts) -> fluid.Variable:
    return parts.fc(parts.x)


@step
def tied_layer(parts: _Parts) -> fluid.Variable:
    return parts.fc(parts.x, param_attr="tied", bias_attr=(None, False, "tied_bias")[parts.choice % 3])


@step
def layer_of_two(parts: _Parts) -> fluid.Variable:
    return parts.fc([parts.x, parts.y])


@step
def row(parts: _Parts) -> fluid.Variable:
    return parts.lookup(ids("ab"[parts.choice % 2]))


@step
def row_of_computed_ids(parts: _Parts) -> fluid.Variable:
    positive = fluid.layers.reduce_sum(parts.x, dim=1, keep_dim=True) > 0.0
    return parts.lookup(fluid.layers.cast(positive, "int64"))


@step
def rows_side_by_side(parts: _Parts) -> fluid.Variable:
    pair = fluid.layers.reshape(parts.lookup(ids("c")), [(-1, 0)[parts.choice % 2], 2 * WIDTH])
    singles = [parts.lookup(ids(name)) for name in "ab"]
    between = [] if parts.choice % 3 else [parts.y]
    return parts.fc(fluid.layers.concat([singles[0], *between, pair, singles[1]], axis=1))


@step
def rows_of_one_op_side_by_side(parts: _Parts) -> fluid.Variable:
    rows = [parts.lookup(ids(name)) for name in ("a", "b", "a")]
    if parts.choice % 3 == 0:
        rows[1].stop_gradient = True
    return fluid.layers.fc(fluid.layers.concat(rows, axis=(1, -1)[parts.choice % 2]), WIDTH)


@step
def rows_summed(parts: _Parts) -> fluid.Variable:
    return fluid.layers.sums([parts.lookup(ids("a")), parts.x, parts.lookup(ids("b"))])


@step
def sums(parts: _Parts) -> fluid.Variable:
    return fluid.layers.sums([parts.x, parts.y, parts.x])


@step
def bag(parts: _Parts) -> fluid.Variable:
    return fluid.layers.sequence_pool(parts.fc(parts.lookup(ids("bag"))), "sum")


@step
def bags_side_by_side(parts: _Parts) -> fluid.Variable:
    rows = fluid.layers.concat([parts.lookup(ids("bag")), parts.lookup(ids("bag"))], axis=1)
    return fluid.layers.fc(fluid.layers.sequence_pool(rows, ("max", "sum")[parts.choice % 2]), WIDTH)


@step
def softmax(parts: _Parts) -> fluid.Variable:
    return fluid.layers.softmax(parts.x)


@step
def entropy(parts: _Parts) -> fluid.Variable:
    probabilities = fluid.layers.softmax(parts.x)
    loss = fluid.layers.cross_entropy(probabilities, ids("class"), ignore_index=(-100, 2)[parts.choice % 2])
    return parts.y * loss if parts.choice % 3 else probabilities * loss


@step
def logistic(parts: _Parts) -> fluid.Variable:
    logit = fluid.layers.fc(parts.x, 1, act=None)
    losses = fluid.layers.sigmoid_cross_entropy_with_logits(logit, ids("label"), normalize=parts.choice % 2 == 0)
    return fluid.layers.elementwise_add(parts.y, fluid.layers.mean(losses))


@step
def dropout(parts: _Parts) -> fluid.Variable:
    return fluid.layers.dropout(parts.x, 0.3)


@step
def stopped(parts: _Parts) -> fluid.Variable:
    out = parts.fc(parts.x)
    out.stop_gradient = True
    return fluid.layers.elementwise_mul(out, parts.y)


@step
def overwritten(parts: _Parts) -> fluid.Variable:
    """A variable that is written twice; without a gradient, which would be that of its last value."""
    out = parts.fc(parts.x)
    out.stop_gradient = True
    before = fluid.layers.scale(out, 2.0)
    fluid.layers.assign(parts.y, out)
    return fluid.layers.elementwise_add(out, before)


@step
def loop(parts: _Parts) -> fluid.Variable:
    """A block that reads what stands before it, the middle of a layer too, and writes a variable outside."""
    before = parts.x.block.ops[-1].input_arg_names[0] if parts.choice % 2 and parts.x.block.ops else parts.x.name
    total, count, end = (fluid.layers.fill_constant([1], parts.x.dtype, value) for value in (0.0, 0.0, 2.0))
    more = fluid.layers.less_than(count, end)
    read = parts.x.block.var(before)
    with fluid.layers.While(more).block():
        value = fluid.layers.cast(fluid.layers.reduce_sum(read), parts.x.dtype) if read.dtype else total
        fluid.layers.assign(total + value, total)
        fluid.layers.increment(count)
        fluid.layers.less_than(count, end, cond=more)
    total.stop_gradient = True
    return fluid.layers.elementwise_add(parts.y, total)


@step
def branch(parts: _Parts) -> fluid.Variable:
    """A block that runs for some batches, looks rows up and overwrites what a layer made."""
    out = parts.fc(parts.x)
    out.stop_gradient = True
    with fluid.layers.ConditionalBlock([fluid.layers.reduce_sum(parts.y) > 0.0], is_scalar_condition=True).block():
        fluid.layers.assign(parts.lookup(ids("a")) if parts.choice % 2 else parts.y, out)
    return fluid.layers.elementwise_add(parts.x, out)


@dataclass(frozen=True)
class Tangle:
    """Steps, each of which may use what any before it made; then a loss and its training."""

    steps: tuple[tuple[str, int, int, int], ...]
    #: the loss depends on all steps, not just on the last
    joined: bool = False
    kind: str = "table"
    optimizer: str = "sgd"
    clip: bool = False
    decay: bool = False
    logistic: bool = False
    dtype: str = "float64"
    #: forward ops behind the updates
    behind: bool = False
    data: int = 0

    def build(self) -> fluid.Variable:
        """Append the program; returns the loss."""
        pool = [fluid.data("x", [None, WIDTH], self.dtype)]
        for name, shape in IDS.items():
            fluid.data(name, shape, "int64")
        fluid.data("bag", [None, 1], "int64", lod_level=1)
        fluid.data("class", [None, 1], "int64")
        label = fluid.data("label", [None, 1], self.dtype)
        pool.append(fluid.layers.fc(pool[0], WIDTH, act="relu"))
        for name, first, second, choice in self.steps:
            chosen = (pool[at % len(pool)] for at in (first, second))
            pool.append(STEPS[name](_Parts(*chosen, choice, self.kind)))
        out = fluid.layers.fc(fluid.layers.sums(pool[1:]) if self.joined else pool[-1], 1)
        losses = (
            fluid.layers.sigmoid_cross_entropy_with_logits(out, label)
            if self.logistic
            else fluid.layers.square_error_cost(out, label)
        )
        loss = fluid.layers.mean(losses)
        decay = fluid.regularizer.L2Decay(0.01) if self.decay else None
        clip = fluid.clip.GradientClipByGlobalNorm(0.5) if self.clip else None
        OPTIMIZERS[self.optimizer](regularization=decay, grad_clip=clip).minimize(loss)
        if self.behind:
            STEPS[self.steps[-1][0]](_Parts(pool[-1], pool[0], self.steps[-1][3], self.kind))
        return loss

    def feeds(self, steps: int, batch: int) -> list[dict[str, Any]]:
        """A batch for each step: few ids, so that they repeat; numbers that are exact zeros or large, too."""
        random = np.random.default_rng(self.data)
        return [self._feed(random, batch) for _ in range(steps)]

    def _feed(self, random: np.random.Generator, batch: int) -> dict[str, Any]:
        x = random.normal(size=(batch, WIDTH))
        x[random.random(x.shape) < 0.1] = random.choice([0.0, -0.0, 1e3])
        lengths = random.integers(0, 4, batch).tolist()
        return {
            "x": x.astype(self.dtype),
            **{name: random.integers(0, HEIGHT, (batch, shape[1] or 1)) for name, shape in IDS.items()},
            "bag": fluid.LoDTensor(random.integers(0, HEIGHT, (sum(lengths), 1)), lod_from_lengths([lengths])),
            "class": random.integers(0, WIDTH, (batch, 1)),
            "label": random.integers(0, 2, (batch, 1)).astype(self.dtype),
        }


_numbers: Final = st.integers(0, 29)
tangles: Final = st.builds(
    Tangle,
    steps=st.lists(st.tuples(st.sampled_from(sorted(STEPS)), _numbers, _numbers, _numbers), min_size=2, max_size=8).map(
        tuple
    ),
    joined=st.sampled_from([True, True, False]),
    kind=st.sampled_from(["table", "sparse", "dense"]),
    optimizer=st.sampled_from(sorted(OPTIMIZERS)),
    clip=st.booleans(),
    decay=st.booleans(),
    logistic=st.booleans(),
    dtype=st.sampled_from(["float64", "float32"]),
    behind=st.booleans(),
    data=st.integers(0, 2**16),
)
