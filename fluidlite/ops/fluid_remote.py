"""Ops of trainers and servers that only programs of Fluid have. Most become others before they run: see
`transpiler.legacy`; `recv_save` runs as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np

from fluidlite.core.ir import EMPTY
from fluidlite.errors import ProgramError, ShapeError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.ids import NO_PADDING
from fluidlite.ops.infer import InferContext
from fluidlite.ops.modes import WIRE_ATTR
from fluidlite.ops.registry import (
    REQUIRED,
    blocks_attr,
    bool_attr,
    int_attr,
    long_attr,
    longs_attr,
    register,
    string_attr,
    strings_attr,
)
from fluidlite.ops.remote import as_gradient
from fluidlite.protocol.messages import DenseRequest
from fluidlite.values import files

#: the trainer of a program that does not say whose it is: it reads, and the programs that its executor runs next say more
UNDECIDED: Final = -2
_ONE_ENDPOINT = ("127.0.0.1:6164",)


def recv_save(
    ctx: KernelContext,
    *,
    file_path: str,
    overwrite: bool,
    shape: tuple[int, ...],
    endpoints: tuple[str, ...],
    remote_varnames: tuple[str, ...],
    slice_varnames: tuple[str, ...],
) -> None:
    there = remote_varnames or slice_varnames
    if len(there) != len(endpoints):
        raise ProgramError(f"op {ctx.op.type!r}: {len(there)} remote_varnames but {len(endpoints)} endpoints")
    pieces = ctx.server.pull(
        [DenseRequest(endpoint, name, current=True) for endpoint, name in zip(endpoints, there, strict=True)]
    )
    whole = pieces[0] if len(pieces) == 1 else np.concatenate([piece.reshape(len(piece), -1) for piece in pieces])
    if whole.size != np.prod(shape, dtype=np.int64):
        raise ShapeError(
            f"op {ctx.op.type!r}: {file_path} is to be {list(shape)}, the servers gave {whole.size} elements"
        )
    files.save(Path(file_path), {Path(file_path).name: whole.reshape(shape)}, overwrite=overwrite)


def send_and_recv(
    ctx: KernelContext, X: list[Any], *, endpoint: str, send_var_name: str, recv_var_name: str
) -> dict[str, Any]:
    for value in X:
        ctx.server.stage(as_gradient(endpoint, send_var_name, value))
    _ = ctx.server.commit((endpoint,)).versions
    return {"Out": ctx.server.pull([DenseRequest(endpoint, recv_var_name, current=True)])}


def _infer_lookup(ctx: InferContext) -> None:
    width = ctx.shape("W")[-1]
    flat = ctx.attr("lookup_table_version") == "lookup_table"
    for index, out in enumerate(ctx.outputs("Outputs")):
        if out.name == EMPTY:
            continue
        ids = ctx.inputs("Ids")[index]
        shape = ids.shape or ()
        out.shape, out.dtype, out.lod_level = (
            (*(shape[:-1] if flat else shape), width),
            ctx.input("W").dtype,
            ids.lod_level,
        )


register(
    "distributed_lookup_table",
    doc="Outputs[i]: the rows of W by Ids[i], fetched from the servers of its slices. Runs as split_ids, prefetch, concat and "
    "lookups.",
    inputs=["Ids*", "W"],
    outputs=["Outputs*"],
    attrs={
        "table_names": strings_attr(("",), "the slices of W"),
        "height_sections": longs_attr(doc="their rows"),
        "endpoints": strings_attr(_ONE_ENDPOINT, "their servers"),
        "trainer_id": int_attr(0),
        "lookup_table_version": string_attr("lookup_table", "or lookup_table_v2"),
        "padding_idx": long_attr(NO_PADDING, "an id whose output is zeros; -1: none"),
        "dtype": int_attr(5),
    },
    infer=_infer_lookup,
    kernel=None,
    side_effect=True,
)
register(
    "send_and_recv",
    doc="Sends X to a server as the gradient send_var_name, waits until the step that it is has been applied, and fetches Out, the "
    "server's variable recv_var_name (Fluid 2.0).",
    inputs=["X*"],
    outputs=["Out*"],
    attrs={
        "send_var_name": string_attr(""),
        "recv_var_name": string_attr(""),
        "trainer_id": int_attr(0),
        "endpoint": string_attr("127.0.0.1:6164"),
    },
    kernel=send_and_recv,
    sparse=("X",),
    side_effect=True,
)
register(
    "send_vars",
    doc="Fluid before 0.14: `send`, as which it runs.",
    inputs=["X*", "RPCClient?"],
    outputs=["Out*", "RPCClient?"],
    attrs={"epmap": strings_attr(_ONE_ENDPOINT), "sync_send": int_attr(0)},
    kernel=None,
    side_effect=True,
)
register(
    "fl_listen_and_serv",
    doc="The server of Fluid's federated job: runs as `listen_and_serv` in sync mode.",
    inputs=["X*"],
    attrs={
        "endpoint": string_attr("127.0.0.1:6164"),
        "sync_mode": bool_attr(default=True),
        "Fanin": int_attr(1, "number of trainers"),
        "optimize_blocks": blocks_attr(),
    },
    kernel=None,
    side_effect=True,
)
register(
    "recv_save",
    doc="Fetches a variable from servers, slice by slice, and writes it as one file.",
    attrs={
        "dtype": int_attr(5),
        "overwrite": bool_attr(default=True),
        "file_path": string_attr(REQUIRED),
        "shape": longs_attr(doc="of the whole"),
        "slice_varnames": strings_attr(),
        "remote_varnames": strings_attr(doc="the slices by their names on the servers; empty: slice_varnames"),
        "slice_shapes": strings_attr(),
        "endpoints": strings_attr(doc="their servers"),
        "trainer_id": int_attr(0),
        "wire": WIRE_ATTR,
    },
    kernel=recv_save,
    side_effect=True,
)
