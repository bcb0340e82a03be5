"""``paddle.fluid.incubate.fleet.utils.hdfs``."""

from fluidlite.compat.fleet.hdfs import *
