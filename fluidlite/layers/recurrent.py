"""Recurrent layers over sequences whose input projection is already done, and conditional random fields."""

from __future__ import annotations

from typing import Final

from fluidlite.dtypes import VarKind
from fluidlite.errors import ProgramError, ShapeError
from fluidlite.framework import Variable, user_line
from fluidlite.initializer import Initializer
from fluidlite.layer_helper import FLOATS, LayerHelper, Variables, require_dtype, require_variable
from fluidlite.layers.nn import fc
from fluidlite.layers.tensor import concat
from fluidlite.param_attr import AttrLike

_ACTIVATION_NUMBERS: Final = {"identity": 0, "sigmoid": 1, "tanh": 2, "relu": 3}


def dynamic_lstm(
    input: Variable,
    size: int,
    h_0: Variable | None = None,
    c_0: Variable | None = None,
    param_attr: AttrLike = None,
    bias_attr: AttrLike = None,
    use_peepholes: bool = True,
    is_reverse: bool = False,
    gate_activation: str = "sigmoid",
    cell_activation: str = "tanh",
    candidate_activation: str = "tanh",
    dtype: object = "float32",
    name: str | None = None,
) -> tuple[Variable, Variable]:
    """(hidden states, cell states), both [T, size / 4], of an LSTM over the sequences of ``input`` [T, size].

    ``input`` holds the projections of the four gates (from an `fc` of ``size`` without activation). ``h_0`` and ``c_0``
    [N, size / 4] are the states before the first step. Hochreiter and Schmidhuber, 1997.
    """
    require_dtype("dynamic_lstm", require_variable("dynamic_lstm", "input", input), FLOATS)
    if size % 4:
        raise ShapeError(f"dynamic_lstm: size {size} is not a multiple of 4 ({user_line()})")
    if bias_attr is False:
        raise ProgramError(f"dynamic_lstm needs its bias; bias_attr=False is not possible ({user_line()})")
    helper = LayerHelper("lstm", name)
    width = size // 4
    weight = helper.create_parameter(param_attr, [width, 4 * width], dtype)
    bias = helper.create_parameter(bias_attr, [1, (7 if use_peepholes else 4) * width], dtype, is_bias=True)
    inputs: dict[str, Variables | None] = {"Input": input, "Weight": weight, "Bias": bias, "H0": h_0, "C0": c_0}
    hidden, cell, gates, pre_activation = helper.temporaries(4, dtype)
    attrs = {
        "use_peepholes": use_peepholes,
        "is_reverse": is_reverse,
        "gate_activation": gate_activation,
        "cell_activation": cell_activation,
        "candidate_activation": candidate_activation,
    }
    outputs = {"Hidden": hidden, "Cell": cell, "BatchGate": gates, "BatchCellPreAct": pre_activation}
    helper.append_op("lstm", inputs, outputs, attrs)
    return hidden, cell


def dynamic_lstmp(
    input: Variable,
    size: int,
    proj_size: int,
    param_attr: AttrLike = None,
    bias_attr: AttrLike = None,
    use_peepholes: bool = True,
    is_reverse: bool = False,
    gate_activation: str = "sigmoid",
    cell_activation: str = "tanh",
    candidate_activation: str = "tanh",
    proj_activation: str = "tanh",
    dtype: object = "float32",
    name: str | None = None,
    h_0: Variable | None = None,
    c_0: Variable | None = None,
    cell_clip: float | None = None,
    proj_clip: float | None = None,
) -> tuple[Variable, Variable]:
    """(projections [T, proj_size], cell states [T, size / 4]) of an LSTM whose steps start from a projection of the state.

    As `dynamic_lstm` otherwise; ``h_0`` is [N, proj_size]. Sak, Senior and Beaufays, 2014.
    """
    require_dtype("dynamic_lstmp", require_variable("dynamic_lstmp", "input", input), FLOATS)
    if size % 4:
        raise ShapeError(f"dynamic_lstmp: size {size} is not a multiple of 4 ({user_line()})")
    if bias_attr is False:
        raise ProgramError(f"dynamic_lstmp needs its bias; bias_attr=False is not possible ({user_line()})")
    helper = LayerHelper("lstmp", name)
    width = size // 4
    inputs: dict[str, Variables | None] = {
        "Input": input,
        "Weight": helper.create_parameter(param_attr, [proj_size, 4 * width], dtype),
        "ProjWeight": helper.create_parameter(param_attr, [width, proj_size], dtype),
        "Bias": helper.create_parameter(bias_attr, [1, (7 if use_peepholes else 4) * width], dtype, is_bias=True),
        "H0": h_0,
        "C0": c_0,
    }
    projection, cell, _, hidden, gates, pre_activation = helper.temporaries(6, dtype)
    attrs = {
        "use_peepholes": use_peepholes,
        "cell_clip": cell_clip,
        "proj_clip": proj_clip,
        "is_reverse": is_reverse,
        "gate_activation": gate_activation,
        "cell_activation": cell_activation,
        "candidate_activation": candidate_activation,
        "proj_activation": proj_activation,
    }
    outputs = {
        "Projection": projection,
        "Cell": cell,
        "BatchHidden": hidden,
        "BatchGate": gates,
        "BatchCellPreAct": pre_activation,
    }
    helper.append_op("lstmp", inputs, outputs, attrs)
    return projection, cell


