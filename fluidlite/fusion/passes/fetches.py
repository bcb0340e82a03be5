"""Rows fetched from servers: those that several lookups of a parameter need, together."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

from fluidlite.core import edit
from fluidlite.core.ir import Operator
from fluidlite.fusion.graph import Graph, Node, Part, own_attrs
from fluidlite.fusion.passes.lookups import GRADS, LOOKUPS


class _Fetch(NamedTuple):
    """The ops that fetch the rows of a lookup (`split_ids`, `prefetch`, `concat`), and those that read these."""

    chain: list[Node]
    uses: list[Node]

    @property
    def rows(self) -> str:
        """The fetched rows."""
        return self.chain[-1].op.outputs["Out"][0]


def fetches(graph: Graph) -> None:
    """What lookups of one parameter fetch is asked for, received and concatenated once; ids that repeat travel once.

    .. code-block:: text

        split_ids(Ids=[a]) -> (Out=[emb.ids0.shard0 emb.ids0.shard1])
        prefetch(X=[emb.ids0.shard0 emb.ids0.shard1]) -> (Out=[emb.rows0.shard0 emb.rows0.shard1])
        concat(X=[emb.rows0.shard0 emb.rows0.shard1]) -> (Out=[emb.rows0])
        lookup_table(Ids=[a], W=[emb.rows0]) -> (Out=[u])
        split_ids(Ids=[b]) -> (Out=[emb.ids1.shard0 emb.ids1.shard1])
        prefetch(X=[emb.ids1.shard0 emb.ids1.shard1]) -> (Out=[emb.rows1.shard0 emb.rows1.shard1])
        concat(X=[emb.rows1.shard0 emb.rows1.shard1]) -> (Out=[emb.rows1])
        lookup_table(Ids=[b], W=[emb.rows1]) -> (Out=[v])
      becomes
        split_ids(Ids=[a b]) -> (Out=[emb.ids0.shard0.fused emb.ids0.shard1.fused])
        prefetch(X=[emb.ids0.shard0.fused emb.ids0.shard1.fused]) -> (Out=[emb.rows0.shard0.fused emb.rows0.shard1.fused])
        concat(X=[emb.rows0.shard0.fused emb.rows0.shard1.fused]) -> (Out=[emb.rows0.fused])
        lookup_table(Ids=[a], W=[emb.rows0.fused]) -> (Out=[u])
        lookup_table(Ids=[b], W=[emb.rows0.fused]) -> (Out=[v])

    Gradients of the lookups read the same rows (for their height).
    """
    groups: dict[Hashable, list[_Fetch]] = {}
    for split in graph.nodes("split_ids"):
        fetch = _fetch(graph, split)
        if fetch is not None:
            groups.setdefault(_kind(fetch), []).append(fetch)
    for group in groups.values():
        _fuse_group(graph, group)


def _fetch(graph: Graph, split: Node) -> _Fetch | None:
    """The chain of ops from a `split_ids` to lookups."""
    chain = [split]
    for type in ("prefetch", "concat"):
        arguments = chain[-1].op.outputs["Out"]
        readers = graph.readers(arguments[0])
        if len(readers) != 1 or readers != graph.readers(arguments[0], type) or readers[0].op.inputs["X"] != arguments:
            return None
        chain.append(readers[0])
    rows = chain[-1].op.outputs["Out"]
    uses = graph.readers(rows[0])
    if len(split.op.inputs["Ids"]) != 1 or split.op.outputs.get("Inverse") or not uses:
        return None
    if uses != graph.readers(rows[0], *LOOKUPS, *GRADS) or any(node.op.inputs["W"] != rows for node in uses):
        return None
    return _Fetch(chain, uses)


def _kind(fetch: _Fetch) -> Hashable:
    """What fetches must have in common: parameter, servers, padding."""
    return tuple(frozenset(own_attrs(node.op).items()) for node in fetch.chain)


def _fuse_group(graph: Graph, group: Sequence[_Fetch]) -> None:
    """Fuse the fetches whose ids are known at the first; then the others in the same way."""
    while len(group) > 1:
        first, *others = group
        ready = [first, *(fetch for fetch in others if graph.can_stand(fetch.chain[:1], first.chain[0]))]
        if len(ready) > 1:
            _fuse(graph, ready)
        group = [fetch for fetch in others if fetch not in ready]


def _fuse(graph: Graph, group: Sequence[_Fetch]) -> bool:
    first = group[0]
    ids = list(dict.fromkeys(fetch.chain[0].op.inputs["Ids"][0] for fetch in group))
    new_name = {name: graph.declare(name, like=name) for node in first.chain for name in node.op.outputs["Out"]}
    chain = [_renamed(node.op, new_name) for node in first.chain]
    chain[0].inputs["Ids"] = ids
    parts = [Part([fetch.chain[at] for fetch in group], new, first.chain[at]) for at, new in enumerate(chain)]
    for fetch in group:
        one_name = {fetch.rows: new_name[first.rows]}
        parts += [Part([node], _renamed(node.op, one_name), node) for node in fetch.uses]
    return graph.replace("fetches", *parts)


def _renamed(op: Operator, new_name: Mapping[str, str]) -> Operator:
    """The op with some variables replaced by others."""
    new = edit.clone_op(op)
    for arguments in (new.inputs, new.outputs):
        for key, given in arguments.items():
            arguments[key] = [new_name.get(name, name) for name in given]
    return new
