"""Layers that choose at run time which ops are run: `Switch`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from fluidlite import framework
from fluidlite.dtypes import VarKind
from fluidlite.errors import ProgramError
from fluidlite.framework import Block, Variable, user_line
from fluidlite.layer_helper import LayerHelper, require_dtype, require_variable

__all__ = ["Switch"]


class Switch:
    """The first case whose condition holds is run, else the default.

    ::

        with Switch() as switch:
            with switch.case(step < limit):
                assign(small, rate)
            with switch.default():
                assign(large, rate)

    Conditions are bool [1]. What a case assigns to variables from outside holds afterwards; variables made inside are
    its own. No gradient flows through a Switch.
    """

    def __init__(self, name: str | None = None) -> None:
        self._helper = LayerHelper("switch", name)
        self._inside = False
        #: no case so far holds; None before the first case
        self._none_before: Variable | None = None

    def __enter__(self) -> Switch:
        self._inside = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._inside = False

    @contextmanager
    def case(self, condition: Variable) -> Iterator[None]:
        """Ops appended inside run when ``condition`` holds and no case before it does."""
        self._check_inside()
        require_dtype("Switch.case", require_variable("Switch.case", "condition", condition), ("bool",))
        chosen = condition
        fails = _logic("logical_not", condition)
        if self._none_before is not None:
            before = self._none_before
            self._none_before = _logic("logical_and", before, fails)
            chosen = _logic("logical_and", before, condition)
        else:
            self._none_before = fails
        with _conditional_block(chosen):
            yield

    @contextmanager
    def default(self) -> Iterator[None]:
        """Ops appended inside run when no case holds."""
        self._check_inside()
        if self._none_before is None:
            raise ProgramError(f"Switch: default() needs a case before it ({user_line()})")
        with _conditional_block(self._none_before):
            yield

    def _check_inside(self) -> None:
        if not self._inside:
            raise ProgramError(f"Switch: cases belong inside `with Switch() as switch:` ({user_line()})")


def _logic(op_type: str, x: Variable, y: Variable | None = None) -> Variable:
    return LayerHelper(op_type).one(op_type, {"X": x, "Y": y}, dtype="bool")


@contextmanager
def _conditional_block(condition: Variable) -> Iterator[None]:
    """Ops appended inside form a block of their own, run when the one bool ``condition`` holds."""
    program = framework.default_main_program()
    outside = program.current_block()
    inside = program.create_block()
    try:
        yield
    finally:
        program.rollback()
    reads, writes = _borders(inside)
    scope = outside.create_var(type=VarKind.STEP_SCOPES)
    outside.append_op(
        "conditional_block",
        {"Cond": condition, "Input": reads},
        {"Out": writes, "Scope": scope},
        {"sub_block": inside.idx, "is_scalar_condition": True},
    )


def _borders(inside: Block) -> tuple[list[str], list[str]]:
    """What a block reads and writes of its surroundings, sorted."""
    reads: set[str] = set()
    writes: set[str] = set()
    for op in inside.desc.ops:
        reads.update(name for name in op.input_arguments() if not inside.has_var(name) and name not in writes)
        writes.update(name for name in op.output_arguments() if not inside.has_var(name))
    return sorted(reads), sorted(writes)
