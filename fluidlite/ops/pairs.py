"""An op and its gradient op declared together: what most ops need, whose gradient is one op ``<type>_grad``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fluidlite.core.names import forward_of
from fluidlite.ops.grads import maker
from fluidlite.ops.infer import grads_like_forward
from fluidlite.ops.registry import Argument, AttrSpec, Kernel, register


def with_gradient(
    type: str,
    *,
    doc: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    kernel: Kernel,
    gradient: Kernel,
    reads: Sequence[str],
    writes: Sequence[str],
    attrs: Mapping[str, AttrSpec] | None = None,
    takes_lod: bool = False,
    **rest: Any,
) -> None:
    """Register ``type`` and ``<type>_grad``, whose kernel is ``gradient``.

    ``reads`` and ``writes`` are the names of the gradient op's inputs (``X``, ``Out``, ``Out@GRAD``) and outputs
    (``X@GRAD``); whether a name takes many arguments, or may be absent, follows the forward op.
    """
    register(
        type,
        doc=doc,
        inputs=inputs,
        outputs=outputs,
        attrs=attrs,
        kernel=kernel,
        grad=maker(reads, writes),
        takes_lod=takes_lod,
        **rest,
    )
    marks = {argument.name: argument for argument in map(Argument.parse, (*inputs, *outputs))}
    given = [name for name in reads if forward_of(name) == name]
    register(
        f"{type}_grad",
        doc=f"Gradient of {type}.",
        inputs=[_marked(name, marks) for name in reads],
        outputs=[_marked(name, marks) for name in writes],
        attrs=attrs,
        infer=grads_like_forward,
        kernel=gradient,
        takes_lod=takes_lod,
        share_lod=next((name for name in given if f"{name}@GRAD" in writes), None),
    )


def _marked(name: str, marks: Mapping[str, Argument]) -> str:
    argument = marks[forward_of(name)]
    return f"{name}{'*' if argument.many else ''}{'?' if argument.optional else ''}"
