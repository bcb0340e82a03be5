"""``paddle.fluid.input``."""

from fluidlite.input import embedding, one_hot
