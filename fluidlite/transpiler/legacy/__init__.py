"""Programs that Fluid transpiled, in the form of ours: see `translate` and docs/decisions/0037-programs-of-fluid.md."""

from fluidlite.transpiler.legacy.translate import PASSES, translate

__all__ = ["PASSES", "translate"]
