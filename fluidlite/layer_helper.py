"""LayerHelper: what layers share. Names, parameters, temporaries, bias, activation, and checks of arguments.

Automatic names are Fluid's: the layer is ``<type>_<k>``, its parameters ``<layer>.w_<k>`` and ``<layer>.b_<k>``, its
temporaries ``<layer>.tmp_<k>`` in order of creation.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias, TypeVar

from fluidlite import framework, unique_name
from fluidlite.core import ir
from fluidlite.dtypes import is_float
from fluidlite.errors import DtypeError, ProgramError, ShapeError
from fluidlite.framework import Arguments, Block, Operator, Parameter, Program, Variable, user_line
from fluidlite.framework.dtypes import dtype_name
from fluidlite.initializer import Constant, Initializer, Xavier
from fluidlite.param_attr import AttrLike, ParamAttr

#: one variable, or several
Variables: TypeAlias = "Variable | Sequence[Variable]"
T = TypeVar("T")

FLOATS: Final = ("float16", "float32", "float64")
INTS: Final = ("int32", "int64")


class LayerHelper:
    """Builds one layer: its name, and the ops and variables that get names from it.

    ``arguments`` are those of the layer function; ``input``, ``act``, ``param_attr`` and ``bias_attr`` are used here.
    """

    def __init__(self, layer_type: str, name: str | None = None, **arguments: Any) -> None:
        self.layer_type = layer_type
        self.name = name if name is not None else unique_name.generate(layer_type)
        self.kwargs = arguments

    @property
    def main_program(self) -> Program:
        return framework.default_main_program()

    @property
    def startup_program(self) -> Program:
        return framework.default_startup_program()

    @property
    def block(self) -> Block:
        """The block that ops go to."""
        return self.main_program.current_block()

    def append_op(
        self,
        type: str,
        inputs: Arguments | None = None,
        outputs: Arguments | None = None,
        attrs: Mapping[str, Any] | None = None,
    ) -> Operator:
        """Append an op to the current block; absent (None) inputs and attributes are left out."""
        return self.block.append_op(type, inputs, outputs, attrs)

    def one(
        self,
        type: str,
        inputs: Arguments | None,
        attrs: Mapping[str, Any] | None = None,
        *,
        dtype: object,
        out: str = "Out",
        stop_gradient: bool = False,
    ) -> Variable:
        """Append an op with one output, a new temporary, and return that."""
        result = self.create_variable_for_type_inference(dtype, stop_gradient)
        self.append_op(type, inputs, {out: result}, attrs)
        return result

    # inputs

    def multiple_input(self, input_param_name: str = "input") -> list[Variable]:
        """The input, or inputs, as a list of Variables."""
        return variables(self.kwargs[input_param_name], self.layer_type, input_param_name)

    def input(self, input_param_name: str = "input") -> Variable:
        """The only input."""
        inputs = self.multiple_input(input_param_name)
        if len(inputs) != 1:
            raise ProgramError(f"{self.layer_type}: {input_param_name!r} takes one variable, not {len(inputs)}")
        return inputs[0]

    def input_dtype(self, input_param_name: str = "input") -> str:
        """The dtype that all inputs have."""
        inputs = self.multiple_input(input_param_name)
        for var in inputs[1:]:
            require_same_dtype(self.layer_type, inputs[0], var)
        return inputs[0].dtype

    # attributes of parameters

    @property
    def param_attr(self) -> ParamAttr | None:
        return ParamAttr.of(self.kwargs.get("param_attr"))

    @property
    def bias_attr(self) -> ParamAttr | None:
        return ParamAttr.of(self.kwargs.get("bias_attr"))

    def iter_inputs_and_params(self, input_param_name: str = "input") -> list[tuple[Variable, ParamAttr]]:
        """Each input with the attributes of its weight."""
        inputs = self.multiple_input(input_param_name)
        attrs = ParamAttr.many(self.kwargs.get("param_attr"), len(inputs))
        return list(zip(inputs, attrs, strict=True))

    # variables

    def create_parameter(
        self,
        attr: AttrLike,
        shape: Sequence[int],
        dtype: object = "float32",
        is_bias: bool = False,
        default_initializer: Initializer | None = None,
        is_distributed: bool = False,
    ) -> Parameter:
        """Declare a parameter in both programs, with the op that initialises it in the startup program.

        A name that is already declared with this shape and dtype gives that parameter: several layers share it, and
        the first one's initializer holds. Without an initializer a weight is Xavier-uniform and a bias 0.

        Raises
        ------
        ProgramError
            ``attr`` is False, the shape is unknown, or the name is declared with another shape, dtype or kind.
        """
        chosen = ParamAttr.of(attr)
        if chosen is None:
            raise ProgramError(f"{self.layer_type}: this parameter cannot be left out (attr=False)")
        desc = ir.Parameter(
            name=chosen.name or unique_name.generate(f"{self.name}.{'b' if is_bias else 'w'}"),
            dtype=dtype_name(dtype),
            shape=self._known_shape(shape),
            persistable=True,
            trainable=chosen.trainable,
            learning_rate=chosen.learning_rate,
            is_distributed=is_distributed,
            do_model_average=chosen.do_model_average,
            regularizer=chosen.regularizer,
            gradient_clip=chosen.gradient_clip,
            constraint=chosen.constraint,
        )
        initializer = chosen.initializer or default_initializer or _default_initializer(desc, is_bias)
        self._initialise(desc, initializer)
        param = self.main_program.global_block().create_parameter(desc)
        if param.is_distributed != is_distributed:
            raise ProgramError(
                f"{self.layer_type}: parameter {param.name!r} is declared with is_distributed={param.is_distributed} "
                f"and used with is_distributed={is_distributed} ({user_line()})"
            )
        return param

    def _initialise(self, desc: ir.Parameter, initializer: Initializer) -> None:
        block = self.startup_program.global_block()
        is_new = not block.has_var(desc.name)
        param = block.create_parameter(copy.copy(desc))
        if is_new:
            initializer(param, block)

    def _known_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        try:
            dims = tuple(int(dim) for dim in shape)
        except (TypeError, ValueError):
            raise ShapeError(
                f"{self.layer_type} {self.name!r}: {list(shape)} is no shape of a parameter ({user_line()})"
            ) from None
        if any(dim <= 0 for dim in dims):
            raise ShapeError(
                f"{self.layer_type} {self.name!r}: a parameter of shape {list(dims)} cannot be made; "
                f"the dimensions it follows from must be known and positive ({user_line()})"
            )
        return dims

    def create_variable_for_type_inference(self, dtype: object, stop_gradient: bool = False) -> Variable:
        """A new temporary ``<layer>.tmp_<k>`` of the current block; the op that writes it sets its shape."""
        name = unique_name.generate(f"{self.name}.tmp")
        return self.block.create_var(name, dtype, stop_gradient=stop_gradient)

    def temporaries(self, count: int, dtype: object, stop_gradient: bool = False) -> list[Variable]:
        """Several new temporaries."""
        return [self.create_variable_for_type_inference(dtype, stop_gradient) for _ in range(count)]

    def create_variable(self, **declaration: Any) -> Variable:
        """Declare a variable in the current block (arguments of `Block.create_var`)."""
        return self.block.create_var(**declaration)

    def create_global_variable(self, persistable: bool = False, **declaration: Any) -> Variable:
        """Declare a variable in block 0 (arguments of `Block.create_var`)."""
        return self.main_program.global_block().create_var(persistable=persistable, **declaration)

    def set_variable_initializer(self, var: Variable, initializer: Initializer) -> Variable:
        """Declare a variable of the main program in the startup program too, and initialise it there."""
        block = self.startup_program.global_block()
        twin = block.create_var(var.name, var.dtype, var.shape, persistable=True, type=var.type)
        initializer(twin, block)
        return twin

    # the ends of layers

    def append_bias_op(self, input_var: Variable, dim_start: int = 1, dim_end: int | None = None) -> Variable:
        """Add a bias of shape ``input.shape[dim_start:dim_end]``, or nothing with ``bias_attr=False``."""
        attr = self.bias_attr
        if attr is None:
            return input_var
        bias = self.create_parameter(attr, input_var.shape[dim_start:dim_end], input_var.dtype, is_bias=True)
        inputs = {"X": input_var, "Y": bias}
        return self.one("elementwise_add", inputs, {"axis": dim_start}, dtype=input_var.dtype)

    def append_activation(self, input_var: Variable) -> Variable:
        """Append the activation ``act``: the type of an op, or a dict of its type and attributes; None adds nothing."""
        act = self.kwargs.get("act")
        if act is None:
            return input_var
        attrs = dict(act) if isinstance(act, Mapping) else {"type": act}
        act_type = attrs.pop("type", None)
        if not isinstance(act_type, str):
            raise ProgramError(f"{self.layer_type}: act must be the name of an activation, not {act!r}")
        if self.kwargs.get("use_cudnn"):
            attrs["use_cudnn"] = True
        return self.one(act_type, {"X": input_var}, attrs, dtype=input_var.dtype)


def _default_initializer(desc: ir.Parameter, is_bias: bool) -> Initializer:
    if not is_float(desc.dtype):
        raise ProgramError(f"parameter {desc.name!r} of dtype {desc.dtype} needs an initializer")
    return Constant(0.0) if is_bias else Xavier()


def either(value: T | Variable) -> tuple[Variable | None, T | None]:
    """An argument that is a Variable or a plain value, as (input, attribute) of an op."""
    return (value, None) if isinstance(value, Variable) else (None, value)


def variables(value: object, layer: str, argument: str) -> list[Variable]:
    """``value`` as a list of Variables; anything else raises ProgramError naming layer and argument."""
    items = list(value) if isinstance(value, (list, tuple)) else [value]
    if not items:
        raise ProgramError(f"{layer}: {argument!r} is empty ({user_line()})")
    return [require_variable(layer, argument, item) for item in items]


def require_variable(layer: str, argument: str, value: object) -> Variable:
    """``value``, which must be one Variable."""
    if not isinstance(value, Variable):
        raise ProgramError(
            f"{layer}: {argument!r} must be a Variable, not {type(value).__name__} {value!r} ({user_line()})"
        )
    return value


def require_dtype(layer: str, var: Variable, allowed: Sequence[str]) -> None:
    """Refuse a variable of another dtype."""
    if var.dtype not in allowed:
        raise DtypeError(f"{layer}: {var.name!r} is {var.dtype}; it must be {' or '.join(allowed)} ({user_line()})")


def require_same_dtype(layer: str, first: Variable, second: Variable) -> None:
    """Refuse two variables of different dtypes: there is no promotion."""
    if first.dtype != second.dtype:
        raise DtypeError(
            f"{layer}: {first.name!r} is {first.dtype} but {second.name!r} is {second.dtype}; cast one ({user_line()})"
        )
