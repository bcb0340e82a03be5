"""``paddle.distributed.fleet``: the methods of one fleet as functions of a module."""

from fluidlite.compat.fleet.two import *

from paddle.distributed.fleet import base
