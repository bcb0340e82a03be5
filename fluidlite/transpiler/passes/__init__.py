"""The passes, by what they work on; `fluidlite.transpiler.pipeline` has their order."""
