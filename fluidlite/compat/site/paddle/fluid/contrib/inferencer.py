"""``paddle.fluid.contrib.inferencer``."""

from fluidlite.compat.trainer import Inferencer
