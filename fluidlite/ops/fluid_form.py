"""What the executor of Fluid asks for in a program, and an op of ours leaves out; written to files.

Fluid makes a gradient op with every attribute of its forward op, whose defaults are filled in by then, and reads
gradient ops as they are: they have no declaration that would know a default. Here an op carries what differs from its
defaults. So files get the rest: what the record declares, and the switches of libraries, which mean nothing here.

Of other ops Fluid knows the defaults, but wants inputs that are not optional to be named, if only to say that there are
no arguments.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from fluidlite.core.ir import Attr, AttrType, Operator
from fluidlite.ops import registry
from fluidlite.ops.registry import OpDef

_GRADIENT: Final = re.compile(r"_grad2?$")
#: switch of Fluid that no record here declares -> its default where that is True, and where it is False
_SWITCHES: Final[dict[str, dict[bool, str]]] = {
    "use_mkldnn": {
        False: """
            abs addmm batch_norm ceil concat conv2d conv2d_transpose conv3d conv3d_transpose cos data_norm
            depthwise_conv2d depthwise_conv2d_transpose elementwise_add elementwise_div elementwise_max elementwise_min
            elementwise_mul elementwise_pow elementwise_sub exp floor gelu leaky_relu log log1p logsigmoid lrn matmul mul
            pool2d pool3d reciprocal relu round rsqrt sigmoid sin softmax softplus softsign sqrt square swish tanh
            tanh_shrink transpose transpose2
        """,
    },
    "use_cudnn": {
        False: """
            abs ceil conv2d conv2d_transpose conv3d conv3d_transpose cos depthwise_conv2d depthwise_conv2d_transpose exp
            floor gelu log log1p logsigmoid pool2d pool3d reciprocal relu round rsqrt sequence_softmax sigmoid sin softmax
            softplus softsign sqrt square tanh tanh_shrink
        """,
        True: "affine_grid grid_sampler",
    },
    "use_quantizer": {False: "concat conv2d depthwise_conv2d matmul pool2d reshape2 transpose transpose2"},
    "@ALL_KERNELS_MUST_COMPUTE_RUNTIME_SHAPE@": {True: "cos_sim fused_embedding_seq_pool"},
}
#: op that runs a block -> inputs that Fluid wants to be named
_NAMED_INPUTS: Final[dict[str, tuple[str, ...]]] = {
    "conditional_block": ("Input",),
    "conditional_block_infer": ("Input",),
    "recurrent": ("initial_states", "parameters"),
}
#: gradient op -> its switches
_OF_TYPE: Final[dict[str, dict[str, Attr]]] = {}
for _name, _defaults in _SWITCHES.items():
    for _default, _types in _defaults.items():
        for _type in _types.split():
            _OF_TYPE.setdefault(f"{_type}_grad", {})[_name] = Attr(AttrType.BOOLEAN, _default)


def complete(op: Operator) -> Operator:
    """The op with all that Fluid asks for; ``op`` stays as it is."""
    op_def = registry.find(op.type)
    if op_def is not None and _GRADIENT.search(op.type):
        return replace(op, attrs=_defaults_of(op_def) | op.attrs)
    if op.type in _NAMED_INPUTS:
        return replace(op, inputs={name: [] for name in _NAMED_INPUTS[op.type] if name not in op.inputs} | op.inputs)
    return op


def _defaults_of(op_def: OpDef) -> dict[str, Attr]:
    """The attributes of Fluid's gradient op that need not be given."""
    return op_def.default_attrs() | _OF_TYPE.get(op_def.type, {})
