"""The layers that build sub-blocks and recurrent networks: what they refuse, and what programs cannot show."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.errors import (
    FluidliteError,
    GradientError,
    NotSupported,
    OutOfRangeError,
    ProgramError,
    ShapeError,
    UninitializedError,
)
from fluidlite.framework import Variable
from fluidlite.layers import nest
from fluidlite.values.lod import LoDTensor, lod_from_lengths
from tests.frontend import fresh_programs, run

L = fluid.layers


def data(name: str, shape: list[int], dtype: str = "float32", lod_level: int = 0) -> Variable:
    return L.data(name, shape, append_batch_size=False, dtype=dtype, lod_level=lod_level)


def outside_of_a_block(network: Any) -> list[Callable[[], Any]]:
    x = data("x", [2, 3, 4])
    return [
        lambda: network.step_input(x),
        lambda: network.memory(init=x),
        lambda: network.update_memory(x, x),
        lambda: network.output(x),
        network,
    ]


@pytest.mark.parametrize("network", [L.StaticRNN, L.DynamicRNN])
def test_networks_are_built_inside_their_block(network: Any) -> None:
    with fresh_programs():
        for call in outside_of_a_block(network()):
            with pytest.raises(ProgramError, match=r"inside|after its block"):
                call()


def test_a_static_rnn_says_what_is_missing() -> None:
    with fresh_programs():
        x, longer = data("x", [2, 3, 4]), data("longer", [5, 3, 4])
        network = L.StaticRNN()
        with network.step():
            network.step_input(x)
            with pytest.raises(ShapeError, match="'longer' has 5 steps, an earlier input 2"):
                network.step_input(longer)
        network = L.StaticRNN()
        with pytest.raises(ProgramError, match="needs init, or shape and batch_ref"), network.step():
            network.memory(shape=[-1, 4])
        network = L.StaticRNN()
        with pytest.raises(ProgramError, match=r"starts with 'x' is never updated"), network.step():
            network.memory(init=x)
        network = L.StaticRNN()
        with pytest.raises(ProgramError, match="'x' is no memory"), network.step():
            network.update_memory(x, x)
        network = L.StaticRNN()
        with network.step():
            network.step_input(x)
        with pytest.raises(ProgramError, match="by step_output"):
            network()
        with pytest.raises(ProgramError, match="entered once"), network.step():
            pass


def test_sequences_of_other_lengths_are_refused_at_run_time() -> None:
    with fresh_programs():
        one, two = data("one", [-1, 2]), data("two", [-1, 2])
        network = L.StaticRNN()
        with network.step():
            network.step_output(network.step_input(one) + network.step_input(two))
        out = network()
        assert isinstance(out, Variable)
        with pytest.raises(ShapeError, match=r"sequences 'one', 'two' have \[2, 3\] steps"):
            run([out], {"one": np.zeros((3, 2), np.float32), "two": np.zeros((2, 2), np.float32)})


def test_a_dynamic_rnn_needs_its_step_input_first() -> None:
    with fresh_programs():
        x = data("x", [-1, 4], lod_level=1)
        for call, match in (
            (lambda network: network.static_input(x), "static_input comes after step_input"),
            (lambda network: network.memory(shape=[3]), "comes after step_input"),
            (lambda network: network.memory(init=x, need_reorder=True), "comes after step_input"),
            (lambda network: network.step_input(x) and network.memory(), "needs init or shape"),
            (lambda network: network.step_input(x) and network.update_memory(x, x), "'x' is no memory"),
        ):
            network = L.DynamicRNN()
            with pytest.raises(ProgramError, match=match), network.block():
                call(network)


def test_if_else_says_what_is_missing() -> None:
    with fresh_programs():
        x = data("x", [2, 3])
        holds = data("holds", [2, 1], "bool")
        branch = L.IfElse(holds)
        with pytest.raises(ProgramError, match="true_block or false_block first"):
            branch()
        for call in (branch.input, branch.output):
            with pytest.raises(ProgramError, match="inside true_block or false_block"):
                call(x)
        with pytest.raises(ProgramError, match="may not stand inside"), branch.true_block(), branch.false_block():
            pass
        with pytest.raises(ProgramError, match=r"by output\(\)"), branch.false_block():
            branch.input(x)
        branch = L.IfElse(holds)
        with branch.true_block():
            branch.output(branch.input(x), branch.input(x))
        assert len(branch()) == 2
        with branch.false_block():
            branch.output(branch.input(x))
        with pytest.raises(ProgramError, match="true_block gives 2 outputs and false_block 1"):
            branch()


def test_if_else_when_all_rows_go_one_way() -> None:
    with fresh_programs():
        x = data("x", [-1, 1])
        branch = L.IfElse(x < 5.0)
        with branch.true_block():
            branch.output(L.scale(branch.input(x), 2.0))
        with branch.false_block():
            branch.output(L.scale(branch.input(x), 3.0))
        (merged,) = branch()
        for rows, expected in (([[1.0], [2.0]], [[2], [4]]), ([[7.0], [1.0]], [[21], [2]]), ([[6.0]], [[18]])):
            (found,) = run([merged], {"x": np.array(rows, np.float32)})
            assert found.array.tolist() == expected


def test_cases_are_checked() -> None:
    with fresh_programs():
        x = data("x", [1], "int64")
        with pytest.raises(ProgramError, match="pred_fn_pairs is empty"):
            L.case([])
        with pytest.raises(ProgramError, match="empty or names a number twice"):
            L.switch_case(x, [(1, lambda: x), (1, lambda: x)])


def test_switch_case_takes_the_last_function_for_other_numbers() -> None:
    with fresh_programs():
        number = data("number", [1], "int32")
        value = L.fill_constant([1], "float32", 2.0)
        result = L.switch_case(number, {3: lambda: L.scale(value, 3.0), 5: lambda: L.scale(value, 5.0)})
        assert isinstance(result, Variable)
        for given, expected in ((3, 6.0), (5, 10.0), (4, 10.0)):
            (found,) = run([result], {"number": np.array([given], np.int32)})
            assert found.array == expected


def test_rank_tables_are_checked() -> None:
    with fresh_programs():
        x, flat = data("x", [-1, 1], lod_level=1), data("flat", [-1, 1])
        with pytest.raises(ProgramError, match="'x' is no rank table"):
            L.lod_tensor_to_array(x, x)
        table = L.lod_rank_table(x)
        reordered = L.reorder_lod_tensor_by_rank(flat, table)
        lengths = L.max_sequence_len(table)
        back = L.array_to_lod_tensor(L.lod_tensor_to_array(x, table), table)
        rows = LoDTensor(np.arange(4, dtype=np.float32).reshape(4, 1), lod_from_lengths([[1, 3]]))
        two = np.array([[1.0], [2.0]], np.float32)
        found = run([reordered, lengths, back], {"x": rows, "flat": two})
        assert [value.array.ravel().tolist() for value in found] == [[2, 1], [3], [0, 1, 2, 3]]
        assert found[2].lod == rows.lod
        with pytest.raises(ShapeError, match="'flat' has 3 sequences, but 'lod_rank_table_1' has 2"):
            run([reordered], {"x": rows, "flat": np.zeros((3, 1), np.float32)})
        empty = LoDTensor(np.zeros((0, 1), np.float32), lod_from_lengths([[0, 0]]))
        with pytest.raises(ShapeError, match=r"all sequences of .* are empty"):
            run([back], {"x": empty, "flat": two})


def test_masks_are_checked() -> None:
    with fresh_programs():
        x, mask = data("x", [-1, 1]), data("mask", [-1, 1], "bool")
        true, false = L.split_lod_tensor(x, mask)
        merged = L.merge_lod_tensor(true, x, x, mask)
        rows = np.zeros((2, 1), np.float32)
        with pytest.raises(ShapeError, match="'mask' has 3 elements for 2 sequences of 'x'"):
            run([false], {"x": rows, "mask": np.zeros((3, 1), np.bool_)})
        with pytest.raises(ShapeError, match="'x' holds 2 sequences where Mask wants 1"):
            run([merged], {"x": rows, "mask": np.array([[True], [False]])})


def test_arrays_as_tensors_are_checked() -> None:
    with fresh_programs():
        array = L.array_write(L.fill_constant([1, 2], "float32", 1.0), L.fill_constant([1], "int64", 1))
        joined, _ = L.tensor_array_to_tensor(array, axis=0)
        with pytest.raises(UninitializedError, match="nothing wrote entry 0"):
            run([joined])
    with fresh_programs():
        joined, _ = L.tensor_array_to_tensor(L.create_array("float32"))
        with pytest.raises(FluidliteError, match=r"array_0\.out"):
            run([joined])


def test_beam_search_is_checked() -> None:
    with fresh_programs():
        ids, scores = data("ids", [-1, 1], "int64", 1), data("scores", [-1, 1], lod_level=1)
        selected = L.beam_search(ids, scores, None, scores, 2, 0, level=1)
        rows = LoDTensor(np.ones((2, 1), np.float32), lod_from_lengths([[2]]))
        words = LoDTensor(np.ones((2, 1), np.int64), rows.lod)
        with pytest.raises(ShapeError, match="'scores' has 1 LoD levels, none of number 1"):
            run([selected[0]], {"ids": words, "scores": rows})


def test_decoding_of_beams_is_checked() -> None:
    with fresh_programs():
        ids, scores = data("ids", [-1, 1], "int64", 1), data("scores", [-1, 1], lod_level=1)
        rows = LoDTensor(np.ones((2, 1), np.float32), lod_from_lengths([[2]]))
        words = LoDTensor(np.ones((2, 1), np.int64), rows.lod)
        step = L.fill_constant([1], "int64", 0)
        sentences = L.beam_search_decode(L.array_write(ids, step), L.array_write(scores, step), 1, 0)
        with pytest.raises(ShapeError, match="has 1 LoD levels, not 2"):
            run([sentences[0]], {"ids": words, "scores": rows})
        deep = lod_from_lengths([[1], [2]])
        feed = {"ids": LoDTensor(words.array, deep), "scores": LoDTensor(rows.array, deep)}
        with pytest.raises(OutOfRangeError, match="step 0 continues source 0 in 2 ways, more than 1"):
            run([sentences[0]], feed)


def test_parents_outside_the_beam_are_refused() -> None:
    with fresh_programs():
        beams = data("beams", [2, 1, 2], "int64")
        tree = L.gather_tree(beams, beams)
        with pytest.raises(OutOfRangeError, match="Parents of step 1 name beams outside"):
            run([tree], {"beams": np.full((2, 1, 2), 2)})


def test_a_level_that_is_not_there_is_refused() -> None:
    with fresh_programs():
        x = data("x", [-1, 1], lod_level=1)
        lengths = L.max_sequence_len(L.lod_rank_table(x, level=1))
        with pytest.raises(ShapeError, match=r"'x' has 1 LoD level\(s\), none of number 1"):
            run([lengths], {"x": LoDTensor(np.ones((2, 1), np.float32), lod_from_lengths([[2]]))})


def test_of_equal_continuations_the_last_stays_as_in_fluid() -> None:
    with fresh_programs():
        ids, scores = data("ids", [-1, 1], "int64", 2), data("scores", [-1, 1], lod_level=2)
        more = data("more", [-1, 3], "int64", 2)
        points = data("points", [-1, 3], lod_level=2)
        chosen = L.beam_search(ids, scores, more, points, 2, 0, return_parent_idx=True)
        lod = lod_from_lengths([[2, 2], [1, 1, 1, 1]])
        feed = {
            "ids": LoDTensor(np.array([[1], [2], [3], [4]]), lod),
            "scores": LoDTensor(np.zeros((4, 1), np.float32), lod),
            "more": LoDTensor(np.array([[4, 2, 5], [2, 1, 3], [3, 5, 2], [8, 2, 1]]), lod),
            "points": LoDTensor(np.full((4, 3), 0.5, np.float32), lod),
        }
        found = run(list(chosen), feed)
        assert found[0].array.ravel().tolist() == [2, 3, 8, 1]
        assert found[0].lod == ((0, 2, 4), (0, 0, 2, 2, 4))
        assert found[2].array.tolist() == [1, 1, 3, 3]


def test_lstm_layers_are_checked() -> None:
    with fresh_programs():
        x = data("x", [-1, 8], lod_level=1)
        with pytest.raises(ShapeError, match="size 6 is not a multiple of 4"):
            L.dynamic_lstmp(x, 6, 2)
        with pytest.raises(ProgramError, match="needs its bias"):
            L.dynamic_lstmp(x, 8, 2, bias_attr=False)
        with pytest.raises(ShapeError, match="do not fit ProjWeight"):
            L.dynamic_lstmp(x, 16, 2)
        with pytest.raises(ProgramError, match="H0 and C0 are given together"):
            L.dynamic_lstmp(x, 8, 2, h_0=data("h", [-1, 2]))
        states = data("states", [1, 2, 3])
        with pytest.raises(ShapeError, match=r"InitH \[1, 2, 3\] must be \(2, batch, 3\)"):
            L.lstm(data("steps", [4, 2, 5]), states, states, 4, 3, 2)


def test_dropout_between_layers_is_the_same_for_the_gradient() -> None:
    """The gradient of the sum of the outputs, along W, is the change of the sum, with the masks of that run."""
    with fresh_programs() as (main, startup):
        x = data("x", [3, 2, 4], "float64")
        zeros = L.fill_constant([2, 2, 5], "float64", 0.0)
        out, _, _ = L.lstm(x, zeros, zeros, 3, 5, 2, dropout_prob=0.5, seed=3)
        loss = L.reduce_sum(out)
        ((param, gradient),) = fluid.backward.append_backward(loss)
        executor, scope = fluid.Executor(), fluid.Scope()
        executor.run(startup, scope=scope)
        feed = {"x": np.sin(np.arange(24.0)).reshape(3, 2, 4)}
        value = scope.get(param.name)
        way = np.cos(np.arange(value.size))

        def first_run(moved: float) -> list[Any]:
            scope.set(param.name, value + moved * way)
            return fluid.Executor().run(main.clone(), feed, [loss.name, gradient.name], scope=scope)

        slope = (first_run(1e-6)[0] - first_run(-1e-6)[0]) / 2e-6
        assert float(first_run(0.0)[1] @ way) == pytest.approx(slope.item(), rel=1e-6)


def test_cells_and_decoders_to_be_written_say_what_they_lack() -> None:
    cell, decoder, helper = L.RNNCell(), L.Decoder(), L.DecodeHelper()
    calls: list[Callable[[], Any]] = [
        lambda: cell(None, None),
        lambda: cell.state_shape,
        lambda: decoder.initialize(None),
        lambda: decoder.step(None, None, None),  # type: ignore[arg-type]
        helper.initialize,
        lambda: helper.sample(None, None, None),  # type: ignore[arg-type]
        lambda: helper.next_inputs(None, None, None, None),  # type: ignore[arg-type]
    ]
    for call in calls:
        with pytest.raises(NotSupported, match="does not define"):
            call()


def test_decoding_with_a_helper() -> None:
    """Greedy decoding follows the best word of each step; training decoding reads the given words."""
    with fresh_programs():
        start = data("start", [-1], "int64")
        embed: Callable[[Variable], Variable] = lambda ids: fluid.embedding(ids, [6, 4], param_attr="emb")  # noqa: E731
        cell = L.GRUCell(4)
        states = cell.get_initial_states(embed(start))
        project: Callable[[Variable], Variable] = lambda x: L.fc(x, 6, param_attr="out")  # noqa: E731
        greedy = L.BasicDecoder(cell, L.GreedyEmbeddingHelper(embed, start, end_token=5), project)
        (found, _), last = L.dynamic_decode(greedy, states, max_step_num=3)[0], None
        values = run([found], {"start": np.array([1, 2])})
        assert last is None
        assert values[0].array.shape[0] == 2
        assert values[0].array.shape[2] == 6
        steps, lengths = data("steps", [-1, 4, 4]), data("lengths", [-1], "int64")
        training = L.BasicDecoder(cell, L.TrainingHelper(steps, lengths), project)
        outputs, _, counted = L.dynamic_decode(training, states, return_length=True, impute_finished=True)
        feed = {
            "start": np.array([1, 2]),
            "steps": np.ones((2, 4, 4), np.float32),
            "lengths": np.array([2, 4]),
        }
        values = run([outputs.cell_outputs, counted], feed)
        assert values[0].array.shape == (2, 4, 6)
        assert values[1].array.tolist() == [2, 4]


def test_nests() -> None:
    value = {"b": [1, (2, 3)], "a": 4}
    assert nest.flatten(value) == [4, 1, 2, 3]
    assert nest.map_structure(lambda x, y: x + y, value, value) == {"b": [2, (4, 6)], "a": 8}
    with pytest.raises(ProgramError, match="3 values do not fit a structure of 4"):
        nest.packed(value, [1, 2, 3])
    nest.require_same_structure("layer", [1, (2,)], (1, [2]))
    for other in ({"a": 1}, [1], 1, [1, 2]):
        with pytest.raises(ProgramError, match=r"layer: .* are not nested alike"):
            nest.require_same_structure("layer", [1, (2,)], other)


def test_inference_models_keep_their_blocks(tmp_path: Path) -> None:
    with fresh_programs() as (main, startup):
        x = data("x", [-1, 3], lod_level=1)
        network = L.DynamicRNN()
        with network.block():
            step = network.step_input(x)
            before = network.memory(shape=[3], value=0.5)
            new = L.tanh(step + before)
            network.update_memory(before, new)
            network.output(new)
        out = network()
        assert isinstance(out, Variable)
        fluid.optimizer.SGD(0.1).minimize(L.mean(L.fc(out, 1)))
        executor = fluid.Executor()
        executor.run(startup)
        feed = {"x": LoDTensor(np.ones((3, 3), np.float32), lod_from_lengths([[1, 2]]))}
        (expected,) = executor.run(main, feed, [out], return_numpy=False)
        fluid.io.save_inference_model(str(tmp_path), ["x"], [out], executor, main)
        program, feeds, targets = fluid.io.load_inference_model(str(tmp_path), executor)
        assert feeds == ["x"]
        assert len(program.desc.blocks) == 2
        (found,) = executor.run(program, feed, targets, return_numpy=False)
        np.testing.assert_array_equal(found.array, expected.array)


def test_a_loss_in_a_block_is_refused() -> None:
    with fresh_programs():
        x = data("x", [1])
        with L.Switch() as switch, switch.case(x < 1.0):
            inner = L.mean(x)
        with pytest.raises(GradientError, match="belongs to block 1"):
            fluid.backward.append_backward(inner)
