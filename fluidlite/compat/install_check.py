"""``fluid.install_check``: the first thing that a newcomer calls."""

from __future__ import annotations

import numpy as np

from fluidlite import framework, initializer, layers, optimizer, unique_name
from fluidlite.compat.fetched import Executor
from fluidlite.runtime.scope import Scope, scope_guard


def run_check() -> None:
    """Train one step of a small program and say that it worked."""
    with scope_guard(Scope()), unique_name.guard(), framework.program_guard(framework.Program(), framework.Program()):
        x = layers.data("x", [2])
        loss = layers.reduce_sum(layers.fc(x, 3, param_attr=initializer.Constant(0.1)))
        optimizer.SGD(0.01).minimize(loss)
        executor = Executor()
        executor.run(framework.default_startup_program())
        executor.run(feed={"x": np.ones((4, 2), np.float32)}, fetch_list=[loss])
    print("fluidlite works; it computes on the CPU, and runs scripts for Fluid as paddle.fluid")
