"""What becomes of gradients that are not finite."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import replace
from typing import Final

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import RequestRefusedError
from fluidlite.protocol.messages import Gradient
from fluidlite.pserver.catalog import GradientSpec
from fluidlite.values.selected_rows import SelectedRows, merge_rows

log = logging.getLogger("fluidlite")

_DONE: Final = {"error": "refused", "skip": "skipped", "zero": "zeroed"}


class NanPolicy:
    """Looks at each trainer's gradient of each parameter, its duplicate rows summed, for NaN and infinities.

    ``error``: the step is refused before any server accepts it. ``skip``: the trainer's gradient of this parameter is left
    out, as though it had not been sent: the others' are averaged over those that remain, and where none does a dense
    parameter stays as it is and a sparse one gets a gradient without rows. ``zero``: elements of a dense gradient that are
    not finite become 0; of rows, every row that holds such an element becomes 0, and is still a touched row. "": nothing
    is looked at. A sum over trainers that overflows is not looked at either.

    ``counts``: (parameter, "gradients" or "rows" or "elements") -> how many were not finite.
    """

    def __init__(self, policy: str) -> None:
        self._policy = policy
        self.counts: Counter[tuple[str, str]] = Counter()

    def check(self, spec: GradientSpec, gradient: Gradient, trainer: int | None) -> None:
        """RequestRefusedError for a gradient that is not finite, if the policy is to refuse it."""
        if self._policy == "error" and not _finite(gradient):
            raise RequestRefusedError(self._found(spec, gradient, trainer)[0])

    def apply(self, spec: GradientSpec, gradient: Gradient, trainer: int) -> Gradient | None:
        """What is used of a gradient; None: nothing."""
        if self._policy not in ("skip", "zero") or _finite(gradient):
            return gradient
        text, whole, wrong = self._found(spec, gradient, trainer)
        seen = self.counts[spec.param, "gradients"]
        if seen & (seen - 1) == 0:
            log.warning("%s (the %d. of this parameter)", text, seen)
        if self._policy == "skip":
            return None
        value = np.where(wrong.reshape(wrong.shape + (1,) * (whole.value.ndim - wrong.ndim)), 0, whole.value)
        return replace(whole, value=value.astype(whole.value.dtype, copy=False))

    def _found(self, spec: GradientSpec, gradient: Gradient, trainer: int | None) -> tuple[str, Gradient, Array]:
        """(what is wrong, the gradient with its duplicate rows summed, which of its rows or elements), counted."""
        whole = _merged(gradient)
        wrong: Array = ~np.isfinite(whole.value)
        if whole.rows is not None:
            wrong = np.asarray(wrong.any(axis=tuple(range(1, wrong.ndim))))
        what = "elements" if whole.rows is None else "rows"
        count, first = int(np.count_nonzero(wrong)), int(np.flatnonzero(wrong)[0])
        where = f"element {first}" if whole.rows is None else f"id {whole.rows[first]}"
        whose = "" if trainer is None else f" of trainer {trainer}"
        self.counts[spec.param, "gradients"] += 1
        self.counts[spec.param, what] += count
        text = (
            f"gradient {gradient.name!r}{whose} for {spec.param!r} is not finite in {count} of {wrong.size} {what}, first in "
            f"{where}; nan_policy={self._policy!r}: {_DONE[self._policy]}"
        )
        return text, whole, wrong


def _merged(gradient: Gradient) -> Gradient:
    if gradient.rows is None:
        return gradient
    with np.errstate(over="ignore", invalid="ignore"):
        merged = merge_rows(SelectedRows(gradient.rows, gradient.value, gradient.height))
    return replace(gradient, rows=merged.rows, value=merged.value)


def _finite(gradient: Gradient) -> bool:
    """Whether all elements are finite, and stay so when duplicate rows are summed."""
    if not np.isfinite(gradient.value).all():
        return False
    merged = _merged(gradient).value
    return merged is gradient.value or bool(np.isfinite(merged).all())
