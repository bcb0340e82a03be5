"""Every op record tested from itself: outputs, dtypes, inference, gradients, serialization, and Fluid's declarations.

The cases are those of the records. Ops that only move data between processes have none and are tested where they live.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from fluidlite.core import names, serde
from fluidlite.core.ir import AttrType
from fluidlite.ops import keeping, modes, registry
from fluidlite.ops.rank_table import RankTable
from fluidlite.ops.registry import REQUIRED, Case, OpDef
from fluidlite.ops_page import is_gradient, sample
from fluidlite.values.selected_rows import SelectedRows
from tests.op_harness import (
    Bench,
    add_gradient,
    array_of,
    build,
    check_inferred,
    input_gradient,
    lod_of,
    numbers,
    with_array,
)
from tests.shared_data import golden_names, needs_golden, needs_shared, shared

#: (op, output) of a dtype of its own, whatever the dtype of the inputs
FIXED_DTYPES = {
    ("accuracy", "Accuracy"): "float32",
    ("auc", "AUC"): "float64",
    ("filter_by_instag", "LossWeight"): "float32",
    ("mean_iou", "OutMeanIou"): "float32",
    ("precision_recall", "AccumMetrics"): "float64",
    ("precision_recall", "BatchMetrics"): "float64",
}
#: attributes and arguments that we add to Fluid's declaration of an op
EXTRA_ATTRS = {
    "arg_max": {"flatten"},
    "arg_min": {"flatten"},
    "assign_value": {"auto_grown_table"},
    "concat": {"num", "sections"},
    "fill_constant": {"auto_grown_table", "table_name"},
    "gather": {"axis"},
    "gaussian_random": {"auto_grown_table"},
    "fetch_barrier": {"wire"},
    "listen_and_serv": {"slices", "pservers", "wire", *modes.ATTRS, *keeping.ATTRS} - {"distributed_mode", "dc_asgd"},
    "prefetch": {"table_names", "height_sections", "width", "dtype", "height", "is_test", "wire", "wire_dtype"},
    "send": {"wire_dtype"},
    "p_norm": {"asvector"},
    "softplus": {"beta", "threshold"},
    "recv": {"trainers", "wire"},
    "recv_save": {"wire"},
    "send_barrier": {"trainers", "max_merge_var_num", "wait", "two_phase", "wire"},
    "split_ids": {"padding_idx", "height_sections"},
    "truncated_gaussian_random": {"auto_grown_table"},
    "uniform_random": {"auto_grown_table"},
}
#: attributes that Fluid requires, but that programs of an older Fluid lack: their defaults here
YOUNGER_ATTRS: dict[tuple[str, str], Any] = {("create_py_reader", "need_check_feed"): []}
EXTRA_ARGUMENTS = {"load_combine": {"X"}, "split_ids": {"Inverse"}}
#: arguments that Fluid requires and we do not
OPTIONAL_HERE = {
    "adam": {"Beta1PowOut", "Beta2PowOut"},  # Fluid 1.7 and before advance them by ops of their own
    "conditional_block": {"Input"},
    "conditional_block_infer": {"Input"},
    "feed": {"X"},
    "listen_and_serv": {"X"},
    "recurrent": {"initial_states", "parameters"},
    "recv": {"X"},
    "random_crop": {"Seed"},  # which nothing writes before the first run
    "rmsprop": {"MeanGradOut"},
    "send_barrier": {"X"},
    "shuffle_batch": {"Seed"},
}
#: inputs that our gradient op reads besides those of Fluid's, which is wrong without them
READS_MORE = {"im2sequence": {"Y"}}
#: what Fluid writes among the attributes of some ops and is none
NO_ATTRS = {"@ALL_KERNELS_MUST_COMPUTE_RUNTIME_SHAPE@"}
#: ops on gradients, of which no gradient is ever taken
NO_GRADIENT = {"split_selected_rows"}
#: ops that the executor replaces by what the user feeds and fetches
BOUND_BY_EXECUTOR = {"feed", "fetch", "create_py_reader", "create_double_buffer_reader", "read"}
#: ops on tables alone, or of files, which no case can hold; tests/test_row_regularisation_programs.py and
#: tests/test_rows_from_file.py run them
ON_TABLES = {
    "exchange_rows",
    "insert_rows",
    "lazy_ftrl",
    "lazy_momentum",
    "local_rows",
    "rows_from_file",
    "rows_to_exchange",
    "table_rows",
    "touch_rows",
}

DEFS = registry.all_defs()
FORWARD = [op_def for op_def in DEFS if not is_gradient(op_def.type)]
CASES = [
    pytest.param(op_def, case, id=f"{op_def.type}-{index}")
    for op_def in DEFS
    for index, case in enumerate(op_def.cases)
]
GRAD_CASES = [param for param in CASES if param.values[1].check_grad]


def listed(values: Mapping[str, Any], many: Mapping[str, bool]) -> dict[str, list[Any]]:
    """Values of a case as one list per name: a list stands for many arguments, elsewhere for a tensor array."""
    return {name: list(value) if many[name] else [value] for name, value in values.items()}


def bench_of(op_def: OpDef, case: Case, dtype: str = "float64", *, unknown_batch: bool = False) -> Bench:
    """The case with its floats in ``dtype``."""
    many = {arg.name: arg.many for arg in op_def.inputs}
    inputs = {name: [in_dtype(value, dtype) for value in values] for name, values in listed(case.inputs, many).items()}
    return build(
        op_def.type,
        inputs,
        case.attrs,
        n_outputs=case.n_outputs,
        inplace={output: name for output, name in op_def.inplace.items() if name in inputs},
        unknown_batch=unknown_batch,
    )


def in_dtype(value: Any, dtype: str) -> Any:
    """The value with its floating-point numbers in ``dtype``."""
    if isinstance(value, list):
        return [in_dtype(item, dtype) for item in value]
    array = numbers(value)
    if not isinstance(array, np.ndarray) or array.dtype.kind != "f":
        return value
    return with_array(value, array.astype(dtype))


def expected_outputs(bench: Bench, case: Case) -> Iterator[tuple[str, str, Any]]:
    """(output name, variable, expected value) of every output that the case tells."""
    many = {arg.name: arg.many for arg in bench.op_def.outputs}
    for name, values in listed(case.outputs, many).items():
        for argument, value in zip(bench.op.outputs[name], values, strict=True):
            yield name, argument, value


@pytest.mark.parametrize(("op_def", "case"), CASES)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_outputs(op_def: OpDef, case: Case, dtype: str) -> None:
    bench = bench_of(op_def, case, dtype)
    env = bench.run()
    for name, argument, expected in expected_outputs(bench, case):
        wanted = in_dtype(expected, dtype) if follows_inputs(op_def, case, name) else expected
        if (op_def.type, name) in FIXED_DTYPES:
            wanted = in_dtype(expected, FIXED_DTYPES[op_def.type, name])
        rtol = case.rtol if dtype == "float64" else max(case.rtol, 1e-5)
        check_value(env.read(argument), wanted, f"{name}={argument}", rtol)


def follows_inputs(op_def: OpDef, case: Case, output: str) -> bool:
    """Whether an output's dtype is that of the floating-point inputs, not one that an attribute names."""
    values = [v for value in case.inputs.values() for v in (value if isinstance(value, list) else [value])]
    has_floats = any(isinstance(numbers(v), np.ndarray) and numbers(v).dtype.kind == "f" for v in values)
    named = [
        case.attrs.get(name, op_def.attrs[name].default) for name in ("dtype", "out_dtype") if name in op_def.attrs
    ]
    return has_floats and all(number == -1 for number in named)


