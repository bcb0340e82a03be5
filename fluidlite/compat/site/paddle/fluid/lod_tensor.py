"""``paddle.fluid.lod_tensor``."""

from fluidlite.lod_tensor import create_lod_tensor, create_random_int_lodtensor
from fluidlite.values.lod import LoDTensor
