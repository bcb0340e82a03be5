"""What the facades of `framework.program` tell of one declaration or op: nothing but its data."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, NoReturn

from fluidlite.core import ir, names, text
from fluidlite.dtypes import VarKind
from fluidlite.errors import NotSupported, ProgramError
from fluidlite.framework.state import user_line
from fluidlite.ops import registry


def imperative(name: str) -> Callable[..., NoReturn]:
    """A method that Fluid has for its imperative mode only."""

    def refuse(*_args: object, **_kwargs: object) -> NoReturn:
        raise NotSupported(
            f"{name} belongs to imperative mode, which is left out; build a program, run it by an Executor, and fetch "
            f"values ({user_line()})"
        )

    return refuse


class VariableView:
    """Reads a variable's declaration."""

    name: str

    @property
    @abstractmethod
    def desc(self) -> ir.Variable:
        """The declaration in the program."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The declared shape, -1 where it is known only at run time."""
        return self.desc.shape or ()

    @property
    def dtype(self) -> str:
        """The dtype's name, e.g. ``"float32"``."""
        return self.desc.dtype

    @property
    def lod_level(self) -> int:
        return self.desc.lod_level

    @property
    def type(self) -> VarKind:
        return self.desc.kind

    @property
    def stop_gradient(self) -> bool:
        return self.desc.stop_gradient

    @stop_gradient.setter
    def stop_gradient(self, value: bool) -> None:
        self.desc.stop_gradient = value

    @property
    def is_data(self) -> bool:
        return self.desc.is_data

    # the names that scripts for Fluid 1.x use
    @property
    def grad_name(self) -> str:
        """The name of the variable's gradient."""
        return names.grad(self.name)

    numpy = imperative("Variable.numpy")
    detach = imperative("Variable.detach")
    backward = imperative("Variable.backward")
    gradient = imperative("Variable.gradient")
    clear_gradient = imperative("Variable.clear_gradient")
    set_value = imperative("Variable.set_value")

    def to_string(self, throw_on_error: bool = False, with_details: bool = False) -> str:
        """The declaration as one line of the program's text form."""
        return text.show_var(self.desc)

    __str__ = to_string

    def __repr__(self) -> str:
        return f"<Variable {self.name} {self.dtype} {list(self.shape)}>"


class ParameterView:
    """Reads a parameter's declaration."""

    @property
    @abstractmethod
    def desc(self) -> ir.Parameter:
        """The declaration in the program."""

    @property
    def trainable(self) -> bool:
        return self.desc.trainable

    @trainable.setter
    def trainable(self, value: bool) -> None:
        self.desc.trainable = value

    @property
    def optimize_attr(self) -> dict[str, float]:
        return {"learning_rate": self.desc.learning_rate}

    @property
    def regularizer(self) -> Any:
        return self.desc.regularizer

    @property
    def constraint(self) -> Any:
        return self.desc.constraint

    @property
    def do_model_average(self) -> bool:
        """Whether `optimizer.ModelAverage` and the like have a mean of it."""
        return self.desc.do_model_average

    @property
    def is_distributed(self) -> bool:
        """Whether the parameter is an auto-grown table."""
        return self.desc.is_distributed


class OperatorView:
    """Reads an op."""

    desc: ir.Operator

    @property
    def type(self) -> str:
        return self.desc.type

    def input(self, name: str) -> list[str]:
        """The arguments of an input."""
        return list(self.desc.inputs.get(name, ()))

    def output(self, name: str) -> list[str]:
        """The arguments of an output."""
        return list(self.desc.outputs.get(name, ()))

    @property
    def input_names(self) -> list[str]:
        return list(self.desc.inputs)

    @property
    def output_names(self) -> list[str]:
        return list(self.desc.outputs)

    @property
    def input_arg_names(self) -> list[str]:
        return list(self.desc.input_arguments())

    @property
    def output_arg_names(self) -> list[str]:
        return list(self.desc.output_arguments())

    def attr(self, name: str) -> Any:
        """An attribute's value: the op's own, else the default of its record."""
        found = self.desc.attrs.get(name)
        if found is not None:
            return list(found.value) if isinstance(found.value, tuple) else found.value
        values = registry.attr_values(registry.get(self.type), self.desc)
        if name not in values:
            raise ProgramError(f"op {self.type!r} has no attribute {name!r}")
        return values[name]

    def has_attr(self, name: str) -> bool:
        op_def = registry.find(self.type)
        return name in self.desc.attrs or (op_def is not None and name in op_def.attrs)

    def all_attrs(self) -> dict[str, Any]:
        """Every attribute with its value, defaults included."""
        values = dict(registry.attr_values(registry.get(self.type), self.desc))
        values.update({name: attr.value for name, attr in self.desc.attrs.items()})
        return values

    @property
    def attr_names(self) -> list[str]:
        return list(self.all_attrs())

    def attr_type(self, name: str) -> ir.AttrType:
        """The type of an attribute: the op's own, else that of its record."""
        found = self.desc.attrs.get(name)
        if found is not None:
            return found.type
        spec = registry.get(self.type).attrs.get(name)
        if spec is None:
            raise ProgramError(f"op {self.type!r} has no attribute {name!r}")
        return spec.type

    def _block_attr_id(self, name: str) -> int:
        """The number of the block that an attribute names."""
        if self.attr_type(name) is not ir.AttrType.BLOCK:
            raise ProgramError(f"attribute {name!r} of op {self.type!r} names no block")
        return int(self.attr(name))

    def to_string(self, throw_on_error: bool = False) -> str:
        """The op as one line of the program's text form."""
        return text.show_op(self.desc)

    __str__ = to_string
    __repr__ = to_string
