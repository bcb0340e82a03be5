"""``paddle.fluid.incubate.fleet`` and ``paddle.distributed.fleet`` over fluidlite's transpiler: parameter servers by role."""
