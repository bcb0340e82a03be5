"""`create_py_reader`, `create_double_buffer_reader`, `read`: where a program takes its batches from.

An executor takes the batch from the loader that the reader belongs to (`fluidlite.data_loader`) and feeds it, before the
run: a run that finds no more batches runs no op. The ops say which variables are fed by which reader.
"""

from __future__ import annotations

from fluidlite.core import reader_desc
from fluidlite.dtypes import VarKind, dtype_name
from fluidlite.errors import ProgramError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.infer import InferContext
from fluidlite.ops.registry import REQUIRED, bool_attr, int_attr, ints_attr, register, string_attr


def nothing(ctx: KernelContext) -> None:
    """The executor has done it."""


def infer_create(ctx: InferContext) -> None:
    """Out gives items as the attributes say."""
    dims = iter(ctx.attr("shape_concat"))
    columns = [ctx.attr(name) for name in ("ranks", "lod_levels", "dtypes")]
    if len({len(column) for column in columns}) > 1 or sum(columns[0]) != len(ctx.attr("shape_concat")):
        raise ctx.error("shape_concat, ranks, lod_levels and dtypes do not fit each other")
    items = [
        reader_desc.ReaderItem(dtype_name(dtype), tuple(next(dims) for _ in range(rank)), level)
        for rank, level, dtype in zip(*columns, strict=True)
    ]
    for var in ctx.outputs("Out"):
        var.kind, var.shape, var.unknown = VarKind.READER, None, reader_desc.encode(items)


def infer_decorated(ctx: InferContext) -> None:
    """Out gives the items of UnderlyingReader."""
    source = ctx.input("UnderlyingReader")
    for var in ctx.outputs("Out"):
        var.kind, var.shape, var.unknown = VarKind.READER, None, source.unknown


def infer_read(ctx: InferContext) -> None:
    """Out has shapes, dtypes and LoD levels of the reader's items, where `infer_out`."""
    if not ctx.attr("infer_out"):
        return
    items, outputs = reader_desc.decode(ctx.input("Reader").unknown), ctx.outputs("Out")
    if len(items) != len(outputs):
        raise ProgramError(f"op 'read': its reader gives {len(items)} items, not {len(outputs)} ({ctx.op.origin})")
    for var, item in zip(outputs, items, strict=True):
        var.dtype, var.shape, var.lod_level = item.dtype, item.shape, item.lod_level


register(
    "create_py_reader",
    doc="Out is a reader of what a Python generator makes; `blocking_queue` names the queue between them.",
    inputs=["blocking_queue"],
    outputs=["Out*"],
    attrs={
        "shape_concat": ints_attr(REQUIRED, doc="the shapes of all items, one behind the other"),
        "ranks": ints_attr(REQUIRED, doc="how many of these numbers belong to each item"),
        "lod_levels": ints_attr(REQUIRED, doc="LoD level of each item"),
        "dtypes": ints_attr(REQUIRED, doc="dtype of each item, as its number"),
        "need_check_feed": ints_attr(doc="1 for items whose shape and dtype Fluid checks; here all are checked"),
        "use_data_config": bool_attr(default=True),
        "device_index": int_attr(default=0),
        "device_count": int_attr(default=1),
    },
    infer=infer_create,
    kernel=nothing,
)
register(
    "create_double_buffer_reader",
    doc="Out is a reader of the same batches, which Fluid copies ahead to a device.",
    inputs=["UnderlyingReader"],
    outputs=["Out"],
    attrs={"place": string_attr(default="AUTO")},
    infer=infer_decorated,
    kernel=nothing,
)
register(
    "read",
    doc="Out are the items of the reader's next batch; the executor feeds them, and raises EOFException when there is none.",
    inputs=["Reader"],
    outputs=["Out*"],
    attrs={
        "throw_eof_exp": bool_attr(default=True),
        "infer_out": bool_attr(default=True),
        "drop_last": bool_attr(default=True),
    },
    infer=infer_read,
    kernel=nothing,
)
