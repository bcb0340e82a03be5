"""`dropout`: sets elements to zero at random while training."""

from __future__ import annotations

import math

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import ProgramError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.grads import maker
from fluidlite.ops.infer import InferContext
from fluidlite.ops.registry import Case, Overwrite, bool_attr, float_attr, int_attr, register, string_attr
from fluidlite.values.minstd import MinStd

_UPSCALE = "upscale_in_train"
_IMPLEMENTATIONS = ("downgrade_in_infer", _UPSCALE)
_ATTRS = {
    "dropout_prob": float_attr(0.5, "the probability that an element becomes 0"),
    "is_test": bool_attr(default=False),
    "fix_seed": bool_attr(default=False, doc="the same mask in every run, from `seed`"),
    "seed": int_attr(0),
    "dropout_implementation": string_attr("downgrade_in_infer", " or ".join(_IMPLEMENTATIONS)),
}


def dropout(
    ctx: KernelContext,
    X: Array,
    Seed: Array | None,
    *,
    dropout_prob: float,
    is_test: bool,
    fix_seed: bool,
    seed: int,
    dropout_implementation: str,
) -> dict[str, Array]:
    upscale = dropout_implementation == _UPSCALE
    if is_test:
        return {"Out": X if upscale else X * (1 - dropout_prob)}
    if Seed is not None:
        fix_seed, seed = True, int(Seed.reshape(-1)[0])
    mask = _mask(ctx, X.shape, dropout_prob, seed if fix_seed else None)
    return {"Out": X * mask * _scale(dropout_prob, upscale), "Mask": mask}


def dropout_grad(
    ctx: KernelContext, Mask: Array, Out_GRAD: Array, *, dropout_prob: float, dropout_implementation: str
) -> Array:
    return Out_GRAD * Mask * _scale(dropout_prob, dropout_implementation == _UPSCALE)


def dropout_grad_over(
    ctx: KernelContext, Mask: Array, Out_GRAD: Array, *, dropout_prob: float, dropout_implementation: str
) -> Array:
    upscale = dropout_implementation == _UPSCALE
    if Out_GRAD.dtype.kind != "f" or Mask.shape != Out_GRAD.shape:
        return Out_GRAD * Mask * _scale(dropout_prob, upscale)
    Out_GRAD *= Mask
    Out_GRAD *= _scale(dropout_prob, upscale)
    return Out_GRAD


def _scale(dropout_prob: float, upscale: bool) -> float:
    """What kept elements are multiplied with; with probability 1 nothing is kept."""
    return 1 / (1 - dropout_prob) if upscale and dropout_prob < 1 else 1.0


def _mask(ctx: KernelContext, shape: tuple[int, ...], dropout_prob: float, seed: int | None) -> Array:
    """1 where an element is kept, 0 with probability ``dropout_prob``, uint8."""
    if seed is None:
        drawn = ctx.generator(0).random(shape, np.float32)
    else:
        drawn = MinStd(seed).canonical(math.prod(shape), np.dtype(np.float32)).reshape(shape)
    return (drawn >= dropout_prob).astype(np.uint8)


def _infer(ctx: InferContext) -> None:
    x, probability = ctx.input("X"), ctx.attr("dropout_prob")
    if not 0 <= probability <= 1:
        raise ProgramError(f"op 'dropout': dropout_prob {probability} is not in 0..1 ({ctx.op.origin})")
    if ctx.attr("dropout_implementation") not in _IMPLEMENTATIONS:
        raise ProgramError(
            f"op 'dropout': dropout_implementation {ctx.attr('dropout_implementation')!r} is none of "
            f"{', '.join(_IMPLEMENTATIONS)} ({ctx.op.origin})"
        )
    ctx.set("Out", x.shape, x.dtype, lod_level=x.lod_level)
    ctx.set("Mask", x.shape, "uint8")


def _infer_grad(ctx: InferContext) -> None:
    upstream = ctx.input("Out@GRAD")
    ctx.set("X@GRAD", upstream.shape, upstream.dtype, lod_level=upstream.lod_level)


_X = np.array([[0.5, -1.0], [2.0, 4.0]])

register(
    "dropout",
    doc="While training, Out = X * Mask, elements of Mask 0 with `dropout_prob`, and with upscale_in_train divided by "
    "1 - dropout_prob. With `is_test` Out = X * (1 - dropout_prob), or X with upscale_in_train (Srivastava et al. 2014).",
    inputs=["X", "Seed?"],
    outputs=["Out", "Mask~"],
    attrs=_ATTRS,
    infer=_infer,
    kernel=dropout,
    grad=maker(["Mask", "Out@GRAD"], ["X@GRAD"]),
    share_lod="X",
    cases=(
        Case({"X": _X}, {"dropout_prob": 0.0}, {"Out": _X}, check_grad=("X",)),
        Case({"X": _X}, {"dropout_prob": 1.0, "dropout_implementation": _UPSCALE}, {"Out": np.zeros((2, 2))}),
        Case({"X": _X}, {"dropout_prob": 0.25, "is_test": True}, {"Out": _X * 0.75}),
        Case({"X": _X}, {"dropout_prob": 0.25, "is_test": True, "dropout_implementation": _UPSCALE}, {"Out": _X}),
    ),
)
register(
    "dropout_grad",
    doc="Gradient of dropout.",
    inputs=["Mask", "Out@GRAD"],
    outputs=["X@GRAD"],
    attrs=_ATTRS,
    infer=_infer_grad,
    kernel=dropout_grad,
    overwrites=(Overwrite("Out@GRAD", dropout_grad_over),),
    share_lod="Mask",
)
