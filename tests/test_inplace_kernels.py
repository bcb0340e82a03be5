"""Kernels that compute in the memory of an input, as records declare them: what the op's kernel gives, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fluidlite.ops import registry
from fluidlite.ops.context import KernelContext
from fluidlite.ops.registry import Case, OpDef, Overwrite, kwarg
from tests.test_fusion import bits
from tests.test_op_records import bench_of

some = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
OVERWRITES = [
    pytest.param(op_def, overwrite, id=f"{op_def.type}-{overwrite.input}")
    for op_def in registry.all_defs()
    for overwrite in op_def.overwrites
]
ROWS, COLUMNS = 5, 6


def random_inputs(op_def: OpDef, dtype: Any, seed: int, *, broadcast: bool) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    shapes = {"W": (3, COLUMNS), "Input": (ROWS, 3), "Bias": (COLUMNS,)}
    values: dict[str, Any] = {}
    for arg in op_def.inputs:
        shape = shapes.get(arg.name, (ROWS, COLUMNS))
        value = np.where(rng.random(shape) < 0.2, rng.choice([0.0, -0.0, np.inf, 3e38], shape), rng.normal(size=shape))
        values[arg.name] = value.astype(dtype)
        if arg.many:
            values[arg.name] = [value.astype(dtype), rng.normal(size=shape).astype(dtype), values[arg.name]]
    if "Mask" in values:
        values["Mask"] = rng.integers(0, 2, (ROWS, COLUMNS)).astype(np.uint8)
    if broadcast and op_def.type.startswith("elementwise"):
        values["XY"[seed % 2]] = values["XY"[seed % 2]][:1, : 1 + seed % COLUMNS][:, :1]
    return {name: value for name, value in values.items() if name not in ("ScaleTensor", "Min", "Max")}


@pytest.mark.parametrize(("op_def", "overwrite"), OVERWRITES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int64])
@given(seed=st.integers(0, 1000), broadcast=st.booleans(), data=st.data())
@some
def test_overwriting_kernels_give_what_the_kernels_give(
    op_def: OpDef, overwrite: Overwrite, dtype: Any, seed: int, broadcast: bool, data: st.DataObject
) -> None:
    with np.errstate(all="ignore"):
        values = random_inputs(op_def, dtype, seed, broadcast=broadcast)
        attrs = {
            "scale": data.draw(st.sampled_from([1.5, 0.0, -2.0])),
            "bias": data.draw(st.sampled_from([0.0, 0.25])),
            "bias_after_scale": data.draw(st.booleans()),
            "min": -0.5,
            "max": 1.0,
            "dropout_implementation": data.draw(st.sampled_from(["upscale_in_train", "downgrade_in_infer"])),
            "activation_type": data.draw(st.sampled_from(["", "relu", "tanh", "sigmoid"])),
        }
        outcome = []
        for kernel in (op_def.kernel, overwrite.kernel):
            assert kernel is not None
            bench = bench_of(op_def, Case(values, {n: v for n, v in attrs.items() if n in op_def.attrs}))
            ctx = KernelContext(bench.program, bench.block, bench.op)
            takes, names = registry.parameters_of(kernel, op_def)
            given = {
                name: [v.copy() for v in value] if isinstance(value, list) else value.copy()
                for name, value in values.items()
            }
            constants = {name: registry.attr_values(op_def, bench.op)[name] for name in names}
            arguments = {**dict.fromkeys(takes), **given, **constants}
            result = kernel(ctx, **{kwarg(name): value for name, value in arguments.items()})
            results = list(result.values()) if isinstance(result, dict) else [result]
            others = [v for n, v in given.items() if n != overwrite.input]
            rest = given[overwrite.input][1:] if op_def.type == "sum" else []
            outcome.append((bits(results), bits(others), bits(rest)))
    assert outcome[0] == outcome[1]


@pytest.mark.parametrize(("op_def", "overwrite"), OVERWRITES)
def test_kernels_and_overwriting_kernels_take_the_same(op_def: OpDef, overwrite: Overwrite) -> None:
    assert op_def.kernel is not None
    assert op_def.input_arg(overwrite.input) is not None
    assert registry.parameters_of(overwrite.kernel, op_def) == registry.parameters_of(op_def.kernel, op_def)


@pytest.mark.parametrize(("op_def", "overwrite"), OVERWRITES)
def test_overwriting_kernels_use_the_memory(op_def: OpDef, overwrite: Overwrite) -> None:
    values = random_inputs(op_def, np.float32, 1, broadcast=False)
    attrs = {"min": -0.5, "max": 1.0, "activation_type": "relu", "scale": 2.0}
    bench = bench_of(op_def, Case(values, {n: v for n, v in attrs.items() if n in op_def.attrs}), "float32")
    _, names = registry.parameters_of(overwrite.kernel, op_def)
    constants = {kwarg(name): registry.attr_values(op_def, bench.op)[name] for name in names}
    absent = {kwarg(arg.name): None for arg in op_def.inputs}
    arguments = absent | {kwarg(name): value for name, value in values.items()} | constants
    given = values[overwrite.input]
    target = given[0] if isinstance(given, list) else given
    before = target.copy()
    with np.errstate(all="ignore"):
        result = overwrite.kernel(KernelContext(bench.program, bench.block, bench.op), **arguments)
    assert result is target or isinstance(result, dict)
    assert not np.array_equal(target, before)
