"""``layers.data``: variables that are fed."""

from __future__ import annotations

from collections.abc import Sequence

from fluidlite import framework
from fluidlite.dtypes import VarKind
from fluidlite.framework import Variable


def data(
    name: str,
    shape: Sequence[int | None],
    append_batch_size: bool = True,
    dtype: object = "float32",
    lod_level: int = 0,
    type: VarKind = VarKind.LOD_TENSOR,
    stop_gradient: bool = True,
) -> Variable:
    """A variable to be fed, declared in both default programs' block 0 by no op.

    A batch dimension of -1 is put in front of ``shape`` unless ``append_batch_size`` is False or a dimension is
    already unknown (None or negative). `fluidlite.data` adds no dimension.
    """
    dims = [-1 if dim is None else int(dim) for dim in shape]
    if append_batch_size and all(dim >= 0 for dim in dims):
        dims = [-1, *dims]
    return framework.default_main_program().global_block().create_var(
        name,
        dtype,
        dims,
        lod_level,
        stop_gradient=stop_gradient,
        type=type,
        is_data=True,
    )
