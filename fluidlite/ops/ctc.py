"""Connectionist temporal classification (Graves et al. 2006): `warpctc`, its loss, and `ctc_align`, its labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import ShapeError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.examples import varied
from fluidlite.ops.grads import maker
from fluidlite.ops.infer import InferContext, grads_like_forward
from fluidlite.ops.registry import Case, bool_attr, int_attr, register
from fluidlite.ops.segments import array_of, sequences
from fluidlite.values.lod import LoDTensor

_ATTRS: Final = {
    "blank": int_attr(0, "the class that stands for no label"),
    "norm_by_times": bool_attr(default=False, doc="divide each sequence's gradient by its steps"),
}


def _log_softmax(logits: Array) -> Array:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


@dataclass(frozen=True)
class Lattice:
    """All ways of one sequence through its labels with blanks between them; log probabilities."""

    #: (steps, classes)
    log_p: Array
    #: (2 * labels + 1,): blank, first label, blank, ...
    states: Array
    #: (states,): whether the blank before a state may be left out
    skips: Array

    @staticmethod
    def of(logits: Array, labels: Array, blank: int) -> Lattice:
        states = np.full(2 * len(labels) + 1, blank, np.int64)
        states[1::2] = labels
        skips = np.zeros(len(states), bool)
        skips[2:] = (states[2:] != blank) & (states[2:] != states[:-2])
        return Lattice(_log_softmax(logits.astype(np.float64)), states, skips)

    def forward(self) -> Array:
        """Log probability of all ways that reach each state at each step, (steps, states)."""
        emitted = self.log_p[:, self.states]
        reached = np.full(emitted.shape, -np.inf)
        reached[0, :2] = emitted[0, :2]
        for step in range(1, len(reached)):
            reached[step] = _entered(reached[step - 1], self.skips) + emitted[step]
        return reached

    def backward(self) -> Array:
        """Log probability of all ways from each state at each step to the end, without that step's own, (steps, states)."""
        emitted = self.log_p[:, self.states]
        rest = np.full(emitted.shape, -np.inf)
        rest[-1, -2:] = 0
        # from behind a state is entered from the one that it may skip to
        skips = np.zeros_like(self.skips)
        skips[2:] = self.skips[::-1][:-2]
        for step in range(len(rest) - 2, -1, -1):
            rest[step] = _entered((rest[step + 1] + emitted[step + 1])[::-1], skips)[::-1]
        return rest

    def loss(self) -> tuple[float, Array]:
        """(-log of the labels' probability, its gradient with respect to the logits)."""
        if len(self.log_p) == 0:
            return 0.0, np.zeros_like(self.log_p)
        together = self.forward() + self.backward()
        total = np.logaddexp.reduce(together[0])
        p = np.exp(self.log_p)
        if not np.isfinite(total):  # too few steps for the labels
            return float("inf"), np.zeros_like(p)
        spent = np.zeros_like(p)
        np.add.at(spent.T, self.states, np.exp(together - total).T)
        return float(-total), p - spent


def _entered(reached: Array, skips: Array) -> Array:
    """Each state from itself, the one before, and the one before that where it may be skipped to."""
    out = reached.copy()
    out[1:] = np.logaddexp(out[1:], reached[:-1])
    out[2:] = np.where(skips[2:], np.logaddexp(out[2:], reached[:-2]), out[2:])
    return out


def _split(ctx: KernelContext, value: Any, lengths: Array | None, name: str) -> list[Array]:
    """The sequences of an input: by its LoD, or the first ``lengths`` steps of each of a padded batch."""
    if lengths is None:
        found = sequences(ctx, value, name)
        return [found.rows[a:b] for a, b in zip(found.offsets[:-1], found.offsets[1:], strict=True)]
    batch = array_of(value)
    counts = [int(n) for n in array_of(lengths).reshape(-1)]
    if name == "Logits":
        return [batch[:count, i] for i, count in enumerate(counts)]
    return [batch[i, :count] for i, count in enumerate(counts)]


