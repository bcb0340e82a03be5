"""What recurrent ops share: the order in which they visit the rows of sequences, and the activations of their gates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import ProgramError, ShapeError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.ids import argument
from fluidlite.ops.infer import InferContext
from fluidlite.ops.segments import Sequences, array_of
from fluidlite.ops.special import sigmoid


class Activation(NamedTuple):
    """A function of arrays, and its derivative as a function of what the function gave."""

    of: Callable[[Array], Array]
    slope: Callable[[Array], Array]


#: by the names of the attributes; `gru_unit` numbers them in this order
ACTIVATIONS: Final = {
    "identity": Activation(lambda x: x, np.ones_like),
    "sigmoid": Activation(sigmoid, lambda y: y * (1 - y)),
    "tanh": Activation(np.tanh, lambda y: 1 - y * y),
    "relu": Activation(lambda x: np.maximum(x, 0), lambda y: (y > 0).astype(y.dtype)),
}


def check_activations(ctx: InferContext, *names: str) -> None:
    """Refuse attributes that name no activation."""
    for name in names:
        if ctx.attr(name) not in ACTIVATIONS:
            raise ProgramError(
                f"op {ctx.op.type!r}: {name} {ctx.attr(name)!r} is none of {', '.join(ACTIVATIONS)} ({ctx.op.origin})"
            )


@dataclass(frozen=True, slots=True)
class Steps:
    """The rows of sequences in *step order*: the first row of each, the longest sequence before the others, then the
    second rows, and so on. So what goes on from one step to the next is always the first rows of it.
    """

    #: (T,) the row that stands at each place of the step order
    rows: Array
    #: (count,) sequences, the longest first
    order: Array
    #: the places of each step
    parts: tuple[slice, ...]

    @property
    def heads(self) -> Array:
        """The sequences that have a first row, in the order of their places."""
        return self.order[: self.parts[0].stop if self.parts else 0]

    def carried(self, after: Array) -> Array:
        """What each place that is not the first of its sequence takes over, (T - heads, ...), from what all places
        ended with, (T, ...)."""
        earlier = [after[step.start : step.start + size(later)] for step, later in pairwise(self.parts)]
        return np.concatenate([after[:0], *earlier])

    def before(self, first: Array, after: Array) -> Array:
        """The state (T, ...) that each place starts from, given those that places end with (T, ...) and the states of
        all sequences before their first row (count, ...)."""
        return np.concatenate([first[self.heads], self.carried(after)])

    def in_rows(self, places: Array) -> Array:
        """An array in step order (T, ...), in the order of the rows."""
        out = np.empty_like(places)
        out[self.rows] = places
        return out

    def in_sequences(self, states: Array) -> Array:
        """States of the longest sequence first (count, ...), in the order of the sequences."""
        out = np.empty_like(states)
        out[self.order] = states
        return out


def size(part: slice) -> int:
    """The number of places of a step."""
    return int(part.stop - part.start)


def steps_of(bags: Sequences, *, is_reverse: bool = False) -> Steps:
    """The step order of sequences; ``is_reverse`` begins at their last rows."""
    order = np.argsort(-bags.lengths, kind="stable")
    rank = np.empty(bags.count, np.int64)
    rank[order] = np.arange(bags.count)
    rows = np.arange(len(bags.rows))
    time = bags.offsets[1:][bags.owners] - 1 - rows if is_reverse else rows - bags.starts[bags.owners]
    ends = np.cumsum(np.bincount(time)).tolist() if len(rows) else []
    parts = tuple(slice(start, end) for start, end in zip([0, *ends], ends, strict=False))
    return Steps(np.lexsort((rank[bags.owners], time)), order, parts)


def first_states(ctx: KernelContext, name: str, given: Any, bags: Sequences, width: int) -> Array:
    """The states before the first rows, (count, width): an optional input, else zeros. Another shape raises
    ShapeError."""
    if given is None:
        return np.zeros((bags.count, width), bags.rows.dtype)
    states = array_of(given)
    if states.shape != (bags.count, width):
        raise ShapeError(
            f"op {ctx.op.type!r}: {argument(ctx, name)!r} {list(states.shape)} must hold one state of width {width} for "
            f"each of {bags.count} sequences"
        )
    return states
