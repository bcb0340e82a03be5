"""``paddle.fluid.incubate.data_generator``."""

from fluidlite.compat.data_generator import DataGenerator, MultiSlotDataGenerator, MultiSlotStringDataGenerator