def lstm(
    input: Variable,
    init_h: Variable,
    init_c: Variable,
    max_len: int,
    hidden_size: int,
    num_layers: int,
    dropout_prob: float = 0.0,
    is_bidirec: bool = False,
    is_test: bool = False,
    name: str | None = None,
    default_initializer: Initializer | None = None,
    seed: int = -1,
) -> tuple[Variable, Variable, Variable]:
    """(outputs [steps, batch, directions * hidden_size], last hidden states, last cells) of layers of LSTM over ``input``
    [steps, batch, features]; states are [num_layers * directions, batch, hidden_size].

    All weights are one parameter, laid out as cuDNN does. ``dropout_prob``: between layers, while training.
    """
    require_dtype("lstm", require_variable("lstm", "input", input), FLOATS)
    helper = LayerHelper("cudnn_lstm", name)
    directions = 2 if is_bidirec else 1
    features = input.shape[-1]
    columns = [features + hidden_size + 2] + [hidden_size * (directions + 1) + 2] * (num_layers - 1)
    numbers = sum(4 * hidden_size * each * directions for each in columns)
    weight = helper.create_parameter(None, [numbers], input.dtype, default_initializer=default_initializer)
    out, last_h, last_c = helper.temporaries(3, input.dtype)
    cache = helper.create_variable(persistable=True, type=VarKind.RAW, stop_gradient=True)
    attrs = {
        "max_len": max_len,
        "is_bidirec": is_bidirec,
        "input_size": features,
        "hidden_size": hidden_size,
        "num_layers": num_layers,
        "is_test": is_test,
        "dropout_prob": dropout_prob,
        "seed": seed,
    }
    inputs = {"Input": input, "InitH": init_h, "InitC": init_c, "W": weight, "Cache": cache}
    helper.append_op("cudnn_lstm", inputs, {"Out": out, "last_h": last_h, "last_c": last_c}, attrs)
    return out, last_h, last_c


def dynamic_gru(
    input: Variable,
    size: int,
    param_attr: AttrLike = None,
    bias_attr: AttrLike = None,
    is_reverse: bool = False,
    gate_activation: str = "sigmoid",
    candidate_activation: str = "tanh",
    h_0: Variable | None = None,
    origin_mode: bool = False,
) -> Variable:
    """Hidden states [T, size] of a GRU over the sequences of ``input`` [T, 3 * size], the projections of its gates.

    ``origin_mode`` mixes old and new state the way of Cho et al., 2014, else that of Chung et al., 2014.
    """
    require_dtype("dynamic_gru", require_variable("dynamic_gru", "input", input), FLOATS)
    helper = LayerHelper("gru")
    weight = helper.create_parameter(param_attr, [size, 3 * size], input.dtype)
    inputs: dict[str, Variables | None] = {"Input": input, "Weight": weight, "H0": h_0}
    if bias_attr is not False:
        inputs["Bias"] = helper.create_parameter(bias_attr, [1, 3 * size], input.dtype, is_bias=True)
    hidden, gates, reset, batch_hidden = helper.temporaries(4, input.dtype)
    attrs = {
        "is_reverse": is_reverse,
        "gate_activation": gate_activation,
        "activation": candidate_activation,
        "origin_mode": origin_mode,
    }
    outputs = {"Hidden": hidden, "BatchGate": gates, "BatchResetHiddenPrev": reset, "BatchHidden": batch_hidden}
    helper.append_op("gru", inputs, outputs, attrs)
    return hidden