def warpctc(
    ctx: KernelContext, Logits: Any, Label: Any, LogitsLength: Any, LabelLength: Any, *, blank: int
) -> dict[str, Array]:
    logits = _split(ctx, Logits, LogitsLength, "Logits")
    labels = [part.reshape(-1) for part in _split(ctx, Label, LabelLength, "Label")]
    if len(labels) != len(logits):
        raise ShapeError(f"op 'warpctc': {len(logits)} sequences of Logits but {len(labels)} of Label")
    values = array_of(Logits)
    found = [Lattice.of(part, own, blank).loss() for part, own in zip(logits, labels, strict=True)]
    steps = max((len(part) for part in logits), default=0) if LogitsLength is None else len(values)
    grads = np.zeros((steps, len(logits), values.shape[-1]), values.dtype)
    for index, (_, grad) in enumerate(found):
        grads[: len(grad), index] = grad
    losses = np.array([loss for loss, _ in found], values.dtype).reshape(-1, 1)
    return {"WarpCTCGrad": grads, "Loss": losses}


def warpctc_grad(
    ctx: KernelContext, Logits: Any, LogitsLength: Any, WarpCTCGrad: Any, Loss_GRAD: Any, *, norm_by_times: bool
) -> Any:
    values, grads = array_of(Logits), array_of(WarpCTCGrad)
    if LogitsLength is None:
        lengths: Sequence[int] = [int(n) for n in sequences(ctx, Logits, "Logits").lengths]
    else:
        lengths = [int(n) for n in array_of(LogitsLength).reshape(-1)]
    factor = array_of(Loss_GRAD).reshape(1, -1, 1)
    if norm_by_times:
        factor = factor / np.maximum(np.array(lengths, values.dtype), 1).reshape(1, -1, 1)
    scaled = grads * factor
    if LogitsLength is not None:
        return scaled
    rows = np.concatenate([scaled[:length, index] for index, length in enumerate(lengths)])
    return LoDTensor(rows.reshape(values.shape), Logits.lod)


def _infer_warpctc(ctx: InferContext) -> None:
    logits, shape = ctx.input("Logits"), ctx.shape("Logits")
    padded = bool(ctx.inputs("LogitsLength"))
    if len(shape) != (3 if padded else 2):
        raise ctx.error(
            f"Logits must be [steps, n, classes] with LogitsLength, else [steps, classes], not {list(shape)}"
        )
    if not 0 <= ctx.attr("blank") < max(shape[-1], 1):
        raise ctx.error(f"blank {ctx.attr('blank')} is none of the {shape[-1]} classes")
    batch = shape[1] if padded else -1
    ctx.set("Loss", (batch, 1), logits.dtype, lod_level=0)
    ctx.set("WarpCTCGrad", (shape[0] if padded else -1, batch, shape[-1]), logits.dtype, lod_level=0)


def ctc_align(
    ctx: KernelContext, Input: Any, InputLength: Any, *, blank: int, merge_repeated: bool, padding_value: int
) -> dict[str, Any]:
    values = array_of(Input)
    if InputLength is None:
        rows = [_aligned(part.reshape(-1), blank, merge_repeated) for part in _split(ctx, Input, None, "Input")]
        lod = ((0, *np.cumsum([len(row) for row in rows]).tolist()),)
        joined = np.concatenate(rows).astype(values.dtype).reshape(-1, 1)
        # Fluid cannot hold a tensor without elements: -1 says that no label is left
        return {"Output": LoDTensor(joined if len(joined) else np.full((1, 1), -1, values.dtype), lod)}
    lengths = array_of(InputLength).reshape(-1)
    rows = [_aligned(row[: int(n)], blank, merge_repeated) for row, n in zip(values, lengths, strict=True)]
    out = np.full(values.shape, padding_value, values.dtype)
    for target, row in zip(out, rows, strict=True):
        target[: len(row)] = row
    counts = np.array([len(row) for row in rows], array_of(InputLength).dtype).reshape(-1, 1)
    return {"Output": out, "OutputLength": counts}


