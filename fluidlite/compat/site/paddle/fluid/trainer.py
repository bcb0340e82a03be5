"""``paddle.fluid.trainer``."""

from fluidlite.compat.events import BeginEpochEvent, BeginStepEvent, EndEpochEvent, EndStepEvent
from fluidlite.compat.trainer import CheckpointConfig, Trainer
