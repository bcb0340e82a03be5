"""`linear_chain_crf`: how unlikely tag sequences are under a conditional random field (Lafferty, McCallum, Pereira 2001).

The forward-backward algorithm (Rabiner 1989) in step order: one matrix product for all sequences at each position.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.ops.classes import class_numbers
from fluidlite.ops.context import KernelContext
from fluidlite.ops.examples import varied
from fluidlite.ops.grads import maker
from fluidlite.ops.infer import InferContext, grads_like_forward
from fluidlite.ops.padded import Ragged, check_same_lengths, ragged
from fluidlite.ops.recurrent import Steps, size, steps_of
from fluidlite.ops.registry import Case, register
from fluidlite.ops.segments import array_of
from fluidlite.ops.shapes import check_one_each
from fluidlite.values.lod import LoDTensor
from fluidlite.values.selected_rows import segment_sum

#: rows of Transition before those from tag to tag
START, END, TAGS = 0, 1, 2


class _Path(NamedTuple):
    """The labelled tags (T,), and the rows that are first, last and not first in their sequences."""

    tags: Array
    firsts: Array
    lasts: Array
    later: Array


def _path(ctx: KernelContext, emission: Ragged, label: Any, length: Any) -> _Path:
    found = ragged(ctx, "Label", label, length)
    check_same_lengths(ctx, emission, found, ("Emission", "Label"))
    check_one_each(ctx, "Label", found.bags.rows)
    tags = class_numbers(ctx, "Label", found.bags.rows, emission.bags.rows.shape[-1])
    filled = emission.bags.lengths > 0
    firsts = emission.bags.starts[filled]
    is_first = np.zeros(len(tags), bool)
    is_first[firsts] = True
    return _Path(tags, firsts, emission.bags.offsets[1:][filled] - 1, np.flatnonzero(~is_first))


def _score(path: _Path, emission: Ragged, transition: Array) -> Array:
    """The score of the labelled path of each sequence, (count,)."""
    tags, later = path.tags, path.later
    rows = emission.bags.rows[np.arange(len(tags)), tags]
    rows[later] += transition[TAGS + tags[later - 1], tags[later]]
    rows[path.firsts] += transition[START, tags[path.firsts]]
    rows[path.lasts] += transition[END, tags[path.lasts]]
    return segment_sum(rows, emission.bags.owners, emission.bags.count)


def _forward(steps: Steps, emission: Array, transition: Array) -> tuple[Array, Array]:
    """(probabilities of the tags of each row given the rows so far (T, tags), what they were divided by (T,)), from
    exponentials, in step order."""
    alpha, totals = np.empty_like(emission), np.empty(len(emission), emission.dtype)
    for number, part in enumerate(steps.parts):
        if number == 0:
            ways = np.broadcast_to(transition[START], emission[part].shape)
        else:
            ways = alpha[steps.parts[number - 1]][: size(part)] @ transition[TAGS:]
        ways = ways * emission[part]
        totals[part] = ways.sum(axis=1)
        alpha[part] = ways / totals[part][:, None]
    return alpha, totals


def _backward(steps: Steps, emission: Array, transition: Array) -> Array:
    """How well each tag of a row goes with the rows that follow (T, tags), up to a factor per row, in step order."""
    beta = np.empty_like(emission)
    beta[:] = transition[END] / transition[END].sum()
    for part, later in reversed(list(pairwise(steps.parts))):
        ways = (emission[later] * beta[later]) @ transition[TAGS:].T
        beta[part][: len(ways)] = ways / ways.sum(axis=1, keepdims=True)
    return beta


def linear_chain_crf(
    ctx: KernelContext, Emission: Any, Transition: Any, Label: Any, Length: Any
) -> dict[str, Array | LoDTensor]:
    emission, transition = ragged(ctx, "Emission", Emission, Length), array_of(Transition)
    bags, path = emission.bags, _path(ctx, emission, Label, Length)
    steps = steps_of(bags)
    highest = bags.rows.max(axis=1, keepdims=True, initial=-np.inf)
    exps, transition_exps = np.exp(bags.rows - highest), np.exp(transition)
    in_steps, totals = _forward(steps, exps[steps.rows], transition_exps)
    alpha, logs = steps.in_rows(in_steps), highest[:, 0] + np.log(steps.in_rows(totals))
    logs[path.lasts] += np.log(alpha[path.lasts] @ transition_exps[END])
    partition = segment_sum(logs, bags.owners, bags.count)
    return {
        "Alpha": emission.back(alpha),
        "EmissionExps": emission.back(exps),
        "TransitionExps": transition_exps,
        "LogLikelihood": (partition - _score(path, emission, transition))[:, None],
    }


def linear_chain_crf_grad(
    ctx: KernelContext,
    Emission: Any,
    Label: Any,
    Length: Any,
    Alpha: Any,
    EmissionExps: Any,
    TransitionExps: Any,
    LogLikelihood_GRAD: Any,
) -> dict[str, Array | LoDTensor]:
    emission, transition = ragged(ctx, "Emission", Emission, Length), array_of(TransitionExps)
    bags, path = emission.bags, _path(ctx, emission, Label, Length)
    steps = steps_of(bags)
    upstream = array_of(LogLikelihood_GRAD).reshape(-1)[bags.owners]
    alpha, exps = (
        ragged(ctx, name, value, Length).bags.rows[steps.rows]
        for name, value in (("Alpha", Alpha), ("EmissionExps", EmissionExps))
    )
    beta = _backward(steps, exps, transition)
    tags = steps.in_rows(alpha * beta)
    tags *= (upstream / tags.sum(axis=1))[:, None]
    rest = exps * beta
    between = _between(steps, alpha, rest, transition[TAGS:], upstream[steps.rows])
    grad = np.concatenate([tags[path.firsts].sum(axis=0)[None], tags[path.lasts].sum(axis=0)[None], between])
    _take_path(path, tags, grad, upstream)
    return {"Emission@GRAD": emission.back(tags), "Transition@GRAD": grad}


def _between(steps: Steps, alpha: Array, rest: Array, transition: Array, weights: Array) -> Array:
    """Expected number of times that one tag follows another (tags, tags), each row weighted; all in step order."""
    later = slice(len(steps.heads), None)
    before, after = steps.carried(alpha), rest[later]
    totals = ((before @ transition) * after).sum(axis=1)
    counts: Array = transition * (before.T @ (after * (weights[later] / totals)[:, None]))
    return counts


def _take_path(path: _Path, tags: Array, transition: Array, weights: Array) -> None:
    """Take the labelled path from the expected numbers of tags (T, tags) and of transitions."""
    chosen, later = path.tags, path.later
    tags[np.arange(len(chosen)), chosen] -= weights
    np.subtract.at(transition, (TAGS + chosen[later - 1], chosen[later]), weights[later])
    np.subtract.at(transition[START], chosen[path.firsts], weights[path.firsts])
    np.subtract.at(transition[END], chosen[path.lasts], weights[path.lasts])


def check_transition(ctx: InferContext) -> None:
    """Refuse Transition unless it is [tags + 2, tags] for Emission [T, tags], or [batch, time, tags] with Length."""
    emission, transition = ctx.shape("Emission"), ctx.shape("Transition")
    rank = 3 if ctx.inputs("Length") else 2
    if len(emission) != rank:
        raise ctx.error(f"Emission {list(emission)} must have {rank} dimensions")
    tags = emission[-1]
    if len(transition) != 2 or transition[1] != tags or transition[0] not in (tags + TAGS, -1):
        raise ctx.error(f"Transition {list(transition)} must be [{tags} + 2, {tags}] for Emission {list(emission)}")


def _infer(ctx: InferContext) -> None:
    check_transition(ctx)
    x, shape = ctx.input("Emission"), ctx.shape("Emission")
    for name in ("Alpha", "EmissionExps"):
        ctx.set(name, shape, x.dtype, lod_level=0)
    ctx.set("TransitionExps", ctx.shape("Transition"), x.dtype)
    ctx.set("LogLikelihood", (shape[0] if ctx.inputs("Length") else -1, 1), x.dtype, lod_level=0)


_ROWS = varied(6, 3)
_TRANSITION = varied(5, 3, start=50)
_LABELS = np.array([[0], [2], [1], [1], [0], [2]])
_LOD = ((0, 2, 2, 5, 6),)
_GRADS = ("Emission", "Transition")
_GRAD_INPUTS: Final = ["Alpha", "Emission", "EmissionExps", "Label", "Length", "LogLikelihood@GRAD", "Transition"]

register(
    "linear_chain_crf",
    doc="LogLikelihood [sequences, 1]: the negative log-likelihood of the tags Label [T, 1] given Emission [T, tags]. A path "
    "has the probability exp(score) / sum of exp(score) over all paths; its score sums the emissions, the transitions "
    "(Transition [tags + 2, tags], row 2 + i: from tag i), a weight to start (row 0) and one to end (row 1). With "
    "Length, Emission is [batch, time, tags] and Label [batch, time]. An empty sequence gives 0.",
    inputs=["Emission", "Transition", "Label", "Length?"],
    outputs=["Alpha~", "EmissionExps~", "TransitionExps~", "LogLikelihood"],
    infer=_infer,
    kernel=linear_chain_crf,
    grad=maker([*_GRAD_INPUTS, "TransitionExps"], ["Emission@GRAD", "Transition@GRAD"]),
    takes_lod=True,
    cases=(
        Case(
            {
                "Emission": LoDTensor(np.zeros((3, 2)), ((0, 2, 3),)),
                "Transition": np.zeros((4, 2)),
                "Label": LoDTensor(np.array([[0], [1], [1]]), ((0, 2, 3),)),
            },
            {},
            {"LogLikelihood": np.log([[4.0], [2.0]])},
            check_grad=_GRADS,
            note="2 ** length paths, all as likely",
        ),
        Case(
            {"Emission": LoDTensor(_ROWS, _LOD), "Transition": _TRANSITION, "Label": LoDTensor(_LABELS, _LOD)},
            check_grad=_GRADS,
        ),
        Case(
            {
                "Emission": _ROWS.reshape(2, 3, 3),
                "Transition": _TRANSITION,
                "Label": _LABELS.reshape(2, 3),
                "Length": np.array([[3], [1]]),
            },
            check_grad=_GRADS,
        ),
    ),
)
register(
    "linear_chain_crf_grad",
    doc="Gradient of linear_chain_crf: expected numbers of tags and transitions less those of the labelled path.",
    inputs=[*(name + "?" if name == "Length" else name for name in _GRAD_INPUTS), "TransitionExps"],
    outputs=["Emission@GRAD", "Transition@GRAD"],
    infer=grads_like_forward,
    kernel=linear_chain_crf_grad,
    takes_lod=True,
)
