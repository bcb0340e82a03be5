"""``paddle.fluid.layers``."""

from typing import Any

from fluidlite.compat import left_out
from fluidlite.layers import *
from fluidlite.compat.legacy import decay_step_counter as _decay_step_counter
from fluidlite.compat.parallel_do import ParallelDo, get_places

from paddle.fluid.layers import (
    collective,
    control_flow,
    detection,
    device,
    distributions,
    io,
    learning_rate_scheduler,
    loss,
    metric_op,
    nn,
    ops,
    sequence_lod,
    tensor,
)


def __getattr__(name: str) -> Any:
    return left_out.find("fluid.layers", name)
