"""Training programs of many kinds: what each builds, and the batch that it is fed. ``JOBS``: name -> (builder, feed)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import fluidlite as fluid
from fluidlite import layers
from fluidlite.lod_tensor import create_lod_tensor

Feed = dict[str, Any]
#: builds a loss and returns it, with other results to compare
Builder = Callable[[], list[Any]]

BATCH = 6
LENGTHS = [[3, 1, 4, 2, 2, 1]]

rng = np.random.RandomState(5)
X = rng.randn(BATCH, 4).astype("float32")
Y = rng.randn(BATCH, 1).astype("float32")
CLASSES = rng.randint(0, 3, (BATCH, 1))
CLICKS = np.array([[0], [1], [1], [0], [1], [0]])
FLAT_IDS = rng.randint(0, 20, (BATCH, 2))
IMAGES = rng.randn(BATCH, 1, 8, 8).astype("float32")


def sequences() -> Any:
    return create_lod_tensor(rng.randint(0, 20, (sum(LENGTHS[0]), 1)), LENGTHS, fluid.CPUPlace())


def squared(predicted: Any) -> Any:
    label = fluid.data("y", [None, 1])
    return layers.mean(layers.square_error_cost(predicted, label))


def ctr() -> list[Any]:
    ids, label = fluid.data("ids", [None, 2], "int64"), fluid.data("click", [None, 1], "int64")
    words = fluid.data("words", [None, 1], "int64", lod_level=1)
    dense = fluid.data("x", [None, 4])
    rows = fluid.embedding(ids, [20, 4], is_sparse=True, param_attr="emb")
    pooled = layers.sequence_pool(layers.embedding(words, [20, 4], is_sparse=True, param_attr="word_emb"), "sum")
    joined = layers.concat([layers.reshape(rows, [-1, 8]), pooled, dense], axis=1)
    deep = layers.fc(layers.fc(joined, 8, act="relu"), 2, act="softmax")
    second = 0.5 * layers.reduce_sum(layers.square(layers.reduce_sum(rows, dim=1)), dim=1, keep_dim=True)
    auc, _, _ = layers.auc(deep, label)
    loss = layers.mean(layers.cross_entropy(deep, label)) + 0.1 * layers.reduce_mean(second)
    fluid.optimizer.Adagrad(0.1).minimize(loss)
    return [loss, auc]


def classifier() -> list[Any]:
    x, label = fluid.data("x", [None, 4]), fluid.data("class", [None, 1], "int64")
    hidden = layers.dropout(layers.fc(x, 8, act="tanh"), 0.4, seed=3, dropout_implementation="upscale_in_train")
    logits = layers.fc([hidden, x], 3)
    loss = layers.mean(layers.softmax_with_cross_entropy(logits, label))
    regularizer = fluid.regularizer.L2Decay(1e-2)
    clip = fluid.clip.GradientClipByGlobalNorm(1.0)
    fluid.optimizer.Momentum(
        layers.piecewise_decay([2], [0.1, 0.05]), 0.9, regularization=regularizer, grad_clip=clip
    ).minimize(loss)
    return [loss, layers.accuracy(layers.softmax(logits), label)]


def images() -> list[Any]:
    image, label = fluid.data("image", [None, 1, 8, 8]), fluid.data("class", [None, 1], "int64")
    maps = layers.batch_norm(layers.conv2d(image, 4, 3, padding=1), act="relu")
    maps = layers.pool2d(layers.conv2d(layers.pool2d(maps, 2, "max", 2), 4, 3), 2, "avg", 2)
    loss = layers.mean(layers.cross_entropy(layers.fc(maps, 3, act="softmax"), label))
    fluid.optimizer.SGD(0.1).minimize(loss)
    return [loss]


def lstm_and_gru() -> list[Any]:
    rows = layers.embedding(fluid.data("words", [None, 1], "int64", lod_level=1), [20, 8], is_sparse=True)
    lstm, _ = layers.dynamic_lstm(layers.fc(rows, 16), 16, use_peepholes=True)
    gru = layers.dynamic_gru(layers.fc(rows, 12), 4, is_reverse=True)
    convolved = layers.sequence_conv(rows, 3, 3, act="tanh")
    pooled = [
        layers.sequence_pool(lstm, "max"),
        layers.sequence_last_step(gru),
        layers.sequence_pool(convolved, "sqrt"),
    ]
    loss = squared(layers.fc(pooled, 1))
    fluid.optimizer.Adagrad(0.1).minimize(loss)
    return [loss]


def dynamic_rnn() -> list[Any]:
    rows = layers.embedding(fluid.data("words", [None, 1], "int64", lod_level=1), [20, 4])
    steps = layers.DynamicRNN()
    with steps.block():
        word = steps.step_input(rows)
        memory = steps.memory(shape=[4], value=0.0)
        state = layers.fc([word, memory], 4, act="tanh")
        steps.update_memory(memory, state)
        steps.output(state)
    loss = squared(layers.fc(layers.sequence_last_step(steps()), 1))
    fluid.optimizer.SGD(0.1).minimize(loss)
    return [loss]


def static_rnn() -> list[Any]:
    x = layers.reshape(fluid.data("x", [None, 4]), [2, -1, 4])
    steps = layers.StaticRNN()
    with steps.step():
        word = steps.step_input(x)
        memory = steps.memory(shape=[-1, 4], batch_ref=word)
        state = layers.fc([word, memory], 4, act="tanh")
        steps.update_memory(memory, state)
        steps.output(state)
    loss = layers.reduce_mean(layers.square(steps()))
    fluid.optimizer.SGD(0.1).minimize(loss)
    return [loss]


def loops() -> list[Any]:
    x = layers.fc(fluid.data("x", [None, 4]), 4, act="tanh")
    i, end = layers.fill_constant([1], "int64", 0), layers.fill_constant([1], "int64", 3)
    i.stop_gradient = end.stop_gradient = True
    array = layers.array_write(x, i)
    going = layers.less_than(i, end)
    loop = layers.While(going)
    with loop.block():
        value = layers.array_read(array, i)
        layers.increment(i, in_place=True)
        layers.array_write(layers.fc(value, 4, param_attr="loop_w", act="tanh"), i, array)
        layers.less_than(i, end, cond=going)
    loss = squared(layers.fc(layers.array_read(array, end), 1))
    fluid.optimizer.SGD(0.1).minimize(loss)
    return [loss]


def branches() -> list[Any]:
    x = layers.fc(fluid.data("x", [None, 4]), 4, act="tanh")
    chosen = layers.cond(layers.reduce_sum(x) > 0.0, lambda: layers.scale(x, 2.0), lambda: layers.scale(x, -1.0))
    loss = squared(layers.fc(chosen, 1))
    fluid.optimizer.SGD(0.1).minimize(loss)
    return [loss]


def shapes() -> list[Any]:
    x = layers.fc(fluid.data("x", [None, 4]), 8)
    first, second = layers.split(
        layers.layer_norm(layers.transpose(layers.reshape(x, [-1, 2, 4]), [0, 2, 1])), 2, dim=1
    )
    mixed = layers.matmul(first, second, transpose_y=True, alpha=0.5)
    stacked = layers.stack([mixed, layers.sqrt(layers.square(mixed) + 1.0)], axis=1)
    flat = layers.flatten(layers.squeeze(layers.unsqueeze(layers.slice(stacked, [1], [0], [2]), [1]), [1]))
    wide = layers.elementwise_max(layers.clip(flat, -1.0, 1.0), layers.leaky_relu(flat, 0.1))
    near = layers.cos_sim(layers.gather(wide, layers.range(0, BATCH, 1, "int32")), layers.swish(flat))
    loss = squared(layers.fc([wide, near, layers.pow(flat, 2.0), layers.expand(near, [1, 2])], 1))
    fluid.optimizer.SGD(0.05).minimize(loss)
    return [loss]


def sampled() -> list[Any]:
    x, label = fluid.data("x", [None, 4]), fluid.data("class", [None, 1], "int64")
    tree = layers.hsigmoid(layers.fc(x, 4, act="sigmoid"), label, 3)
    loss = layers.mean(tree) + layers.mean(layers.huber_loss(layers.fc(x, 1), fluid.data("y", [None, 1]), 0.5))
    loss = loss + layers.mean(layers.log_loss(layers.fc(x, 1, act="sigmoid"), fluid.data("half", [None, 1])))
    fluid.optimizer.SGD(0.05).minimize(loss)
    return [loss]


def no_reads() -> list[Any]:
    """A block that reads nothing from outside."""
    rate = layers.create_global_var([1], 0.0, "float32", persistable=True, name="rate")
    with layers.Switch() as switch:
        with switch.case(layers.reduce_sum(fluid.data("x", [None, 4])) > 1e6):
            layers.assign(layers.fill_constant([1], "float32", 0.0), rate)
        with switch.default():
            layers.assign(layers.fill_constant([1], "float32", 0.1), rate)
    loss = squared(layers.fc(fluid.default_main_program().global_block().var("x"), 1))
    fluid.optimizer.SGD(rate).minimize(loss)
    return [loss]


def tagger() -> list[Any]:
    rows = layers.embedding(fluid.data("words", [None, 1], "int64", lod_level=1), [20, 4])
    tags = fluid.data("tags", [None, 1], "int64", lod_level=1)
    loss = layers.mean(layers.linear_chain_crf(layers.fc(rows, 3), tags, param_attr=fluid.ParamAttr("crf")))
    fluid.optimizer.SGD(0.05).minimize(loss)
    return [loss]


def with_optimizer(make: Callable[[], Any]) -> Builder:
    def build() -> list[Any]:
        words = fluid.embedding(fluid.data("ids", [None, 2], "int64"), [20, 4])
        joined = layers.concat([layers.reduce_sum(words, dim=1), fluid.data("x", [None, 4])], axis=1)
        loss = squared(layers.fc(layers.fc(joined, 4, act="sigmoid"), 1))
        make().minimize(loss)
        return [loss]

    return build


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: fluid.optimizer.SGD(layers.exponential_decay(0.1, 2, 0.9)),
    "momentum": lambda: fluid.optimizer.Momentum(0.1, 0.9, use_nesterov=True),
    "lars": lambda: fluid.optimizer.LarsMomentum(0.1, 0.9),
    "adagrad": lambda: fluid.optimizer.Adagrad(0.1, initial_accumulator_value=0.1),
    "decayed_adagrad": lambda: fluid.optimizer.DecayedAdagrad(0.1),
    "adam": lambda: fluid.optimizer.Adam(0.1, lazy_mode=True),
    "adamax": lambda: fluid.optimizer.Adamax(0.1),
    "adadelta": lambda: fluid.optimizer.Adadelta(0.1, epsilon=1e-4),
    "rmsprop": lambda: fluid.optimizer.RMSProp(0.05, centered=True, momentum=0.5),
    "ftrl": lambda: fluid.optimizer.Ftrl(0.1, l1=0.01, l2=0.01),
    "lamb": lambda: fluid.optimizer.Lamb(0.05),
}

_WORDS = {"words": sequences()}
JOBS: dict[str, tuple[Builder, Feed]] = {
    "ctr": (ctr, {"ids": FLAT_IDS, "click": CLICKS, "x": X, **_WORDS}),
    "classifier": (classifier, {"x": X, "class": CLASSES}),
    "images": (images, {"image": IMAGES, "class": CLASSES}),
    "lstm_and_gru": (lstm_and_gru, {"y": Y, **_WORDS}),
    "dynamic_rnn": (dynamic_rnn, {"y": Y, **_WORDS}),
    "static_rnn": (static_rnn, {"x": X}),
    "loops": (loops, {"x": X, "y": Y}),
    "branches": (branches, {"x": X, "y": Y}),
    "no_reads": (no_reads, {"x": X, "y": Y}),
    "shapes": (shapes, {"x": X, "y": Y}),
    "sampled": (sampled, {"x": X, "y": Y, "class": CLASSES, "half": CLICKS.astype("float32")}),
    "tagger": (tagger, {"tags": create_lod_tensor(rng.randint(0, 3, (13, 1)), LENGTHS, fluid.CPUPlace()), **_WORDS}),
    **{name: (with_optimizer(make), {"ids": FLAT_IDS, "x": X, "y": Y}) for name, make in OPTIMIZERS.items()},
}
