"""``layers.data``: variables that are fed."""

from __future__ import annotations

from collections.abc import Sequence

from fluidlite import framework
from fluidlite.dtypes import VarKind, dtype_name
from fluidlite.errors import ProgramError
from fluidlite.framework import Variable, user_line


def data(
    name: str,
    shape: Sequence[int | None],
    append_batch_size: bool = True,
    dtype: object = "float32",
    lod_level: int = 0,
    type: VarKind = VarKind.LOD_TENSOR,
    stop_gradient: bool = True,
) -> Variable:
    """Declare a variable that is fed.

    A batch dimension of -1 is put in front of ``shape`` unless ``append_batch_size`` is False or a dimension is
    already unknown (None or negative). `fluidlite.data` adds no dimension.
    """
    dims = [-1 if dim is None else int(dim) for dim in shape]
    if append_batch_size and all(dim >= 0 for dim in dims):
        dims = [-1, *dims]
    return declare(name, dims, dtype, lod_level, type, stop_gradient, need_check_feed=False)


def declare(
    name: str,
    shape: Sequence[int],
    dtype: object,
    lod_level: int,
    type: VarKind = VarKind.LOD_TENSOR,
    stop_gradient: bool = True,
    need_check_feed: bool = True,
) -> Variable:
    """A data variable of the main program's block 0; a second declaration of a name must agree with the first."""
    if not isinstance(name, str) or not name:
        raise ProgramError(f"a data variable needs a name, not {name!r} ({user_line()})")
    block = framework.default_main_program().global_block()
    wanted = (tuple(shape), dtype_name(dtype), lod_level)
    if block.has_var(name):
        var = block.var(name)
        if (var.shape, var.dtype, var.lod_level) != wanted:
            raise ProgramError(
                f"variable {name!r} is already declared as {var.dtype} {list(var.shape)} with lod_level {var.lod_level}, "
                f"not {wanted[1]} {list(shape)} with lod_level {lod_level} ({user_line()})"
            )
        return var
    return block.create_var(
        name,
        dtype,
        shape,
        lod_level,
        stop_gradient=stop_gradient,
        type=type,
        is_data=True,
        need_check_feed=need_check_feed,
    )
