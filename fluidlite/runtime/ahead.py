"""Look-ahead: what a run will ask servers for, as far as its feed alone tells, asked before the run."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from fluidlite.core import edit
from fluidlite.core.dataflow import effects
from fluidlite.core.ir import Operator, Program
from fluidlite.ops import registry
from fluidlite.ops.context import KernelContext, Ports
from fluidlite.runtime.bind import bind_requests
from fluidlite.runtime.plan import Plan
from fluidlite.runtime.scope import Scope


class LookAhead:
    """The part of a program that finds out which rows its first lookups need, compiled.

    ``program`` was prepared for ``ports``. Not for two threads at a time.
    """

    def __init__(self, program: Program, ports: Ports) -> None:
        needed, pulls = _asks_by_feed(program)
        head = edit.clone(program)
        edit.set_ops(head, head.root, [head.root.ops[position] for position in needed])
        self._plan = Plan(head, None)
        self._ports = ports
        self._pulls = [program.root.ops[position] for position in pulls]
        contexts = [KernelContext(program, program.root, op, ports=ports) for op in self._pulls]
        self._requests = [bind_requests(ctx) for ctx in contexts]
        self._ids = [name for op in self._pulls for name in op.input_arguments()]

    def ask(self, scope: Scope, feeds: Mapping[str, Any]) -> bool:
        """Ask for the rows; whether anything was asked. Raises what the ops raise."""
        if not self._pulls:
            return False
        env = self._plan.run(scope, dict(feeds), keep=self._ids)
        requests = list(itertools.chain.from_iterable(requests(env) for requests in self._requests))
        return self._ports.server(self._pulls[0]).pull_ahead(requests)


def _asks_by_feed(program: Program) -> tuple[list[int], list[int]]:
    """(positions of the ops that turn what is fed into the ids of pulls, positions of those pulls)."""
    ops = program.root.ops
    known = {name for name, var in program.root.vars.items() if var.is_data}
    made_by: dict[str, int] = {}
    pulls: list[int] = []
    for position, op in enumerate(ops):
        inputs = list(op.input_arguments())
        if op.type == "read":  # a loader feeds what it fills
            known.update(op.output_arguments())
        elif not inputs or not known.issuperset(inputs):
            known.difference_update(op.output_arguments())
        elif registry.get(op.type).pull is not None:
            pulls.append(position)
        elif _is_pure(program, op):
            known.update(op.output_arguments())
            made_by.update(dict.fromkeys(op.output_arguments(), position))
    return sorted(_makers(ops, pulls, made_by)), pulls


def _is_pure(program: Program, op: Operator) -> bool:
    """Whether running an op once more changes nothing."""
    variables = program.root.vars
    done = effects(op, registry.find, program.blocks)
    return not done.visible and not any(name in variables and variables[name].persistable for name in done.writes)


def _makers(ops: Sequence[Operator], pulls: Sequence[int], made_by: Mapping[str, int]) -> set[int]:
    """The ops that make the inputs of pulls, and what those need."""
    found: set[int] = set()
    waiting = list(pulls)
    while waiting:
        makers = {made_by[name] for name in ops[waiting.pop()].input_arguments() if name in made_by} - found
        found |= makers
        waiting += makers
    return found
