"""``paddle.fluid.log_helper``."""

from fluidlite.compat.log_helper import get_logger
