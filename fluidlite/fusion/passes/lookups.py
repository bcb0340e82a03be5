"""Lookups of one parameter: found and gathered together."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Final

from fluidlite.core.ir import Operator
from fluidlite.dtypes import VarKind
from fluidlite.fusion.graph import Graph, Node, Part, make_op, own_attrs

LOOKUPS: Final = ("lookup_table", "lookup_table_v2")
GRADS: Final = tuple(f"{type}_grad" for type in LOOKUPS)
#: attributes that a fused lookup takes over
_TAKEN: Final = ("is_sparse", "is_distributed", "padding_idx")


def lookups(graph: Graph) -> None:
    """Lookups of one parameter whose ids are known at the first of them become one op, and so do their sparse gradients.

    .. code-block:: text

        lookup_table(Ids=[a], W=[emb]) -> (Out=[u])
        lookup_table(Ids=[b], W=[emb]) -> (Out=[v])
        lookup_table_grad(Ids=[b], Out@GRAD=[v@GRAD], W=[emb]) -> (W@GRAD=[g0])
        lookup_table_grad(Ids=[a], Out@GRAD=[u@GRAD], W=[emb]) -> (W@GRAD=[g1])
        sum(X=[g0 g1]) -> (Out=[emb@GRAD])
      becomes
        fused_lookup_table(W=[emb], Ids=[a b]) -> (Out=[u v]) {lookup_table_version="lookup_table"}
        fused_lookup_table_grad(Ids=[b a], Out@GRAD=[v@GRAD u@GRAD], W=[emb]) -> (W@GRAD=[g0.fused])
        sum(X=[g0.fused]) -> (Out=[emb@GRAD])

    `sum` puts rows one after the other before it merges them, so the rows that it gets are the same in the same order.
    """
    for group in alike(graph, graph.nodes(*LOOKUPS)):
        _fuse_group(graph, group)
    for total in graph.nodes("sum"):
        _fuse_gradients(graph, total)


def alike(graph: Graph, nodes: Iterable[Node]) -> list[list[Node]]:
    """The lookups of each parameter that differ in ids and output only.

    Those of a parameter that is also read by an op that does not train, or inside a block, are left out: whether one that
    does not train finds a row or answers zeros depends on the order.
    """
    groups: dict[Hashable, list[Node]] = {}
    for node in nodes:
        groups.setdefault(_kind(node.op), []).append(node)
    return [group for group in groups.values() if _all_train(graph, group[0])]


def _all_train(graph: Graph, lookup: Node) -> bool:
    is_test = lookup.op.attr("is_test", default=False)
    readers = graph.readers(lookup.op.inputs["W"][0])
    return all(node.op.attr("is_test", default=False) == is_test and not node.blocks for node in readers)


def _kind(op: Operator) -> Hashable:
    """What lookups, or their gradients, must have in common."""
    return op.type, op.inputs["W"][0], frozenset(own_attrs(op).items())


def taken_attrs(op: Operator) -> dict[str, object]:
    """The attributes of a lookup, or of its gradient, that the fused op has as well."""
    return {name: op.attr(name) for name in (*_TAKEN, "is_test")}


def _fuse_group(graph: Graph, group: Sequence[Node]) -> None:
    """Fuse the lookups that can run where the first stands; then the others in the same way."""
    while len(group) > 1:
        first, *others = group
        ready = [first, *(node for node in others if graph.can_stand([node], first))]
        if len(ready) > 1:
            _fuse(graph, ready)
        group = [node for node in others if node not in ready]


def _fuse(graph: Graph, group: Sequence[Node]) -> bool:
    first = group[0]
    ids = [node.op.inputs["Ids"][0] for node in group]
    outputs = [node.op.outputs["Out"][0] for node in group]
    attrs = {**taken_attrs(first.op), "lookup_table_version": first.op.type}
    new = make_op("fused_lookup_table", {"W": first.op.inputs["W"], "Ids": ids}, {"Out": outputs}, attrs)
    return graph.replace("lookups", Part(group, new, first))


def _fuse_gradients(graph: Graph, total: Node) -> bool:
    """The gradients of lookups that a sum adds one after the other, where it adds SelectedRows only."""
    pieces = total.op.inputs["X"]
    kinds = [var.kind if (var := graph.var(name)) is not None else None for name in pieces]
    if set(kinds) != {VarKind.SELECTED_ROWS}:
        return False
    left: list[str] = []
    parts: list[Part] = []
    for run in _runs(graph, pieces):
        if len(run) > 1:
            parts.append(_gradient_part(graph, run))
            left += parts[-1].new.outputs["W@GRAD"]
        else:
            left += run
    if not parts:
        return False
    new = make_op("sum", {"X": left}, {"Out": total.op.outputs["Out"]}, {})
    return graph.replace("lookups", *parts, Part([total], new, total))


def _runs(graph: Graph, pieces: Sequence[str]) -> list[list[str]]:
    """The summands in order; those that stand together and are gradients of lookups that are alike as one list."""
    runs: list[list[str]] = []
    kind: Hashable = None
    for name in pieces:
        node = graph.writer(name)
        before, kind = kind, _kind(node.op) if node is not None and node.op.type in GRADS else None
        if kind is not None and kind == before:
            runs[-1].append(name)
        else:
            runs.append([name])
    return runs


def _gradient_part(graph: Graph, run: Sequence[str]) -> Part:
    nodes = [node for name in run if (node := graph.writer(name)) is not None]
    ops = [node.op for node in nodes]
    inputs = {
        "Ids": [op.inputs["Ids"][0] for op in ops],
        "Out@GRAD": [op.inputs["Out@GRAD"][0] for op in ops],
        "W": ops[0].inputs["W"],
    }
    attrs = {**taken_attrs(ops[0]), "lookup_table_version": ops[0].type.removesuffix("_grad")}
    outputs = {"W@GRAD": [graph.declare(run[0], like=run[0])]}
    return Part(nodes, make_op("fused_lookup_table_grad", inputs, outputs, attrs), graph.spot(nodes))
