"""``paddle.nn``: layers that own their parameters. A parameter is declared when the layer is made, ops when it is called."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from fluidlite import layers, unique_name
from fluidlite.framework import Parameter, Variable
from fluidlite.initializer import Initializer
from fluidlite.layer_helper import LayerHelper
from fluidlite.param_attr import AttrLike

__all__ = ["Embedding", "Layer", "LayerList", "Linear", "ReLU", "Sequential", "Sigmoid", "Softmax", "Tanh"]


class Layer:
    """Base of layers: a subclass sets layers and parameters as attributes in ``__init__`` and computes in ``forward``."""

    def __init__(self, name_scope: str | None = None, dtype: str = "float32") -> None:
        self._dtype = dtype
        self._helper = LayerHelper(
            type(self).__name__.lower(), unique_name.generate(name_scope or type(self).__name__.lower())
        )
        self.training = True

    def forward(self, *inputs: Any, **keywords: Any) -> Any:
        """What the layer computes."""
        raise NotImplementedError(f"{type(self).__name__}.forward: a layer says here what it computes")

    def __call__(self, *inputs: Any, **keywords: Any) -> Any:
        return self.forward(*inputs, **keywords)

    def full_name(self) -> str:
        """The layer's name in the program."""
        return self._helper.name

    def add_sublayer(self, name: str, sublayer: Layer) -> Layer:
        """Set a layer as an attribute, and return it."""
        setattr(self, name, sublayer)
        return sublayer

    def create_parameter(
        self,
        shape: Sequence[int],
        attr: AttrLike = None,
        dtype: object = None,
        is_bias: bool = False,
        default_initializer: Initializer | None = None,
    ) -> Any:
        """Declare a parameter of this layer; None with ``attr`` False."""
        if attr is False:
            return None
        return self._helper.create_parameter(attr, shape, dtype or self._dtype, is_bias, default_initializer)

    def add_parameter(self, name: str, parameter: Parameter) -> Parameter:
        """Set a parameter as an attribute, and return it."""
        setattr(self, name, parameter)
        return parameter

    def sublayers(self, include_self: bool = False) -> list[Layer]:
        """The layers in this one, at any depth."""
        return [
            *([self] if include_self else []),
            *(deep for layer in self._layers() for deep in layer.sublayers(include_self=True)),
        ]

    def parameters(self, include_sublayers: bool = True) -> list[Parameter]:
        """The parameters of this layer and of those in it, each once."""
        owners = self.sublayers(include_self=True) if include_sublayers else [self]
        found = (value for owner in owners for value in vars(owner).values() if isinstance(value, Parameter))
        return list({parameter.name: parameter for parameter in found}.values())

    def train(self) -> None:
        """Accepted: programs for testing are cloned."""
        self.training = True

    def eval(self) -> None:
        """Accepted: programs for testing are cloned."""
        self.training = False

    def _layers(self) -> Iterator[Layer]:
        return (value for value in vars(self).values() if isinstance(value, Layer))


class Linear(Layer):
    """``x W + b`` with W [in_features, out_features] along the last dimension of ``x``."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        weight_attr: AttrLike = None,
        bias_attr: AttrLike = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self.weight = self.create_parameter([in_features, out_features], weight_attr)
        self.bias = self.create_parameter([out_features], bias_attr, is_bias=True)

    def forward(self, input: Variable) -> Variable:
        """[..., out_features]."""
        last = len(input.shape) - 1
        out = layers.mul(input, self.weight, x_num_col_dims=last)
        return out if self.bias is None else layers.elementwise_add(out, self.bias, axis=last)


class Embedding(Layer):
    """Rows of a table [num_embeddings, embedding_dim] by id; the row ``padding_idx`` reads zeros.

    ``sparse``: the gradient holds the rows that were read only.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        sparse: bool = False,
        weight_attr: AttrLike = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        below = padding_idx is not None and padding_idx < 0
        self._padding = -1 if padding_idx is None else padding_idx + num_embeddings if below else padding_idx
        self._sparse = sparse
        self.weight = self.create_parameter([num_embeddings, embedding_dim], weight_attr)

    def forward(self, x: Variable) -> Variable:
        """Of ids [...]: [..., embedding_dim]."""
        attrs = {
            "padding_idx": self._padding,
            "is_sparse": self._sparse,
            "is_distributed": False,
            "remote_prefetch": False,
        }
        inputs = {"Ids": x, "W": self.weight}
        return self._helper.one("lookup_table_v2", inputs, attrs, dtype=self._dtype)


class _Activation(Layer):
    """A layer without parameters."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)


class ReLU(_Activation):
    """``max(x, 0)``."""

    def forward(self, x: Variable) -> Variable:
        """The same shape."""
        return layers.relu(x)


class Sigmoid(_Activation):
    """``1 / (1 + exp(-x))``."""

    def forward(self, x: Variable) -> Variable:
        """The same shape."""
        return layers.sigmoid(x)


class Tanh(_Activation):
    """The hyperbolic tangent."""

    def forward(self, x: Variable) -> Variable:
        """The same shape."""
        return layers.tanh(x)


class Softmax(Layer):
    """Exponentials along ``axis``, divided by their sum."""

    def __init__(self, axis: int = -1, name: str | None = None) -> None:
        super().__init__(name)
        self._axis = axis

    def forward(self, x: Variable) -> Variable:
        """The same shape."""
        return layers.softmax(x, axis=self._axis)


class LayerList(Layer):
    """Layers by position."""

    def __init__(self, sublayers: Sequence[Layer] = ()) -> None:
        super().__init__()
        for layer in sublayers:
            self.append(layer)

    def append(self, sublayer: Layer) -> LayerList:
        """Add a layer at the end."""
        self.add_sublayer(str(len(self)), sublayer)
        return self

    def __len__(self) -> int:
        return sum(1 for _ in self._layers())

    def __iter__(self) -> Iterator[Layer]:
        return self._layers()

    def __getitem__(self, position: int) -> Layer:
        return list(self._layers())[position]


class Sequential(LayerList):
    """Layers of which each takes what the one before has made."""

    def __init__(self, *sublayers: Layer) -> None:
        super().__init__(sublayers)

    def forward(self, input: Any) -> Any:
        """What the last layer makes."""
        for layer in self:
            input = layer(input)
        return input
