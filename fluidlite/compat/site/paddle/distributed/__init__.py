"""``paddle.distributed``."""

from fluidlite.compat.fleet.two import InMemoryDataset, QueueDataset

from paddle.distributed import fleet
