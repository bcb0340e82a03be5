"""Hypothesis strategies for models to train, all that makes a difference to a parameter server mixed at random.

A `Model` is plain data, so a failing example prints as the call that makes it again. `Model.build` appends it to the
default programs; `Model.feeds` makes the batches of every trainer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from hypothesis import strategies as st

import fluidlite as fluid
from fluidlite.layers import learning_rate_scheduler as rates
from fluidlite.values.lod import lod_from_lengths

OPTIMIZERS: Final[dict[str, Callable[..., Any]]] = {
    "sgd": fluid.optimizer.SGD,
    "momentum": lambda rate, **rest: fluid.optimizer.Momentum(rate, 0.9, **rest),
    "nesterov": lambda rate, **rest: fluid.optimizer.Momentum(rate, 0.9, use_nesterov=True, **rest),
    "adagrad": fluid.optimizer.Adagrad,
    "adam": fluid.optimizer.Adam,
    "lazy adam": lambda rate, **rest: fluid.optimizer.Adam(rate, lazy_mode=True, **rest),
    "ftrl": lambda rate, **rest: fluid.optimizer.Ftrl(rate, l1=0.01, l2=0.02, **rest),
    "rmsprop": lambda rate, **rest: fluid.optimizer.RMSProp(rate, momentum=0.5, **rest),
    "centered rmsprop": lambda rate, **rest: fluid.optimizer.RMSProp(rate, centered=True, **rest),
}
SCHEDULES: Final[dict[str, Callable[[], Any]]] = {
    "constant": lambda: 0.1,
    "exponential": lambda: rates.exponential_decay(0.1, 2, 0.5, staircase=True),
    "natural exp": lambda: rates.natural_exp_decay(0.1, 2, 0.5),
    "inverse time": lambda: rates.inverse_time_decay(0.1, 2, 0.5),
    "piecewise": lambda: rates.piecewise_decay([1, 2], [0.1, 0.05, 0.02]),
    "polynomial": lambda: rates.polynomial_decay(0.1, 3, 0.01, power=2.0, cycle=True),
    "cosine": lambda: rates.cosine_decay(0.1, 1, 4),
    "noam": lambda: rates.noam_decay(16, 2),
    "warm-up": lambda: rates.linear_lr_warmup(0.1, 2, 0.0, 0.1),
}
DECAYS: Final[dict[str, Callable[[], Any]]] = {
    "none": lambda: None,
    "L1": lambda: fluid.regularizer.L1Decay(0.01),
    "L2": lambda: fluid.regularizer.L2Decay(0.05),
}
CLIPS: Final[dict[str, Callable[[], Any]]] = {
    "none": lambda: None,
    "value": lambda: fluid.clip.GradientClipByValue(0.02, -0.03),
    "norm": lambda: fluid.clip.GradientClipByNorm(0.05),
    "global norm": lambda: fluid.clip.GradientClipByGlobalNorm(0.1),
}
POOLS: Final = ("sum", "average", "sqrt", "max", "first", "last")
FORMS: Final = ("column", "row", "matrix", "bag", "derived")
#: what a table may be asked for, besides small ids
FAR_IDS: Final = (-1, -(2**63), 2**63 - 1, 2**53 + 1, -(2**32), 2**62 + 1, 10**12)


@dataclass(frozen=True)
class Embedding:
    """A parameter that is looked up. ``kind``: ``dense``, ``sparse`` (fetched by row) or ``table`` (distributed).
    ``frozen``: not trained."""

    kind: str
    height: int
    width: int
    seed: int = 0
    rate: float = 1.0
    decay: str = "none"
    frozen: bool = False

    def attr(self, name: str) -> fluid.ParamAttr:
        initial = fluid.initializer.Uniform(-0.5, 0.5, seed=self.seed)
        decay = DECAYS[self.decay]()
        return fluid.ParamAttr(name, initial, learning_rate=self.rate, regularizer=decay, trainable=not self.frozen)

    def ids(self) -> list[int]:
        """Ids to draw from: few enough that they repeat."""
        small = list(range(self.height))
        return [*small, self.height + 3, *FAR_IDS] if self.kind == "table" else small


@dataclass(frozen=True)
class Lookup:
    """One use of an embedding. ``form``: ids [n, 1] and `lookup_table`; [n] or [n, 3] and `lookup_table_v2`; bags of
    ids, pooled; or ids that depend on the lookup before. ``twice``: looked up again with the very same ids."""

    embedding: int
    form: str
    padding: int | None = None
    pool: str = "sum"
    twice: bool = False


@dataclass(frozen=True)
class Model:
    """Lookups and a dense input, concatenated; layers; a loss. ``tied``: the layers share one weight matrix. ``gate``: a
    weight of one element and one per column (`layer_norm`) as well. ``second``: another optimizer for the first embedding.
    """

    embeddings: tuple[Embedding, ...]
    lookups: tuple[Lookup, ...]
    hidden: tuple[int, ...] = (3,)
    tied: bool = False
    gate: bool = False
    act: str = "tanh"
    loss: str = "square"
    optimizer: str = "sgd"
    second: str = ""
    schedule: str = "constant"
    decay: str = "none"
    clip: str = "none"
    data: int = 0

    def build(self) -> fluid.Variable:
        """Append the model and its training; returns the loss."""
        parts = [fluid.data("dense", [None, 2], "float64")]
        for index, use in enumerate(self.lookups):
            parts += self._look_up(index, use, parts[-1])
        out = fluid.layers.concat(parts, axis=1)
        for index, size in enumerate(self.hidden):
            weight = "tied" if self.tied and index else None
            out = fluid.layers.fc(out, self.hidden[0] if self.tied else size, act=self.act, param_attr=weight)
        if self.gate:
            weight = fluid.layers.create_parameter([1], "float64", attr=fluid.ParamAttr("gate"))
            out = fluid.layers.layer_norm(out) * weight
        loss = fluid.layers.mean(self._cost(out))
        options = {"regularization": DECAYS[self.decay](), "grad_clip": CLIPS[self.clip]()}
        optimizer = OPTIMIZERS[self.optimizer](SCHEDULES[self.schedule](), **options)
        pairs = optimizer.backward(loss)
        if self.second and any(param.name == "emb0" for param, _ in pairs):
            OPTIMIZERS[self.second](0.05).apply_gradients([pair for pair in pairs if pair[0].name == "emb0"])
            pairs = [pair for pair in pairs if pair[0].name != "emb0"]
        optimizer.apply_gradients(pairs)
        return loss

    def feeds(self, steps: int, trainers: int, batch: int) -> list[list[dict[str, Any]]]:
        """For every step the feeds of every trainer, ``batch`` examples each."""
        random = np.random.default_rng(self.data)
        return [[self._feed(random, batch) for _ in range(trainers)] for _ in range(steps)]

    def _look_up(self, index: int, use: Lookup, before: fluid.Variable) -> list[fluid.Variable]:
        shapes: dict[str, list[int | None]] = {"column": [None, 1], "row": [None], "matrix": [None, 3]}
        if use.form == "derived":
            least = fluid.layers.cast(fluid.layers.reduce_min(before, dim=1) > 0.0, "int64")
            ids = least % self.embeddings[use.embedding].height
        else:
            ids = fluid.data(f"ids{index}", shapes.get(use.form, [None, 1]), "int64", lod_level=int(use.form == "bag"))
        return [self._rows(ids, use) for _ in range(1 + use.twice)]

    def _rows(self, ids: fluid.Variable, use: Lookup) -> fluid.Variable:
        table = self.embeddings[use.embedding]
        layer = fluid.layers.embedding if use.form in ("column", "bag") else fluid.embedding
        rows = layer(
            ids,
            [table.height, table.width],
            is_sparse=table.kind != "dense",
            is_distributed=table.kind == "table",
            padding_idx=use.padding,
            param_attr=table.attr(f"emb{use.embedding}"),
            dtype="float64",
        )
        if use.form == "bag":
            return fluid.layers.sequence_pool(rows, use.pool)
        return fluid.layers.reshape(rows, [-1, 3 * table.width]) if use.form == "matrix" else rows

    def _cost(self, out: fluid.Variable) -> fluid.Variable:
        if self.loss == "square":
            label = fluid.data("label", [None, 1], "float64")
            return fluid.layers.square_error_cost(fluid.layers.fc(out, 1), label)
        if self.loss == "sigmoid":
            label = fluid.data("label", [None, 1], "float64")
            return fluid.layers.sigmoid_cross_entropy_with_logits(fluid.layers.fc(out, 1), label)
        label = fluid.data("label", [None, 1], "int64")
        if self.loss == "softmax":
            return fluid.layers.softmax_with_cross_entropy(fluid.layers.fc(out, 4), label)
        matrix = fluid.default_main_program().global_block().var("emb0")
        query = fluid.layers.fc(out, self.embeddings[0].width)
        return fluid.layers.softmax_with_cross_entropy(fluid.layers.matmul(query, matrix, transpose_y=True), label)

    def _feed(self, random: np.random.Generator, batch: int) -> dict[str, Any]:
        feed: dict[str, Any] = {"dense": random.normal(size=(batch, 2))}
        classes = {"softmax": 4, "vocabulary": self.embeddings[0].height}.get(self.loss, 2)
        label = random.integers(0, classes, (batch, 1))
        feed["label"] = label if self.loss in ("softmax", "vocabulary") else label.astype("float64")
        for index, use in enumerate(self.lookups):
            if use.form != "derived":
                feed[f"ids{index}"] = self._ids(random, use, batch)
        return feed

    def _ids(self, random: np.random.Generator, use: Lookup, batch: int) -> Any:
        pool = np.array(self.embeddings[use.embedding].ids(), np.int64)
        if use.form == "bag":
            lengths = random.integers(0, 4, batch).tolist()
            return fluid.LoDTensor(random.choice(pool, (sum(lengths), 1)), lod_from_lengths([lengths]))
        return random.choice(pool, {"column": (batch, 1), "row": (batch,), "matrix": (batch, 3)}[use.form])


def joined(feeds: list[dict[str, Any]]) -> dict[str, Any]:
    """The batches of all trainers as one."""
    return {name: _joined([feed[name] for feed in feeds]) for name in feeds[0]}


def _joined(values: list[Any]) -> Any:
    if not isinstance(values[0], fluid.LoDTensor):
        return np.concatenate(values)
    lengths = [length for value in values for length in value.recursive_sequence_lengths()[0]]
    return fluid.LoDTensor(np.concatenate([value.array for value in values]), lod_from_lengths([lengths]))


_embeddings: Final = st.builds(
    Embedding,
    kind=st.sampled_from(["table", "sparse", "dense"]),
    height=st.integers(1, 7),
    width=st.integers(1, 4),
    seed=st.sampled_from([0, 0, 7]),
    rate=st.sampled_from([1.0, 1.0, 0.5]),
    decay=st.sampled_from(["none", "none", *DECAYS]),
    frozen=st.sampled_from([False, False, False, True]),
)


@st.composite
def _lookups(draw: st.DrawFn, embeddings: tuple[Embedding, ...]) -> Lookup:
    index = draw(st.integers(0, len(embeddings) - 1))
    height = embeddings[index].height
    return Lookup(
        embedding=index,
        form=draw(st.sampled_from(FORMS)),
        padding=draw(st.none() | st.integers(-height, height - 1)),
        pool=draw(st.sampled_from(POOLS)),
        twice=draw(st.booleans()),
    )


@st.composite
def models(draw: st.DrawFn, optimizer: str, clips: tuple[str, ...] = ("none", "none", "value")) -> Model:
    """Models trained by one kind of optimizer."""
    embeddings = tuple(draw(st.lists(_embeddings, min_size=1, max_size=3)))
    losses = ["square", "sigmoid", "softmax"]
    lookups = tuple(draw(st.lists(_lookups(embeddings), min_size=1, max_size=4)))
    if embeddings[0].kind != "table" and any(use.embedding == 0 for use in lookups):
        losses.append("vocabulary")
    return Model(
        embeddings=embeddings,
        lookups=lookups,
        hidden=tuple(draw(st.lists(st.integers(1, 5), max_size=3))),
        tied=draw(st.booleans()),
        gate=draw(st.booleans()),
        act=draw(st.sampled_from(["tanh", "sigmoid", "relu"])),
        loss=draw(st.sampled_from(losses)),
        optimizer=optimizer,
        second=draw(st.sampled_from(["", "", *OPTIMIZERS])),
        schedule=draw(st.sampled_from(["constant", *SCHEDULES])),
        decay=draw(st.sampled_from(["none", "none", *DECAYS])),
        clip=draw(st.sampled_from(clips)),
        data=draw(st.integers(0, 2**16)),
    )
