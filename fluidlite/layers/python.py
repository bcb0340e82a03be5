"""`py_func`: a Python function as a layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fluidlite.errors import ProgramError
from fluidlite.framework import Variable, user_line
from fluidlite.layer_helper import LayerHelper, Variables, variables
from fluidlite.ops.py_func import register_callable


def py_func(
    func: Callable[..., Any],
    x: Variables | None,
    out: Variables | None,
    backward_func: Callable[..., Any] | None = None,
    skip_vars_in_backward_input: Variables | None = None,
) -> Variables | None:
    """Call ``func`` with the values of ``x`` (LoDTensors) at every run; what it returns becomes ``out``.

    The user declares ``out``: variables with shape and dtype, or None. ``backward_func`` gets the values of ``x``, of
    ``out`` and of the gradients of ``out``, without those in ``skip_vars_in_backward_input``, and returns the gradients of
    ``x``. The program names the functions by number, so another process cannot run it: there it is refused.
    """
    if not callable(func) or (backward_func is not None and not callable(backward_func)):
        raise ProgramError(f"py_func: func and backward_func must be callable ({user_line()})")
    inputs = [] if x is None else variables(x, "py_func", "x")
    outputs = [] if out is None else variables(out, "py_func", "out")
    skipped = _skipped(skip_vars_in_backward_input, inputs, outputs)
    if any(not var.shape for var in outputs):
        raise ProgramError(f"py_func: each of out must be declared with its shape ({user_line()})")
    names = [var.name for var in outputs]
    attrs = {
        "forward_callable_id": register_callable(func, names),
        "backward_callable_id": -1 if backward_func is None else register_callable(backward_func, names),
        "backward_skip_vars": skipped,
    }
    LayerHelper("py_func").append_op("py_func", {"X": inputs}, {"Out": outputs}, attrs)
    return out


def _skipped(given: Variables | None, inputs: Sequence[Variable], outputs: Sequence[Variable]) -> list[str]:
    """The names of variables that the backward function does not get; each must be one of the op's."""
    if given is None:
        return []
    names = {var.name for var in variables(given, "py_func", "skip_vars_in_backward_input")}
    unknown = names - {var.name for var in (*inputs, *outputs)}
    if unknown:
        raise ProgramError(f"py_func: {', '.join(sorted(unknown))} is neither in x nor in out ({user_line()})")
    return sorted(names)
