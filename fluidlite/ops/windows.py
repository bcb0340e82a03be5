"""The windows that convolution and pooling move over an image: where they lie, and which cells each of them covers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import ProgramError, ShapeError

#: positions along a dimension, to index with
Positions: TypeAlias = "slice | Array"
#: cells put before the first and after the last cell of a dimension
Padding: TypeAlias = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows along one dimension of ``size`` cells (-1: unknown until the program runs).

    Window i covers the cells ``i * stride - before + j * dilation`` for j below ``length``, as far as they exist.
    """

    size: int
    length: int
    stride: int = 1
    before: int = 0
    after: int = 0
    dilation: int = 1
    #: the last window may reach beyond the padding
    ceil_mode: bool = False

    @property
    def span(self) -> int:
        """Cells from the first to the last of a window."""
        return (self.length - 1) * self.dilation + 1

    @property
    def count(self) -> int:
        """The number of windows, -1 when ``size`` is unknown. Windows that do not fit raise ShapeError."""
        if self.size < 0:
            return -1
        room = self.size + self.before + self.after - self.span
        count = (room + (self.stride - 1 if self.ceil_mode else 0)) // self.stride + 1
        if count < 1:
            raise ShapeError(
                f"a window over {self.span} cells does not fit into {self.size} cells with padding "
                f"{self.before} and {self.after}"
            )
        return count

    def at(self, offset: int) -> tuple[Positions, Positions]:
        """(windows whose cell number ``offset`` exists, where that cell is)."""
        shift = offset * self.dilation - self.before
        first = max(0, -(shift // self.stride))
        end = max(first, min(self.count, -((shift - self.size) // self.stride)))
        start = first * self.stride + shift
        return slice(first, end), slice(start, start + (end - first) * self.stride, self.stride)


@dataclass(frozen=True, slots=True)
class AdaptiveWindows:
    """``count`` windows that divide a dimension of ``size`` cells as evenly as possible, overlapping by a cell or none."""

    size: int
    count: int

    @property
    def length(self) -> int:
        """Cells of the longest window."""
        return int((self._ends - self._starts).max(initial=0))

    @property
    def _starts(self) -> Array:
        return np.arange(self.count) * self.size // self.count

    @property
    def _ends(self) -> Array:
        return -(-(np.arange(self.count) + 1) * self.size // self.count)

    def at(self, offset: int) -> tuple[Positions, Positions]:
        """(windows whose cell number ``offset`` exists, where that cell is)."""
        cells = self._starts + offset
        places = np.flatnonzero(cells < self._ends)
        return places, cells[places]


AnyWindows: TypeAlias = Windows | AdaptiveWindows


def covered(windows: AnyWindows) -> Array:
    """How many cells of the image each window covers, (count,)."""
    counts = np.zeros(windows.count, np.int64)
    for offset in range(windows.length):
        counts[windows.at(offset)[0]] += 1
    return counts


def sums(windows: AnyWindows, lines: Array) -> Array:
    """The sum over each window along the middle dimension of ``lines`` (outer, size, inner)."""
    out = np.zeros((len(lines), windows.count, lines.shape[2]), lines.dtype)
    for offset in range(windows.length):
        places, cells = windows.at(offset)
        out[:, places] += lines[:, cells]
    return out


def paddings_of(
    algorithm: str, paddings: Sequence[int], sizes: Sequence[int], lengths: Sequence[int], strides: Sequence[int]
) -> list[Padding]:
    """The padding of each image dimension.

    ``algorithm`` SAME pads so that windows begin at every ``stride``-th cell, VALID not at all, EXPLICIT as
    ``paddings`` says: one number per dimension, or two.
    """
    if algorithm == "VALID":
        return [(0, 0) for _ in sizes]
    if algorithm == "SAME":
        return [_same(*dimension) for dimension in zip(sizes, lengths, strides, strict=True)]
    if algorithm != "EXPLICIT":
        raise ProgramError(f"padding_algorithm is {algorithm!r}, not EXPLICIT, SAME or VALID")
    rank = len(sizes)
    if len(paddings) not in (rank, 2 * rank) or min(paddings) < 0:
        raise ShapeError(f"paddings {list(paddings)} must be {rank} or {2 * rank} numbers of at least 0")
    both = paddings if len(paddings) == 2 * rank else [size for size in paddings for _ in range(2)]
    return list(zip(both[::2], both[1::2], strict=True))


def _same(size: int, length: int, stride: int) -> Padding:
    if size < 0:
        return 0, 0
    total = max((-(-size // stride) - 1) * stride + length - size, 0)
    return total // 2, total - total // 2


def pair(name: str, values: Sequence[int]) -> tuple[int, int]:
    """An attribute with one positive number per image dimension."""
    first, second = each(name, values, 2)
    return first, second


def each(name: str, values: Sequence[int], count: int) -> tuple[int, ...]:
    """An attribute with one positive number for each of ``count`` dimensions."""
    if len(values) != count or min(values) < 1:
        raise ShapeError(f"{name} {list(values)} must be {count} positive numbers")
    return tuple(values)


def channel_dimension(data_format: str, rank: int) -> int:
    """The dimension of the channels of images or volumes: 1 in NCHW, NCDHW (and AnyLayout), the last in NHWC, NDHWC."""
    if data_format not in ("NCHW", "NCDHW", "AnyLayout", "NHWC", "NDHWC"):
        raise ProgramError(f"data_format is {data_format!r}, not NCHW, NCDHW, NHWC or NDHWC")
    return rank - 1 if data_format in ("NHWC", "NDHWC") else 1


def channel_axis(data_format: str) -> int:
    """The dimension of the channels: 1 in NCHW (and AnyLayout), 3 in NHWC."""
    if data_format not in ("NCHW", "AnyLayout", "NHWC"):
        raise ProgramError(f"data_format is {data_format!r}, not NCHW or NHWC")
    return 3 if data_format == "NHWC" else 1


def channels_first(images: Array, data_format: str) -> Array:
    """Images in either layout as (N, C, H, W), a view."""
    return np.moveaxis(images, channel_axis(data_format), 1)


def in_layout(images: Array, data_format: str) -> Array:
    """Images (N, C, H, W) in the layout ``data_format``."""
    return np.ascontiguousarray(np.moveaxis(images, 1, channel_axis(data_format)))


def image_shape(shape: Sequence[int], channels: int, sizes: Sequence[int], data_format: str) -> tuple[int, ...]:
    """The shape of images like those of ``shape`` with other channels and sizes."""
    if channel_axis(data_format) == 1:
        return shape[0], channels, *sizes
    return shape[0], *sizes, channels


def split_shape(shape: Sequence[int], data_format: str) -> tuple[int, tuple[int, int]]:
    """(channels, (height, width)) of images; another rank than 4 raises ShapeError."""
    if len(shape) != 4:
        raise ShapeError(f"images {list(shape)} must have 4 dimensions")
    first = channel_axis(data_format) == 1
    return (shape[1], (shape[2], shape[3])) if first else (shape[3], (shape[1], shape[2]))


def add_at(target: Array, cells: Positions, values: Array) -> None:
    """Add ``values`` (outer, n, inner) to the cells of ``target`` (outer, size, inner); array positions may repeat."""
    if isinstance(cells, slice):
        target[:, cells] += values
    else:
        np.add.at(target.swapaxes(0, 1), cells, values.swapaxes(0, 1))
