"""Layers that are made of several ops, or of random numbers: what they compute, and what they refuse."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import layers as L
from fluidlite.errors import DtypeError, FluidliteError, ProgramError, ShapeError, UnknownOpError

Build = Callable[[], Any]


def computed(build: Build, feed: dict[str, Any] | None = None, seed: int = 0) -> list[Any]:
    """What the variables that ``build`` returns hold after one run."""
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = seed
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        built = build()
    executor = fluid.Executor(fluid.CPUPlace())
    with fluid.scope_guard(fluid.Scope()):
        executor.run(startup)
        found = built if isinstance(built, (list, tuple)) else [built]
        return list(executor.run(main, feed=feed or {}, fetch_list=list(found)))


def var(name: str, *shape: int, dtype: str = "float32") -> Any:
    return L.data(name, list(shape), append_batch_size=False, dtype=dtype)


def test_uniform() -> None:
    def build() -> Any:
        spread = L.Uniform(1.0, [3.0, 5.0])
        return (
            spread.sample([500], seed=3),
            spread.entropy(),
            spread.log_prob(L.fill_constant([1], "float32", 2.0)),
        )

    sample, entropy, density = computed(build)
    assert sample.shape == (500, 2)
    assert sample.min() >= 1
    assert sample[:, 0].max() < 3 < sample[:, 1].max() < 5
    np.testing.assert_allclose(entropy, np.log([2, 4]), rtol=1e-6)
    np.testing.assert_allclose(density, -np.log([2, 4]), rtol=1e-6)


def test_normal() -> None:
    def build() -> Any:
        one, other = L.Normal([0.5], [2.0]), L.Normal([1.0], [3.0])
        value = L.fill_constant([1], "float32", 1.5)
        return one.sample([4000], seed=5), one.entropy(), one.log_prob(value), one.kl_divergence(other)

    sample, entropy, density, divergence = computed(build)
    assert abs(sample.mean() - 0.5) < 0.15
    assert abs(sample.std() - 2) < 0.15
    np.testing.assert_allclose(entropy, [0.5 * math.log(2 * math.pi * math.e * 4)], rtol=1e-6)
    np.testing.assert_allclose(density, [-1 / 8 - math.log(2 * math.sqrt(2 * math.pi))], rtol=1e-6)
    np.testing.assert_allclose(divergence, [math.log(1.5) + (4 + 0.25) / 18 - 0.5], rtol=1e-5)


def test_categorical() -> None:
    logits, other = np.array([[0.1, 0.7, -0.3]], np.float32), np.array([[1.0, 0.0, 0.5]], np.float32)

    def build() -> Any:
        one, two = L.Categorical(var("a", 1, 3)), L.Categorical(var("b", 1, 3))
        return one.entropy(), one.kl_divergence(two)

    entropy, divergence = computed(build, {"a": logits, "b": other})
    p, q = (np.exp(x) / np.exp(x).sum() for x in (logits, other))
    np.testing.assert_allclose(entropy, [[-(p * np.log(p)).sum()]], rtol=1e-5)
    np.testing.assert_allclose(divergence, [[(p * np.log(p / q)).sum()]], rtol=1e-5)


def test_multivariate_normal() -> None:
    def build() -> Any:
        one = L.MultivariateNormalDiag(var("a", 2), var("s", 2, 2))
        other = L.MultivariateNormalDiag(var("b", 2), var("t", 2, 2))
        return one.entropy(), one.kl_divergence(other)

    s, t = np.array([0.5, 2.0]), np.array([1.0, 4.0])
    gap = np.array([1.0, -0.5])
    feed = {"a": np.zeros(2), "b": gap, "s": np.diag(s), "t": np.diag(t)}
    entropy, divergence = computed(build, {key: value.astype(np.float32) for key, value in feed.items()})
    np.testing.assert_allclose(entropy, [0.5 * (2 + 2 * math.log(2 * math.pi) + np.log(s).sum())], rtol=1e-5)
    expected = 0.5 * ((s / t).sum() + (gap**2 / t).sum() - 2 + np.log(t / s).sum())
    np.testing.assert_allclose(divergence, [expected], rtol=1e-5)


def test_distributions_refuse_what_does_not_fit() -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        with pytest.raises(ProgramError, match="all be variables, or none"):
            L.Normal(0.0, var("s", 1))
        with pytest.raises(ProgramError, match="needs a Normal"):
            L.Normal(0.0, 1.0).kl_divergence(L.Uniform(0.0, 1.0))  # type: ignore[arg-type]
        with pytest.raises(ProgramError, match="logits must be a variable"):
            L.Categorical([1.0])  # type: ignore[arg-type]
        with pytest.raises(ProgramError, match="must be known"):
            L.Uniform(var("l", -1), var("h", -1)).sample([2])


def test_random_layers() -> None:
    def build() -> Any:
        return L.randint(3, 7, [50]), L.randperm(6), L.randn([200]), L.random_crop(var("x", 2, 5, 5), [2, 3], seed=4)

    image = np.arange(50, dtype=np.float32).reshape(2, 5, 5)
    numbers, order, normal, part = computed(build, {"x": image})
    assert {*numbers.tolist()} == {3, 4, 5, 6}
    assert numbers.dtype == np.int64
    assert sorted(order.tolist()) == [*range(6)]
    assert abs(normal.mean()) < 0.5
    assert part.shape == (2, 2, 3)
    for item, crop in zip(image, part, strict=True):
        row, column = divmod(int(crop[0, 0] - item[0, 0]), 5)
        np.testing.assert_array_equal(crop, item[row : row + 2, column : column + 3])


def test_random_numbers_repeat_with_the_programs_seed() -> None:
    first, second = (computed(lambda: L.randint(0, 1000, [8]), seed=9)[0] for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_sampled_softmax_trains() -> None:
    x, y = np.eye(4, 12, dtype=np.float32), np.array([[1], [0], [3], [2]])

    def build() -> Any:
        logits = L.fc(var("x", 4, 12), 12)
        loss = L.mean(L.sampled_softmax_with_cross_entropy(logits, var("y", 4, 1, dtype="int64"), 5, seed=2))
        fluid.optimizer.SGD(0.5).minimize(loss)
        return loss

    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        loss = build()
    executor = fluid.Executor(fluid.CPUPlace())
    executor.run(startup)
    losses = [executor.run(main, feed={"x": x, "y": y}, fetch_list=[loss])[0].item() for _ in range(30)]
    assert losses[-1] < losses[0] / 3


def test_roll_without_dims_and_addcmul_out() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)

    def build() -> Any:
        given = var("x", 2, 3)
        out = L.create_tensor("float32")
        L.addcmul(given, given, given, value=2.0, out=out)
        return L.roll(given, 2), out, L.logsumexp(given, out=L.create_tensor("float32"))

    rolled, total, sums = computed(build, {"x": x})
    np.testing.assert_array_equal(rolled, np.roll(x, 2))
    np.testing.assert_allclose(total, x + 2 * x * x)
    np.testing.assert_allclose(sums, [np.log(np.exp(x).sum())], rtol=1e-6)


def test_npair_loss_of_fed_labels() -> None:
    anchor, positive = np.eye(3, 4, dtype=np.float32), np.full((3, 4), 0.5, np.float32)
    labels = np.array([0, 1, 1], np.float32)

    def build() -> Any:
        return L.npair_loss(var("a", 3, 4), var("p", 3, 4), var("l", 3), l2_reg=0.1)

    (loss,) = computed(build, {"a": anchor, "p": positive, "l": labels})
    same = labels[:, None] == labels
    shares = same / same.sum(axis=1, keepdims=True)
    logits = anchor @ positive.T
    costs = -(shares * (logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)))).sum(axis=1, keepdims=True)
    expected = 0.25 * 0.1 * 2 + (shares * costs).sum(axis=0).mean()
    np.testing.assert_allclose(loss, [expected], rtol=1e-6)


def test_sizes_given_by_variables() -> None:
    def build() -> Any:
        x, image = var("x", 3, 4), var("i", 1, 1, 2, 2)
        two = L.fill_constant([1], "int32", 2)
        sizes = L.assign(np.array([3, 4], np.int32))
        borders = L.assign(np.array([1, 0, 0, 1], np.int32))
        return (
            L.crop_tensor(x, [two, 3], [1, 0]),
            L.image_resize(image, out_shape=[two, 3]),
            L.resize_nearest(image, out_shape=sizes),
            L.pad2d(image, borders),
            L.clamp(x, min=L.fill_constant([1], "float32", 4.0), max=8.0),
            L.resize_bilinear(image, out_shape=[1, 1], actual_shape=sizes),
        )

    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    cropped, wide, near, padded, limited, actual = computed(build, {"x": x, "i": np.ones((1, 1, 2, 2), np.float32)})
    np.testing.assert_array_equal(cropped, x[1:, :3])
    assert (wide.shape[2:], near.shape[2:], padded.shape[2:], actual.shape[2:]) == ((2, 3), (3, 4), (3, 3), (3, 4))
    np.testing.assert_array_equal(limited, np.clip(x, 4, 8))


REFUSALS: list[tuple[Build, type[FluidliteError], str]] = [
    (lambda: L.image_resize(var("x", 1, 1, 4, 4)), ProgramError, "give out_shape or scale"),
    (lambda: L.image_resize(var("x", 1, 1, 4, 4), [2, 2], resample="AREA"), ProgramError, "resample must be"),
    (lambda: L.image_resize(var("x", 1, 4, 4), [2, 2]), ShapeError, "does not suit BILINEAR"),
    (lambda: L.image_resize(var("x", 1, 1, 4, 4), [2, 2, 2]), ShapeError, "out_shape must be 2 sizes"),
    (lambda: L.image_resize(var("x", 1, 1, 4, 4), scale=0.0), ProgramError, "scale must be above 0"),
    (lambda: L.image_resize_short(var("x", 1, 1, -1, 4), 2), ShapeError, "must be known"),
    (lambda: L.conv2d_transpose(var("x", 1, 2, 4, 4), 3), ProgramError, "give filter_size or output_size"),
    (lambda: L.conv2d_transpose(var("x", 1, 2, 4, 4), 3, [99, 9], 3), ShapeError, "output_size 99 is not in"),
    (lambda: L.conv3d(var("x", 1, 2, 4, 4), 3, 3), ShapeError, "must have 5 dimensions"),
    (
        lambda: L.conv3d(var("x", 1, 3, 4, 4, 4), 3, 3, groups=2),
        ShapeError,
        "3 channels of 'x' do not divide into 2 groups",
    ),
    (lambda: L.conv3d(var("x", 1, 3, 4, 4, 4), 3, [3, 3]), ProgramError, "filter_size must be one number or 3"),
    (lambda: L.conv3d(var("x", 1, 3, 4, 4, 4), 3, 3, padding="LEFT"), ProgramError, "SAME, VALID or numbers"),
    (lambda: L.pool3d(var("x", 1, 3, 4, 4, 4), pool_type="sum"), ProgramError, "pool_type must be max or avg"),
    (lambda: L.pool3d(var("x", 1, 3, 4, 4, 4)), ProgramError, "pool_size is -1"),
    (lambda: L.adaptive_pool2d(var("x", 1, 3, 4, 4), 2, "avg", True), ProgramError, "only max pooling has an index"),
    (lambda: L.maxout(var("x", 1, 4, 2, 2), 2, axis=2), ProgramError, "axis must be 1, -1 or 3"),
    (lambda: L.maxout(var("x", 1, 4, 2, 2), 3), ShapeError, "do not divide into groups of 3"),
    (lambda: L.similarity_focus(var("x", 1, 4, 2, 2), 1, []), ProgramError, "indexes not empty"),
    (
        lambda: L.affine_grid(var("t", 1, 2, 3), [1, 1, var("n", 1, dtype="int32"), 3]),
        ProgramError,
        "'output_shape' of op",
    ),
    (lambda: L.reduce_sum(var("x", 2), "a"), ProgramError, "'dim' of op 'reduce_sum'"),
    (lambda: L.fc(var("x", 2, 2), 3, act="nope"), UnknownOpError, "unknown op 'nope'"),
    (lambda: L.fc(var("x", 2, 2), "a"), ShapeError, "is no shape of a parameter"),  # type: ignore[arg-type]
    (lambda: L.softmax(var("x", 2, 3), axis=2), ShapeError, "'softmax': axis 2 of a value of rank 2"),
    (lambda: L.cumsum(var("x", 2, 3), axis=-3), ShapeError, "'cumsum': axis -3 of a value of rank 2"),
    (lambda: L.unstack(var("x", 2, 3), 2), ShapeError, "'x' .2, 3. has no dimension 2"),
    (lambda: L.reshape(var("x", 2, 3), 6), ProgramError, "6 must be integers"),  # type: ignore[arg-type]
    (lambda: L.expand(var("x", 2, 3), "a"), ProgramError, "'a' must be integers"),  # type: ignore[arg-type]
    (lambda: L.fill_constant([2, -3], "float32", 1.0), ShapeError, "'fill_constant': shape .2, -3. has a negative"),
    (lambda: L.spectral_norm(var("x", 2, 3), dim=2), ShapeError, "dim 2 must be 0 or 1"),
    (lambda: L.kldiv_loss(var("x", 2), var("y", 2), "all"), ProgramError, "reduction must be"),
    (lambda: L.tensor_array_to_tensor(var("x", 2)), ProgramError, "'x' is no tensor array"),
    (lambda: L.rnn(3, var("x", 2, 3, 4)), ProgramError, "3 is no RNNCell"),  # type: ignore[arg-type]
    (lambda: L.cond(var("c", 1, dtype="bool"), 3, None), ProgramError, "cond: 3 is no function"),  # type: ignore[arg-type]
    (lambda: L.while_loop(3, 4, [var("x", 1)]), ProgramError, "while_loop: 3 is no function"),  # type: ignore[arg-type]
    (lambda: L.case([(var("c", 1, dtype="bool"), 3)]), ProgramError, "case: 3 is no function"),  # type: ignore[list-item]
    (lambda: L.case(3), ProgramError, "case: 3 must be a list of pairs"),  # type: ignore[arg-type]
    (
        lambda: L.switch_case(var("i", 1, dtype="int32"), {"a": lambda: var("x", 1)}),  # type: ignore[dict-item]
        ProgramError,
        "numbered by integers",
    ),
    (lambda: L.t(var("x", 1, 2, 3)), ShapeError, "more than 2 dimensions"),
    (lambda: L.clamp(var("x", 2)), ProgramError, "give min, max or both"),
    (lambda: L.eye(-1), ProgramError, "must not be negative"),
    (lambda: L.full([1], 1.0, device="tpu"), ProgramError, "device must be"),
    (lambda: L.randint(5, 5), ShapeError, "low 5 must be below high 5"),
    (lambda: L.shard_index(var("x", 2, 1, dtype="int64"), 8, 2, 2), ProgramError, r"shard_id 2 is not in \[0, 2\)"),
    (lambda: L.roll(var("x", 2, 3), [1, 2], 0), ProgramError, "2 shifts for 1 dims"),
    (lambda: L.crop(var("x", 2, 3)), ProgramError, "shape is missing"),
    (lambda: L.crop_tensor(var("x", 2, 3)), ProgramError, "shape is missing"),
    (lambda: L.pad2d(var("x", 1, 1, 2, 2), mode="wrap"), ProgramError, "mode is 'wrap'"),
    (lambda: L.warpctc(var("x", 4, 3), var("y", 2, 1, dtype="int64")), DtypeError, "must be int32"),
    (
        lambda: L.warpctc(var("x", 4, 1, 3), var("y", 1, 2, dtype="int32"), input_length=var("n", 1, dtype="int64")),
        ProgramError,
        "give input_length and label_length",
    ),
    (lambda: L.bmm(var("x", 2, 3, 4), var("y", 2, 3, 4)), ShapeError, r"must be \[batch, n, k\] and \[batch, k, m\]"),
    (lambda: L.dot(var("x", 2, 3), var("y", 2, 4)), ShapeError, "of one shape"),
    (lambda: L.cross(var("x", 2, 4), var("y", 2, 4)), ShapeError, "needs an axis of size 3"),
    (lambda: L.trace(var("x", 2, 4), dim1=1, dim2=1), ShapeError, "the same axis"),
    (lambda: L.addmm(var("i", 2, 2), var("x", 2, 3), var("y", 2, 3)), ShapeError, r"must be \[n, k\] and \[k, m\]"),
    (lambda: L.group_norm(var("x", 1, 3, 2, 2), 2), ShapeError, "do not divide into 2 groups"),
    (lambda: L.spectral_norm(var("x", 2, 3), dim=-1), ShapeError, "dim -1 must be 0 or 1"),
    (lambda: L.index_sample(var("x", 2, 3), var("i", 3, 1, dtype="int64")), ShapeError, "as many rows as each other"),
    (lambda: L.scatter_nd(var("i", 2, 3, dtype="int64"), var("u", 2), [4, 4]), ShapeError, "must address X"),
    (lambda: L.pixel_shuffle(var("x", 1, 3, 2, 2), 2), ShapeError, "do not divide by upscale_factor"),
    (lambda: L.space_to_depth(var("x", 1, 4, 3, 2), 2), ShapeError, "does not divide into blocks of 2"),
    (lambda: L.temporal_shift(var("x", 3, 4, 2, 2), 2), ProgramError, "seg_num 2 must divide"),
    (lambda: L.add_position_encoding(var("x", 2, 3, 5), 1.0, 1.0), ShapeError, "must be even"),
    (lambda: L.cast(var("x", 2), "floaty"), DtypeError, "'floaty' is no dtype of a program"),
    (lambda: L.fill_constant([1], "floaty", 1), DtypeError, "'floaty' is no dtype of a program"),
    (lambda: L.assign(np.zeros(3, complex)), DtypeError, "a program holds no values of dtype complex128"),
    (lambda: L.crf_decoding(var("x", 2), fluid.ParamAttr("nobody")), ProgramError, "has no parameter 'nobody'"),
    (lambda: L.array_write(var("x", 2), 3), ProgramError, "expected a Variable or its name, not int"),
]


@pytest.mark.parametrize(("build", "error", "message"), REFUSALS, ids=[str(i) for i in range(len(REFUSALS))])
def test_refused(build: Build, error: type[FluidliteError], message: str) -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()), pytest.raises(error, match=message) as refused:
        build()
    assert Path(__file__).name in str(refused.value), "names the user's line"


RUN_REFUSALS: list[tuple[Build, dict[str, Any], str]] = [
    (
        lambda: L.index_sample(var("x", 1, 2), var("i", 1, 1, dtype="int64")),
        {"x": np.ones((1, 2), np.float32), "i": np.array([[2]])},
        r"holds 2 at position 0, outside the 2 columns of X",
    ),
    (
        lambda: L.shard_index(var("i", 1, 1, dtype="int64"), 4, 2, 0),
        {"i": np.array([[4]])},
        r"holds 4 at position 0, not in \[0, 4\)",
    ),
    (
        lambda: L.center_loss(var("x", 1, 2), var("i", 1, 1, dtype="int64"), 3, 0.1, None),
        {"x": np.ones((1, 2), np.float32), "i": np.array([[3]])},
        r"Label 'i' holds 3 at position 0, not in \[0, 3\)",
    ),
    (
        lambda: L.unfold(var("x", 1, 1, -1, -1), [9, 1]),
        {"x": np.ones((1, 1, 2, 2), np.float32)},
        "a window over 9 cells does not fit into 2 cells",
    ),
    (
        lambda: L.sequence_pad(L.data("s", [2], lod_level=1), var("x", 3))[0],
        {"s": fluid.create_lod_tensor(np.ones((3, 2), np.float32), [[1, 2]], None), "x": np.ones(3, np.float32)},
        r"PadValue 'x' \[3\] must be one number, or a row \[2\] of X",
    ),
    (
        lambda: L.beam_search(
            var("i", 1, 1, dtype="int64"), var("s", 1, 1), None, L.data("x", [2], lod_level=2), beam_size=2, end_id=0
        )[0],
        {
            "i": np.array([[1]]),
            "s": np.ones((1, 1), np.float32),
            "x": fluid.create_lod_tensor(np.ones((2, 2), np.float32), [[2], [1, 1]], None),
        },
        r"scores 'x' \[2, 2\] must have a row for each of the 1 elements of pre_ids",
    ),
]


@pytest.mark.parametrize(
    ("build", "feed", "message"),
    RUN_REFUSALS,
    ids=["index_sample", "shard_index", "center_loss", "unfold", "sequence_pad", "beam_search"],
)
def test_refused_when_run(build: Build, feed: dict[str, Any], message: str) -> None:
    with pytest.raises(FluidliteError, match=message):
        computed(build, feed)


def test_arguments_that_fluid_drops_count() -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        swish = L.swish(var("x", 2, 6), beta=2.0).op
        L.gru_unit(var("x", 2, 6), var("h", 2, 2), 6, activation="relu", gate_activation="tanh")
        gru = fluid.default_main_program().global_block().ops[-1]
    assert swish is not None
    assert swish.attr("beta") == 2.0
    assert (gru.type, gru.attr("activation"), gru.attr("gate_activation")) == ("gru_unit", 3, 2)


def test_npair_loss_leaves_the_labels_as_they_are() -> None:
    def build() -> Any:
        labels = var("l", 3, dtype="int64")
        cost = L.npair_loss(var("x", 3, 2), var("y", 3, 2), labels)
        assert labels.shape == (3,)
        return cost

    rows = np.ones((3, 2), np.float32)
    (cost,) = computed(build, {"x": rows, "y": rows, "l": np.array([0, 1, 1])})
    np.testing.assert_allclose(cost, [0.002 * 0.25 * 4 + math.log(3)], rtol=1e-5)


def test_the_rate_of_center_loss_is_set_before_other_ops() -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        L.center_loss(L.relu(var("x", 2, 3)), var("l", 2, 1, dtype="int64"), 4, 0.1, None)
        types = [op.type for op in fluid.default_main_program().global_block().ops]
    assert types == ["fill_constant", "relu", "center_loss"]


def test_sequences_of_level_2() -> None:
    """Fluid refuses them; ours are those of the last level."""

    def build(levels: int) -> Any:
        x = fluid.data("x", [None, 8], lod_level=levels)
        weights = [fluid.ParamAttr(initializer=fluid.initializer.Constant(0.1)) for _ in range(3)]
        found = (
            L.dynamic_lstm(x, 8, param_attr=weights[0], is_reverse=True)[0],
            L.dynamic_gru(L.fc(x, 6, param_attr=weights[1]), 2, param_attr=weights[2]),
            L.sequence_conv(x, 2, param_attr=weights[1]),
            L.sequence_reverse(x),
        )
        return [L.transpose(out, [1, 0]) for out in found]

    rows = np.linspace(-1, 1, 40, dtype=np.float32).reshape(5, 8)
    one = computed(lambda: build(1), {"x": fluid.create_lod_tensor(rows, [[2, 1, 2]], fluid.CPUPlace())})
    two = computed(lambda: build(2), {"x": fluid.create_lod_tensor(rows, [[2, 1], [2, 1, 2]], fluid.CPUPlace())})
    for flat, nested in zip(one, two, strict=True):
        np.testing.assert_array_equal(flat, nested)
