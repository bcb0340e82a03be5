"""Fully connected layers: product, bias and activation as one op, their gradients as another."""

from __future__ import annotations

from fluidlite.core.ir import EMPTY, Operator
from fluidlite.fusion.graph import Graph, Node, Part, make_op
from fluidlite.ops.fc import ACTIVATIONS


def fc(graph: Graph) -> None:
    """A product with a matrix, a bias and perhaps an activation become `fc`, and so do their gradients.

    .. code-block:: text

        mul(X=[x], Y=[w]) -> (Out=[t0])
        elementwise_add(X=[t0], Y=[b]) -> (Out=[t1]) {axis=1}
        relu(X=[t1]) -> (Out=[t2])
        relu_grad(Out=[t2], Out@GRAD=[t2@GRAD]) -> (X@GRAD=[t1@GRAD])
        elementwise_add_grad(X=[t0], Y=[b], Out@GRAD=[t1@GRAD]) -> (X@GRAD=[t0@GRAD], Y@GRAD=[b@GRAD]) {axis=1}
        mul_grad(X=[x], Y=[w], Out@GRAD=[t0@GRAD]) -> (X@GRAD=[x@GRAD], Y@GRAD=[w@GRAD])
      becomes
        fc(Input=[x], W=[w], Bias=[b]) -> (Out=[t2]) {activation_type="relu"}
        fc_grad(Input=[x], W=[w], Bias=[b], Out=[t2], Out@GRAD=[t2@GRAD])
            -> (Input@GRAD=[x@GRAD], W@GRAD=[w@GRAD], Bias@GRAD=[b@GRAD]) {activation_type="relu"}
    """
    for mul in graph.nodes("mul"):
        for add in _additions(graph, mul):
            activations = graph.readers(add.op.outputs["Out"][0], *ACTIVATIONS)
            if not any(_fuse(graph, mul, add, act) for act in activations):
                _fuse(graph, mul, add, None)


def _additions(graph: Graph, mul: Node) -> list[Node]:
    """The ops that add a bias, one number per column, to a product with a matrix."""
    product, weight = mul.op.outputs["Out"][0], graph.var(mul.op.inputs["Y"][0])
    columns = mul.op.attr("x_num_col_dims", 1)
    if weight is None or weight.shape is None or len(weight.shape) != 2 or mul.op.attr("y_num_col_dims", 1) != 1:
        return []
    found = []
    for add in graph.readers(product, "elementwise_add"):
        bias = graph.var(add.op.inputs["Y"][0])
        if add.op.input("X") == product and bias is not None and bias.shape == weight.shape[1:]:
            found += [add] if add.op.attr("axis", -1) in (-1, columns) else []
    return found


def _fuse(graph: Graph, mul: Node, add: Node, act: Node | None) -> bool:
    """Fuse the three ops, and the gradients where there are any."""
    last = add if act is None else act
    inputs = {"Input": mul.op.inputs["X"], "W": mul.op.inputs["Y"], "Bias": add.op.inputs["Y"]}
    attrs = {
        "in_num_col_dims": mul.op.attr("x_num_col_dims", 1),
        "activation_type": "" if act is None else act.op.type,
    }
    forward = make_op("fc", inputs, {"Out": last.op.outputs["Out"]}, attrs)
    old = [mul, add] if act is None else [mul, add, act]
    part = Part(old, forward, graph.spot(old))
    gradients = _gradients(graph, mul, add, act)
    if not gradients:
        return graph.replace("fc", part)
    first, add_grad, mul_grad = gradients[0], gradients[-2].op, gradients[-1].op
    upstream = {"Out@GRAD": first.op.inputs["Out@GRAD"], "Out": last.op.outputs["Out"] if act is not None else []}
    outputs = {
        "Input@GRAD": _wanted(mul_grad, "X@GRAD"),
        "W@GRAD": _wanted(mul_grad, "Y@GRAD"),
        "Bias@GRAD": _wanted(add_grad, "Y@GRAD"),
    }
    backward = make_op("fc_grad", {**inputs, **upstream}, outputs, attrs)
    # early, since gradients are sent as soon as they are there
    return graph.replace("fc", part, Part(gradients, backward, graph.spot(gradients, early=True)))


def _gradients(graph: Graph, mul: Node, add: Node, act: Node | None) -> list[Node]:
    """The gradient ops of activation, sum and product, each of which reads what the one before it writes; or none."""
    sums = graph.readers(mul.op.outputs["Out"][0], "elementwise_add_grad")
    if len(sums) != 1 or (sums[0].op.inputs["X"], sums[0].op.inputs["Y"]) != (add.op.inputs["X"], add.op.inputs["Y"]):
        return []
    products = [
        node
        for node in graph.readers(sums[0].op.output("X@GRAD") or EMPTY, "mul_grad")
        if (node.op.inputs["X"], node.op.inputs["Y"]) == (mul.op.inputs["X"], mul.op.inputs["Y"])
    ]
    if act is None:
        return [*sums, *products] if products else []
    slope = graph.writer(sums[0].op.inputs["Out@GRAD"][0])
    if slope is None or slope.op.type != f"{act.op.type}_grad" or slope.op.inputs.get("Out") != act.op.outputs["Out"]:
        return []
    return [slope, *sums, *products] if products else []


def _wanted(op: Operator, output: str) -> list[str]:
    """The variable of an output, if it is asked for."""
    return [name for name in op.outputs.get(output, ()) if name != EMPTY]
