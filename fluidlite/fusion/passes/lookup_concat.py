"""Lookups of one parameter that are put side by side: gathered straight into the concatenated matrix."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from fluidlite.core import edit
from fluidlite.core.ir import EMPTY, Operator
from fluidlite.dtypes import VarKind
from fluidlite.fusion.graph import Graph, Node, Part, make_op
from fluidlite.fusion.passes.lookups import LOOKUPS, alike, taken_attrs


@dataclass(frozen=True, slots=True)
class _Slot:
    """A summand of a `concat` that comes from a lookup, perhaps by a `reshape2` into a matrix of ``columns`` ids a row."""

    argument: str
    lookup: Node
    reshape: Node | None
    columns: int

    @property
    def nodes(self) -> list[Node]:
        return [self.lookup] if self.reshape is None else [self.lookup, self.reshape]


def lookup_concat(graph: Graph) -> None:
    """Lookups of one parameter that a `concat` puts side by side become one op, and so do their sparse gradients.

    .. code-block:: text

        lookup_table_v2(Ids=[a], W=[emb]) -> (Out=[u0])
        reshape2(X=[u0]) -> (Out=[u], XShape=[us]) {shape=[-1, 8]}
        lookup_table_v2(Ids=[b], W=[emb]) -> (Out=[v0])
        reshape2(X=[v0]) -> (Out=[v], XShape=[vs]) {shape=[-1, 8]}
        concat(X=[u v dense]) -> (Out=[x]) {axis=1}
        concat_grad(X=[u v dense], Out@GRAD=[x@GRAD]) -> (X@GRAD=[u@GRAD v@GRAD @EMPTY@]) {axis=1}
        reshape2_grad(XShape=[vs], Out@GRAD=[v@GRAD]) -> (X@GRAD=[v0@GRAD])
        lookup_table_v2_grad(Ids=[b], Out@GRAD=[v0@GRAD], W=[emb]) -> (W@GRAD=[g0])
        reshape2_grad(XShape=[us], Out@GRAD=[u@GRAD]) -> (X@GRAD=[u0@GRAD])
        lookup_table_v2_grad(Ids=[a], Out@GRAD=[u0@GRAD], W=[emb]) -> (W@GRAD=[g1])
        sum(X=[g0 g1]) -> (Out=[emb@GRAD])
      becomes
        fused_lookup_concat(W=[emb], Ids=[a b]) -> (Out=[u.fused]) {columns=[1, 1]}
        concat(X=[u.fused dense]) -> (Out=[x]) {axis=1}
        concat_grad(X=[u.fused dense], Out@GRAD=[x@GRAD]) -> (X@GRAD=[u@GRAD.fused @EMPTY@]) {axis=1}
        fused_lookup_concat_grad(Ids=[a b], Out@GRAD=[u@GRAD.fused], W=[emb]) -> (W@GRAD=[g0.fused]) {columns=[1, 1], order=[1, 0]}
        sum(X=[g0.fused]) -> (Out=[emb@GRAD])
    """
    for node in graph.nodes("concat"):
        for run in _runs(graph, node):
            concat = graph.writer(node.op.outputs["Out"][0])
            if concat is not None:
                _fuse(graph, concat, run)


def _runs(graph: Graph, concat: Node) -> list[list[_Slot]]:
    """Lookups of one parameter that stand side by side in a `concat` of matrices."""
    if concat.op.inputs.get("AxisTensor") or concat.op.attr("axis", 0) not in (1, -1):
        return []
    slots = [_slot(graph, argument) for argument in concat.op.inputs["X"]]
    groups = alike(graph, {slot.lookup: None for slot in slots if slot is not None})
    group_of = {node: index for index, group in enumerate(groups) for node in group}
    runs = groupby(slots, key=lambda slot: None if slot is None else group_of.get(slot.lookup))
    found = [[slot for slot in run if slot is not None] for group, run in runs if group is not None]
    return [run for run in found if len(run) > 1]


def _slot(graph: Graph, argument: str) -> _Slot | None:
    """The lookup behind a summand, where it gives a row of the matrix for each row of ids."""
    node, reshape = graph.writer(argument), None
    if node is not None and node.op.type == "reshape2" and not node.op.inputs.keys() & {"Shape", "ShapeTensor"}:
        node, reshape = graph.writer(node.op.inputs["X"][0]), node
    if node is None or node.op.type not in LOOKUPS:
        return None
    ids, table = graph.var(node.op.inputs["Ids"][0]), graph.var(node.op.inputs["W"][0])
    if ids is None or not ids.shape or table is None or table.shape is None or table.shape[-1] < 1:
        return None
    each = ids.shape[1:-1] if node.op.type == "lookup_table" else ids.shape[1:]
    columns = math.prod(each)
    if any(size < 1 for size in each) or (len(ids.shape) == 1 and node.op.type == "lookup_table"):
        return None
    if reshape is None:
        return _Slot(argument, node, None, 1) if not each else None
    width = columns * table.shape[-1]
    shape = tuple(reshape.op.attr("shape", ()))
    return _Slot(argument, node, reshape, columns) if shape in {(-1, width), (0, width), (0, -1)} else None


def _fuse(graph: Graph, concat: Node, run: Sequence[_Slot]) -> bool:
    """Fuse the lookups of a run, and their gradients where there are any."""
    arguments = [slot.argument for slot in run]
    if len(set(arguments)) < len(arguments):
        return False
    whole = concat.op.inputs["X"] == arguments
    out = concat.op.outputs["Out"][0] if whole else graph.declare(arguments[0], arguments[0], _shape(graph, run))
    ids = [slot.lookup.op.inputs["Ids"][0] for slot in run]
    inputs = {"W": run[0].lookup.op.inputs["W"], "Ids": ids}
    attrs = {**taken_attrs(run[0].lookup.op), "columns": [slot.columns for slot in run]}
    new = make_op("fused_lookup_concat", inputs, {"Out": [out]}, attrs)
    old = [node for slot in run for node in slot.nodes]
    if whole:
        parts = [Part([*old, concat], new, concat)]
    else:
        parts = [Part(old, new, _last(old)), Part([concat], _joined(concat.op, arguments, "X", out), concat)]
    backward = _backward(graph, concat, run, "" if whole else out, {**inputs}, attrs)
    return backward is not None and graph.replace("lookup_concat", *parts, *backward)


def _backward(
    graph: Graph, concat: Node, run: Sequence[_Slot], out: str, inputs: dict[str, list[str]], attrs: dict[str, object]
) -> list[Part] | None:
    """The parts that make the gradient of W from that of the concatenated matrix, or of its columns ``out``.

    None where there are gradient ops that cannot be fused.
    """
    cuts = graph.readers(run[0].argument, "concat_grad")
    if not cuts:
        return []
    (cut, *more), arguments = cuts, [slot.argument for slot in run]
    if (
        more
        or cut.op.inputs["X"] != concat.op.inputs["X"]
        or len(cut.op.outputs["X@GRAD"]) != len(concat.op.inputs["X"])
    ):
        return None
    grads = dict(zip(cut.op.inputs["X"], cut.op.outputs["X@GRAD"], strict=True))
    wanted = [grads[argument] for argument in arguments]
    if set(wanted) == {EMPTY} and out:
        return [Part([cut], _joined(_joined(cut.op, arguments, "X", out), wanted, "X@GRAD", EMPTY), cut)]
    chains = [_gradients(graph, slot, grad) for slot, grad in zip(run, wanted, strict=True)]
    pieces = [chain[-1].op.outputs["W@GRAD"][0] for chain in chains if chain]
    total = _sum_of(graph, pieces) if len(pieces) == len(run) else None
    if total is None:
        return None
    order = sorted(range(len(run)), key=lambda index: total.op.inputs["X"].index(pieces[index]))
    kept = graph.declare(pieces[order[0]], like=pieces[0])
    old = [node for chain in chains for node in chain]
    upstream = cut.op.inputs["Out@GRAD"] if not out else [graph.declare(wanted[0], wanted[0], _shape(graph, run))]
    op = make_op(
        "fused_lookup_concat_grad",
        {**inputs, "Out@GRAD": upstream},
        {"W@GRAD": [kept]},
        {**attrs, "order": order},
    )
    added = Part([total], _joined(total.op, [pieces[index] for index in order], "X", kept), total)
    if not out:
        return [Part([cut, *old], op, _last(old)), added]
    shorter = _joined(_joined(cut.op, arguments, "X", out), wanted, "X@GRAD", upstream[0])
    return [Part([cut], shorter, cut), Part(old, op, _last(old)), added]


def _gradients(graph: Graph, slot: _Slot, grad: str) -> list[Node]:
    """The gradient ops of a slot, from that of the reshape to the sparse one of the lookup; or none."""
    found: list[Node] = []
    if slot.reshape is not None:
        xshape = slot.reshape.op.outputs.get("XShape")
        found = [node for node in graph.readers(grad, "reshape2_grad") if node.op.inputs["XShape"] == xshape][:1]
        if not found:
            return []
        grad = found[0].op.outputs["X@GRAD"][0]
    for node in graph.readers(grad, f"{slot.lookup.op.type}_grad"):
        var = graph.var(node.op.outputs["W@GRAD"][0])
        same = all(node.op.inputs[name] == slot.lookup.op.inputs[name] for name in ("Ids", "W"))
        if same and taken_attrs(node.op) == taken_attrs(slot.lookup.op) and var is not None:
            return [*found, node] if var.kind is VarKind.SELECTED_ROWS else []
    return []


def _sum_of(graph: Graph, pieces: Sequence[str]) -> Node | None:
    """The op that adds just these SelectedRows one after the other, in any order, perhaps between others."""
    for total in graph.readers(pieces[0], "sum"):
        terms = total.op.inputs["X"]
        kinds = {var.kind if (var := graph.var(name)) is not None else None for name in terms}
        places = sorted(terms.index(piece) for piece in pieces if piece in terms)
        if kinds == {VarKind.SELECTED_ROWS} and places == list(range(places[0], places[0] + len(pieces))):
            return total
    return None


def _joined(op: Operator, arguments: Sequence[str], name: str, one: str) -> Operator:
    """The op with one variable in place of ``arguments``, which stand together in its input or output ``name``."""
    new = edit.clone_op(op)
    for given in (new.inputs, new.outputs):
        if name in given:
            start = next(at for at in range(len(given[name])) if given[name][at : at + len(arguments)] == arguments)
            given[name][start : start + len(arguments)] = [one]
    return new


def _shape(graph: Graph, run: Sequence[_Slot]) -> tuple[int, int]:
    """The declared shape of what the lookups of a run give together."""
    table = graph.var(run[0].lookup.op.inputs["W"][0])
    assert table is not None
    assert table.shape is not None
    return -1, sum(slot.columns for slot in run) * table.shape[-1]


def _last(nodes: Sequence[Node]) -> Node:
    return max(nodes, key=lambda node: node.place)
