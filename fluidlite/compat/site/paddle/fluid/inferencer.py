"""``paddle.fluid.inferencer``."""

from fluidlite.compat.trainer import Inferencer
