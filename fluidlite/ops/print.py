"""`print`: shows a variable while the program runs; and `delete_var`, which forgets variables."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from fluidlite.core import names
from fluidlite.core.ir import Operator
from fluidlite.ops import registry
from fluidlite.ops.context import KernelContext
from fluidlite.ops.grads import without_role
from fluidlite.ops.infer import like
from fluidlite.ops.registry import Case, bool_attr, int_attr, register, string_attr
from fluidlite.values.lod import LoDTensor
from fluidlite.values.selected_rows import SelectedRows


def print_(ctx: KernelContext, In: Any, *, first_n: int, print_phase: str, is_forward: bool, **shown: Any) -> Any:
    """``shown``: the attributes that choose what is shown. Whole runs of the program are counted for ``first_n``."""
    phases = ("FORWARD", "BOTH") if is_forward else ("BACKWARD", "BOTH")
    if print_phase.upper() in phases and (first_n < 0 or ctx.run < first_n):
        sys.stdout.write(_text(ctx.op.inputs["In"][0], In, shown) + "\n")
    return In


def _text(name: str, value: Any, shown: dict[str, Any]) -> str:
    lod = value.lod if isinstance(value, LoDTensor) else ()
    array = value.array if isinstance(value, LoDTensor) else value.value if isinstance(value, SelectedRows) else value
    parts = [
        shown["message"],
        f"variable {name}" if shown["print_tensor_name"] else "",
        f"rows {value.rows.tolist()}" if isinstance(value, SelectedRows) else "",
        f"dtype {array.dtype}" if shown["print_tensor_type"] else "",
        f"shape {list(array.shape)}" if shown["print_tensor_shape"] else "",
        f"lod {[list(level) for level in lod]}" if shown["print_tensor_lod"] and lod else "",
        f"data {_data(array.reshape(-1), shown['summarize'])}",
    ]
    return "  ".join(part for part in parts if part)


def _data(flat: Any, summarize: int) -> str:
    """The first ``summarize`` elements, all of them when it is negative."""
    if summarize < 0 or summarize >= flat.size:
        return str(flat.tolist())
    return f"{str(flat[:summarize].tolist())[:-1]}, ...]"


def _print_grad(op: Operator) -> list[Operator]:
    """The gradient passes through, and is shown when `print_phase` says so."""
    attrs = {**without_role(op), "is_forward": registry.attrs_for_one("print", "is_forward", value=False)}
    gradient = [names.grad(op.outputs["Out"][0])]
    return [Operator("print", {"In": gradient}, {"Out": [names.grad(op.inputs["In"][0])]}, attrs, op.origin)]


def delete_var(ctx: KernelContext) -> dict[str, Any]:
    ctx.erase(ctx.op.inputs["X"])
    return {}


_SHOW_NOTHING = {
    "first_n": 0,
    "message": "",
    "summarize": -1,
    "print_tensor_name": False,
    "print_tensor_type": False,
    "print_tensor_shape": False,
    "print_tensor_lod": False,
}

register(
    "print",
    doc="Writes In to standard output, in the first `first_n` runs (-1: in all), and passes it on as Out.",
    inputs=["In"],
    outputs=["Out"],
    attrs={
        "first_n": int_attr(),
        "message": string_attr(),
        "summarize": int_attr(doc="elements to show, -1: all"),
        "print_tensor_name": bool_attr(),
        "print_tensor_type": bool_attr(),
        "print_tensor_shape": bool_attr(),
        "print_tensor_lod": bool_attr(),
        "print_phase": string_attr("BOTH", "FORWARD, BACKWARD or BOTH"),
        "is_forward": bool_attr(default=True),
    },
    infer=like("In", "Out"),
    kernel=print_,
    grad=_print_grad,
    takes_lod=True,
    sparse=("In",),
    side_effect=True,
    cases=(Case({"In": np.array([1.0, 2.0])}, _SHOW_NOTHING, {"Out": np.array([1.0, 2.0])}, check_grad=("In",)),),
)
register(
    "delete_var",
    doc="Forgets the variables X.",
    inputs=["X*"],
    outputs=[],
    kernel=delete_var,
    side_effect=True,
)
