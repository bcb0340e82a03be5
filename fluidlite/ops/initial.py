"""What the ops that make first values share: where they find the shape, and tables in the place of arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fluidlite.dtypes import VarKind, dtype_name, numpy_dtype
from fluidlite.errors import ShapeError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.infer import InferContext
from fluidlite.ops.registry import bool_attr
from fluidlite.ops.shapes import Shape, declared
from fluidlite.values.initial import RowInit
from fluidlite.values.sparse_table import SparseTable

#: attributes of every op whose Out may be an auto-grown table
TABLE_ATTRS: Final = {
    "auto_grown_table": bool_attr(
        default=False, doc="Out is an empty table; a row gets its first value from this op's rule when it is touched"
    )
}


def new_table(ctx: KernelContext, shape: Sequence[int], dtype: int, init: RowInit, seed: int = 0) -> SparseTable:
    """An empty table in the place of an array of ``shape`` (height, width)."""
    name = ctx.op.outputs["Out"][0]
    if len(shape) != 2:
        raise ShapeError(f"table {name!r} needs shape [height, width], not {list(shape)}")
    return SparseTable(name, shape[1], numpy_dtype(dtype), init, seed or ctx.program.random_seed, max(shape[0], 0))


def infer_initial(ctx: InferContext) -> None:
    """Out has the shape and dtype that attributes (or shape tensors) say."""
    if ctx.op_def.input_arg("ShapeTensor") is None:
        shape: Shape | None = ctx.attr("shape")
    else:
        shape = declared(ctx, "ShapeTensor", "ShapeTensorList", "shape")
    by_tensors = any(ctx.inputs(arg.name) for arg in ctx.op_def.inputs if arg.name.startswith("ShapeTensor"))
    if shape is not None and not by_tensors and min(shape, default=0) < 0:
        raise ctx.error(f"shape {list(shape)} has a negative dimension")
    attrs = ctx.op_def.attrs
    is_table = "auto_grown_table" in attrs and ctx.attr("auto_grown_table")
    is_column = "table_name" in attrs and ctx.attr("table_name")
    kind = VarKind.SELECTED_ROWS if is_table or is_column else None
    ctx.set("Out", shape, dtype_name(ctx.attr("dtype")), kind=kind)


def replaced(shape: Shape, place: int, size: int) -> Shape:
    """``shape`` with one dimension replaced."""
    return (*shape[:place], size, *shape[place + 1 :])


def infer_batch_size_like(ctx: InferContext) -> None:
    """Out has shape `shape`, with one dimension taken from Input."""
    source, shape, place = ctx.shape("Input"), ctx.attr("shape"), ctx.attr("output_dim_idx")
    taken = ctx.attr("input_dim_idx")
    if not 0 <= place < len(shape) or not 0 <= taken < len(source):
        raise ctx.error(f"no dimension {taken} in Input {list(source)} or no dimension {place} in {list(shape)}")
    size = -1 if ctx.input("Input").lod_level and taken == 0 else source[taken]
    ctx.set("Out", replaced(shape, place, size), dtype_name(ctx.attr("dtype")))
