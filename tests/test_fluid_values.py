"""Op cases whose results real Fluid 1.8.5 computed (`tests/oracle/record_ops.py`): outputs, dtypes, LoD and gradients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.test_golden_ops import check_case

#: cases in which ours is right and Fluid is not (docs/deviations.md)
DEVIATIONS = {
    "frobenius_norm.02": "all of three axes, named one by one: Fluid takes the first element's norm",
    "group_norm.01": "without Scale and Bias Fluid's gradient does not subtract the mean",
    "spectral_norm.00": "Fluid's gradient is not that of its output (numeric differences give ours)",
    "spectral_norm.01": "the same",
    "tree_conv.00": "Fluid's gradient of NodesVector is not that of its output (numeric differences give ours)",
    "tree_conv.01": "the same",
}
VALUES = Path(__file__).with_name("fluid_values")
CASES = [
    pytest.param(case, id=case["id"])
    for path in sorted(VALUES.glob("*.json"))
    for case in json.loads(path.read_text(encoding="utf-8")).get("cases", ())
]


@pytest.mark.parametrize("case", CASES)
def test_as_in_fluid(case: dict[str, Any]) -> None:
    if case["id"] in DEVIATIONS:
        pytest.skip(f"deviation from Fluid: {DEVIATIONS[case['id']]}")
    check_case(case)
