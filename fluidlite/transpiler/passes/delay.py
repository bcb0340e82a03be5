"""Pserver passes of ``enable_dc_asgd``: a gradient that comes late is compensated for what changed since.

The gradient g was computed from the parameter w' as its trainer last saw it; the server's is w by now. To first order,
with the outer product of g in place of the Hessian and only its diagonal kept, the gradient at w is g + g * g * (w - w')
(Zheng et al., "Asynchronous Stochastic Gradient Descent with Delay Compensation", ICML 2017, lambda = 1, as in Fluid).
"""

from __future__ import annotations

from fluidlite.core import edit, names
from fluidlite.core.ir import Operator, OpRole, Program
from fluidlite.transpiler.build import declare, make_op
from fluidlite.transpiler.passes.server import Unit, units, update_blocks
from fluidlite.transpiler.plan import Plan


def compensate_delay(program: Program, plan: Plan) -> None:
    """An update starts by correcting the gradient that came, before clips and regularisation see it."""
    if not plan.training.dc_asgd:
        return
    moved = units(plan)
    if moved:
        declare(program, program.root, names.TRAINER_ID, (1,), "int64")
    for unit, block in zip(moved, update_blocks(program), strict=True):
        edit.set_ops(program, block, [*_compensation(program, plan, unit), *block.ops])


def _compensation(program: Program, plan: Plan, unit: Unit) -> list[Operator]:
    """The ops in front of one update."""
    param, gradient = unit.names[unit.param], unit.names[unit.gradient]
    dtype = program.root.vars[param].dtype
    for backup in _backups(plan, param):
        declare(program, program.root, backup, unit.shape, dtype, persistable=True)
    seen, drift, half, whole = (
        declare(program, program.root, names.delay_part(param, part), unit.shape, dtype) for part in names.DELAY_PARTS
    )

    def op(type: str, inputs: dict[str, list[str]], out: str) -> Operator:
        return make_op("compensate_delay", type, inputs, {"Out": [out]}, OpRole.OPTIMIZE)

    return [
        op("ref_by_trainer_id", {"X": _backups(plan, param), "TrainerId": [names.TRAINER_ID]}, seen),
        op("elementwise_sub", {"X": [param], "Y": [seen]}, drift),
        op("elementwise_mul", {"X": [drift], "Y": [gradient]}, half),
        op("elementwise_mul", {"X": [half], "Y": [gradient]}, whole),
        op("elementwise_add", {"X": [gradient], "Y": [whole]}, gradient),
    ]


def back_up_parameters(program: Program, plan: Plan) -> None:
    """Every trainer has seen the first value."""
    if not plan.training.dc_asgd:
        return
    ops = list(program.root.ops)
    for unit in units(plan):
        param = unit.names[unit.param]
        dtype = program.root.vars[param].dtype
        for backup in _backups(plan, param):
            declare(program, program.root, backup, unit.shape, dtype, persistable=True)
            ops.append(make_op("back_up_parameters", "assign", {"X": [param]}, {"Out": [backup]}, OpRole.FORWARD))
    edit.set_ops(program, program.root, ops)


def _backups(plan: Plan, param: str) -> list[str]:
    return [names.backup_of(param, trainer) for trainer in range(plan.cluster.trainers)]
