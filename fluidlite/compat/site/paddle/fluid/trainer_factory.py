"""``paddle.fluid.trainer_factory``."""

from fluidlite.dataset_run import FetchHandler
