"""``paddle.fluid.contrib.utils``."""

from typing import Any

from fluidlite.compat import left_out
from fluidlite.compat.contrib_files import *

from paddle.fluid.contrib.utils import hdfs_utils


def __getattr__(name: str) -> Any:
    return left_out.find("fluid.contrib.utils", name)
