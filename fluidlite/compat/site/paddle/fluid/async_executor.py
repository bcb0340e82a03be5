"""``paddle.fluid.async_executor``."""

from fluidlite.compat.async_executor import AsyncExecutor
