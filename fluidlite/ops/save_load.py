"""Ops that write variables to files and read them back: `save`, `load`, `save_combine`, `load_combine`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fluidlite.dtypes import VarKind
from fluidlite.errors import ProgramError, UninitializedError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.registry import bool_attr, long_attr, longs_attr, register, string_attr
from fluidlite.values import files


def save(ctx: KernelContext, X: Any, *, file_path: str, overwrite: bool, save_as_fp16: bool) -> None:
    files.save(Path(file_path), {ctx.op.inputs["X"][0]: X}, overwrite=overwrite, as_fp16=save_as_fp16)


def save_combine(
    ctx: KernelContext, X: list[Any], *, file_path: str, overwrite: bool, save_as_fp16: bool, save_to_memory: bool
) -> None:
    if save_to_memory:
        raise ProgramError(f"op {ctx.op.type!r}: save_to_memory is not supported; save to a file")
    values = dict(zip(ctx.op.inputs["X"], X, strict=True))
    for name, value in values.items():
        if value is None:
            raise UninitializedError(f"op {ctx.op.type!r}: nothing wrote {name!r}, which is to be saved")
    files.save(Path(file_path), values, overwrite=overwrite, as_fp16=save_as_fp16)


def load(ctx: KernelContext, *, file_path: str, seek: int, shape: tuple[int, ...], load_as_fp16: bool) -> Any:
    name = ctx.op.outputs["Out"][0]
    if seek >= 0:
        return files.load_slice(Path(file_path), name, seek, shape)
    value = files.load(Path(file_path), name, rows=_holds_rows(ctx, name), as_fp16=load_as_fp16)
    return files.into_table(_current(ctx, name), value)


def load_combine(ctx: KernelContext, *, file_path: str, load_as_fp16: bool, model_from_memory: bool) -> dict[str, Any]:
    if model_from_memory:
        raise ProgramError(f"op {ctx.op.type!r}: model_from_memory is not supported; load from a file")
    names = ctx.op.outputs["Out"]
    rows = [_holds_rows(ctx, name) for name in names]
    values = files.load_all(Path(file_path), names, rows, as_fp16=load_as_fp16)
    return {"Out": [files.into_table(_current(ctx, name), value) for name, value in zip(names, values, strict=True)]}


def _current(ctx: KernelContext, name: str) -> Any:
    return ctx.scope.get(name) if ctx.scope is not None else None


def _holds_rows(ctx: KernelContext, name: str) -> bool:
    return ctx.var(name).kind is VarKind.SELECTED_ROWS or files.holds_rows(_current(ctx, name))


_DOC = (
    " `file_path`: its folder is made. `overwrite` False refuses an existing file. `save_as_fp16` writes float32 data as "
    "float16. A SparseTable is written as SelectedRows. Formats: `fluidlite.values.records`."
)
register(
    "save",
    doc="Write one variable to a file." + _DOC,
    inputs=["X"],
    outputs=["kLookupTablePath?"],
    attrs={
        "overwrite": bool_attr(default=True),
        "save_as_fp16": bool_attr(default=False),
        "file_path": string_attr(),
    },
    kernel=save,
    takes_lod=True,
    sparse=("X",),
    side_effect=True,
)
register(
    "save_combine",
    doc="Write variables to one file, one after the other, without names." + _DOC,
    inputs=["X*"],
    outputs=["Y?"],
    attrs={
        "overwrite": bool_attr(default=True),
        "save_as_fp16": bool_attr(default=False),
        "file_path": string_attr(),
        "save_to_memory": bool_attr(default=False),
    },
    kernel=save_combine,
    takes_lod=True,
    sparse=("X",),
    side_effect=True,
)
register(
    "load",
    doc="Read one variable from a file. `seek` >= 0: only `shape` elements from element `seek` on (a slice of a dense "
    "parameter). `load_as_fp16`: float32 data becomes float16. A SparseTable takes the rows of the file instead of its own.",
    outputs=["Out"],
    attrs={
        "load_as_fp16": bool_attr(default=False),
        "file_path": string_attr(),
        "seek": long_attr(-1),
        "shape": longs_attr(),
    },
    kernel=load,
    side_effect=True,
)
register(
    "load_combine",
    doc="Read variables that `save_combine` wrote, in the same order; refuses a file that holds more or fewer.",
    inputs=["X?"],
    outputs=["Out*"],
    attrs={
        "load_as_fp16": bool_attr(default=False),
        "file_path": string_attr(),
        "model_from_memory": bool_attr(default=False),
    },
    kernel=load_combine,
    side_effect=True,
)
