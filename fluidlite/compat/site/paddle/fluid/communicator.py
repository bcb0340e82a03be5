"""``paddle.fluid.communicator``."""

from fluidlite.compat.legacy import Communicator
