"""``paddle.fluid.incubate.fleet.base.mode``."""

__all__ = ["Mode"]


class Mode:
    """The kinds of fleet."""

    TRANSPILER = 1
    PSLIB = 2
    COLLECTIVE = 3
