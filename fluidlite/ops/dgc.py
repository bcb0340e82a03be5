"""dgc_momentum and dgc_clip_by_norm: the steps around deep gradient compression, without the compression."""

from __future__ import annotations

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.ops.context import KernelContext
from fluidlite.ops.infer import like
from fluidlite.ops.momentum import momentum_rule
from fluidlite.ops.registry import Accumulator, Case, bool_attr, float_attr, register
from fluidlite.ops.updates import apply, infer_update, number


def dgc_momentum(
    ctx: KernelContext,
    current_step: Array,
    nranks: Array,
    Param: Array,
    Grad: Array,
    Velocity: Array,
    LearningRate: Array,
    *,
    mu: float,
    use_nesterov: bool,
    rampup_begin_step: float,
) -> dict[str, Array]:
    rate = number(LearningRate)
    mean = Grad / Grad.dtype.type(number(nranks, "nranks"))
    with_velocity = momentum_rule(rate, mu, use_nesterov)
    compressing = number(current_step, "current_step") >= rampup_begin_step

    def step(p: Array, g: Array, velocity: Array) -> None:
        if compressing:
            p -= rate * g
        else:
            with_velocity(p, g, velocity)

    return {**apply(ctx, step, Param, mean, {"VelocityOut": Velocity}), "Grad_out": mean}


def dgc_clip_by_norm(
    ctx: KernelContext, current_step: Array, X: Array, *, max_norm: float, rampup_begin_step: float
) -> Array | None:
    if rampup_begin_step < 0 or number(current_step, "current_step") < rampup_begin_step:
        return None
    norm = float(np.linalg.norm(X))
    return X * (max_norm / norm) if norm > max_norm else X.copy()


register(
    "dgc_momentum",
    doc="""Grad_out = Grad / nranks; ParamOut, VelocityOut as momentum with that gradient before step rampup_begin_step, and
ParamOut as sgd from then on, when the compression keeps the velocity. Source: Lin et al., arXiv:1712.01887.
""",
    inputs=["current_step", "nranks", "Param", "Grad", "Velocity", "LearningRate"],
    outputs=["Grad_out", "ParamOut", "VelocityOut"],
    attrs={
        "rampup_begin_step": float_attr(-1.0),
        "mu": float_attr(),
        "use_nesterov": bool_attr(default=False),
    },
    infer=infer_update,
    kernel=dgc_momentum,
    inplace={"ParamOut": "Param", "VelocityOut": "Velocity", "Grad_out": "Grad"},
    accumulators=(Accumulator("Velocity", "VelocityOut", "velocity"),),
    is_optimizer=True,
    cases=tuple(
        Case(
            {
                "current_step": np.array([now]),
                "nranks": np.array([2.0]),
                "Param": np.array([[1.0, -2.0]]),
                "Grad": np.array([[1.0, 2.0]]),
                "Velocity": np.array([[1.0, 0.0]]),
                "LearningRate": np.array([0.25]),
            },
            {"mu": 0.5, "rampup_begin_step": 5.0},
            {"Grad_out": np.array([[0.5, 1.0]]), "ParamOut": param, "VelocityOut": velocity},
        )
        for now, param, velocity in (
            (4.0, np.array([[0.75, -2.25]]), np.array([[1.0, 1.0]])),
            (5.0, np.array([[0.875, -2.25]]), np.array([[1.0, 0.0]])),
        )
    ),
)
register(
    "dgc_clip_by_norm",
    doc="""From step rampup_begin_step on: Out = X * max_norm / |X| where |X| > max_norm, else X. Before it, and with a negative
rampup_begin_step, Out is not written (it usually is X).
""",
    inputs=["current_step", "X"],
    outputs=["Out"],
    attrs={"rampup_begin_step": float_attr(-1.0), "max_norm": float_attr()},
    infer=like("X", "Out"),
    kernel=dgc_clip_by_norm,
    share_lod="X",
    cases=(
        Case(
            {"current_step": np.array([3.0]), "X": np.array([3.0, 4.0])},
            {"rampup_begin_step": 2.0, "max_norm": 2.5},
            {"Out": np.array([1.5, 2.0])},
        ),
    ),
)
