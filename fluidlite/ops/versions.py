"""Programs of other versions in the form that the records of this one know.

Ops of Paddle 2 and 3 carry attributes of newer types (numbers with a type of their own), which `core.later_attrs` reads by
what they hold; the record of the op says what was meant.
"""

from __future__ import annotations

from typing import Any, Final

from fluidlite.core.ir import Attr, AttrType, Operator, Program
from fluidlite.dtypes import dtype_name
from fluidlite.errors import ProgramError
from fluidlite.ops import registry

#: attribute of `assign_value` that holds the values of a dtype
_VALUES: Final = {"float32": "fp32_values", "int32": "int32_values", "int64": "int64_values", "bool": "bool_values"}
_LISTS: Final = (AttrType.INTS, AttrType.LONGS, AttrType.FLOATS, AttrType.BOOLEANS)


def as_this_version(program: Program) -> Program:
    """Change a program that was just read so that `verify` and the kernels know its attributes; returns it.

    What cannot be changed without loss stays as it is: `verify` names it.
    """
    for _, op in program.all_ops():
        if op.form is not None and op.form.later:
            _take_types_of_record(op)
            if op.type == "assign_value":
                _name_values(op)
    return program


def _take_types_of_record(op: Operator) -> None:
    op_def = registry.find(op.type)
    for name in op.form.later:
        spec = op_def.attrs.get(name) if op_def is not None else None
        if spec is not None and name in op.attrs and op.attrs[name].type is not spec.type:
            op.attrs[name] = _converted(op.attrs[name], spec.type)


def _converted(attr: Attr, wanted: AttrType) -> Attr:
    value: Any = attr.value
    if wanted in _LISTS and not isinstance(value, tuple):
        return attr
    try:
        return registry.coerce_attr(wanted, value)
    except ProgramError:
        return attr


def _name_values(op: Operator) -> None:
    """Paddle 2.5 and later keep the values of `assign_value` in one attribute for all dtypes."""
    values = op.attrs.get("values")
    name = _VALUES.get(dtype_name(op.attr("dtype", 5)))
    if values is None or not values.value or name is None or op.attr(name, ()):
        return
    spec = registry.get(op.type).attrs.get(name)
    if spec is not None:
        op.attrs[name] = _converted(values, spec.type)
