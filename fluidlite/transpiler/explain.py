"""What each pass makes of a program, and what it leaves alone and why: `fluidlite transpile --after` and `--why`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fluidlite.core import text
from fluidlite.core.ir import Program
from fluidlite.errors import ProgramError
from fluidlite.transpiler.pipeline import Passes, pserver_passes, stages, trainer_passes
from fluidlite.transpiler.plan import Cluster, Plan

#: role -> what makes its programs
ROLES: Final[dict[str, Callable[[Plan], Passes]]] = {"trainer": trainer_passes, "pserver": pserver_passes}
#: the plan of any job that is not trained in geo mode
_USUAL: Final = Plan(Cluster((), 1))


def pass_names(role: str, plan: Plan = _USUAL) -> tuple[str, ...]:
    """The passes of a role in the order in which they run: main program, then startup program."""
    main, startup = _passes(role, plan)
    return tuple(dict.fromkeys(step.__name__ for step in (*main, *startup)))


def last_pass(role: str, plan: Plan = _USUAL) -> str:
    """The last pass of a role's main program: what it leaves is the result."""
    return _passes(role, plan).main[-1].__name__


def after(program: Program, startup: Program, plan: Plan, role: str, pass_name: str) -> str:
    """The text of the program that a pass leaves behind; both programs' when the pass works on both.

    ``role`` is "trainer" or "pserver" (the server of ``plan.at(endpoint)``; without, the first one). Raises
    ProgramError for a name that is no pass of the role.
    """
    if role == "pserver" and plan.endpoint is None:
        plan = plan.at(plan.cluster.endpoints[0])
    found = [
        text.show(result, brief=True)
        for source, passes in zip((program, startup), _passes(role, plan), strict=True)
        for step, result in stages(source, plan, passes)
        if step.__name__ == pass_name
    ]
    if not found:
        raise ProgramError(f"{pass_name!r} is no pass of the {role}; it has {', '.join(pass_names(role, plan))}")
    return "\n".join(found)


def why(plan: Plan, pass_name: str | None = None) -> list[str]:
    """What passes leave alone, with the reason: a line per case, for one pass or for all."""
    return [str(note) for note in plan.notes if pass_name in (None, note.pass_name)]


def _passes(role: str, plan: Plan) -> Passes:
    if role not in ROLES:
        raise ProgramError(f"{role!r} is no role; roles are {', '.join(ROLES)}")
    return ROLES[role](plan)
