"""``paddle.fluid.install_check``."""

from fluidlite.compat.install_check import run_check
