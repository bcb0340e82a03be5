"""The functions of Paddle 2.x that scripts for parameter servers use, against numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.compat.two import functional, initializer, nn, optimizer, static, static_nn, tensor
from fluidlite.errors import NotSupported, ProgramError

X = np.random.RandomState(0).rand(3, 4).astype(np.float32) * 0.8 + 0.1
Y = np.random.RandomState(1).rand(3, 4).astype(np.float32)


def computed(build: Callable[..., Any]) -> Any:
    """What ``build`` makes of X and Y in a program."""
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.scope_guard(fluid.Scope()):
        result = build(static.data("x", [None, 4]), static.data("y", [None, 4]))
        exe = fluid.Executor()
        exe.run(fluid.default_startup_program())
        return exe.run(feed={"x": X, "y": Y}, fetch_list=[result])[0]


@pytest.mark.parametrize(
    ("build", "wanted"),
    [
        (lambda x, y: tensor.add(x=x, y=y), X + Y),
        (lambda x, y: tensor.concat([x, y], axis=1), np.hstack([X, Y])),
        (lambda x, y: tensor.sum(x), [X.sum()]),
        (lambda x, y: tensor.sum(x, axis=[0, 1], keepdim=True), X.sum(keepdims=True)),
        (lambda x, y: tensor.sum(x, 1, dtype="float64"), X.astype(float).sum(axis=1)),
        (lambda x, y: tensor.mean(x), [X.mean()]),
        (lambda x, y: tensor.mean(x, axis=0), X.mean(axis=0)),
        (lambda x, y: tensor.norm(x, p=1, axis=1, keepdim=True), np.abs(X).sum(axis=1, keepdims=True)),
        (lambda x, y: tensor.norm(x), [np.linalg.norm(X)]),
        (lambda x, y: tensor.norm(x, p=3, axis=1), np.linalg.norm(X, 3, axis=1)),
        (lambda x, y: tensor.norm(x, p=float("inf"), axis=0), X.max(axis=0)),
        (lambda x, y: tensor.norm(x, p=float("-inf"), axis=0), X.min(axis=0)),
        (lambda x, y: tensor.sqrt(x), np.sqrt(X)),
        (lambda x, y: tensor.reshape(x, shape=[-1, 2]), X.reshape(-1, 2)),
        (lambda x, y: tensor.cast(x, dtype="int64"), X.astype(np.int64)),
        (lambda x, y: tensor.assign(x), X),
        (lambda x, y: tensor.shape(x), [3, 4]),
        (lambda x, y: tensor.full(shape=[2], fill_value=1.5), [1.5, 1.5]),
        (lambda x, y: functional.relu(x - 0.5), np.maximum(X - 0.5, 0)),
        (lambda x, y: functional.sigmoid(x), 1 / (1 + np.exp(-X))),
        (lambda x, y: functional.tanh(x), np.tanh(X)),
        (lambda x, y: functional.softmax(x), np.exp(X) / np.exp(X).sum(axis=1, keepdims=True)),
        (lambda x, y: functional.l1_loss(x, y, reduction="sum"), [np.abs(X - Y).sum()]),
        (functional.mse_loss, [((X - Y) ** 2).mean()]),
        (lambda x, y: functional.mse_loss(x, y, "none"), (X - Y) ** 2),
        (lambda x, y: tensor.sum(nn.Sequential(nn.Tanh(), nn.Sigmoid(), nn.ReLU(), nn.Softmax())(x), 1), np.ones(3)),
    ],
)  # fmt: skip
def test_functions(build: Callable[..., Any], wanted: Any) -> None:
    found = computed(build)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    assert found.shape == np.shape(wanted)


def test_layers_own_their_parameters() -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.scope_guard(fluid.Scope()):
        ids, x = static.data("ids", [None, 2], "int64"), static.data("x", [None, 3, 4])
        rows = nn.Embedding(5, 3, padding_idx=-1, weight_attr=initializer.Constant(2.0))
        linear = nn.Linear(4, 2, weight_attr=initializer.Assign(np.arange(8.0).reshape(4, 2).astype(np.float32)))
        bare = nn.Linear(4, 2, bias_attr=False)
        layers = nn.LayerList([rows, linear])
        assert [len(layer.parameters()) for layer in (rows, linear, bare, layers)] == [1, 2, 1, 3]
        assert layers[1] is linear
        assert len(layers) == 2
        assert layers.parameters(include_sublayers=False) == []
        outputs = [rows(ids), linear(x), bare(x)]
        assert len(fluid.default_main_program().all_parameters()) == 4
        layers.train()
        layers.eval()
        exe = fluid.Executor()
        exe.run(fluid.default_startup_program())
        feed = {"ids": np.array([[0, 4]]), "x": np.ones((1, 3, 4), np.float32)}
        found, out, _ = exe.run(feed=feed, fetch_list=outputs)
    assert found.tolist() == [[[2.0] * 3, [0.0] * 3]]
    assert out.tolist() == [[[12.0, 16.0]] * 3]
    with pytest.raises(NotImplementedError, match=r"Layer\.forward"):
        nn.Layer()(1)


@pytest.mark.parametrize(
    "make",
    [
        lambda: optimizer.SGD(learning_rate=0.1, weight_decay=0.5),
        lambda: optimizer.Momentum(0.1, weight_decay=0.5),
        lambda: optimizer.Adagrad(0.1, weight_decay=0.5),
        lambda: optimizer.Adam(0.1, weight_decay=0.5),
    ],
)
def test_optimizers_take_decay_as_a_number(make: Callable[[], fluid.optimizer.Optimizer]) -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        y = nn.Linear(4, 1)(static.data("x", [None, 4]))
        made = make()
        assert isinstance(made.regularization, fluid.regularizer.L2DecayRegularizer)
        operators, pairs = made.minimize(tensor.mean(y))
        assert (len(operators) >= 2, len(pairs)) == (True, 2)


def test_initializers_take_the_arguments_of_2x() -> None:
    made = [
        initializer.Uniform(low=-0.5, high=0.5),
        initializer.Normal(mean=1.0, std=0.1),
        initializer.TruncatedNormal(mean=1.0, std=0.1),
        initializer.XavierNormal(),
        initializer.XavierUniform(fan_in=100),
    ]
    for each in made:
        values = computed(lambda x, y, each=each: nn.Linear(4, 50, weight_attr=each).weight)
        assert values.std() > 0
        assert np.abs(values).max() < 2


def test_imperative_mode_is_not_supported() -> None:
    tensor.enable_static()
    assert tensor.in_dynamic_mode() is False
    for function in (tensor.disable_static, lambda: tensor.to_tensor([1])):
        with pytest.raises(NotSupported, match="imperative mode is left out"):
            function()
    with fluid.program_guard(fluid.Program()), pytest.raises(ProgramError, match="l1_loss: reduction must be"):
        functional.l1_loss(static.data("x", [1]), static.data("y", [1]), "max")
    assert len(static.cpu_places(2)) == 2


def test_a_seed_is_that_of_the_default_programs() -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        tensor.seed(7)
        assert (fluid.default_main_program().random_seed, fluid.default_startup_program().random_seed) == (7, 7)


def test_fc_of_static_nn() -> None:
    made = computed(lambda x, y: static_nn.fc(x, 2, weight_attr=fluid.initializer.Constant(0.5), activation="relu"))
    assert np.allclose(made, np.repeat(X.sum(axis=1, keepdims=True) / 2, 2, axis=1))
