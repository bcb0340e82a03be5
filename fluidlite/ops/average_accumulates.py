"""average_accumulates: sums of a parameter over a sliding window of steps, for ModelAverage."""

from __future__ import annotations

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.ops.context import KernelContext
from fluidlite.ops.infer import InferContext
from fluidlite.ops.registry import Case, float_attr, long_attr, register

#: steps after which sum_1 is moved to sum_2, so that neither loses precision
_FOLD = 16384


def average_accumulates(
    ctx: KernelContext,
    param: Array,
    in_sum_1: Array,
    in_sum_2: Array,
    in_sum_3: Array,
    in_num_accumulates: Array,
    in_old_num_accumulates: Array,
    in_num_updates: Array,
    *,
    average_window: float,
    max_average_window: int,
    min_average_window: int,
) -> dict[str, Array]:
    updates, accumulates = in_num_updates + 1, in_num_accumulates + 1
    old, sum_1, sum_2, sum_3 = in_old_num_accumulates.copy(), in_sum_1 + param, in_sum_2.copy(), in_sum_3.copy()
    if updates[0] % _FOLD == 0:
        sum_1, sum_2 = np.zeros_like(sum_1), sum_2 + sum_1
    window = min(max_average_window, int(updates[0] * average_window))
    if accumulates[0] >= min_average_window and accumulates[0] >= window:
        sum_3, sum_1, sum_2 = sum_1 + sum_2, np.zeros_like(sum_1), np.zeros_like(sum_2)
        old, accumulates = accumulates, np.zeros_like(accumulates)
    return {
        "out_sum_1": sum_1,
        "out_sum_2": sum_2,
        "out_sum_3": sum_3,
        "out_num_accumulates": accumulates,
        "out_old_num_accumulates": old,
        "out_num_updates": updates,
    }


_STATE = {
    "out_sum_1": "in_sum_1",
    "out_sum_2": "in_sum_2",
    "out_sum_3": "in_sum_3",
    "out_num_accumulates": "in_num_accumulates",
    "out_old_num_accumulates": "in_old_num_accumulates",
    "out_num_updates": "in_num_updates",
}


def infer_state(ctx: InferContext) -> None:
    for output, source in _STATE.items():
        var = ctx.input(source)
        ctx.set(output, var.shape, var.dtype)


def _counters(accumulates: int, old: int, updates: int, prefix: str) -> dict[str, Array]:
    values = {"num_accumulates": accumulates, "old_num_accumulates": old, "num_updates": updates}
    return {f"{prefix}_{name}": np.array([value], np.int64) for name, value in values.items()}


_SUMS = {"in_sum_1": np.array([2.0, 1.0]), "in_sum_2": np.array([4.0, 2.0]), "in_sum_3": np.array([8.0, 3.0])}

register(
    "average_accumulates",
    doc="""Counts the step and adds param to sum_1; every 16384 updates sum_1 moves into sum_2. When the accumulates reach
min_average_window and min(max_average_window, num_updates * average_window), the window closes: sum_3 becomes sum_1 + sum_2, both become 0, and
old_num_accumulates keeps their number. The average is (sum_1 + sum_2 + sum_3) / (num_accumulates + old_num_accumulates).
""",
    inputs=["param", *_STATE.values()],
    outputs=list(_STATE),
    attrs={
        "average_window": float_attr(0.0, "window as a share of all updates"),
        "max_average_window": long_attr(),
        "min_average_window": long_attr(10000),
    },
    infer=infer_state,
    kernel=average_accumulates,
    inplace=_STATE,
    cases=(
        Case(
            {"param": np.array([1.0, 1.0]), **_SUMS, **_counters(0, 5, 1, "in")},
            {"average_window": 0.5, "min_average_window": 2, "max_average_window": 10},
            {
                "out_sum_1": np.array([3.0, 2.0]),
                "out_sum_2": _SUMS["in_sum_2"],
                "out_sum_3": _SUMS["in_sum_3"],
                **_counters(1, 5, 2, "out"),
            },
        ),
        Case(
            {"param": np.array([1.0, 1.0]), **_SUMS, **_counters(1, 5, 2, "in")},
            {"average_window": 0.5, "min_average_window": 2, "max_average_window": 10},
            {
                "out_sum_1": np.zeros(2),
                "out_sum_2": np.zeros(2),
                "out_sum_3": np.array([7.0, 4.0]),
                **_counters(0, 2, 3, "out"),
            },
            note="the window closes",
        ),
    ),
)