def check_value(actual: Any, expected: Any, what: str, rtol: float) -> None:
    """Same kind, shape, dtype, LoD and numbers."""
    if isinstance(expected, RankTable):
        assert actual == expected, what
        return
    if expected is None:
        assert actual is None, f"{what} is to stay unwritten"
        return
    assert actual is not None, f"{what} was not written"
    if isinstance(expected, list):
        assert len(actual) == len(expected), what
        for one, other in zip(actual, expected, strict=True):
            check_value(one, other, what, rtol)
        return
    assert isinstance(actual, SelectedRows) == isinstance(expected, SelectedRows), what
    if isinstance(expected, SelectedRows):
        assert actual.rows.tolist() == expected.rows.tolist(), what
        assert actual.height == expected.height, what
    mine, other = np.asarray(numbers(actual)), np.asarray(numbers(expected))
    assert mine.shape == other.shape, what
    assert mine.dtype == other.dtype, what
    assert lod_of(actual) == lod_of(expected), what
    np.testing.assert_allclose(mine, other, rtol=rtol, atol=rtol, err_msg=what)


@pytest.mark.parametrize(("op_def", "case"), CASES)
@pytest.mark.parametrize("batch", ["known", "unknown"])
def test_inferred_shapes(op_def: OpDef, case: Case, batch: str) -> None:
    bench = bench_of(op_def, case, unknown_batch=batch == "unknown")
    env = bench.run()
    for name, arguments in bench.op.outputs.items():
        for argument in arguments:
            check_inferred(bench, env.read(argument), name, argument)


