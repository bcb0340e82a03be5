"""Compiles a program into a plan: per block a list of bound steps, one per op (or group of ops that ask servers together).

Every op has a plain step (`bind`); most have a fast one too (`fast`), which does the same for values that are bare
arrays. After a step the temporaries that no later step touches are dropped; a fast step may compute in the memory of one
of them (`in_place`).
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from fluidlite.core import dataflow
from fluidlite.core.ir import Block, Operator, Program
from fluidlite.ops import registry
from fluidlite.ops.context import KernelContext, Ports, RunState
from fluidlite.runtime import fast, profile, schedule
from fluidlite.runtime.bind import bind, bind_pulls
from fluidlite.runtime.env import Env, Step
from fluidlite.runtime.in_place import chosen
from fluidlite.runtime.private import unshadowed
from fluidlite.runtime.scope import Scope


class Compiled(NamedTuple):
    """One block: a step per group of ops in the order of running, in both forms."""

    plain: list[Step]
    fast: list[Step]
    #: per step the temporaries that no later step touches
    dead: list[tuple[str, ...]]
    #: per step its ops' types, for the profiler
    labels: list[str]


class Plan:
    """A compiled program. Valid for one state of the program (``Program.edits``).

    ``runs`` numbers the runs: what is drawn at random differs from run to run. ``plain`` runs every op by its plain
    step, as a reference. ``in_place``: whether steps may compute in the memory of what dies with them (`in_place.chosen`).
    """

    def __init__(
        self,
        program: Program,
        ports: Ports | None,
        *,
        block: int = 0,
        runs: Iterator[int] | None = None,
        plain: bool = False,
        in_place: bool | None = None,
    ) -> None:
        if ports is not None:
            ports.prepare(program)
        program = unshadowed(program)
        self.program = program
        self.run_state = RunState()
        self.persistable = frozenset(name for b in program.blocks for name, var in b.vars.items() if var.persistable)
        self._overwritten = overwritten(program)
        self._ports = ports
        self._plain = plain
        self._in_place = chosen(in_place)
        self._blocks: dict[int, Compiled] = {}
        self._runs = runs if runs is not None else itertools.count()
        self._block = block
        for b in program.blocks if block == 0 else [program.blocks[block]]:
            self._compiled(b.idx)

    def run(self, scope: Scope, feeds: dict[str, Any], keep: Collection[str] | None = None) -> Env:
        """Execute block 0 (or the block compiled for) and return the values.

        ``keep``: the temporaries to find in what is returned; others are dropped after their last use, so that their
        memory is free for the rest of the run. None: all. Overflow and division by zero follow IEEE 754 silently (inf,
        NaN), as in Fluid.
        """
        theirs = self._overwritten.intersection(feeds)
        feeds = {**feeds, **{name: copy.deepcopy(feeds[name]) for name in theirs}}
        env = Env(scope, self.persistable, feeds, None if keep is None else frozenset(keep))
        env.plain = env.plain or self._plain
        state = self.run_state
        state.run, state.scope, state.env = next(self._runs), scope, env
        state.salt = self._ports.salt if self._ports is not None else 0
        try:
            with np.errstate(all="ignore"):
                self._execute(self._block, env)
        finally:
            state.scope = state.env = None
        return env

    def _execute(self, idx: int, env: Env) -> None:
        compiled = self._compiled(idx)
        steps: Iterable[Step] = compiled.plain if env.plain else compiled.fast
        recorder = profile.active()
        if recorder is not None:
            steps = map(recorder.timed, steps, compiled.labels)
        if env.keep is None or idx != self._block:
            for step in steps:
                step(env)
            return
        keep, local = env.keep, env.local
        for step, dead in zip(steps, compiled.dead, strict=True):
            step(env)
            for name in dead:
                if name not in keep:
                    local.pop(name, None)

    def _run_block(self, idx: int) -> None:
        self._execute(idx, self.run_state.env)

    def _compiled(self, idx: int) -> Compiled:
        if idx not in self._blocks:
            block = self.program.blocks[idx]
            groups = schedule.groups(block.ops, self.program.blocks)
            dead = self._dead(groups)
            released = idx == self._block and self._in_place
            bound = [self._bind(block, g, gone if released else ()) for g, gone in zip(groups, dead, strict=True)]
            labels = [group[0].type for group in groups]
            self._blocks[idx] = Compiled([p for p, _ in bound], [f for _, f in bound], dead, labels)
        return self._blocks[idx]

    def _bind(self, block: Block, group: list[Operator], dying: Collection[str]) -> tuple[Step, Step]:
        """The plain and the fast step of a group; the same one where there is no faster."""
        contexts = [
            KernelContext(
                self.program, block, op, ports=self._ports, run_state=self.run_state, run_block=self._run_block
            )
            for op in group
        ]
        if len(contexts) > 1:
            step = bind_pulls(contexts)
            return step, step
        (ctx,) = contexts
        changing = self._changing(ctx.op)
        plain = bind(ctx, changing)
        return plain, fast.bind(ctx, plain, self.persistable, changing, dying)

    def _changing(self, op: Operator) -> frozenset[str]:
        """The inputs that outputs may not be views of: those that an op changes in place, and, for what outlives the run,
        all: another program may change them, and the user what was fed."""
        inputs = frozenset(op.input_arguments()).difference(op.output_arguments())
        lasting = not self.persistable.isdisjoint(op.output_arguments()) and not registry.get(op.type).inplace
        return inputs if lasting else inputs & self._overwritten

    def _dead(self, groups: Sequence[Sequence[Operator]]) -> list[tuple[str, ...]]:
        """Per group the temporaries that it is the last to touch; what sub-blocks do counts for the op that runs them."""
        positions = [at for at, group in enumerate(groups) for _ in group]
        ops = [op for group in groups for op in group]
        dead: list[list[str]] = [[] for _ in groups]
        for name, last in dataflow.last_use(ops, registry.find, self.program.blocks).items():
            if name not in self.persistable:
                dead[positions[last]].append(name)
        return [tuple(found) for found in dead]


def overwritten(program: Program) -> frozenset[str]:
    """Variables whose arrays some op changes in place."""
    found: set[str] = set()
    for _, op in program.all_ops():
        for output, given in registry.get(op.type).inplace.items():
            pairs = zip(op.inputs.get(given, ()), op.outputs.get(output, ()), strict=False)
            found.update(source for source, target in pairs if source == target)
    return frozenset(found)
