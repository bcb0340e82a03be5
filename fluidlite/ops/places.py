"""`get_places`: the places to compute on."""

from __future__ import annotations

from fluidlite.dtypes import VarKind
from fluidlite.ops.context import KernelContext
from fluidlite.ops.infer import InferContext
from fluidlite.ops.registry import Case, int_attr, register, string_attr


def get_places(ctx: KernelContext) -> list[str]:
    return ["cpu"]


def _infer(ctx: InferContext) -> None:
    for var in ctx.outputs("Out"):
        var.kind = VarKind.PLACE_LIST


register(
    "get_places",
    doc="Out: a list of the one place that there is, whatever the attributes ask for.",
    outputs=["Out"],
    attrs={"device_count": int_attr(0, "accepted, without effect"), "device_type": string_attr("AUTO", "the same")},
    infer=_infer,
    kernel=get_places,
    cases=(Case(note="a program that asks for places runs"),),
)
