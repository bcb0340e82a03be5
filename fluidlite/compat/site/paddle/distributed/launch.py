"""``paddle.distributed.launch``."""

from fluidlite.compat.launch_ps import launch_two as launch

if __name__ == "__main__":
    launch()
