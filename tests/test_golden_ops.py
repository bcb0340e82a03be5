"""Every op case of the golden set (real Fluid 1.8.5) against our records: outputs, dtypes, LoD, errors, gradients.

Ops that have no record yet are skipped one by one, so that the run lists them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from fluidlite.errors import FluidliteError
from fluidlite.ops import registry
from fluidlite.runtime.plan import Env
from fluidlite.values.lod import LoDTensor, lod_from_lengths
from fluidlite.values.selected_rows import SelectedRows
from tests.op_harness import Bench, add_gradient, build, check_inferred, input_gradient, lod_of, numbers
from tests.shared_data import GOLDEN, golden_array, golden_names, needs_golden

#: ops whose seeded values we make with Fluid's own generator
SAME_GENERATOR = {
    "dropout",
    "nce",
    "sample_logits",
    "uniform_random",
    "uniform_random_batch_size_like",
    "gaussian_random",
    "gaussian_random_batch_size_like",
    "truncated_gaussian_random",
    "sampling_id",
}
#: refusals of Fluid that we do not share, by the reason recorded with the case
WE_ACCEPT = {"no sparse gradients"}
#: (op, defect of Fluid) whose right outputs the goldens do not record, with what we do instead
DEVIATIONS = {("adam", 13): "beta powers advance once per step, also when a batch has no ids"}
#: cases whose `expected_correct` we hold to be wrong, with the reason
QUESTIONED = {"split.04": "a split in two has two outputs of half the size, not one of the whole"}

#: ops whose output is declared with Fluid's static shape although the batch decides
DECLARED_AS_FLUID = {"get_tensor_from_selected_rows", "sequence_pad"}


def _cases() -> list[Any]:
    params: list[Any] = []
    for name in golden_names("cases"):
        cases = json.loads((GOLDEN / "cases" / f"{name}.json").read_text(encoding="utf-8"))["cases"]
        if registry.find(name) is None:
            mark = pytest.mark.skip(reason=f"op {name!r} has no record yet ({len(cases)} golden cases)")
            params.append(pytest.param({"op": name}, id=name, marks=mark))
        else:
            params.extend(pytest.param(case, id=case["id"]) for case in cases)
    return params


@needs_golden
@pytest.mark.parametrize("case", _cases())
def test_golden_op(case: dict[str, Any]) -> None:
    check_case(case)


def check_case(case: dict[str, Any]) -> None:
    """Run a golden case on our records and compare everything that it tells."""
    _skip_where_we_differ(case)
    correct = case.get("expected_correct", {})
    if _is_to_be_refused(case):
        _expect_refusal(case)
        return
    bench = _bench(case)
    gradient = case.get("grad", {})
    in_grads = {**gradient.get("in_grads", {}), **{k[5:]: v for k, v in correct.items() if k.startswith("grad:")}}
    if in_grads:
        _add_gradient(bench, gradient["out_grads"], case.get("no_grad", ()))
    env = bench.run()
    _check_outputs(bench, env, case)
    for name, values in case.get("inputs_after", {}).items():
        for argument, expected in zip(bench.op.inputs[name], values, strict=True):
            _check(env.read(argument), expected, f"{name} afterwards")
    for name, values in in_grads.items():
        for expected, actual in zip(values, input_gradient(bench, env, name), strict=True):
            if expected is not None:
                _check(_as_far_as_defined(actual, expected, case), expected, f"{name}@GRAD", check_lod=False)


def _skip_where_we_differ(case: dict[str, Any]) -> None:
    deviation = DEVIATIONS.get((case["op"], case.get("fluid_defect")))
    if deviation is not None:
        pytest.skip(f"deviation from Fluid: {deviation}")
    if case["id"] in QUESTIONED:
        pytest.skip(f"the golden is wrong: {QUESTIONED[case['id']]}")


def _is_to_be_refused(case: dict[str, Any]) -> bool:
    if case.get("expected_correct"):
        return False
    return bool(case.get("error")) or ("fluid_defect" in case and "a refusal is right" in case.get("note", ""))


def _check_outputs(bench: Bench, env: Env, case: dict[str, Any]) -> None:
    correct = {k: v for k, v in case.get("expected_correct", {}).items() if not k.startswith("grad:")}
    same_values = "rng" not in case or case["op"] in SAME_GENERATOR
    for name, values in {**case.get("outputs", {}), **correct}.items():
        for argument, expected in zip(bench.op.outputs[name], values, strict=True):
            actual = env.read(argument)
            _check(actual, expected, argument, same_values)
            if "Shape" not in case["inputs"]:  # reshape: the attribute promises a static shape, the tensor wins
                check_inferred(bench, actual, name, argument)


def _expect_refusal(case: dict[str, Any]) -> None:
    try:
        _bench(case).run()
    except FluidliteError:
        return
    assert case.get("optional") or case.get("reason") in WE_ACCEPT, (
        f"must be refused: {case.get('reason', case.get('note'))}"
    )


def _bench(case: dict[str, Any]) -> Bench:
    inputs = {name: [_value(v) for v in values] for name, values in case["inputs"].items()}
    counts = {k: v if isinstance(v, int) else len(v) for k, v in case.get("n_outputs", {}).items()}
    for name, values in case.get("outputs", {}).items():
        counts.setdefault(name, len(values))
    initial = {name: [_value(v) for v in _listed(value)] for name, value in case.get("out_init", {}).items()}
    inplace = case.get("inplace", {})
    return build(case["op"], inputs, case.get("attrs") or {}, n_outputs=counts, inplace=inplace, initial=initial)


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else [value]


def _add_gradient(bench: Bench, out_grads: Mapping[str, Any], no_grad: Sequence[str]) -> None:
    given = {}
    for name, values in out_grads.items():
        for argument, value in zip(bench.op.outputs[name], values, strict=True):
            if value is not None:
                given[argument] = _value(value)
    add_gradient(bench, given, no_grad)


def _value(golden: dict[str, Any]) -> Any:
    if "array" in golden:
        return [_value(item) for item in golden["array"]]
    if "rows" in golden:
        return SelectedRows(np.array(golden["rows"], np.int64), golden_array(golden["value"]), golden["height"])
    array = golden_array(golden)
    return LoDTensor(array, lod_from_lengths(golden["lod"])) if golden.get("lod") else array


def _as_far_as_defined(actual: Any, expected: dict[str, Any], case: dict[str, Any]) -> Any:
    """Gradients of a case with a defect have no right value recorded where Fluid's is NaN."""
    if "fluid_defect" not in case or not isinstance(actual, np.ndarray) or "v" not in expected:
        return actual
    return np.where(np.isnan(golden_array(expected)), np.nan, actual).astype(actual.dtype)