@pytest.mark.parametrize(("op_def", "case"), CASES)
def test_inputs_stay_as_they_are(op_def: OpDef, case: Case) -> None:
    bench = bench_of(op_def, case)
    env = bench.run()
    written = set(bench.op.output_arguments())
    for argument, before in bench.feeds.items():
        if argument not in written and isinstance(numbers(before), np.ndarray):
            np.testing.assert_array_equal(numbers(env.read(argument)), numbers(before), err_msg=argument)


@pytest.mark.parametrize(("op_def", "case"), GRAD_CASES)
def test_gradients(op_def: OpDef, case: Case) -> None:
    forward, bench = bench_of(op_def, case), bench_of(op_def, case)
    weights = output_weights(bench, forward)
    add_gradient(bench, weights)
    env = bench.run()
    for name in case.check_grad:
        for argument, gradient in zip(bench.op.inputs[name], input_gradient(bench, env, name), strict=True):
            value = bench.feeds[argument]
            assert gradient is not None, f"{argument} got no gradient"
            analytic = np.asarray(array_of(gradient))
            assert analytic.shape == numbers(value).shape, argument
            assert analytic.dtype == numbers(value).dtype, argument
            numeric = numeric_gradient(forward, argument, weights)
            np.testing.assert_allclose(analytic, numeric, rtol=1e-5, atol=1e-7, err_msg=argument)


def output_weights(bench: Bench, forward: Bench) -> dict[str, Any]:
    """Random weights of the outputs whose gradients the gradient ops read."""
    assert bench.op_def.grad is not None
    read = {argument for op in bench.op_def.grad(bench.op) for argument in op.input_arguments()}
    env, random = forward.run(), np.random.default_rng(7)
    weights = {}
    for argument in bench.op.output_arguments():
        value = env.read(argument)
        if names.grad(argument) in read and value is not None:
            weights[argument] = with_array(value, random.uniform(0.5, 1.5, np.shape(numbers(value))))
    return weights


def numeric_gradient(forward: Bench, argument: str, weights: Mapping[str, Any]) -> Any:
    """Central differences of the weighted sum of the outputs."""
    value = forward.feeds[argument]
    flat = numbers(value).reshape(-1)
    gradient = np.zeros(flat.shape)
    for i in range(flat.size):
        step = 1e-5 * max(1.0, abs(flat[i]))
        sums = [weighted_sum(forward, argument, moved(value, i, sign * step), weights) for sign in (1, -1)]
        gradient[i] = (sums[0] - sums[1]) / (2 * step)
    return gradient.reshape(numbers(value).shape)


def moved(value: Any, position: int, step: float) -> Any:
    """The value with one element changed."""
    array = numbers(value).copy()
    array.reshape(-1)[position] += step
    return with_array(value, array)


def weighted_sum(forward: Bench, argument: str, value: Any, weights: Mapping[str, Any]) -> float:
    env = forward.run({argument: value})
    return float(sum((array_of(env.read(name)) * array_of(weight)).sum() for name, weight in weights.items()))


