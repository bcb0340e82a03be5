"""Losses together with what stands before or after them."""

from __future__ import annotations

from fluidlite.core.ir import EMPTY
from fluidlite.fusion.graph import Graph, Node, Part, make_op

#: the op of a cross entropy -> its gradient op
_CROSS_ENTROPIES = {"cross_entropy": "cross_entropy_grad", "cross_entropy2": "cross_entropy_grad2"}
_SIGMOID = "sigmoid_cross_entropy_with_logits"


def softmax_loss(graph: Graph) -> None:
    """A softmax along the last axis and the cross entropy of hard labels become one op, and so do their gradients.

    .. code-block:: text

        softmax(X=[x]) -> (Out=[p])
        cross_entropy(X=[p], Label=[label]) -> (Y=[y])
        cross_entropy_grad(X=[p], Label=[label], Y@GRAD=[y@GRAD]) -> (X@GRAD=[p@GRAD])
        softmax_grad(Out=[p], Out@GRAD=[p@GRAD]) -> (X@GRAD=[x@GRAD])
      becomes
        fused_softmax_cross_entropy(X=[x], Label=[label]) -> (Softmax=[p], Y=[y])
        fused_softmax_cross_entropy_grad(Softmax=[p], Label=[label], Y@GRAD=[y@GRAD]) -> (X@GRAD=[x@GRAD])
    """
    for softmax in graph.nodes("softmax"):
        rank = graph.rank(softmax.op.inputs["X"][0])
        if rank is not None and softmax.op.attr("axis", -1) in (-1, rank - 1):
            losses = graph.readers(softmax.op.outputs["Out"][0], *_CROSS_ENTROPIES)
            any(_fuse_softmax(graph, softmax, loss) for loss in losses)


def _fuse_softmax(graph: Graph, softmax: Node, loss: Node) -> bool:
    probabilities, attrs = softmax.op.outputs["Out"], {"ignore_index": loss.op.attr("ignore_index", -100)}
    if loss.op.attr("soft_label", default=False) or loss.op.inputs["X"] != probabilities:
        return False
    inputs = {"X": softmax.op.inputs["X"], "Label": loss.op.inputs["Label"]}
    outputs = {"Softmax": probabilities, "Y": loss.op.outputs["Y"]}
    new = make_op("fused_softmax_cross_entropy", inputs, outputs, attrs)
    forward = Part([softmax, loss], new, graph.spot([softmax, loss]))
    gradients = _softmax_gradients(graph, loss, probabilities)
    if not gradients:
        return graph.replace("softmax_loss", forward)
    first, last = gradients
    inputs = {"Softmax": probabilities, "Label": loss.op.inputs["Label"], "Y@GRAD": first.op.inputs["Y@GRAD"]}
    backward = make_op("fused_softmax_cross_entropy_grad", inputs, {"X@GRAD": last.op.outputs["X@GRAD"]}, attrs)
    return graph.replace("softmax_loss", forward, Part(gradients, backward, last))


def _softmax_gradients(graph: Graph, loss: Node, probabilities: list[str]) -> list[Node]:
    """The gradient ops of the loss and of the softmax, where the first alone gives the second its gradient; or none."""
    for last in graph.readers(probabilities[0], "softmax_grad"):
        first = graph.writer(last.op.inputs["Out@GRAD"][0])
        if first is not None and first.op.type == _CROSS_ENTROPIES[loss.op.type]:
            return [first, last] if first.op.inputs["Label"] == loss.op.inputs["Label"] else []
    return []


def sigmoid_loss(graph: Graph) -> None:
    """The mean of the logistic loss becomes one op, and so do its gradient and the constant that this begins with.

    .. code-block:: text

        sigmoid_cross_entropy_with_logits(X=[x], Label=[label]) -> (Out=[losses])
        mean(X=[losses]) -> (Out=[loss])
        fill_constant() -> (Out=[loss@GRAD]) {dtype=5, shape=[1L], value=1.0}
        mean_grad(X=[losses], Out@GRAD=[loss@GRAD]) -> (X@GRAD=[losses@GRAD])
        sigmoid_cross_entropy_with_logits_grad(Label=[label], Out@GRAD=[losses@GRAD], X=[x]) -> (X@GRAD=[x@GRAD])
      becomes
        fused_sigmoid_cross_entropy_mean(X=[x], Label=[label]) -> (Out=[loss])
        fused_sigmoid_cross_entropy_mean_grad(X=[x], Label=[label]) -> (X@GRAD=[x@GRAD]) {loss_gradient=1.0}
    """
    for losses in graph.nodes(_SIGMOID):
        x, label = (graph.var(losses.op.inputs[name][0]) for name in ("X", "Label"))
        if x is None or label is None or (x.shape, x.dtype) != (label.shape, label.dtype):
            continue
        for mean in graph.readers(losses.op.outputs["Out"][0], "mean"):
            _fuse_sigmoid(graph, losses, mean)


def _fuse_sigmoid(graph: Graph, losses: Node, mean: Node) -> bool:
    inputs = {"X": losses.op.inputs["X"], "Label": losses.op.inputs["Label"]}
    attrs = {name: losses.op.attr(name) for name in ("normalize", "ignore_index")}
    new = make_op("fused_sigmoid_cross_entropy_mean", inputs, {"Out": mean.op.outputs["Out"]}, attrs)
    forward = Part([losses, mean], new, mean)
    grads = graph.readers(losses.op.outputs["Out"][0], "mean_grad")
    if len(grads) != 1:
        return graph.replace("sigmoid_loss", forward)
    spread = grads[0].op.output("X@GRAD") or EMPTY
    last = [node for node in graph.readers(spread, f"{_SIGMOID}_grad") if _same_inputs(node, losses)]
    if len(last) != 1:
        return False
    outputs = {"X@GRAD": last[0].op.outputs["X@GRAD"]}
    upstream = grads[0].op.inputs["Out@GRAD"]
    given = make_op("fused_sigmoid_cross_entropy_mean_grad", {**inputs, "Out@GRAD": upstream}, outputs, attrs)
    start = _constant(graph, upstream[0])
    if start is not None and _dtype(graph, upstream[0]) == _dtype(graph, inputs["X"][0]):
        attrs["loss_gradient"] = start.op.attr("value", 0.0)
        begun = make_op("fused_sigmoid_cross_entropy_mean_grad", inputs, outputs, attrs)
        if graph.replace("sigmoid_loss", forward, Part([start, *grads, *last], begun, last[0])):
            return True
    return graph.replace("sigmoid_loss", forward, Part([*grads, *last], given, last[0]))


def _dtype(graph: Graph, name: str) -> str | None:
    var = graph.var(name)
    return None if var is None else var.dtype


def _same_inputs(grad: Node, losses: Node) -> bool:
    return all(grad.op.inputs.get(name) == losses.op.inputs[name] for name in ("X", "Label"))


def _constant(graph: Graph, name: str) -> Node | None:
    """The op that fills a gradient of one element with a number known beforehand."""
    node = graph.writer(name)
    if node is None or node.op.type != "fill_constant" or node.op.inputs or node.op.attr("str_value"):
        return None
    return node if tuple(node.op.attr("shape", ())) == (1,) else None
