"""``paddle.regularizer``."""

from fluidlite.regularizer import L1Decay, L2Decay
