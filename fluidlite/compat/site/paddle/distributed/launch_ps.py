"""``paddle.distributed.launch_ps``."""

from fluidlite.compat.launch_ps import *

if __name__ == "__main__":
    launch()
