"""The layers that models are made of: fc, embedding, one_hot, dropout, softmax, and a few with parameters."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fluidlite.errors import ProgramError, ShapeError
from fluidlite.framework import Parameter, Variable, user_line
from fluidlite.initializer import Constant
from fluidlite.layer_helper import FLOATS, LayerHelper, Variables, either, require_dtype, require_variable
from fluidlite.param_attr import AttrLike


def fc(
    input: Variables,
    size: int,
    num_flatten_dims: int = 1,
    param_attr: AttrLike | Sequence[AttrLike] = None,
    bias_attr: AttrLike = None,
    act: str | None = None,
    name: str | None = None,
) -> Variable:
    """act(Σ inputs @ weights + bias): a fully connected layer.

    Each input is flattened to a matrix: dimensions before ``num_flatten_dims`` (a negative one counts from the end)
    make the rows. Weights are [columns, size], the bias is [size]; the result is ``input.shape[:num_flatten_dims] +
    [size]`` and keeps the LoD.
    """
    helper = LayerHelper("fc", name, input=input, param_attr=param_attr, bias_attr=bias_attr, act=act)
    dtype = helper.input_dtype()
    products = []
    for var, attr in helper.iter_inputs_and_params():
        require_dtype("fc", var, FLOATS)
        flatten = num_flatten_dims + len(var.shape) if num_flatten_dims < 0 else num_flatten_dims
        if not 0 < flatten < len(var.shape):
            raise ShapeError(
                f"fc: num_flatten_dims {num_flatten_dims} leaves no rows or no columns of {var.name!r} "
                f"{list(var.shape)} ({user_line()})"
            )
        weight = helper.create_parameter(attr, [_product(helper, var, flatten), size], dtype)
        products.append(helper.one("mul", {"X": var, "Y": weight}, {"x_num_col_dims": flatten}, dtype=dtype))
    total = products[0] if len(products) == 1 else helper.one("sum", {"X": products}, dtype=dtype)
    return helper.append_activation(helper.append_bias_op(total, dim_start=flatten))


def _product(helper: LayerHelper, var: Variable, start: int) -> int:
    columns = var.shape[start:]
    if any(dim < 0 for dim in columns):
        raise ShapeError(
            f"{helper.layer_type}: the size of {var.name!r} {list(var.shape)} from dimension {start} on must be known "
            f"({user_line()})"
        )
    return math.prod(columns)


def embedding(
    input: Variable,
    size: Sequence[int],
    is_sparse: bool = False,
    is_distributed: bool = False,
    padding_idx: int | None = None,
    param_attr: AttrLike = None,
    dtype: object = "float32",
) -> Variable:
    """Rows of a parameter of shape ``size`` = [height, width] by int64 ids [..., 1]; the result is [..., width].

    See `embedding_layer` for the options. `fluidlite.embedding` takes ids without the last dimension of 1.
    """
    var = require_variable("embedding", "input", input)
    if not var.shape or var.shape[-1] != 1:
        raise ShapeError(
            f"layers.embedding: ids {var.name!r} {list(var.shape)} must end in a dimension of 1; "
            f"fluid.embedding takes ids of any shape ({user_line()})"
        )
    return embedding_layer("lookup_table", var, size, is_sparse, is_distributed, padding_idx, param_attr, dtype)


def embedding_layer(
    op_type: str,
    input: Variable,
    size: Sequence[int],
    is_sparse: bool,
    is_distributed: bool,
    padding_idx: int | None,
    param_attr: AttrLike,
    dtype: object,
) -> Variable:
    """The lookup of ``layers.embedding`` and ``fluid.embedding``.

    ``is_sparse`` gives the parameter's gradient as SelectedRows, the rows of the batch only. ``is_distributed`` makes
    the parameter an auto-grown table: the height is a hint (ids may be any int64), a row exists from its first use
    on, its gradient is always sparse, and the transpiler spreads the rows over the pservers. ``padding_idx`` (negative
    ones count from the height) gives zeros and is never trained. Layers that name the same parameter share it.
    """
    require_dtype("embedding", input, ("int64",))
    height, width = _table_size(input, size)
    helper = LayerHelper("embedding")
    weight = helper.create_parameter(param_attr, [height, width], dtype, is_distributed=is_distributed)
    attrs = {
        "is_sparse": is_sparse or is_distributed,
        "is_distributed": is_distributed,
        "padding_idx": _padding(weight, padding_idx),
        "remote_prefetch": is_sparse and not is_distributed,
    }
    return helper.one(op_type, {"Ids": input, "W": weight}, attrs, dtype=dtype)


def _table_size(input: Variable, size: Sequence[int]) -> tuple[int, int]:
    dims = [int(dim) for dim in size]
    if len(dims) != 2 or min(dims) <= 0:
        raise ShapeError(
            f"embedding of {input.name!r}: size must be [height, width], both positive, not {list(size)} ({user_line()})"
        )
    return dims[0], dims[1]


def _padding(weight: Parameter, padding_idx: int | None) -> int:
    """The attribute: -1 for none, else the id."""
    if padding_idx is None:
        return -1
    height = weight.shape[0]
    index = padding_idx + height if padding_idx < 0 else padding_idx
    if index < 0 or (index >= height and not weight.is_distributed):
        raise ProgramError(
            f"embedding {weight.name!r}: padding_idx {padding_idx} is outside the {height} rows ({user_line()})"
        )
    return index


def fused_embedding_seq_pool(
    input: Variable,
    size: Sequence[int],
    is_sparse: bool = False,
    padding_idx: int | None = None,
    combiner: str = "sum",
    param_attr: AttrLike = None,
    dtype: object = "float32",
) -> Variable:
    """`embedding` of id sequences followed by their sum, in one op: ids [T, 1] with LoD give [N, width]."""
    helper = LayerHelper("fused_embedding_seq_pool")
    require_dtype("fused_embedding_seq_pool", require_variable(helper.layer_type, "input", input), ("int64",))
    if combiner != "sum":
        raise ProgramError(f"fused_embedding_seq_pool: combiner must be 'sum', not {combiner!r} ({user_line()})")
    weight = helper.create_parameter(param_attr, _table_size(input, size), dtype)
    attrs = {"is_sparse": is_sparse, "combiner": combiner, "padding_idx": _padding(weight, padding_idx)}
    return helper.one("fused_embedding_seq_pool", {"Ids": input, "W": weight}, attrs, dtype=dtype)


def one_hot(input: Variable, depth: int | Variable, allow_out_of_range: bool = False) -> Variable:
    """The last dimension, 1, of integer ``input`` becomes ``depth`` zeros with a 1.0 at the element's place.

    Elements outside [0, depth) are an error at run time, or all zeros with ``allow_out_of_range``.
    """
    result = one_hot_layer("one_hot", input, depth, allow_out_of_range)
    result.stop_gradient = True
    return result


def one_hot_layer(op_type: str, input: Variable, depth: int | Variable, allow_out_of_range: bool) -> Variable:
    """The op of ``layers.one_hot`` and ``fluid.one_hot``."""
    require_dtype("one_hot", require_variable("one_hot", "input", input), ("int32", "int64"))
    depth_var, number = either(depth)
    inputs = {"X": input, "depth_tensor": depth_var}
    attrs = {"depth": number, "allow_out_of_range": allow_out_of_range}
    return LayerHelper(op_type).one(op_type, inputs, attrs, dtype="float32")


def dropout(
    x: Variable,
    dropout_prob: float,
    is_test: bool = False,
    seed: int | None = None,
    name: str | None = None,
    dropout_implementation: str = "downgrade_in_infer",
) -> Variable:
    """Zero each element with probability ``dropout_prob`` while training.

    ``downgrade_in_infer`` scales by 1 - p when testing, ``upscale_in_train`` by 1 / (1 - p) when training. A seed (or
    the program's ``random_seed``) makes the mask the same at every run.
    """
    require_dtype("dropout", require_variable("dropout", "x", x), FLOATS)
    if not 0 <= dropout_prob <= 1:
        raise ProgramError(f"dropout of {x.name!r}: the probability is {dropout_prob} ({user_line()})")
    if dropout_implementation not in ("downgrade_in_infer", "upscale_in_train"):
        raise ProgramError(f"dropout of {x.name!r}: dropout_implementation {dropout_implementation!r} ({user_line()})")
    helper = LayerHelper("dropout", name)
    if seed is None:
        seed = helper.main_program.random_seed or None
    out = helper.create_variable_for_type_inference(x.dtype)
    mask = helper.create_variable_for_type_inference("uint8", stop_gradient=True)
    attrs = {
        "dropout_prob": dropout_prob,
        "is_test": is_test,
        "fix_seed": seed is not None,
        "seed": seed or 0,
        "dropout_implementation": dropout_implementation,
    }
    helper.append_op("dropout", {"X": x}, {"Out": out, "Mask": mask}, attrs)
    return out


def softmax(input: Variable, use_cudnn: bool = False, name: str | None = None, axis: int = -1) -> Variable:
    """exp(x) / Σ exp(x) along ``axis``."""
    require_dtype("softmax", require_variable("softmax", "input", input), FLOATS)
    attrs = {"axis": axis, "use_cudnn": use_cudnn or None}
    return LayerHelper("softmax", name).one("softmax", {"X": input}, attrs, dtype=input.dtype)


def prelu(x: Variable, mode: str, param_attr: AttrLike = None, name: str | None = None) -> Variable:
    """x above 0, else alpha * x with alpha trained: one ('all'), per channel ('channel') or per element ('element')."""
    require_dtype("prelu", require_variable("prelu", "x", x), FLOATS)
    shapes = {
        "all": [1],
        "channel": [1, *x.shape[1:2], *[1] * (len(x.shape) - 2)],
        "element": [1, *x.shape[1:]],
    }
    if mode not in shapes:
        raise ProgramError(f"prelu of {x.name!r}: mode must be all, channel or element, not {mode!r} ({user_line()})")
    helper = LayerHelper("prelu", name)
    alpha = helper.create_parameter(param_attr, shapes[mode], x.dtype, default_initializer=Constant(0.25))
    return helper.one("prelu", {"X": x, "Alpha": alpha}, {"mode": mode}, dtype=x.dtype)


def hash(input: Variable, hash_size: int, num_hash: int = 1, name: str | None = None) -> Variable:
    """``num_hash`` xxHash64 values modulo ``hash_size`` of each row of ids [T, k]; [T, num_hash, 1] int64."""
    require_dtype("hash", require_variable("hash", "input", input), ("int32", "int64"))
    attrs = {"num_hash": num_hash, "mod_by": hash_size}
    return LayerHelper("hash", name).one("hash", {"X": input}, attrs, dtype="int64", stop_gradient=True)


def continuous_value_model(input: Variable, cvm: Variable, use_cvm: bool = True) -> Variable:
    """Show and click in the first two columns of ``input`` [N, D] as log(show + 1) and log(click + 1) - log(show + 1).

    ``use_cvm=False`` drops the two columns. ``cvm`` [N, 2] goes into their gradient.
    """
    require_variable("continuous_value_model", "input", input)
    helper = LayerHelper("cvm")
    out = helper.create_variable(dtype=input.dtype)
    inputs = {"X": input, "CVM": require_variable("continuous_value_model", "cvm", cvm)}
    helper.append_op("cvm", inputs, {"Y": out}, {"use_cvm": use_cvm})
    return out


def filter_by_instag(
    ins: Variable, ins_tag: Variable, filter_tag: Variable, is_lod: bool, out_val_if_empty: int = 0
) -> list[Variable]:
    """[instances that carry one of the tags, a weight that is 0 where none does, where they came from]."""
    helper = LayerHelper("filter_by_instag")
    out = helper.create_variable_for_type_inference(require_variable(helper.layer_type, "ins", ins).dtype)
    weight = helper.create_variable_for_type_inference("float64")
    index_map = helper.create_variable_for_type_inference(ins_tag.dtype)
    helper.append_op(
        "filter_by_instag",
        {"Ins": ins, "Ins_tag": ins_tag, "Filter_tag": filter_tag},
        {"Out": out, "LossWeight": weight, "IndexMap": index_map},
        {"is_lod": is_lod, "out_val_if_empty": out_val_if_empty},
    )
    return [out, weight]
