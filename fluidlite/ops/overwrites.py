"""Kernels that compute an elementwise function in the memory of its argument, where numpy can."""

from __future__ import annotations

from collections.abc import Callable

from fluidlite.dtypes import Array
from fluidlite.ops.context import KernelContext
from fluidlite.ops.registry import Kernel, Overwrite


def alike(one: Array, other: Array) -> bool:
    """Whether two arrays have the same shape and dtype."""
    return one.shape == other.shape and one.dtype == other.dtype


def in_input(kernel: Kernel, over: Callable[[Array], Array] | None) -> tuple[Overwrite, ...]:
    """For a kernel (ctx, X): ``over`` does the same to floats in their own memory; None: there is no such function."""
    if over is None:
        return ()

    def overwriting(ctx: KernelContext, X: Array) -> Array:
        return over(X) if X.dtype.kind == "f" else kernel(ctx, X)

    return (Overwrite("X", overwriting),)


def in_gradient(kernel: Kernel, over: Callable[[Array, Array], Array] | None) -> tuple[Overwrite, ...]:
    """For a kernel (ctx, Out, Out@GRAD): ``over`` does the same in the memory of Out@GRAD, which is like Out."""
    if over is None:
        return ()

    def overwriting(ctx: KernelContext, Out: Array, Out_GRAD: Array) -> Array:
        return over(Out, Out_GRAD) if alike(Out, Out_GRAD) else kernel(ctx, Out, Out_GRAD)

    return (Overwrite("Out@GRAD", overwriting),)