def gru_unit(
    input: Variable,
    hidden: Variable,
    size: int,
    param_attr: AttrLike = None,
    bias_attr: AttrLike = None,
    activation: str = "tanh",
    gate_activation: str = "sigmoid",
    origin_mode: bool = False,
) -> tuple[Variable, Variable, Variable]:
    """(new hidden state, reset hidden state, gates) of one GRU step; ``size`` is three times the state's width."""
    require_dtype("gru_unit", require_variable("gru_unit", "input", input), FLOATS)
    if size % 3:
        raise ShapeError(f"gru_unit: size {size} is not a multiple of 3 ({user_line()})")
    helper = LayerHelper("gru_unit")
    width = size // 3
    weight = helper.create_parameter(param_attr, [width, 3 * width], input.dtype)
    inputs: dict[str, Variables | None] = {"Input": input, "HiddenPrev": hidden, "Weight": weight}
    gate, reset, updated = helper.temporaries(3, input.dtype)
    if bias_attr is not False:
        inputs["Bias"] = helper.create_parameter(bias_attr, [1, 3 * width], input.dtype, is_bias=True)
    attrs = {
        "activation": _activation_number(activation),
        "gate_activation": _activation_number(gate_activation),
        "origin_mode": origin_mode,
    }
    helper.append_op("gru_unit", inputs, {"Gate": gate, "ResetHiddenPrev": reset, "Hidden": updated}, attrs)
    return updated, reset, gate


def _activation_number(activation: str) -> int:
    if activation not in _ACTIVATION_NUMBERS:
        raise ProgramError(f"gru_unit: {activation!r} is none of {', '.join(_ACTIVATION_NUMBERS)} ({user_line()})")
    return _ACTIVATION_NUMBERS[activation]


def lstm_unit(
    x_t: Variable,
    hidden_t_prev: Variable,
    cell_t_prev: Variable,
    forget_bias: float = 0.0,
    param_attr: AttrLike = None,
    bias_attr: AttrLike = None,
    name: str | None = None,
) -> tuple[Variable, Variable]:
    """(hidden state, cell state) of one LSTM step on ``x_t`` [N, D] from states [N, width]."""
    helper = LayerHelper("lstm_unit", name)
    width = require_variable("lstm_unit", "cell_t_prev", cell_t_prev).shape[1]
    joined = concat([x_t, hidden_t_prev], axis=1)
    gates = fc(joined, 4 * width, param_attr=param_attr, bias_attr=bias_attr)
    cell, hidden = helper.temporaries(2, x_t.dtype)
    inputs = {"X": gates, "C_prev": cell_t_prev}
    helper.append_op("lstm_unit", inputs, {"C": cell, "H": hidden}, {"forget_bias": forget_bias})
    return hidden, cell


def linear_chain_crf(
    input: Variable, label: Variable, param_attr: AttrLike = None, length: Variable | None = None
) -> Variable:
    """Negative log likelihood of tag sequences ``label`` under emissions ``input`` [T, tags] and trained transitions.

    The transition parameter is [tags + 2, tags]: start weights, end weights, then from tag to tag. Lafferty et al., 2001.
    """
    require_dtype("linear_chain_crf", require_variable("linear_chain_crf", "input", input), FLOATS)
    helper = LayerHelper("linear_chain_crf")
    tags = input.shape[2] if length is not None else input.shape[1]
    transition = helper.create_parameter(param_attr, [tags + 2, tags], input.dtype)
    alpha, emission, transitions, likelihood = helper.temporaries(4, input.dtype)
    inputs = {"Emission": input, "Transition": transition, "Label": label, "Length": length}
    outputs = {
        "Alpha": alpha,
        "EmissionExps": emission,
        "TransitionExps": transitions,
        "LogLikelihood": likelihood,
    }
    helper.append_op("linear_chain_crf", inputs, outputs)
    return likelihood


def crf_decoding(
    input: Variable, param_attr: AttrLike, label: Variable | None = None, length: Variable | None = None
) -> Variable:
    """The best tag sequence under a trained `linear_chain_crf` (named by ``param_attr``); [T, 1] int64.

    With ``label`` the result is 1 where the tag is right and 0 elsewhere.
    """
    require_dtype("crf_decoding", require_variable("crf_decoding", "input", input), FLOATS)
    helper = LayerHelper("crf_decoding", param_attr=param_attr)
    attr = helper.param_attr
    if attr is None or attr.name is None:
        raise ProgramError(f"crf_decoding: param_attr must name the transitions of a linear_chain_crf ({user_line()})")
    block = helper.main_program.global_block()
    if not block.has_var(attr.name):
        raise ProgramError(
            f"crf_decoding: the program has no parameter {attr.name!r}; name the one of linear_chain_crf ({user_line()})"
        )
    transition = block.var(attr.name)
    inputs = {"Emission": input, "Transition": transition, "Label": label, "Length": length}
    return helper.one("crf_decoding", inputs, dtype="int64", out="ViterbiPath")
