"""Inference models of fluidlite with an example of what they compute, to be compared with what others compute."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import fluidlite as fluid
from fluidlite import layers
from fluidlite.values.lod import LoDTensor
from tests.frontend import fresh_programs


class Built(NamedTuple):
    """What a builder gives."""

    outputs: list[fluid.Variable]
    feed: dict[str, Any]


def mlp() -> Built:
    x = fluid.data("x", [None, 4])
    out = layers.fc(layers.fc(x, 5, act="relu"), 3, act="softmax")
    return Built([out], {"x": _noise(3, 4)})


def ctr() -> Built:
    ids, dense = fluid.data("ids", [None, 3], "int64"), fluid.data("dense", [None, 2])
    rows = layers.reduce_sum(fluid.embedding(ids, [20, 4]), dim=1)
    hidden = layers.fc(layers.concat([rows, dense], axis=1), 8, act="tanh")
    score = layers.sigmoid(layers.fc(hidden, 1))
    return Built([score, rows], {"ids": np.arange(15).reshape(5, 3), "dense": _noise(5, 2)})


def old_lookup() -> Built:
    """Ids with a last dimension of 1, as Fluid before 1.6 wants them, one of them padding."""
    ids = fluid.data("ids", [None, 1], "int64")
    out = layers.fc(layers.embedding(ids, [20, 4], padding_idx=3), 1, act="sigmoid")
    return Built([out], {"ids": np.array([[1], [3], [19]])})


def cnn() -> Built:
    image = fluid.data("image", [None, 1, 8, 8])
    maps = layers.pool2d(layers.conv2d(image, 4, 3, act="relu"), 2, "max", 2)
    out = layers.fc(layers.dropout(layers.batch_norm(maps), 0.3), 3, act="softmax")
    return Built([out], {"image": _noise(2, 1, 8, 8)})


def matrices() -> Built:
    x = fluid.data("x", [None, 6])
    cube = layers.reshape(x, [-1, 2, 3])
    turned = layers.transpose(cube, [0, 2, 1])
    product = layers.matmul(layers.fc(cube, 3, num_flatten_dims=2), turned, alpha=0.5)
    total = layers.elementwise_add(layers.reduce_mean(product, dim=2), layers.reduce_max(product, dim=2))
    bounded = layers.clip(layers.exp(layers.scale(total, 0.1)), 0.5, 2.0)
    return Built([bounded, layers.square(x), layers.slice(x, [1], [1], [4])], {"x": _noise(2, 6)})


def table() -> Built:
    """A distributed table, of which few rows exist."""
    ids = fluid.data("ids", [None, 1], "int64")
    rows = layers.embedding(ids, [50, 4], is_sparse=True, is_distributed=True)
    return Built([layers.fc(rows, 2)], {"ids": np.array([[1], [3], [19]])})


def sequences() -> Built:
    ids = fluid.data("ids", [None, 1], "int64", lod_level=1)
    pooled = layers.sequence_pool(layers.embedding(ids, [20, 4]), "sum")
    return Built([layers.fc(pooled, 2)], {"ids": LoDTensor(np.array([[1], [2], [3], [4]]), ((0, 3, 4),))})


#: those that ONNX has no ops for are not among them
PLAIN: tuple[Callable[[], Built], ...] = (mlp, ctr, old_lookup, cnn, matrices, table)
ALL = (*PLAIN, sequences)
PLAIN_NAMES = [build.__name__ for build in PLAIN]
NAMES = [build.__name__ for build in ALL]


def save_all(folder: Path) -> None:
    """Of each model the folder NAME (a file for each variable), NAME.pdmodel and .pdiparams, and NAME.npz with the
    example: ``in_NAME`` (and ``lod_NAME``), ``out_INDEX``."""
    for build in ALL:
        with fresh_programs(), fluid.scope_guard(fluid.Scope()):
            outputs, feed = build()
            _save(folder, build.__name__, outputs, feed)


def _save(folder: Path, name: str, outputs: list[fluid.Variable], feed: dict[str, Any]) -> None:
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    few = {key: value[:2] if name == "table" else value for key, value in feed.items()}
    exe.run(feed=few, fetch_list=outputs)  # makes the rows of a table
    fluid.io.save_inference_model(folder / name, list(feed), outputs, exe)
    whole = {"model_filename": f"{name}.pdmodel", "params_filename": f"{name}.pdiparams"}
    fluid.io.save_inference_model(folder, list(feed), outputs, exe, **whole)
    with fluid.scope_guard(fluid.Scope()):
        program, _, fetches = fluid.io.load_inference_model(folder / name, exe)
        computed = exe.run(program, feed, fetches, return_numpy=False)
    example = {f"out_{index}": np.array(value) for index, value in enumerate(computed)}
    for key, value in feed.items():
        example[f"in_{key}"] = np.array(value)
        if isinstance(value, LoDTensor):
            example[f"lod_{key}"] = np.array(value.lod)
    np.savez(folder / f"{name}.npz", **example)


def _noise(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)
