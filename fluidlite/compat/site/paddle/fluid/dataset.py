"""``paddle.fluid.dataset``."""

from fluidlite.dataset import DatasetBase, DatasetFactory, InMemoryDataset, QueueDataset
