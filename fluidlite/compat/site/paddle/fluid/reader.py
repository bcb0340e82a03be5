"""``paddle.fluid.reader``."""

from typing import Any

from fluidlite.compat import left_out
from fluidlite.data_loader import DataLoader, GeneratorLoader, PyReader


def __getattr__(name: str) -> Any:
    return left_out.find("fluid.reader", name)
