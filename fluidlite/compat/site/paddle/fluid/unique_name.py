"""``paddle.fluid.unique_name``."""

from fluidlite.unique_name import generate, guard, switch
