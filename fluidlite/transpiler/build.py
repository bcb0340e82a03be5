"""Makes the ops and variables that passes insert."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fluidlite.core import edit
from fluidlite.core.ir import Block, Operator, OpRole, Program, Variable
from fluidlite.dtypes import VarKind
from fluidlite.ops import registry


def make_op(
    by: str,
    type: str,
    inputs: Mapping[str, list[str]],
    outputs: Mapping[str, list[str]],
    role: OpRole,
    attrs: Mapping[str, Any] | None = None,
    *,
    of: Operator | None = None,
) -> Operator:
    """An op made by the pass ``by``, checked against its record; ``of`` is the user's op that it stands for."""
    op_def = registry.get(type)
    origin = f"pass {by}, for {of.origin}" if of is not None and of.origin else f"pass {by}"
    op = Operator(
        type=type,
        inputs={name: list(arguments) for name, arguments in inputs.items()},
        outputs={name: list(arguments) for name, arguments in outputs.items()},
        attrs=registry.attrs_for(op_def, {"op_role": int(role), **(attrs or {})}),
        origin=origin,
    )
    registry.check_arguments(op_def, op)
    return op


def declare(
    program: Program,
    block: Block,
    name: str,
    shape: tuple[int, ...],
    dtype: str,
    kind: VarKind = VarKind.LOD_TENSOR,
    *,
    persistable: bool = False,
) -> str:
    """Declare a variable that no gradient flows through, and return its name."""
    var = Variable(name, kind, dtype, shape, persistable=persistable, stop_gradient=True)
    edit.add_var(program, block, var)
    return name
