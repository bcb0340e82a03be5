"""``fluid.layers.ParallelDo`` and ``get_places``: a part of a program once per device. There is one device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fluidlite.errors import ProgramError
from fluidlite.executor import CPUPlace
from fluidlite.framework import Variable


def get_places(device_count: int | None = None, device_type: str | None = None) -> list[CPUPlace]:
    """One place, whatever is asked for."""
    return [CPUPlace()]


class ParallelDo:
    """The layers inside ``with pd.do():``, for one device: ``pd.read_input(x)`` is x, and ``pd()`` what was given to
    ``pd.write_output``."""

    def __init__(self, places: object, use_nccl: bool = False, name: str | None = None) -> None:
        self._outputs: list[Variable] = []
        self._inside = False

    @contextmanager
    def do(self) -> Iterator[None]:
        """Layers inside belong to the part."""
        self._inside = True
        yield
        self._inside = False

    def read_input(self, var: Variable) -> Variable:
        """The device's part of a batch: all of it."""
        self._check("read_input")
        return var

    def write_output(self, var: Variable) -> None:
        """Give a result to the outside."""
        self._check("write_output")
        self._outputs.append(var)

    def _check(self, method: str) -> None:
        if not self._inside:
            raise ProgramError(f"ParallelDo.{method} belongs into `with pd.do():`")

    def __call__(self) -> Variable | list[Variable]:
        """The results."""
        if self._inside or not self._outputs:
            raise ProgramError("ParallelDo has no result: call write_output inside `with pd.do():`")
        return self._outputs[0] if len(self._outputs) == 1 else self._outputs
