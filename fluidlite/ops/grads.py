"""Makers of gradient ops: functions from a forward op to the ops of its gradient."""

from __future__ import annotations

from collections.abc import Sequence

from fluidlite.core import names
from fluidlite.core.ir import Attr, Operator
from fluidlite.ops.registry import GradMaker


def arguments(op: Operator, name: str) -> list[str]:
    """Arguments of an input of a gradient op, named after the forward op: ``X``, ``Out``, ``Out@GRAD`` or ``X@GRAD``."""
    base = names.forward_of(name)
    forward = op.inputs.get(base, op.outputs.get(base, []))
    return [names.grad(argument) for argument in forward] if base != name else list(forward)


def maker(inputs: Sequence[str], outputs: Sequence[str], type: str | None = None, *, attrs: bool = True) -> GradMaker:
    """The usual gradient: one op ``<type>_grad`` with the given inputs and outputs and the forward op's attributes.

    ``attrs`` False leaves these out, the name scope included, where Fluid's op does.

    >>> maker(["Out", "Out@GRAD"], ["X@GRAD"])   # relu_grad: Out, Out@GRAD -> X@GRAD
    """

    def make(op: Operator) -> list[Operator]:
        return [
            Operator(
                type=type or f"{op.type}_grad",
                inputs={name: found for name in inputs if (found := arguments(op, name))},
                outputs={name: found for name in outputs if (found := arguments(op, name))},
                attrs=without_role(op) if attrs else {},
                origin=op.origin,
            )
        ]

    return make


def without_role(op: Operator) -> dict[str, Attr]:
    """The attributes of a forward op that its gradient takes over."""
    return {name: attr for name, attr in op.attrs.items() if name not in ("op_role", "op_role_var")}
