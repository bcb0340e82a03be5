"""`listen_and_serv`, the op that turns a process into a server, and `fake_init`, which leaves a variable to one."""

from __future__ import annotations

from fluidlite.ops import keeping, modes
from fluidlite.ops.context import KernelContext
from fluidlite.ops.infer import InferContext
from fluidlite.ops.registry import (
    REQUIRED,
    blocks_attr,
    int_attr,
    longs_attr,
    register,
    string_attr,
    strings_attr,
)


def listen_and_serv(ctx: KernelContext) -> None:
    ctx.host.serve(ctx.program, ctx.op, ctx.scope)


def fake_init(ctx: KernelContext) -> None:
    """Nothing is written: a trainer that reads the variable all the same is told so, and not given zeros."""


def _infer_fake(ctx: InferContext) -> None:
    ctx.set("Out", ctx.attr("shape"))


register(
    "listen_and_serv",
    doc="Serves the other blocks of its program to trainers until all of them are done. Blocks of `optimize_blocks` run when "
    "a gradient has arrived, those of `prefetch_var_name_to_block_id` answer lookups.",
    inputs=["X*?"],
    attrs={
        "endpoint": string_attr("127.0.0.1:6164", "host:port; port 0 takes a free one"),
        "pserver_id": int_attr(-1),
        "grad_to_block_id": strings_attr(doc="'gradient:block' each"),
        **modes.ATTRS,
        **keeping.ATTRS,
        "wire": modes.WIRE_ATTR,
        "pservers": int_attr(0, "number of servers; 0: not known"),
        "optimize_blocks": blocks_attr(),
        "prefetch_var_name_to_block_id": strings_attr(doc="'table:block' each"),
        "sparse_grad_to_param": strings_attr(doc="'gradient:parameter' each"),
        "slices": strings_attr(doc="'slice:first row in its parameter' each, -1 for a copy; for checkpoints"),
        "Fanin": int_attr(1, "number of trainers"),
        "checkpint_block_id": int_attr(-1),
        "lr_decay_block_id": int_attr(-1, "the block of the learning-rate schedule; -1: none"),
        "rpc_get_thread_num": int_attr(1),
        "rpc_send_thread_num": int_attr(1),
        "rpc_prefetch_thread_num": int_attr(1),
    },
    kernel=listen_and_serv,
    side_effect=True,
)
register(
    "fake_init",
    doc="Declares Out, a parameter that only servers hold, and allocates nothing.",
    outputs=["Out"],
    attrs={"shape": longs_attr(REQUIRED)},
    infer=_infer_fake,
    kernel=fake_init,
)