@pytest.mark.parametrize(("op_def", "case"), CASES)
def test_serialization(op_def: OpDef, case: Case) -> None:
    bench = bench_of(op_def, case)
    if case.check_grad:
        add_gradient(bench, output_weights(bench, bench_of(op_def, case)))
    twin = serde.from_bytes(serde.to_bytes(bench.program))
    for mine, other in zip(bench.block.ops, twin.root.ops, strict=True):
        assert (mine.type, mine.attrs) == (other.type, other.attrs)
        assert without_empty(mine.inputs) == without_empty(other.inputs)
        assert without_empty(mine.outputs) == without_empty(other.outputs)


def without_empty(arguments: Mapping[str, list[str]]) -> dict[str, list[str]]:
    return {name: found for name, found in arguments.items() if found}


@functools.cache
def specification(name: str) -> Any:
    return json.loads(shared("spec", name).read_text(encoding="utf-8"))


@needs_golden
@pytest.mark.parametrize("op_def", [pytest.param(op_def, id=op_def.type) for op_def in FORWARD])
def test_every_op_has_a_case(op_def: OpDef) -> None:
    runs_a_block = any(spec.type in (AttrType.BLOCK, AttrType.BLOCKS) for spec in op_def.attrs.values())
    talks = op_def.side_effect or op_def.pull is not None or op_def.type in BOUND_BY_EXECUTOR
    if op_def.kernel is None or talks or runs_a_block or op_def.type in ON_TABLES:
        pytest.skip("tested with the part of the program that it serves")
    assert op_def.cases or op_def.type in golden_names("cases")


@needs_shared
@pytest.mark.parametrize("op_def", [pytest.param(op_def, id=op_def.type) for op_def in FORWARD])
def test_declared_as_in_fluid(op_def: OpDef) -> None:
    declared = specification("fluid185_ops.json").get(op_def.type)
    if declared is None:
        pytest.skip("no op of Fluid 1.8.5")
    extra = EXTRA_ARGUMENTS.get(op_def.type, set())
    for mine, theirs in ((op_def.inputs, declared["inputs"]), (op_def.outputs, declared["outputs"])):
        flags = {
            arg.name: {mark for mark, holds in (("D", arg.many), ("?", arg.optional), ("~", arg.intermediate)) if holds}
            for arg in mine
            if arg.name not in extra
        }
        for name in OPTIONAL_HERE.get(op_def.type, set()) & flags.keys():
            flags[name].remove("?")
        assert flags == {arg["name"]: set(arg["flags"]) for arg in theirs}
    attrs = {
        name: (spec.type.name, plain(spec.default))
        for name, spec in op_def.attrs.items()
        if name not in EXTRA_ATTRS.get(op_def.type, ())
    }
    theirs = {
        attr["name"]: (attr["type"], YOUNGER_ATTRS.get((op_def.type, attr["name"]), attr["default"]))
        for attr in declared["attrs"]
    }
    assert attrs == {name: attr for name, attr in theirs.items() if name not in NO_ATTRS}


def plain(default: Any) -> Any:
    """A default as the specification writes it."""
    if default is REQUIRED:
        return "<required>"
    if isinstance(default, tuple):
        return list(default)
    return float(np.float32(default)) if isinstance(default, float) else default


@needs_shared
@pytest.mark.parametrize("op_def", [pytest.param(op_def, id=op_def.type) for op_def in FORWARD])
def test_gradient_ops_as_in_fluid(op_def: OpDef) -> None:
    known = specification("fluid185_grads.json")
    if op_def.type not in known or isinstance(known[op_def.type], str):
        pytest.skip("Fluid's gradient of this op is not on record")
    if op_def.grad is None:
        assert not known[op_def.type] or op_def.type in NO_GRADIENT, "Fluid has a gradient"
        return
    made = op_def.grad(sample(op_def))
    assert [op.type for op in made] == [theirs["type"] for theirs in known[op_def.type]]
    for mine, theirs in zip(made, known[op_def.type], strict=True):
        read = {name: found for name, found in mine.inputs.items() if name not in READS_MORE.get(op_def.type, ())}
        assert without_empty(read) == without_empty(theirs["inputs"])
        assert without_empty(mine.outputs) == without_empty(theirs["outputs"])
