"""``paddle.concat``, ``paddle.sum``, ...: functions of Paddle 2.x that append ops to the default main program."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NoReturn

from fluidlite import framework, layers
from fluidlite.errors import NotSupported
from fluidlite.framework import Variable

__all__ = [
    "add",
    "assign",
    "cast",
    "concat",
    "disable_static",
    "enable_static",
    "full",
    "in_dynamic_mode",
    "mean",
    "norm",
    "reshape",
    "seed",
    "shape",
    "sqrt",
    "sum",
    "to_tensor",
]

Axis = int | Sequence[int] | None


def enable_static() -> None:
    """Nothing to do: there are only programs."""


def seed(seed: int) -> None:
    """Seed the default programs: what their ops draw follows from it."""
    framework.default_main_program().random_seed = seed
    framework.default_startup_program().random_seed = seed


def disable_static(place: object = None) -> NoReturn:
    """Not supported: imperative mode."""
    raise NotSupported(
        "paddle.disable_static is not supported by fluidlite: imperative mode is left out; build a program"
    )


def to_tensor(data: object, *arguments: object, **keywords: object) -> NoReturn:
    """Not supported: imperative mode."""
    raise NotSupported("paddle.to_tensor is not supported by fluidlite: imperative mode is left out; use paddle.assign")


def in_dynamic_mode() -> bool:
    """False."""
    return False


def add(x: Variable, y: Variable, name: str | None = None) -> Variable:
    """``x + y``, the smaller shape broadcast to the other's last dimensions."""
    return layers.elementwise_add(x, y, name=name)


def assign(x: Any, output: Variable | None = None) -> Variable:
    """A copy of a Variable or an array, written to ``output`` when it is given."""
    return layers.assign(x, output)


def cast(x: Variable, dtype: object) -> Variable:
    """``x`` as another dtype."""
    return layers.cast(x, dtype)


def concat(x: Sequence[Variable], axis: int | Variable = 0, name: str | None = None) -> Variable:
    """Variables one behind the other along ``axis``."""
    return layers.concat(x, axis, name)


def full(shape: Any, fill_value: float, dtype: object = None, name: str | None = None) -> Variable:
    """A variable of ``shape`` (numbers and [1] variables, or one variable) full of a number; by default float32."""
    return layers.fill_constant(shape, dtype if dtype is not None else "float32", fill_value)


def reshape(x: Variable, shape: Any, name: str | None = None) -> Variable:
    """``x`` in another shape."""
    return layers.reshape(x, shape, name=name)


def shape(input: Variable) -> Variable:
    """The shape as a variable, int32."""
    return layers.shape(input)


def sqrt(x: Variable, name: str | None = None) -> Variable:
    """The square root of each element."""
    return layers.sqrt(x)


def mean(x: Variable, axis: Axis = None, keepdim: bool = False, name: str | None = None) -> Variable:
    """The mean along dimensions, of all elements ([1]) by default."""
    return layers.reduce_mean(x, _dims(axis), keepdim, name) if axis is not None or keepdim else layers.mean(x, name)


def sum(
    x: Variable, axis: Axis = None, dtype: object = None, keepdim: bool = False, name: str | None = None
) -> Variable:
    """The sum along dimensions, of all elements ([1]) by default; of ``dtype`` when it is given."""
    return layers.reduce_sum(x if dtype is None else layers.cast(x, dtype), _dims(axis), keepdim, name)


def norm(
    x: Variable, p: float | str = "fro", axis: Axis = None, keepdim: bool = False, name: str | None = None
) -> Variable:
    """The p-norm along dimensions, of all elements by default; "fro" is 2. Infinity and -infinity: largest and smallest."""
    power, dims = 2.0 if p == "fro" else float(p), _dims(axis)
    size = layers.abs(x)
    if math.isinf(power):
        return (layers.reduce_max if power > 0 else layers.reduce_min)(size, dims, keepdim, name)
    if power == 1.0:
        return layers.reduce_sum(size, dims, keepdim, name)
    if power == 2.0:
        return layers.sqrt(layers.reduce_sum(layers.square(x), dims, keepdim, name))
    return layers.pow(layers.reduce_sum(layers.pow(size, power), dims, keepdim, name), 1.0 / power)


def _dims(axis: Axis) -> Any:
    return list(axis) if isinstance(axis, (list, tuple)) else axis