def _aligned(labels: Array, blank: int, merge_repeated: bool) -> Array:
    """Labels without repetitions and blanks."""
    kept = labels != blank
    if merge_repeated and len(labels):
        kept[1:] &= labels[1:] != labels[:-1]
    return np.asarray(labels[kept])


def _infer_ctc_align(ctx: InferContext) -> None:
    shape, x = ctx.shape("Input"), ctx.input("Input")
    padded = bool(ctx.inputs("InputLength"))
    ctx.set("Output", shape if padded else (-1, 1), x.dtype, lod_level=0 if padded else 1)
    if padded:
        ctx.set("OutputLength", (shape[0], 1), ctx.input("InputLength").dtype)


_LOGITS: Final = varied(7, 4)
_LABELS: Final = np.array([[1], [2], [2], [3]], np.int32)

register(
    "warpctc",
    doc="Loss (n, 1) = -log of the probability that steps of the softmax of Logits spell the labels, with repetitions and "
    "blanks between them. Sequences come by LoD, or padded with their lengths.",
    inputs=["Logits", "Label", "LogitsLength?", "LabelLength?"],
    outputs=["WarpCTCGrad~", "Loss"],
    attrs=_ATTRS,
    infer=_infer_warpctc,
    kernel=warpctc,
    grad=maker(["Logits", "LogitsLength", "WarpCTCGrad", "Loss@GRAD"], ["Logits@GRAD"]),
    takes_lod=True,
    cases=(
        Case(
            {"Logits": LoDTensor(_LOGITS, ((0, 4, 7),)), "Label": LoDTensor(_LABELS, ((0, 3, 4),))},
            check_grad=("Logits",),
        ),
        Case(
            {
                "Logits": varied(4, 2, 3),
                "Label": np.array([[0, 1], [1, 0]], np.int32),
                "LogitsLength": np.array([4, 3]),
                "LabelLength": np.array([2, 1]),
            },
            {"blank": 2},
            check_grad=("Logits",),
        ),
    ),
)
register(
    "warpctc_grad",
    doc="Gradient of warpctc.",
    inputs=["Logits", "LogitsLength?", "WarpCTCGrad", "Loss@GRAD"],
    outputs=["Logits@GRAD"],
    attrs=_ATTRS,
    infer=grads_like_forward,
    kernel=warpctc_grad,
    takes_lod=True,
)
register(
    "ctc_align",
    doc="Output = the labels of each sequence without repetitions (`merge_repeated`) and blanks.",
    inputs=["Input", "InputLength?"],
    outputs=["Output", "OutputLength?"],
    attrs={
        "blank": int_attr(0),
        "merge_repeated": bool_attr(default=True),
        "padding_value": int_attr(0, "what fills the padded output"),
    },
    infer=_infer_ctc_align,
    kernel=ctc_align,
    takes_lod=True,
    cases=(
        Case(
            {"Input": LoDTensor(np.array([[0], [1], [1], [0], [1], [2], [0]], np.int32), ((0, 5, 7),))},
            {},
            {"Output": LoDTensor(np.array([[1], [1], [2]], np.int32), ((0, 2, 3),))},
            n_outputs={"OutputLength": 0},
        ),
        Case(
            {"Input": np.array([[0, 1, 1, 2], [3, 0, 3, 0]], np.int32), "InputLength": np.array([[4], [3]], np.int32)},
            {"padding_value": 9},
            {
                "Output": np.array([[1, 2, 9, 9], [3, 3, 9, 9]], np.int32),
                "OutputLength": np.array([[2], [2]], np.int32),
            },
        ),
    ),
)
