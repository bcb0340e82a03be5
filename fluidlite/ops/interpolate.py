"""Images and volumes in other sizes: nearest_interp, bilinear_interp, trilinear_interp, bicubic_interp.

Each dimension is resized on its own, by a matrix that says which cells make up a new one; the gradient is the transpose.
Sizes and positions are computed in float32, as in Fluid, so that the same cells are taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import ProgramError, ShapeError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.examples import varied
from fluidlite.ops.infer import InferContext
from fluidlite.ops.pairs import with_gradient
from fluidlite.ops.registry import Case, Infer, bool_attr, float_attr, int_attr, string_attr
from fluidlite.ops.shapes import scalar
from fluidlite.ops.windows import channel_dimension

_ATTRS: Final = {
    "data_layout": string_attr("NCHW", "NCHW, NCDHW, or channels last"),
    "out_d": int_attr(0),
    "out_h": int_attr(0),
    "out_w": int_attr(0),
    "scale": float_attr(0.0, "above 0: factor of all sizes, instead of out_d, out_h and out_w"),
    "interp_method": string_attr("bilinear"),
    "align_corners": bool_attr(default=True, doc="the corner cells' centres stay where they are"),
    "align_mode": int_attr(
        1, "0: a cell's position is that of its centre; 1: of its corner; counts for linear ones only"
    ),
}
#: (positions, size) -> the cells and weights, of equal shape (new, cells), that make up each new cell
Taps = Callable[[Array, int], tuple[Array, Array]]
#: coefficient of the cubic of Keys (1981)
_CUBIC: Final = -0.75


def _positions(size: int, new: int, *, align_corners: bool, centred: bool) -> Array:
    """Where each new cell lies along the old ones, float32."""
    places = np.arange(new).astype(np.float32)
    if align_corners:
        return places * np.float32((size - 1) / (new - 1) if new > 1 else 0.0)
    ratio = np.float32(size) / np.float32(new)
    return ratio * (places + np.float32(0.5)) - np.float32(0.5) if centred else ratio * places


def _linear(positions: Array, size: int) -> tuple[Array, Array]:
    positions = np.maximum(positions, 0)
    first = positions.astype(np.int64)
    share = (positions - first)[:, None]
    cells = np.stack([first, np.minimum(first + 1, size - 1)], axis=1)
    return cells, np.concatenate([1 - share, share], axis=1)


def _nearest(positions: Array, size: int) -> tuple[Array, Array]:
    cells = np.minimum(positions.astype(np.int64), size - 1)[:, None]
    return cells, np.ones(cells.shape, np.float32)


def _cubic(positions: Array, size: int) -> tuple[Array, Array]:
    first = np.floor(positions)
    share = (positions - first)[:, None]
    distances = np.abs(share - np.array([-1, 0, 1, 2], np.float32))
    near = ((_CUBIC + 2) * distances - (_CUBIC + 3)) * distances * distances + 1
    far = ((_CUBIC * distances - 5 * _CUBIC) * distances + 8 * _CUBIC) * distances - 4 * _CUBIC
    cells = np.clip(first[:, None].astype(np.int64) + np.array([-1, 0, 1, 2]), 0, size - 1)
    return cells, np.where(distances <= 1, near, far)


@dataclass(frozen=True)
class Method:
    """One way to resize: how many dimensions, which cells, and where a new cell lies without aligned corners."""

    type: str
    doc: str
    rank: int
    taps: Taps
    #: whether positions are those of centres, by `align_mode`
    centred: Callable[[int], bool]
    #: added to positions of aligned corners
    shift: float = 0.0

    def matrix(self, size: int, new: int, attrs: Mapping[str, Any], dtype: np.dtype[Any]) -> Array:
        """(new, size): a new line is this times the old one."""
        corners = attrs["align_corners"]
        positions = _positions(size, new, align_corners=corners, centred=self.centred(attrs["align_mode"]))
        if corners:
            positions = positions + np.float32(self.shift)
        cells, weights = self.taps(positions, size)
        out = np.zeros((new, size), dtype)
        np.add.at(out, (np.arange(new)[:, None], cells), weights.astype(dtype))
        return out

    def sizes(
        self, old: Sequence[int], out_size: Any, size_tensors: Sequence[Array], scale: Any, attrs: Any
    ) -> list[int]:
        """The new sizes: of tensors, else by a scale, else of attributes."""
        if size_tensors:
            return [scalar(part) for part in size_tensors]
        if out_size is not None:
            return [int(size) for size in out_size.reshape(-1)]
        factor = float(scale.reshape(-1)[0]) if scale is not None else attrs["scale"]
        if factor > 0:
            return [int(np.float32(size) * np.float32(factor)) for size in old]
        return [attrs[name] for name in ("out_d", "out_h", "out_w")[-self.rank :]]

    def check(self, old: Sequence[int], new: Sequence[int]) -> None:
        if len(new) != self.rank or min(new) < 1:
            raise ShapeError(f"{list(old)} cannot become {list(new)}: {self.rank} sizes of at least 1 are needed")


def _resized(lines: Array, matrices: Sequence[Array]) -> Array:
    """Each of the last dimensions multiplied by its matrix."""
    for axis, matrix in enumerate(reversed(matrices), start=1):
        lines = np.moveaxis(np.moveaxis(lines, -axis, -1) @ matrix.T, -1, -axis)
    return lines


def _register(method: Method) -> None:
    def forward(
        ctx: KernelContext,
        X: Array,
        OutSize: Array | None,
        SizeTensor: list[Array],
        Scale: Array | None,
        *,
        data_layout: str,
        **attrs: Any,
    ) -> Array:
        axis = channel_dimension(data_layout, X.ndim)
        cells = np.moveaxis(X, axis, 1)
        matrices = _matrices(method, cells.shape[2:], OutSize, SizeTensor, Scale, attrs, X.dtype)
        return np.ascontiguousarray(np.moveaxis(_resized(cells, matrices), 1, axis))

    def backward(
        ctx: KernelContext,
        X: Array,
        OutSize: Array | None,
        SizeTensor: list[Array],
        Scale: Array | None,
        Out_GRAD: Array,
        *,
        data_layout: str,
        **attrs: Any,
    ) -> Array:
        axis = channel_dimension(data_layout, X.ndim)
        sizes = np.moveaxis(X, axis, 1).shape[2:]
        matrices = _matrices(method, sizes, OutSize, SizeTensor, Scale, attrs, X.dtype)
        grad = _resized(np.moveaxis(Out_GRAD, axis, 1), [matrix.T for matrix in matrices])
        return np.ascontiguousarray(np.moveaxis(grad, 1, axis))

    with_gradient(
        method.type,
        doc=f"Out = images or volumes X in other sizes: {method.doc}.",
        inputs=["X", "OutSize?", "SizeTensor*?", "Scale?"],
        outputs=["Out"],
        attrs=_ATTRS,
        infer=_infer(method),
        kernel=forward,
        gradient=backward,
        reads=["OutSize", "Scale", "SizeTensor", "X", "Out@GRAD"],
        writes=["X@GRAD"],
        cases=_cases(method),
    )


def _matrices(
    method: Method, old: Sequence[int], out_size: Any, tensors: Sequence[Array], scale: Any, attrs: Any, dtype: Any
) -> list[Array]:
    """Per dimension the matrix that makes the new cells of the old ones."""
    new = method.sizes(old, out_size, tensors, scale, attrs)
    method.check(old, new)
    return [method.matrix(a, b, attrs, dtype) for a, b in zip(old, new, strict=True)]


def _infer(method: Method) -> Infer:
    def infer(ctx: InferContext) -> None:
        shape = ctx.shape("X")
        if len(shape) != method.rank + 2:
            raise ctx.error(f"X {list(shape)} must have {method.rank + 2} dimensions")
        attrs = {name: ctx.attr(name) for name in _ATTRS}
        try:
            axis = channel_dimension(attrs["data_layout"], len(shape))
            old = [size for i, size in enumerate(shape) if i not in (0, axis)]
            new = _declared(ctx, method, old, attrs)
        except ProgramError as error:
            raise ctx.located(error) from None
        out = [shape[0], *new]
        out.insert(axis, shape[axis])
        ctx.set("Out", tuple(out), ctx.input("X").dtype)

    return infer


def _declared(ctx: InferContext, method: Method, old: Sequence[int], attrs: Mapping[str, Any]) -> list[int]:
    """The new sizes as far as they are known before the run."""
    if any(ctx.inputs(name) for name in ("OutSize", "SizeTensor", "Scale")):
        return [-1] * len(old)
    if attrs["scale"] > 0 and min(old) < 0:
        return [size if size < 0 else method.sizes([size], None, (), None, attrs)[0] for size in old]
    new = method.sizes(old, None, (), None, attrs)
    method.check(old, new)
    return new


def _cases(method: Method) -> tuple[Case, ...]:
    x = varied(1, 2, *(3, 4, 3)[3 - method.rank :])
    base = {"interp_method": method.type.removesuffix("_interp"), "data_layout": "NCHW"}
    larger = {**base, **dict(zip(("out_d", "out_h", "out_w")[-method.rank :], (2, 6, 5)[-method.rank :], strict=True))}
    return (
        Case({"X": x}, larger, check_grad=("X",)),
        Case({"X": x}, {**larger, "align_corners": False}, check_grad=("X",)),
        Case({"X": x}, {**larger, "align_corners": False, "align_mode": 0}, check_grad=("X",)),
        Case({"X": x}, {**base, "scale": 2.0, "align_corners": False}, check_grad=("X",)),
        Case({"X": x, "OutSize": np.array([2, 2, 2][: method.rank], np.int32)}, larger),
    )


for _method in (
    Method("nearest_interp", "each new cell is the nearest old one", 2, _nearest, lambda _mode: False, 0.5),
    Method("bilinear_interp", "each new cell is a mean of the four around it", 2, _linear, lambda mode: mode == 0),
    Method("trilinear_interp", "each new cell is a mean of the eight around it", 3, _linear, lambda mode: mode == 0),
    Method("bicubic_interp", "each new cell is a cubic of the sixteen around it", 2, _cubic, lambda _mode: True),
):
    _register(_method)
