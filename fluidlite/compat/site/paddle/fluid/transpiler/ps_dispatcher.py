"""``paddle.fluid.transpiler.ps_dispatcher``."""

from fluidlite.transpiler import HashName, RoundRobin
