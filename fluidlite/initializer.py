"""Initializers: each puts the op that makes a parameter's first value into the startup program.

The ops are *prepended*, as in Fluid: the startup program lists parameters in reverse order of creation. A parameter
with ``is_distributed`` becomes an auto-grown table: its op carries ``auto_grown_table`` and makes no values, only an
empty table that knows how to make a row.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from fluidlite.core import ir
from fluidlite.core.ir import OpRole
from fluidlite.dtypes import Array, numpy_dtype
from fluidlite.errors import DtypeError, ProgramError, ShapeError
from fluidlite.framework import Block, Operator, Variable, op_role, user_line
from fluidlite.framework.dtypes import dtype_number


class Initializer:
    """Makes the first value of a variable: ``initializer(var, block)`` puts one op into ``block``."""

    #: whether the rows of an auto-grown table can be made this way, one by one
    fits_tables: ClassVar[bool] = True
    #: whether the op goes to the front of the block
    prepends: ClassVar[bool] = True

    def op(self, var: Variable, /) -> tuple[str, dict[str, Any]]:
        """The type of the op for this variable and its attributes, without shape and dtype."""
        raise NotImplementedError

    def __call__(self, var: Variable, block: Block) -> Operator:
        """Put the op into ``block``, the block of a startup program that declares ``var``."""
        is_table = isinstance(var.desc, ir.Parameter) and var.desc.is_distributed
        if is_table and not self.fits_tables:
            raise ProgramError(
                f"{type(self).__name__} cannot initialise the distributed table {var.name!r}: its rows are made one by one"
            )
        op_type, attrs = self.op(var)
        attrs = {"shape": var.shape, "dtype": dtype_number(var.dtype), **attrs}
        if is_table:
            attrs["auto_grown_table"] = True
        insert = block.prepend_op if self.prepends else block.append_op
        with op_role(OpRole.FORWARD):
            return insert(op_type, outputs={"Out": var}, attrs=attrs)


class Constant(Initializer):
    """Every element is ``value``."""

    def __init__(self, value: float = 0.0, force_cpu: bool = False) -> None:
        self.value = float(value)
        self.force_cpu = force_cpu

    def op(self, _var: Variable, /) -> tuple[str, dict[str, Any]]:
        return "fill_constant", {"value": self.value, "force_cpu": self.force_cpu}


class SeededInitializer(Initializer):
    """Random values. Seed 0 stands for the program's ``random_seed``; where that is 0 too, the variable's name
    decides, so runs repeat by default."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def seed_for(self, var: Variable) -> int:
        """The seed that the op carries."""
        return self.seed or var.program.random_seed


class Uniform(SeededInitializer):
    """Uniform on [low, high).

    ``diag_num`` > 0 sets the elements ``i * (diag_step + 1)``, i < diag_num, of the flattened value to ``diag_val``.
    """

    def __init__(
        self,
        low: float = -1.0,
        high: float = 1.0,
        seed: int = 0,
        diag_num: int = 0,
        diag_step: int = 0,
        diag_val: float = 1.0,
    ) -> None:
        super().__init__(seed)
        if high < low:
            raise ProgramError(f"Uniform: high {high} is below low {low}")
        self.low = low
        self.high = high
        self.diag = {"diag_num": diag_num, "diag_step": diag_step, "diag_val": diag_val}

    def op(self, var: Variable, /) -> tuple[str, dict[str, Any]]:
        return "uniform_random", {"min": self.low, "max": self.high, "seed": self.seed_for(var), **self.diag}


class Normal(SeededInitializer):
    """Normal with mean ``loc`` and standard deviation ``scale``."""

    def __init__(self, loc: float = 0.0, scale: float = 1.0, seed: int = 0) -> None:
        super().__init__(seed)
        self.loc = loc
        self.scale = scale

    def op(self, var: Variable, /) -> tuple[str, dict[str, Any]]:
        return "gaussian_random", {"mean": self.loc, "std": self.scale, "seed": self.seed_for(var)}


class TruncatedNormal(Normal):
    """Normal with mean ``loc`` and standard deviation ``scale``, cut at two standard deviations."""

    def op(self, var: Variable, /) -> tuple[str, dict[str, Any]]:
        return "truncated_gaussian_random", super().op(var)[1]


class FanInitializer(SeededInitializer):
    """Uniform on ±limit, or normal with a standard deviation, that follow from a parameter's fan-in and fan-out."""

    def __init__(self, uniform: bool, seed: int) -> None:
        super().__init__(seed)
        self.uniform = uniform

    def variance(self, fan_in: float, fan_out: float, /) -> float:
        """The variance of the initial values."""
        raise NotImplementedError

    def op(self, var: Variable, /) -> tuple[str, dict[str, Any]]:
        variance = self.variance(*fans(var.shape))
        if self.uniform:
            limit = math.sqrt(3.0 * variance)
            return Uniform(-limit, limit, self.seed).op(var)
        return Normal(0.0, math.sqrt(variance), self.seed).op(var)


class Xavier(FanInitializer):
    """Variance 2 / (fan_in + fan_out): uniform with limit √(6 / (fan_in + fan_out)).

    Glorot and Bengio, "Understanding the difficulty of training deep feedforward neural networks", 2010.
    """

    def __init__(
        self, uniform: bool = True, fan_in: float | None = None, fan_out: float | None = None, seed: int = 0
    ) -> None:
        super().__init__(uniform, seed)
        self.fan_in = fan_in
        self.fan_out = fan_out

    def variance(self, fan_in: float, fan_out: float, /) -> float:
        fan_in = fan_in if self.fan_in is None else self.fan_in
        fan_out = fan_out if self.fan_out is None else self.fan_out
        return 2.0 / (fan_in + fan_out)


