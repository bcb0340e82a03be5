"""``LoDTensorArray``: a list of LoDTensors with Fluid's method."""

from __future__ import annotations

from fluidlite.values.lod import LoDTensor


class LoDTensorArray(list[LoDTensor]):
    """A list of tensors. ``append`` takes a LoDTensor, or an array that becomes one."""

    def _move_to_list(self) -> list[LoDTensor]:
        """The tensors; the array is empty afterwards."""
        moved = list(self)
        self.clear()
        return moved