def _check(  # nothing reads the LoD of gradients
    actual: Any, expected: Any, what: str, same_values: bool = True, check_lod: bool = True
) -> None:
    if expected is None or (expected.get("d", 0) is None and expected["s"] == [0]):
        assert actual is None, f"{what}: nothing is to be written"
        return
    if expected.get("d", 0) is None and actual is None:  # a variable that has a shape and no value
        return
    assert actual is not None, f"{what} was not written"
    if "array" in expected:
        assert len(actual) == len(expected["array"])
        for index, (one, other) in enumerate(zip(actual, expected["array"], strict=True)):
            _check(one, other, f"{what}[{index}]")
        return
    if "rows" in expected:
        assert isinstance(actual, SelectedRows), what
        assert (actual.rows.tolist(), actual.height) == (expected["rows"], expected["height"]), what
        _check(actual.value, expected["value"], f"{what}.value")
        return
    array = numbers(actual)
    assert isinstance(array, (np.ndarray, np.generic)), what
    assert list(array.shape) == expected["s"], what
    if expected["d"] is None:
        return
    assert array.dtype == expected["d"], what
    if expected["v"] is not None and same_values:
        _check_values(array, golden_array(expected), what)
    if check_lod:
        assert lod_of(actual) == lod_from_lengths(expected.get("lod", ())), what


def _check_values(actual: Any, expected: Any, what: str) -> None:
    if not np.issubdtype(actual.dtype, np.floating):
        np.testing.assert_array_equal(actual, expected, err_msg=what)
        return
    rtol = 1e-5 if actual.dtype == np.float32 else 1e-6
    np.testing.assert_allclose(actual, expected, rtol=rtol, atol=1e-6, err_msg=what)
