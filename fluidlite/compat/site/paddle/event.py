"""``paddle.event``: what trainers of the first Paddle told their handlers."""

from fluidlite.compat.events import *
