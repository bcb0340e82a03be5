"""Hypothesis strategies for `core.ir` programs: any content that the written forms must keep, sensible or not."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from fluidlite.core.ir import Attr, AttrType, Block, Operator, Parameter, Program, Variable
from fluidlite.dtypes import DTYPE_NUMBERS, VarKind

#: whole programs are large examples, and the machine may be busy
relaxed = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])

_plain_names = st.sampled_from(["x", "y", "fc_0.w_0", "emb@GRAD.shard0", "a/b", "learning_rate_0", "@EMPTY@"])
texts = st.one_of(st.text(max_size=8), st.sampled_from(['"', "\\", "#", "\n", "a b", "true", "-1L", "\u2028", "表"]))
names = st.one_of(_plain_names, texts.filter(bool))
int32s = st.integers(-(2**31), 2**31 - 1)
int64s = st.integers(-(2**63), 2**63 - 1)
float32s = st.floats(width=32, allow_nan=False).map(lambda value: float(np.float32(value)))

_scalars = {
    AttrType.INT: int32s,
    AttrType.LONG: int64s,
    AttrType.FLOAT: float32s,
    AttrType.STRING: texts,
    AttrType.BOOLEAN: st.booleans(),
    AttrType.BLOCK: st.integers(0, 2**31 - 1),
}
_lists = {
    AttrType.INTS: AttrType.INT,
    AttrType.LONGS: AttrType.LONG,
    AttrType.FLOATS: AttrType.FLOAT,
    AttrType.STRINGS: AttrType.STRING,
    AttrType.BOOLEANS: AttrType.BOOLEAN,
    AttrType.BLOCKS: AttrType.BLOCK,
}
attrs = st.one_of(
    *(st.builds(Attr, st.just(type), values) for type, values in _scalars.items()),
    *(st.builds(Attr, st.just(type), st.lists(_scalars[item], max_size=3).map(tuple)) for type, item in _lists.items()),
)
_roles = st.sampled_from([0, 1, 2, 0x11, 0x100, 0x101, 0x1000]).map(lambda role: {"op_role": Attr(AttrType.INT, role)})
_arguments = st.dictionaries(names, st.lists(names, max_size=3), max_size=3)
shapes = st.one_of(st.none(), st.lists(st.integers(-1, 10**10), max_size=3).map(tuple))


def operators(unknown: st.SearchStrategy[bytes]) -> st.SearchStrategy[Operator]:
    """Ops with any types, arguments and attributes."""
    attributes = st.builds(
        lambda role, rest: {**role, **rest},
        st.one_of(st.just({}), _roles),
        st.dictionaries(st.one_of(names, st.just("op_role")), attrs, max_size=4),
    )
    return st.builds(
        Operator,
        type=names,
        inputs=_arguments,
        outputs=_arguments,
        attrs=attributes,
        origin=st.sampled_from(["", "model.py:12", "two\nlines"]),
        is_target=st.booleans(),
        unknown=unknown,
    )


def variables(unknown: st.SearchStrategy[bytes]) -> st.SearchStrategy[Variable]:
    """Declarations of variables and parameters with any fields."""
    common = {
        "name": names,
        "kind": st.sampled_from(VarKind),
        "dtype": st.sampled_from(sorted(DTYPE_NUMBERS)),
        "shape": shapes,
        "lod_level": st.integers(0, 3),
        "persistable": st.booleans(),
        "stop_gradient": st.booleans(),
        "is_data": st.booleans(),
        "need_check_feed": st.booleans(),
        "unknown": unknown,
    }
    parameter = {
        "trainable": st.booleans(),
        "learning_rate": st.floats(allow_nan=False),
        "is_distributed": st.booleans(),
        "do_model_average": st.booleans(),
    }
    return st.one_of(st.builds(Variable, **common), st.builds(Parameter, **common, **parameter))


@st.composite
def programs(draw: st.DrawFn, unknown: st.SearchStrategy[bytes] | None = None) -> Program:
    """Programs of one to three blocks."""
    extra = unknown if unknown is not None else st.just(b"")
    blocks = []
    for idx in range(draw(st.integers(1, 3))):
        declared = draw(st.lists(variables(extra), max_size=4))
        blocks.append(
            Block(
                idx=idx,
                parent=draw(st.integers(0, idx - 1)) if idx else -1,
                forward=draw(st.integers(-1, idx)),
                vars={var.name: var for var in declared},
                ops=draw(st.lists(operators(extra), max_size=4)),
                unknown=draw(extra),
            )
        )
    return Program(
        blocks=blocks,
        version=draw(st.sampled_from([0, 1008005, 2006002])),
        random_seed=draw(st.sampled_from([0, 0, 5, 2**40])),
        unknown=draw(extra),
    )
