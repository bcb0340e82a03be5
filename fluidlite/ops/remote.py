"""Ops of a trainer that exchange values with servers through the `ServerPort`: `prefetch`, `recv`, `send`, barriers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fluidlite.dtypes import Array, VarKind, dtype_name, numpy_dtype
from fluidlite.errors import ProgramError, ShapeError, TableError, UninitializedError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.ids import flat_ids
from fluidlite.ops.infer import InferContext
from fluidlite.ops.modes import WIRE_ATTR
from fluidlite.ops.registry import (
    PullRule,
    bool_attr,
    int_attr,
    long_attr,
    longs_attr,
    register,
    string_attr,
    strings_attr,
)
from fluidlite.protocol.messages import DenseRequest, Gradient, RowRequest, TableRequest
from fluidlite.values import files
from fluidlite.values.selected_rows import SelectedRows

_ONE_ENDPOINT = ("127.0.0.1:6164",)


def prefetch(ctx: KernelContext, X: list[Array], **attrs: Any) -> dict[str, Any]:
    replies = ctx.server.pull(prefetch_requests(ctx, X, **attrs))
    return prefetch_finish(ctx, replies, X, **attrs)


def prefetch_requests(
    ctx: KernelContext,
    X: list[Array],
    *,
    epmap: tuple[str, ...],
    table_names: tuple[str, ...],
    height_sections: tuple[int, ...],
    width: int,
    dtype: int,
    is_test: bool,
    wire_dtype: str,
    **rest: Any,
) -> list[RowRequest]:
    """One request per server that is asked for any row."""
    _check_parallel(ctx, X=X, epmap=epmap, table_names=table_names)
    if height_sections:
        _check_parallel(ctx, X=X, height_sections=height_sections)
    starts = np.cumsum((0, *height_sections)) if height_sections else np.zeros(len(X) + 1, np.int64)
    name = dtype_name(dtype)
    return [
        RowRequest(endpoint, table, flat_ids(ctx, ids, "X", k) - starts[k], width, name, is_test, wire_dtype)
        for k, (ids, endpoint, table) in enumerate(zip(X, epmap, table_names, strict=True))
        if ids.size
    ]


def prefetch_finish(
    ctx: KernelContext,
    replies: Sequence[Array],
    X: list[Array],
    *,
    epmap: tuple[str, ...],
    width: int,
    dtype: int,
    height: int,
    **rest: Any,
) -> dict[str, Any]:
    """The answers as SelectedRows, one per server; none of a server that was not asked."""
    wanted = numpy_dtype(dtype)
    answers = iter(replies)
    fetched = []
    for ids, endpoint in zip(X, epmap, strict=True):
        rows = ids.reshape(-1)
        value = next(answers) if ids.size else np.empty((0, width), wanted)
        if value.shape != (len(rows), width) or value.dtype != wanted:
            raise TableError(
                f"op {ctx.op.type!r}: {endpoint} was asked for {len(rows)} rows of width {width} {wanted}, it answered "
                f"{list(value.shape)} {value.dtype}"
            )
        fetched.append(SelectedRows(rows, value, height))
    return {"Out": fetched}


def recv(ctx: KernelContext, **attrs: Any) -> dict[str, Any]:
    requests = recv_requests(ctx, **attrs)
    return recv_finish(ctx, ctx.server.pull(requests) if requests else [])


def recv_requests(
    ctx: KernelContext,
    *,
    epmap: tuple[str, ...],
    varnames: tuple[str, ...],
    recv_varnames: tuple[str, ...],
    do_not_run: int,
    **rest: Any,
) -> list[DenseRequest]:
    if do_not_run:
        return []
    if recv_varnames:
        raise ProgramError(f"op {ctx.op.type!r}: recv_varnames is not supported; receive the pieces and concat them")
    names = varnames or tuple(ctx.op.outputs["Out"])
    _check_parallel(ctx, Out=ctx.op.outputs["Out"], epmap=epmap, varnames=names)
    return [DenseRequest(endpoint, name) for endpoint, name in zip(epmap, names, strict=True)]


def recv_finish(ctx: KernelContext, replies: Sequence[Array], **rest: Any) -> dict[str, Any]:
    """The answers, checked against the declarations of the variables that take them (``do_not_run``: none)."""
    for name, value in zip(ctx.op.outputs["Out"] if replies else (), replies, strict=True):
        var = ctx.var(name)
        declared = var.shape or value.shape
        fits = len(declared) == value.ndim and all(
            d in {-1, actual} for d, actual in zip(declared, value.shape, strict=True)
        )
        if not fits or value.dtype != numpy_dtype(var.dtype):
            raise ShapeError(
                f"op {ctx.op.type!r}: {name!r} is declared {list(declared)} {var.dtype}, the server answered "
                f"{list(value.shape)} {value.dtype}"
            )
    return {"Out": list(replies)} if replies else {}


def send(
    ctx: KernelContext, X: list[Any], *, epmap: tuple[str, ...], send_varnames: tuple[str, ...], wire_dtype: str
) -> None:
    arguments = ctx.op.inputs["X"]
    names = send_varnames or tuple(arguments)
    _check_parallel(ctx, X=X, epmap=epmap, send_varnames=names)
    for value, argument, endpoint, name in zip(X, arguments, epmap, names, strict=True):
        if value is None:
            raise UninitializedError(f"op {ctx.op.type!r}: nothing wrote {argument!r}, which is to be sent")
        ctx.server.stage(as_gradient(endpoint, name, value, wire_dtype))


def as_gradient(endpoint: str, name: str, value: Any, wire_dtype: str = "") -> Gradient:
    """A value, dense or rows, on its way to a server that calls it ``name``."""
    if isinstance(value, SelectedRows):
        return Gradient(endpoint, name, value.value, value.rows, value.height, wire_dtype)
    return Gradient(endpoint, name, value)


def send_barrier(ctx: KernelContext, *, endpoints: tuple[str, ...], wait: bool) -> None:
    reply = ctx.server.commit(endpoints)
    if wait:
        _ = reply.versions


def checkpoint_notify(ctx: KernelContext, *, epmap: tuple[str, ...], dir: str, lookup_table: str) -> None:
    if not lookup_table:
        ctx.server.checkpoint(tuple(dict.fromkeys(epmap)), dir)
        return
    shards = ctx.server.pull([TableRequest(endpoint, lookup_table) for endpoint in dict.fromkeys(epmap)])
    for index, rows in enumerate(shards):
        files.save(Path(dir) / f"{lookup_table}_{index}", {lookup_table: rows})


def do_nothing(ctx: KernelContext) -> None:
    """What is left of an op whose work another one does."""


def _check_parallel(ctx: KernelContext, **lists: Sequence[Any]) -> None:
    """Lists that belong together element by element must be equally long."""
    if len({len(values) for values in lists.values()}) > 1:
        sizes = ", ".join(f"{name} has {len(values)}" for name, values in lists.items())
        raise ProgramError(f"op {ctx.op.type!r}: one element each is needed, but {sizes}")


def _infer_prefetch(ctx: InferContext) -> None:
    for out in ctx.outputs("Out"):
        out.kind = VarKind.SELECTED_ROWS
        out.shape = (ctx.attr("height") or -1, ctx.attr("width"))
        out.dtype = dtype_name(ctx.attr("dtype"))


register(
    "prefetch",
    doc="Out[k]: the rows that X[k] (n, 1) int64 names, fetched from server epmap[k], as SelectedRows. A row that the "
    "server's table does not have is made there, or with `is_test` answered by zeros.",
    inputs=["X*"],
    outputs=["Out*"],
    attrs={
        "trainer_id": int_attr(0),
        "epmap": strings_attr(_ONE_ENDPOINT, "the server of each X"),
        "table_names": strings_attr(doc="the name of the table, or of the slice, on each server"),
        "height_sections": longs_attr(doc="of a matrix cut by rows: its rows per server, which counts ids from there"),
        "width": int_attr(0, "elements of a row"),
        "dtype": int_attr(5),
        "height": long_attr(0, "rows of the whole parameter"),
        "is_test": bool_attr(default=False),
        "wire_dtype": string_attr("", "float16 or bfloat16: to which rows are rounded on their way; empty: not at all"),
        "wire": WIRE_ATTR,
    },
    infer=_infer_prefetch,
    kernel=prefetch,
    pull=PullRule(prefetch_requests, prefetch_finish),
    side_effect=True,
)
register(
    "recv",
    doc="Out[i]: variable varnames[i] of server epmap[i] (by default of the same name), whole.",
    inputs=["X*?"],
    outputs=["Out*"],
    attrs={
        "epmap": strings_attr(doc="the server of each Out"),
        "trainer_id": int_attr(0),
        "trainers": int_attr(0, "number of trainers, checked by the server; 0: unchecked"),
        "with_barrier": bool_attr(default=True),
        "varnames": strings_attr(),
        "recv_varnames": strings_attr(doc="refused"),
        "do_not_run": int_attr(0, "not 0: do nothing"),
        "wire": WIRE_ATTR,
    },
    kernel=recv,
    pull=PullRule(recv_requests, recv_finish),
    side_effect=True,
)
register(
    "send",
    doc="Adds each gradient X[i] to the open step, for server epmap[i], where it is called send_varnames[i]. The step counts "
    "when `send_barrier` commits it.",
    inputs=["X*"],
    outputs=["Out*"],
    attrs={
        "trainer_id": int_attr(0),
        "epmap": strings_attr(_ONE_ENDPOINT, "the server of each X"),
        "sections": longs_attr(),
        "send_varnames": strings_attr(doc="the gradient's name on the server; empty: its own"),
        "num": int_attr(0),
        "merge_add": bool_attr(default=False),
        "use_send_handler": bool_attr(default=True),
        "wire_dtype": string_attr("", "float16 or bfloat16: to which the values of rows are rounded on their way"),
    },
    kernel=send,
    sparse=("X",),
    side_effect=True,
)
register(
    "send_barrier",
    doc="Commits the step on every server of `endpoints`, also on those that got no gradient.",
    inputs=["X*?"],
    outputs=["Out*"],
    attrs={
        "trainer_id": int_attr(0),
        "trainers": int_attr(0, "number of trainers, checked by the server; 0: unchecked"),
        "endpoints": strings_attr(_ONE_ENDPOINT),
        "half_async": bool_attr(default=False, doc="steps are merged and sent behind the trainer's back"),
        "max_merge_var_num": int_attr(20, "half_async: how many steps are merged at most"),
        "wait": bool_attr(default=False, doc="go on once the step is applied, in every mode"),
        "two_phase": bool_attr(default=True, doc="of several servers each accepts the step before it counts on any"),
        "wire": WIRE_ATTR,
    },
    kernel=send_barrier,
    side_effect=True,
)
register(
    "fetch_barrier",
    doc="Nothing: a commit's reply already carries the parameters. Accepted in programs made by Fluid.",
    inputs=["X*?"],
    outputs=["Out*"],
    attrs={"trainer_id": int_attr(0), "endpoints": strings_attr(_ONE_ENDPOINT), "wire": WIRE_ATTR},
    kernel=do_nothing,
    side_effect=True,
)
register(
    "checkpoint_notify",
    doc="Makes the servers of `epmap` write a checkpoint of all that they hold, and waits until it is written. Its number is "
    "the highest of their versions.",
    attrs={
        "epmap": strings_attr(_ONE_ENDPOINT),
        "dir": string_attr(doc="the checkpoint_dir of the servers, which refuse another one; empty: whatever it is"),
        "lookup_table": string_attr(
            doc="a table (in programs of Fluid): its rows are fetched and written to dir, a file <table>_<i> per server"
        ),
        "trainer_id": int_attr(0),
    },
    kernel=checkpoint_notify,
    side_effect=True,
)
