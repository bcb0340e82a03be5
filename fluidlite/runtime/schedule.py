"""In which order, and in which groups, the ops of a block run: what asks servers for values asks together.

Ops with a `PullRule` that do not depend on each other form a group, one group per *dependency level* of pulls, so that a
step makes one request per server and level. Ops that such a group needs move in front of it; all others keep their place.
"""

from __future__ import annotations

from collections.abc import Sequence

from fluidlite.core import dataflow
from fluidlite.core.ir import Block, Operator
from fluidlite.ops import registry


def groups(ops: Sequence[Operator], blocks: Sequence[Block]) -> list[list[Operator]]:
    """The ops in the order to run them; a list of several is a group of pulls to be asked as one."""
    pulls = [_pulls(op) for op in ops]
    if sum(pulls) < 2:
        return [[op] for op in ops]
    before = _dependencies(ops, pulls, blocks)
    level = _pull_levels(pulls, before)
    done: set[int] = set()
    order: list[list[Operator]] = []
    for wanted in range(1, max(level) + 1):
        group = [index for index, pull in enumerate(pulls) if pull and level[index] == wanted]
        needed = _needed(group, before) - done
        order += [[ops[index]] for index in sorted(needed)]
        order.append([ops[index] for index in group])
        done |= needed | set(group)
    return order + [[op] for index, op in enumerate(ops) if index not in done]


def _pulls(op: Operator) -> bool:
    return registry.get(op.type).pull is not None


def _dependencies(ops: Sequence[Operator], pulls: Sequence[bool], blocks: Sequence[Block]) -> list[set[int]]:
    """What must run before each op. Ops visible outside keep their order, but pulls among themselves need none."""
    before: list[set[int]] = [set() for _ in ops]
    for hazard in dataflow.hazards(ops, registry.find, blocks):
        if hazard.kind != "side effect":
            before[hazard.later].add(hazard.earlier)
    last: int | None = None
    since: list[int] = []
    for index, op in enumerate(ops):
        if not dataflow.effects(op, registry.find, blocks).visible:
            continue
        if last is not None:
            before[index].add(last)
        if pulls[index]:
            since.append(index)
        else:
            before[index].update(since)
            last, since = index, []
    return before


def _pull_levels(pulls: Sequence[bool], before: Sequence[set[int]]) -> list[int]:
    """Per op the number of pulls on the longest way to it, itself included."""
    level: list[int] = []
    for pull, earlier in zip(pulls, before, strict=True):
        level.append(max((level[index] for index in earlier), default=0) + pull)
    return level


def _needed(group: Sequence[int], before: Sequence[set[int]]) -> set[int]:
    """Everything that must run before the group, the group itself left out."""
    needed: set[int] = set()
    waiting = list(group)
    while waiting:
        fresh = before[waiting.pop()] - needed
        needed |= fresh
        waiting += fresh
    return needed - set(group)
