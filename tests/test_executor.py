"""Executor: feeds and fetches, the cache of plans, ends."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.errors import FeedError, FetchError, FluidliteError, OpRunError, ProgramError, UninitializedError
from fluidlite.ops import registry
from tests.frontend import fresh_programs


def test_fetched_values_do_not_change_later() -> None:
    with fresh_programs(), fluid.scope_guard(fluid.Scope()):
        x = fluid.data("x", [None, 2])
        loss = fluid.layers.mean(fluid.layers.fc(x, 1, param_attr="w"))
        view = fluid.layers.transpose(fluid.default_main_program().global_block().var("w"), [1, 0])
        fluid.optimizer.SGD(0.5).minimize(loss)
        exe = fluid.Executor()
        exe.run(fluid.default_startup_program())
        feed = {"x": np.ones((3, 2), np.float32)}
        first = exe.run(feed=feed, fetch_list=["w", view, loss])
        kept = [value.copy() for value in first]
        second = exe.run(feed=feed, fetch_list=["w", view, loss])
    for value, before, after in zip(first, kept, second, strict=True):
        np.testing.assert_array_equal(value, before)
        assert not np.array_equal(value, after)


def test_a_view_of_a_parameter_keeps_the_value_from_before_its_update() -> None:
    with fresh_programs(), fluid.scope_guard(fluid.Scope()):
        x = fluid.data("x", [None, 2])
        loss = fluid.layers.mean(fluid.layers.fc(x, 3, param_attr="w"))
        w = fluid.default_main_program().global_block().var("w")
        views = [
            fluid.layers.transpose(w, [1, 0]),
            fluid.layers.reshape(w, [6]),
            fluid.layers.slice(w, axes=[0], starts=[0], ends=[1]),
        ]
        fluid.optimizer.SGD(0.5).minimize(loss)
        exe = fluid.Executor()
        exe.run(fluid.default_startup_program())
        before = np.array(fluid.global_scope().find_var("w").get_tensor())
        *found, after = exe.run(feed={"x": np.ones((3, 2), np.float32)}, fetch_list=[*views, "w"])
    assert not np.array_equal(after, before)
    for value, expected in zip(found, [before.T, before.reshape(-1), before[:1]], strict=True):
        np.testing.assert_array_equal(value, expected)


def test_a_fed_value_counts_until_the_program_writes_the_variable() -> None:
    with fresh_programs(), fluid.scope_guard(fluid.Scope()):
        total = fluid.layers.create_global_var([1], 1.0, "float32", persistable=True, name="total")
        fluid.layers.assign(fluid.layers.scale(total, 2.0), total)
        read = fluid.layers.scale(total, 1.0)
        exe = fluid.Executor()
        exe.run(fluid.default_startup_program())
        found = exe.run(feed={"total": np.array([3.0], np.float32)}, fetch_list=[read, "total"])
    assert [value.item() for value in found] == [6.0, 6.0]


def test_an_edited_program_is_compiled_anew() -> None:
    with fresh_programs():
        x = fluid.data("x", [None, 1])
        y = fluid.layers.scale(x, 2.0)
        exe = fluid.Executor()
        feed = {"x": np.ones((1, 1), np.float32)}
        main = fluid.default_main_program()
        assert exe.run(main, feed, y, use_program_cache=True)[0].item() == 2.0
        main.global_block().ops[-1].set_attr("scale", 3.0)
        assert exe.run(main, feed, y, use_program_cache=True)[0].item() == 3.0
        z = fluid.layers.scale(y, 10.0)
        assert exe.run(main, feed, z, use_program_cache=True)[0].item() == 30.0


def test_B071_a_single_variable_is_a_list_of_one() -> None:
    with fresh_programs():
        x = fluid.data("x", [None, 1])
        y = fluid.layers.scale(x, 2.0)
        exe = fluid.Executor(fluid.CPUPlace())
        feed = {"x": np.ones((1, 1), np.float32)}
        assert exe.run(feed=feed, fetch_list=y)[0].item() == exe.run(feed=feed, fetch_list=[y.name])[0].item() == 2.0


def test_numbers_and_lists_take_the_declared_dtype() -> None:
    with fresh_programs():
        x = fluid.data("x", [2], "float32")
        y = fluid.layers.scale(x, 2.0)
        (out,) = fluid.Executor().run(feed={"x": [1, 2.5]}, fetch_list=y)
    assert out.dtype == np.float32
    assert out.tolist() == [2.0, 5.0]


def test_lod_needs_return_numpy_false() -> None:
    with fresh_programs():
        x = fluid.data("x", [None, 1], "float32", lod_level=1)
        y = fluid.layers.scale(x, 2.0)
        exe = fluid.Executor()
        feed = {"x": fluid.create_lod_tensor(np.ones((3, 1), np.float32), [[1, 2]], fluid.CPUPlace())}
        with pytest.raises(FetchError, match="return_numpy=False"):
            exe.run(feed=feed, fetch_list=y)
        (out,) = exe.run(feed=feed, fetch_list=y, return_numpy=False)
    assert out.recursive_sequence_lengths() == [[1, 2]]


def test_uint64_ids_are_viewed_as_int64() -> None:
    with fresh_programs():
        x = fluid.data("x", [None, 1], "int64")
        y = fluid.layers.assign(x)
        (out,) = fluid.Executor().run(feed={"x": np.array([[2**64 - 1]], np.uint64)}, fetch_list=y)
    assert out.tolist() == [[-1]]


@pytest.mark.parametrize(
    ("feed", "fetch", "error", "text"),
    [
        ({}, ["y"], UninitializedError, "not in the feed: feed it"),
        ({"z": np.ones((1, 2), np.float32)}, ["y"], FeedError, "cannot feed 'z'.*data variables: x"),
        ({"x": np.ones((1, 2))}, ["y"], FeedError, "'x' must be 'float32', but it is 'float64'"),
        ({"x": np.ones(2, np.float32)}, ["y"], FeedError, r"'x' must be \[-1, 2\]"),
        ({"x": [[1.0], [1.0, 2.0]]}, ["y"], FeedError, "create_lod_tensor"),
        ({"x": np.ones((1, 2), np.float32)}, ["q"], FetchError, "cannot fetch 'q'"),
        ({"x": np.ones((1, 2), np.float32)}, ["yy"], FetchError, "did you mean y"),
    ],
)
def test_wrong_feeds_and_fetches(feed: dict[str, object], fetch: list[str], error: type[Exception], text: str) -> None:
    with fresh_programs():
        x = fluid.data("x", [None, 2])
        fluid.default_main_program().global_block().create_var("y", shape=[-1, 2])
        fluid.default_main_program().global_block().append_op("relu", {"X": x}, {"Out": "y"})
        with pytest.raises(error, match=text):
            fluid.Executor().run(feed=feed, fetch_list=fetch)


def test_errors_show_op_block_variables_and_source_line() -> None:
    with fresh_programs():
        x = fluid.data("x", [None, 2])
        fluid.layers.relu(x)
        with pytest.raises(UninitializedError) as caught:
            fluid.Executor().run()
    shown = str(caught.value)
    assert "in op relu(X=['x']) -> (Out=['relu_0.tmp_0'])" in shown
    assert f"of block 0, made at {__file__}:" in shown


def test_what_goes_wrong_inside_a_kernel_is_the_cause_of_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with fresh_programs():
        x = fluid.data("x", [None, 2])
        fluid.layers.relu(x)

        def broken(ctx: object, X: object) -> None:
            raise ZeroDivisionError("a fault of ours")

        monkeypatch.setitem(registry._defs, "relu", replace(registry.get("relu"), kernel=broken))
        with pytest.raises(OpRunError, match=r"ZeroDivisionError: a fault of ours\n  in op relu\(") as caught:
            fluid.Executor().run(feed={"x": np.ones((1, 2), np.float32)})
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_closed_executor_does_not_run() -> None:
    with fluid.Executor() as exe:
        pass
    exe.close()
    with pytest.raises(FluidliteError, match="closed"):
        exe.run(fluid.Program())


def test_B025_other_places_and_other_objects_are_refused() -> None:
    assert not fluid.is_compiled_with_cuda()
    with pytest.raises(FluidliteError, match="CPUs only"):
        fluid.CUDAPlace(0)
    with pytest.raises(ProgramError, match="needs a Program, not str"):
        fluid.Executor().run("program")  # type: ignore[arg-type]
    with pytest.raises(ProgramError, match="feed must be a dict"):
        fluid.Executor().run(fluid.Program(), feed=[1])  # type: ignore[arg-type]


def test_the_random_sequence_goes_on_after_an_edit() -> None:
    with fresh_programs():
        mask = fluid.layers.dropout(fluid.layers.fill_constant([64], "float32", 1.0), 0.5)
        main, exe = fluid.default_main_program(), fluid.Executor()
        first = exe.run(main, fetch_list=mask)[0]
        fluid.layers.scale(mask, 2.0)
        second = exe.run(main, fetch_list=mask)[0]
    assert not np.array_equal(first, second)


def test_plans_of_programs_that_are_gone_are_not_kept() -> None:
    with fresh_programs():
        x = fluid.layers.fill_constant([1], "float32", 1.0)
        main, exe = fluid.default_main_program(), fluid.Executor()
        alive = []
        for _ in range(200):
            twin = main.clone()
            exe.run(twin, fetch_list=[x.name])
            alive.append(weakref.ref(twin.desc))
            del twin
        gc.collect()
    assert sum(ref() is not None for ref in alive) <= 64


def test_rows_in_another_form_take_the_declared_one_of_layers_data() -> None:
    with fresh_programs(), fluid.scope_guard(fluid.Scope()):
        label = fluid.layers.data("label", [1], dtype="int64")
        image = fluid.layers.data("image", [1, 2, 2])
        exe = fluid.Executor()
        feed = {"label": np.array([3, 4]), "image": np.arange(8, dtype=np.float32).reshape(2, 4)}
        labels, images = exe.run(feed=feed, fetch_list=[label, image])
        assert labels.tolist() == [[3], [4]]
        assert images.shape == (2, 1, 2, 2)
        for wrong in (np.zeros((2, 5), np.float32), np.zeros(8, np.float32), np.float32(1.0)):
            with pytest.raises(FeedError, match=r"the shape of fed 'image' must be \[-1, 1, 2, 2\]"):
                exe.run(feed={**feed, "image": wrong}, fetch_list=[image])
        with pytest.raises(FeedError, match="the shape of fed 'label'"):
            exe.run(feed={**feed, "label": np.zeros((2, 2), np.int64)}, fetch_list=[label])
        exact = fluid.data("exact", [None, 1], "int64")
        with pytest.raises(FeedError, match="the shape of fed 'exact'"):
            exe.run(feed={"exact": np.array([3, 4])}, fetch_list=[exact])
