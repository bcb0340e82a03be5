"""Optimizer steps on small parameters: many in one op."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Final

from fluidlite.dtypes import VarKind
from fluidlite.fusion.graph import Graph, Node, Part, make_op, own_attrs
from fluidlite.ops import registry
from fluidlite.ops.fused_updates import FUSED

#: elements of a parameter whose update costs no more than the call of an op
_SMALL: Final = 1 << 14


def updates(graph: Graph) -> None:
    """Updates of small dense parameters by one rule, learning rate and dtype become one op.

    .. code-block:: text

        sgd(Param=[a], Grad=[a@GRAD], LearningRate=[rate]) -> (ParamOut=[a])
        sgd(Param=[b], Grad=[b@GRAD], LearningRate=[rate]) -> (ParamOut=[b])
      becomes
        fused_sgd(Param=[a b], Grad=[a@GRAD b@GRAD], LearningRate=[rate]) -> (ParamOut=[a b])
    """
    groups: dict[Hashable, list[Node]] = {}
    for node in graph.nodes(*FUSED):
        if _is_small(graph, node):
            kind = (node.op.type, node.op.inputs["LearningRate"][0], frozenset(own_attrs(node.op).items()))
            groups.setdefault(kind, []).append(node)
    for group in groups.values():
        last = group[-1]
        ready = [node for node in group if node is last or graph.can_stand([node], last)]
        if len(ready) > 1:
            _fuse(graph, ready)


def _fuse(graph: Graph, group: list[Node]) -> bool:
    type = group[0].op.type
    lists = [arg.name for arg in registry.get(FUSED[type]).inputs if arg.many]
    inputs = {name: [node.op.inputs[name][0] for node in group] for name in lists}
    outputs = {name: [node.op.outputs[name][0] for node in group] for name in group[0].op.outputs}
    attrs = {name: attr.value for name, attr in own_attrs(group[0].op).items()}
    new = make_op(FUSED[type], {**inputs, "LearningRate": group[0].op.inputs["LearningRate"]}, outputs, attrs)
    return graph.replace("updates", Part(group, new, group[-1]))


def _is_small(graph: Graph, node: Node) -> bool:
    """Whether a step changes a small dense parameter in place by a dense gradient."""
    single = registry.get(node.op.type)
    param, grad = (graph.var(node.op.inputs[name][0]) for name in ("Param", "Grad"))
    if param is None or grad is None or param.shape is None or param.kind is not VarKind.LOD_TENSOR:
        return False
    if grad.kind is not VarKind.LOD_TENSOR or -1 in param.shape or math.prod(param.shape) > _SMALL:
        return False
    optional = [arg.name for arg in single.inputs if arg.optional]
    if any(node.op.inputs.get(name) for name in optional):
        return False
    pairs = single.inplace.items()
    return all(node.op.outputs.get(output) == node.op.inputs.get(source) for output, source in pairs)
