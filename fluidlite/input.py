"""``fluid.data``, ``fluid.embedding`` and ``fluid.one_hot``: the forms of Fluid 1.6+, without implied dimensions."""

from __future__ import annotations

from collections.abc import Sequence

from fluidlite.framework import Variable
from fluidlite.layer_helper import require_variable
from fluidlite.layers.io import declare
from fluidlite.layers.nn import embedding_layer, one_hot_layer
from fluidlite.param_attr import AttrLike


def data(name: str, shape: Sequence[int | None], dtype: object = "float32", lod_level: int = 0) -> Variable:
    """Declare a variable that is fed, of exactly this shape; None or -1 marks dimensions that may vary."""
    return declare(name, [-1 if dim is None else int(dim) for dim in shape], dtype, lod_level)


def embedding(
    input: Variable,
    size: Sequence[int],
    is_sparse: bool = False,
    is_distributed: bool = False,
    padding_idx: int | None = None,
    param_attr: AttrLike = None,
    dtype: object = "float32",
) -> Variable:
    """Rows of a parameter of shape ``size`` = [height, width] by int64 ids of any shape; [..., width].

    The options are those of `fluidlite.layers.nn.embedding_layer`.
    """
    var = require_variable("embedding", "input", input)
    return embedding_layer("lookup_table_v2", var, size, is_sparse, is_distributed, padding_idx, param_attr, dtype)


def one_hot(input: Variable, depth: int | Variable, allow_out_of_range: bool = False) -> Variable:
    """Integers of any shape as vectors: ``depth`` zeros with a 1.0 at the integer's place; ``input.shape + [depth]``.

    Integers outside [0, depth) are an error at run time, or all zeros with ``allow_out_of_range``.
    """
    return one_hot_layer("one_hot_v2", input, depth, allow_out_of_range)
