"""``paddle.nn.initializer``: those of Fluid with the arguments of Paddle 2.x."""

from __future__ import annotations

from typing import Any

from fluidlite import initializer

__all__ = ["Assign", "Constant", "Normal", "TruncatedNormal", "Uniform", "XavierNormal", "XavierUniform"]


class Constant(initializer.Constant):
    """One number."""

    def __init__(self, value: float = 0.0) -> None:
        super().__init__(value)


class Uniform(initializer.Uniform):
    """Evenly distributed in [low, high)."""

    def __init__(self, low: float = -1.0, high: float = 1.0, name: str | None = None) -> None:
        super().__init__(low, high)


class Normal(initializer.Normal):
    """Normally distributed."""

    def __init__(self, mean: float = 0.0, std: float = 1.0, name: str | None = None) -> None:
        super().__init__(mean, std)


class TruncatedNormal(initializer.TruncatedNormal):
    """Normally distributed, within two standard deviations."""

    def __init__(self, mean: float = 0.0, std: float = 1.0, name: str | None = None) -> None:
        super().__init__(mean, std)


class XavierUniform(initializer.Xavier):
    """Evenly distributed by the numbers of inputs and outputs."""

    def __init__(self, fan_in: float | None = None, fan_out: float | None = None, name: str | None = None) -> None:
        super().__init__(uniform=True, fan_in=fan_in, fan_out=fan_out)


class XavierNormal(initializer.Xavier):
    """Normally distributed by the numbers of inputs and outputs."""

    def __init__(self, fan_in: float | None = None, fan_out: float | None = None, name: str | None = None) -> None:
        super().__init__(uniform=False, fan_in=fan_in, fan_out=fan_out)


class Assign(initializer.NumpyArrayInitializer):
    """A given array."""

    def __init__(self, value: Any, name: str | None = None) -> None:
        super().__init__(value)
