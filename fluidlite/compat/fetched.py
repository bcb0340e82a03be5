"""What ``exe.run`` returns to a script: arrays of one element are numbers where numbers are needed, as in numpy before 2.4."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

import fluidlite.executor
from fluidlite.framework import default_main_program
from fluidlite.framework.program import Program, as_program


class FetchedArray(np.ndarray[Any, np.dtype[Any]]):
    """An array for which ``float(x)``, ``int(x)`` and ``"%f" % x`` work when it has one element, whatever its rank.

    A mean has shape (1,), and scripts format it as a number; numpy took that until 2.3 and refuses it now.
    """

    def __repr__(self) -> str:
        """As of any array, for scripts print lists of them."""
        return repr(self.view(np.ndarray))

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        """What is computed of it is such too; what has no axes is a scalar of numpy, as of any array."""
        return array[()] if array.ndim == 0 else array.view(FetchedArray)


class Executor(fluidlite.executor.Executor):
    """fluidlite's executor, whose fetched arrays are such, and which leaves out what is fed to no variable."""

    def _accepted(self, program: Program | None, feed: Any, /) -> Any:
        return _known(program, feed)

    def _shown(self, values: list[Any], /) -> list[Any]:
        return [value.view(FetchedArray) if type(value) is np.ndarray else value for value in values]


#: names that a script feeds to programs without such a variable, and was told of
_told: set[str] = set()


def as_numpy(tensor: Any) -> Any:
    """The array of a tensor that was fetched with ``return_numpy=False``, None when it holds nothing; a list of a list."""
    if isinstance(tensor, list):
        return [as_numpy(item) for item in tensor]
    array = np.asarray(tensor)
    return array.view(FetchedArray) if array.size else None


def _known(program: Program | None, feed: Any) -> Any:
    """A feed without what the program has no variable for; Fluid leaves it out with a warning too."""
    if isinstance(feed, (list, tuple)):
        return [_known(program, one) for one in feed]
    given = as_program(program) if program is not None else default_main_program()
    if not isinstance(feed, Mapping) or not isinstance(given, Program):
        return feed
    unknown = [name for name in feed if name not in given.desc.root.vars]
    new = set(unknown) - _told
    if new:
        _told.update(new)
        warnings.warn(
            f"what is fed for {', '.join(sorted(new))} is left out: the program has no such variable", stacklevel=4
        )
    return {name: value for name, value in feed.items() if name not in unknown} if unknown else feed
