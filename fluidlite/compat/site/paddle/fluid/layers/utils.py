"""``paddle.fluid.layers.utils``."""

from fluidlite.layers.nest import flatten, map_structure
from fluidlite.layers.nest import is_nested as is_sequence
from fluidlite.layers.nest import packed as pack_sequence_as
