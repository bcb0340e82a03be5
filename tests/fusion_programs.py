"""Programs that fusion passes find much in, and some in which they have to leave things alone; with their feeds.

Each is a function of the dtype of its numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np

import fluidlite as fluid

Feed = dict[str, Any]
#: appends a model and its training to the default programs and returns the loss
Build = Callable[[str], fluid.Variable]


def _embedding(ids: fluid.Variable, kind: str, width: int = 4, name: str = "emb", **rest: Any) -> fluid.Variable:
    attr = fluid.ParamAttr(name, fluid.initializer.Uniform(-0.5, 0.5, seed=3))
    sparse = {"is_sparse": kind != "dense", "is_distributed": kind == "table"}
    layer = fluid.layers.embedding if rest.pop("v1", False) else fluid.embedding
    return layer(ids, [20, width], param_attr=attr, **sparse, **rest)


def ctr(dtype: str, kind: str = "table", optimizer: str = "sgd") -> fluid.Variable:
    """Five slots of one table beside numbers, one of them of two ids; layers; the logistic loss."""
    slots = [fluid.data(f"C{slot}", [None, 1 + slot % 2], "int64") for slot in range(5)]
    columns = [fluid.layers.reshape(_embedding(ids, kind, dtype=dtype), [-1, ids.shape[1] * 4]) for ids in slots]
    hidden = fluid.layers.concat([*columns, fluid.data("dense", [None, 3], dtype)], axis=1)
    for size in (37, 6):
        hidden = fluid.layers.fc(hidden, size, act="relu")
    logit = fluid.layers.fc(hidden, 1)
    label = fluid.data("label", [None, 1], dtype)
    loss = fluid.layers.mean(fluid.layers.sigmoid_cross_entropy_with_logits(logit, label))
    _OPTIMIZERS[optimizer]().minimize(loss)
    return loss


def wide_deep(dtype: str) -> fluid.Variable:
    """A wide part of width 1, summed, and a deep part that is nothing but lookups; both read the same ids."""
    slots = [fluid.data(f"C{slot}", [None, 1], "int64") for slot in range(4)]
    wide = fluid.layers.sums([_embedding(ids, "table", 1, "wide", v1=True, dtype=dtype) for ids in slots])
    deep = fluid.layers.concat([_embedding(ids, "table", 4, "deep", v1=True, dtype=dtype) for ids in slots], axis=1)
    deep = fluid.layers.fc(fluid.layers.fc(deep, 5, act="tanh"), 1, bias_attr=False)
    label = fluid.data("label", [None, 1], dtype)
    loss = fluid.layers.mean(fluid.layers.sigmoid_cross_entropy_with_logits(wide + deep, label))
    fluid.optimizer.Adagrad(0.1).minimize(loss)
    return loss


def classes(dtype: str, ignore_index: int = -100) -> fluid.Variable:
    """Softmax and cross entropy, with the accuracy; dropout between the layers."""
    hidden = fluid.layers.fc(fluid.data("dense", [None, 3], dtype), 6, act="sigmoid")
    hidden = fluid.layers.dropout(hidden, 0.3)
    probabilities = fluid.layers.fc(hidden, 4, act="softmax")
    label = fluid.data("class", [None, 1], "int64")
    fluid.layers.accuracy(probabilities, label)
    loss = fluid.layers.mean(fluid.layers.cross_entropy(probabilities, label, ignore_index=ignore_index))
    fluid.optimizer.Adam(0.05).minimize(loss)
    return loss


def sequences(dtype: str) -> fluid.Variable:
    """Bags of ids (LoD): layers on their rows before they are pooled; the two lookups share a parameter."""
    bags = [fluid.data(f"bag{i}", [None, 1], "int64", lod_level=1) for i in range(2)]
    rows = [_embedding(ids, "sparse", v1=True, padding_idx=1, dtype=dtype) for ids in bags]
    hidden = [fluid.layers.fc(row, 3, act="tanh") for row in rows]
    pooled = fluid.layers.concat([fluid.layers.sequence_pool(part, "sum") for part in (*hidden, *rows)], axis=1)
    loss = fluid.layers.mean(fluid.layers.square(fluid.layers.fc(pooled, 1)))
    fluid.optimizer.Momentum(0.05, 0.9).minimize(loss)
    return loss


def matrices(dtype: str) -> fluid.Variable:
    """A layer whose input has two leading dimensions, one of them perhaps of size 1."""
    x = fluid.layers.reshape(fluid.data("dense", [None, 3], dtype), [1, -1, 3])
    hidden = fluid.layers.fc(x, 4, num_flatten_dims=2, act="relu")
    loss = fluid.layers.mean(fluid.layers.fc(hidden, 2, num_flatten_dims=2))
    fluid.optimizer.SGD(0.1, regularization=fluid.regularizer.L2Decay(0.01)).minimize(loss)
    return loss


def loop(dtype: str) -> fluid.Variable:
    """A block that reads what a layer is made of, and lookups of ids that are computed on the way."""
    x = fluid.data("dense", [None, 3], dtype)
    hidden = fluid.layers.fc(x, 3, act="relu")
    before = hidden.block.var(hidden.block.ops[-1].input("X")[0])
    count, end = (fluid.layers.fill_constant([1], dtype, value) for value in (0.0, 2.0))
    total = fluid.layers.fill_constant([1], dtype, 0.0)
    more = fluid.layers.less_than(count, end)
    with fluid.layers.While(more).block():
        fluid.layers.assign(total + fluid.layers.reduce_mean(before), total)
        fluid.layers.increment(count)
        fluid.layers.less_than(count, end, cond=more)
    ids = fluid.data("C0", [None, 1], "int64")
    first = _embedding(ids, "table", v1=True, dtype=dtype)
    made = fluid.layers.cast(fluid.layers.reduce_sum(first, dim=1, keep_dim=True) > 0.0, "int64")
    again = _embedding(made, "table", v1=True, dtype=dtype)
    other = _embedding(fluid.data("C1", [None, 1], "int64"), "table", v1=True, dtype=dtype)
    loss = fluid.layers.mean(fluid.layers.concat([hidden, first, again, other], axis=1)) + total
    fluid.optimizer.SGD(0.1).minimize(fluid.layers.mean(loss))
    return loss


_OPTIMIZERS: Final[dict[str, Callable[[], Any]]] = {
    "sgd": lambda: fluid.optimizer.SGD(0.1),
    "momentum": lambda: fluid.optimizer.Momentum(0.1, 0.9, use_nesterov=True),
    "adam": lambda: fluid.optimizer.Adam(0.1, lazy_mode=True),
    "global norm": lambda: fluid.optimizer.SGD(0.1, grad_clip=fluid.clip.GradientClipByGlobalNorm(0.1)),
}
PROGRAMS: Final[dict[str, Build]] = {
    **{f"ctr {name}": partial(ctr, optimizer=name) for name in _OPTIMIZERS},
    "ctr sparse": partial(ctr, kind="sparse"),
    "ctr dense": partial(ctr, kind="dense"),
    "wide_deep": wide_deep,
    "classes": classes,
    "classes, some ignored": partial(classes, ignore_index=2),
    "sequences": sequences,
    "matrices": matrices,
    "loop": loop,
}


def feeds(main: fluid.Program, batch: int, steps: int = 3, seed: int = 0) -> list[Feed]:
    """Random values for the data of a program: few ids, so that they repeat."""
    random = np.random.default_rng(seed)
    data = [var for var in main.desc.root.vars.values() if var.is_data]
    return [{var.name: _value(random, var, batch) for var in data} for _ in range(steps)]


def _value(random: np.random.Generator, var: Any, batch: int) -> Any:
    if var.lod_level:
        lengths = random.integers(0, 4, batch).tolist()
        ids = random.integers(0, 7, (sum(lengths), 1))
        return fluid.create_lod_tensor(ids, [lengths], fluid.CPUPlace())
    shape = (batch, *var.shape[1:])
    if var.dtype == "int64":
        return random.integers(0, 4 if var.name == "class" else 7, shape)
    value = random.integers(0, 2, shape) if var.name == "label" else random.normal(size=shape)
    return value.astype(var.dtype)
