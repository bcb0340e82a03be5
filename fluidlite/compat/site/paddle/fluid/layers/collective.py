"""``paddle.fluid.layers.collective``."""

from typing import Any

from fluidlite.compat import left_out


def __getattr__(name: str) -> Any:
    return left_out.find("fluid.layers.collective", name)
