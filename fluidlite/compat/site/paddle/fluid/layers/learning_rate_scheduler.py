"""``paddle.fluid.layers.learning_rate_scheduler``: every layer can be had from here."""

from fluidlite.layers import *
from fluidlite.compat.legacy import decay_step_counter as _decay_step_counter
