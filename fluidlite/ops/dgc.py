"""Deep gradient compression (Lin et al., arXiv:1712.01887) of one process: dgc, and the steps around it, dgc_momentum and
dgc_clip_by_norm."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.ops.context import KernelContext
from fluidlite.ops.infer import InferContext, like
from fluidlite.ops.momentum import momentum_rule
from fluidlite.ops.registry import Accumulator, Case, bool_attr, float_attr, floats_attr, int_attr, register
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


def _with_decay(grad: Array, param: Array, regular_type: int, regular_coeff: float) -> Array:
    """The gradient with that of the penalty: 0 none, 1 of absolute values, 2 of squares."""
    if regular_type == 0 or regular_coeff == 0:
        return grad
    return np.asarray(grad + regular_coeff * (np.sign(param) if regular_type == 1 else param), grad.dtype)


def _kept(step: float, count: int, sparsity: Sequence[float], begin: float, ramp: float) -> int:
    """How many numbers are sent: the sparsity grows in as many stages as it has values."""
    stage = int((step - begin) * len(sparsity) / ramp) if ramp > 0 else len(sparsity)
    return max(1, int(count * (1 - sparsity[min(stage, len(sparsity) - 1)])))


def dgc(
    ctx: KernelContext,
    U: Array,
    V: Array,
    Grad: Array,
    Param: Array,
    current_step: Array,
    nranks: Array | None,
    *,
    m: float,
    use_nesterov: bool,
    sparsity: tuple[float, ...],
    rampup_begin_step: float,
    rampup_step: float,
    regular_coeff: float,
    regular_type: int,
) -> dict[str, Array | None]:
    step = number(current_step, "current_step")
    if step < rampup_begin_step or not sparsity:
        return {"Grad_out": Grad, "U_out": U, "V_out": V, "EncodeGrad": None, "k": None, "GatherBuff": None}
    grad = _with_decay(Grad, Param, regular_type, regular_coeff)
    u = m * (U + grad) if use_nesterov else m * U + grad
    v = V + u + grad if use_nesterov else V + u
    flat = v.reshape(-1)
    count = _kept(step, flat.size, sparsity, rampup_begin_step, rampup_step)
    chosen = np.sort(np.argsort(-np.abs(flat), kind="stable")[:count])
    out = np.zeros_like(flat)
    out[chosen] = flat[chosen]
    encoded = np.concatenate([chosen.astype(flat.dtype), flat[chosen]])
    # what was sent is no longer owed, and its momentum starts anew
    left = np.ones_like(flat)
    left[chosen] = 0
    return {
        "U_out": u * left.reshape(u.shape),
        "V_out": v * left.reshape(v.shape),
        "Grad_out": out.reshape(Grad.shape),
        "EncodeGrad": encoded,
        "k": np.array([count], np.float32),
        "GatherBuff": encoded,
    }


def _infer_dgc(ctx: InferContext) -> None:
    for source, target in (("U", "U_out"), ("V", "V_out"), ("Grad", "Grad_out")):
        like(source, target)(ctx)
    for name in ("EncodeGrad", "GatherBuff"):
        ctx.set(name, (-1,), ctx.input("Grad").dtype)
    ctx.set("k", (1,), "float32")


register(
    "dgc",
    doc="""From step rampup_begin_step on: U_out = m * U + Grad, V_out = V + U_out, and Grad_out = the numbers of V_out that are
largest in absolute value (as many as `sparsity` leaves, 0 elsewhere), which then leave U_out and V_out. EncodeGrad: their
places and values. Before it Grad_out is Grad. Of one process: nothing is exchanged.
""",
    inputs=["U", "V", "Grad", "Param", "current_step", "nranks?"],
    outputs=["U_out", "V_out", "EncodeGrad", "Grad_out", "k", "GatherBuff"],
    attrs={
        "m": float_attr(0.9),
        "use_nesterov": bool_attr(default=True),
        "sparsity": floats_attr(doc="shares that are not sent, one after the other over rampup_step steps"),
        "rampup_begin_step": float_attr(0.0),
        "rampup_step": float_attr(0.0),
        "regular_coeff": float_attr(0.0),
        "regular_type": int_attr(0, "1: gradients of absolute values are added, 2: of squares"),
    },
    infer=_infer_dgc,
    kernel=dgc,
    cases=(
        Case(
            {
                "U": np.zeros(4),
                "V": np.array([0.0, 3.0, 0.0, 0.0]),
                "Grad": np.array([1.0, -1.0, 0.5, -4.0]),
                "Param": np.ones(4),
                "current_step": np.array([7.0]),
                "nranks": np.array([1.0]),
            },
            {"use_nesterov": False, "sparsity": [0.5], "rampup_step": 1.0},
            {
                "U_out": np.array([1.0, 0.0, 0.5, 0.0]),
                "V_out": np.array([1.0, 0.0, 0.5, 0.0]),
                "Grad_out": np.array([0.0, 2.0, 0.0, -4.0]),
                "EncodeGrad": np.array([1.0, 3.0, 2.0, -4.0]),
            },
        ),
    ),
)
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
