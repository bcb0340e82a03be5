"""Kernels of dense arrays that also take SelectedRows as X: they work on its rows and keep ids and height."""

from __future__ import annotations

import functools
from typing import Any

from fluidlite.ops.context import KernelContext
from fluidlite.ops.registry import Kernel
from fluidlite.values.selected_rows import SelectedRows, merge_rows


def over_rows(kernel: Kernel, *, merge: bool = False) -> Kernel:
    """A kernel (ctx, X, ...) -> array made to accept SelectedRows as X.

    ``merge``: duplicate rows are summed first, for functions that are not linear.
    """

    @functools.wraps(kernel)
    def apply(ctx: KernelContext, X: Any, **rest: Any) -> Any:
        if not isinstance(X, SelectedRows):
            return kernel(ctx, X=X, **rest)
        rows = merge_rows(X) if merge else X
        return SelectedRows(rows.rows, kernel(ctx, X=rows.value, **rest), rows.height)

    return apply
