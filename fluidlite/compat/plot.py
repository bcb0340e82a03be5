"""``paddle.utils.plot.Ploter``: curves that a script collects, drawn where matplotlib is installed and wanted."""

from __future__ import annotations

import importlib
import os
from typing import Any

from fluidlite.errors import DataError


class PlotData:
    """The points of one curve."""

    def __init__(self) -> None:
        self.step: list[float] = []
        self.value: list[float] = []

    def append(self, step: float, value: float) -> None:
        """Add a point."""
        self.step.append(step)
        self.value.append(value)

    def reset(self) -> None:
        """Forget all points."""
        self.step, self.value = [], []


class Ploter:
    """Curves by title. `plot` draws them by matplotlib; without it, or with the environment variable ``DISABLE_PLOT``
    "True", it draws nothing."""

    def __init__(self, *args: str) -> None:
        self.__args__ = args
        self.__plot_data__ = {title: PlotData() for title in args}
        self._pyplot = self._imported()

    @staticmethod
    def _imported() -> Any:
        if os.environ.get("DISABLE_PLOT") == "True":
            return None
        try:
            return importlib.import_module("matplotlib.pyplot")
        except ImportError:
            return None

    def append(self, title: str, step: float, value: float) -> None:
        """Add a point to the curve ``title``; DataError where there is no such curve."""
        if title not in self.__plot_data__:
            raise DataError(f"there is no curve {title!r}, but {', '.join(self.__args__)}")
        self.__plot_data__[title].append(step, value)

    def plot(self, path: str | None = None) -> None:
        """Draw all curves, on the screen or into the file ``path``."""
        if self._pyplot is None:
            return
        drawn = [title for title in self.__args__ if self.__plot_data__[title].step]
        for title in drawn:
            self._pyplot.plot(self.__plot_data__[title].step, self.__plot_data__[title].value)
        self._pyplot.legend(drawn, loc="upper left")
        if path is None:
            self._pyplot.show()
        else:
            self._pyplot.savefig(path)
        self._pyplot.gcf().clear()

    def reset(self) -> None:
        """Forget the points of all curves."""
        for data in self.__plot_data__.values():
            data.reset()
