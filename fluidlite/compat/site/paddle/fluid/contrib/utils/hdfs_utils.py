"""``paddle.fluid.contrib.utils.hdfs_utils``."""

from fluidlite.compat.contrib_files import *