class MSRA(FanInitializer):
    """Variance 2 / fan_in: uniform with limit √(6 / fan_in).

    He et al., "Delving Deep into Rectifiers", 2015.
    """

    def __init__(self, uniform: bool = True, fan_in: float | None = None, seed: int = 0) -> None:
        super().__init__(uniform, seed)
        self.fan_in = fan_in

    def variance(self, fan_in: float, _fan_out: float, /) -> float:
        return 2.0 / (fan_in if self.fan_in is None else self.fan_in)


class Bilinear(Initializer):
    """The kernel of bilinear upsampling for a square parameter [C, 1, K, K] of a transposed convolution."""

    fits_tables = False
    prepends = False

    def op(self, var: Variable, /) -> tuple[str, dict[str, Any]]:
        shape = var.shape
        if len(shape) != 4 or shape[2] != shape[3]:
            raise ShapeError(f"Bilinear needs a parameter [C, 1, K, K], but {var.name!r} is {list(shape)}")
        size = shape[3]
        factor = math.ceil(size / 2.0)
        center = (2.0 * factor - 1.0 - factor % 2) / (2.0 * factor)
        index = np.arange(math.prod(shape))
        # The row coordinate is not rounded down: Fluid 1.8 divides so, and its saved programs hold these values.
        column, row = index % size, (index / size) % size
        weight = (1 - np.abs(column / factor - center)) * (1 - np.abs(row / factor - center))
        return "assign_value", value_attrs(weight.astype(np.float32))


class NumpyArrayInitializer(Initializer):
    """The values of an array of the parameter's shape. A program keeps floats as float32."""

    def __init__(self, value: Array) -> None:
        if not isinstance(value, np.ndarray):
            raise ProgramError(f"NumpyArrayInitializer needs a numpy array, not {type(value).__name__}")
        self.value = value

    def op(self, var: Variable, /) -> tuple[str, dict[str, Any]]:
        if self.value.shape != var.shape:
            raise ShapeError(
                f"the initial value of {var.name!r} is {list(self.value.shape)} but the parameter is {list(var.shape)}"
            )
        if not np.can_cast(self.value.dtype, numpy_dtype(var.dtype), "same_kind"):
            raise DtypeError(f"the initial value of {var.name!r} is {self.value.dtype.name}, the parameter {var.dtype}")
        return "assign_value", value_attrs(self.value.astype(numpy_dtype(var.dtype)))


class FromFile(Initializer):
    """Rows of a file, by id; rows that the file does not have start as ``default`` says (zeros where it is None).

    ``url``, a path or a URL that fsspec knows, is a ``.npy`` matrix (rows, width) of floats, with its ids in the ``.npy``
    file ``ids`` (rows,), else row i has id i. Or it is text, a word and its numbers in each line, as word2vec and GloVe
    write it: a word's id is what the vocabulary ``words`` says, lines ``word`` (whose number, from 0, is the id) or
    ``word<tab>id``, or else its line. Servers read the file when they start, each the rows that it holds. DataError for a
    file of another width, an id that comes twice and numbers that are not finite.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        ids: str | os.PathLike[str] | None = None,
        words: str | os.PathLike[str] | None = None,
        default: Initializer | None = None,
    ) -> None:
        self.url = os.fspath(url)
        self.ids = os.fspath(ids or "")
        self.words = os.fspath(words or "")
        self.default = default or Constant(0.0)
        if not self.default.prepends or isinstance(default, FromFile):
            raise ProgramError(f"FromFile: other rows cannot start by {type(default).__name__}")

    def op(self, var: Variable, /) -> tuple[str, dict[str, Any]]:
        if len(var.shape) != 2:
            raise ShapeError(f"FromFile fills rows of a matrix, but {var.name!r} is {list(var.shape)}")
        return "rows_from_file", {"url": self.url, "ids_url": self.ids, "words_url": self.words}

    def __call__(self, var: Variable, block: Block) -> Operator:
        op_type, attrs = self.op(var)
        if isinstance(var.desc, ir.Parameter) and var.desc.is_distributed:
            attrs["auto_grown_table"] = True
        with op_role(OpRole.FORWARD):
            op = block.prepend_op(op_type, inputs={"X": var}, outputs={"Out": var}, attrs=attrs)
        self.default(var, block)  # goes in front
        return op


def value_attrs(value: Array) -> dict[str, Any]:
    """The attribute of `assign_value` that carries the elements of an array."""
    names = {"bool": "bool_values", "int32": "int32_values", "int64": "int64_values"}
    if value.dtype.name not in (*names, "float32", "float64"):
        raise DtypeError(
            f"a program holds no values of dtype {value.dtype.name}; use float32, int32, int64 or bool ({user_line()})"
        )
    return {names.get(value.dtype.name, "fp32_values"): value.ravel().tolist()}


def fans(shape: Sequence[int]) -> tuple[float, float]:
    """(fan_in, fan_out) of a parameter: [in, out] of a matrix, [out, in, receptive field...] of a convolution."""
    if not shape:
        return 1.0, 1.0
    if len(shape) == 1:
        return float(shape[0]), float(shape[0])
    if len(shape) == 2:
        return float(shape[0]), float(shape[1])
    receptive = math.prod(shape[2:])
    return float(shape[1] * receptive), float(shape[0] * receptive)


ConstantInitializer = Constant
UniformInitializer = Uniform
NormalInitializer = Normal
TruncatedNormalInitializer = TruncatedNormal
XavierInitializer = Xavier
MSRAInitializer = MSRA
BilinearInitializer = Bilinear
