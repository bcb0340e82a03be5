"""Rewrites one training program for the two roles of a job, trainer and pserver: a plan, and tuples of passes."""

from fluidlite.transpiler.distribute import DistributeTranspiler, DistributeTranspilerConfig
from fluidlite.transpiler.placement import HashName, RoundRobin

__all__ = ["DistributeTranspiler", "DistributeTranspilerConfig", "HashName", "RoundRobin"]
