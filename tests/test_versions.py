"""Models of other versions: what Fluid 1.0 leaves out, and attributes of the types that Paddle 2.5 brought."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.core import serde
from fluidlite.core.ir import AttrType
from fluidlite.core.verify import verify
from fluidlite.errors import ProgramError
from fluidlite.ops import registry
from fluidlite.ops.versions import as_this_version
from fluidlite.proto_gen import framework_pb2 as pb
from fluidlite.values import files
from tests.frontend import fresh_programs


@pytest.fixture(autouse=True)
def _own_state() -> Iterator[None]:
    with fresh_programs(), fluid.scope_guard(fluid.Scope()):
        yield


def tensor(name: str, *dims: int, dtype: Any = pb.VarType.FP32, persistable: bool | None = None) -> pb.VarDesc:
    kind = pb.VarType(type=pb.VarType.LOD_TENSOR)
    kind.lod_tensor.tensor.data_type = dtype
    kind.lod_tensor.tensor.dims.extend(dims)
    return pb.VarDesc(name=name, type=kind, persistable=persistable)


def op(type: str, inputs: dict[str, str], outputs: dict[str, str], *attrs: pb.OpDesc.Attr) -> pb.OpDesc:
    both = (
        [pb.OpDesc.Var(parameter=key, arguments=[name]) for key, name in side.items()] for side in (inputs, outputs)
    )
    given, made = both
    return pb.OpDesc(type=type, inputs=given, outputs=made, attrs=attrs)


def whole(number: int) -> pb.OpDesc.Attr:
    return pb.OpDesc.Attr(name="col", type=pb.INT, i=number)


def program(variables: list[pb.VarDesc], ops: list[pb.OpDesc]) -> pb.ProgramDesc:
    """With feed and fetch ops for x and out."""
    lists = [
        pb.VarDesc(name="feed", type=pb.VarType(type=pb.VarType.FEED_MINIBATCH), persistable=True),
        pb.VarDesc(name="fetch", type=pb.VarType(type=pb.VarType.FETCH_LIST), persistable=True),
    ]
    around = [op("feed", {"X": "feed"}, {"Out": "x"}, whole(0)), op("fetch", {"X": "out"}, {"Out": "fetch"}, whole(0))]
    block = pb.BlockDesc(idx=0, parent_idx=-1, vars=[*lists, *variables], ops=[around[0], *ops, around[1]])
    return pb.ProgramDesc(blocks=[block])


def run(folder: Path, desc: pb.ProgramDesc, x: Any) -> Any:
    (folder / "__model__").write_bytes(desc.SerializeToString())
    exe = fluid.Executor(fluid.CPUPlace())
    loaded, feeds, fetches = fluid.io.load_inference_model(folder, exe)
    return exe.run(loaded, {feeds[0]: x}, fetches)[0]


@pytest.mark.parametrize("age", ["without version", "1.0 to 1.5", "1.6", "2.6.2", "3.3.1"])
def test_a_model_with_required_fields_only(age: str, tmp_path: Path) -> None:
    """No attributes, no marks on data, not even ``persistable`` where it is False: what 1.0 needs, every later one reads."""
    desc = program(
        [tensor("x", -1, 2), tensor("w", 2, 2, persistable=True), tensor("b", 2, persistable=True), tensor("xw"), tensor("out")],
        [op("mul", {"X": "x", "Y": "w"}, {"Out": "xw"}), op("elementwise_add", {"X": "xw", "Y": "b"}, {"Out": "out"})],
    )  # fmt: skip
    if age == "1.0 to 1.5":
        desc.version_before_1_6.version = 0
    elif age != "without version":
        major, minor, patch = (int(part) for part in f"{age}.0".split(".")[:3])
        desc.version.version = major * 1000000 + minor * 1000 + patch
    files.save(tmp_path / "w", {"w": np.array([[1, 2], [3, 4]], np.float32)})
    files.save(tmp_path / "b", {"b": np.array([10, 20], np.float32)})
    np.testing.assert_array_equal(run(tmp_path, desc, np.ones((1, 2), np.float32)), [[14, 26]])


def scalar(kind: Any, **value: Any) -> pb.Scalar:
    return pb.Scalar(type=kind, **value)


LONG, FLOAT64, BOOLEAN = pb.Scalar.LONG, pb.Scalar.FLOAT64, pb.Scalar.BOOLEAN


@pytest.mark.parametrize(
    "factor",
    [
        pb.OpDesc.Attr(name="scale", type=pb.FLOAT64, float64=3),
        pb.OpDesc.Attr(name="scale", type=pb.SCALAR, scalar=scalar(FLOAT64, r=3)),
        pb.OpDesc.Attr(name="scale", type=pb.SCALAR, scalar=scalar(LONG, i=3)),
    ],
    ids=["float64", "scalar", "whole scalar"],
)
def test_a_number_with_a_type_of_its_own_becomes_what_the_op_takes(factor: pb.OpDesc.Attr, tmp_path: Path) -> None:
    desc = program([tensor("x", -1), tensor("out", -1)], [op("scale", {"X": "x"}, {"Out": "out"}, factor)])
    assert run(tmp_path, desc, np.array([2], np.float32)).tolist() == [6]
    read = as_this_version(serde.from_bytes(desc.SerializeToString()))
    assert read.root.ops[1].attrs["scale"] == (AttrType.FLOAT, 3.0)


@pytest.mark.parametrize(
    ("dtype", "values", "expected"),
    [
        (pb.VarType.FP32, [scalar(FLOAT64, r=value) for value in (1.5, -2)], [1.5, -2]),
        (pb.VarType.INT32, [scalar(LONG, i=value) for value in (1, -2)], [1, -2]),
        (pb.VarType.INT64, [scalar(LONG, i=value) for value in (2**40, -2)], [2**40, -2]),
        (pb.VarType.BOOL, [scalar(BOOLEAN, b=value) for value in (True, False)], [True, False]),
    ],
    ids=["float32", "int32", "int64", "bool"],
)
def test_the_values_of_assign_value_in_one_attribute(dtype: Any, values: Any, expected: Any, tmp_path: Path) -> None:
    attrs = [
        pb.OpDesc.Attr(name="dtype", type=pb.INT, i=dtype),
        pb.OpDesc.Attr(name="shape", type=pb.INTS, ints=[2]),
        pb.OpDesc.Attr(name="values", type=pb.SCALARS, scalars=values),
    ]
    desc = program([tensor("x", -1), tensor("out", 2, dtype=dtype)], [op("assign_value", {}, {"Out": "out"}, *attrs)])
    result = run(tmp_path, desc, np.zeros(1, np.float32))
    assert result.tolist() == expected
    assert result.dtype == {5: np.float32, 2: np.int32, 3: np.int64, 0: np.bool_}[dtype]


def test_a_number_that_does_not_fit_is_named() -> None:
    half = pb.OpDesc.Attr(name="axis", type=pb.SCALAR, scalar=scalar(FLOAT64, r=0.5))
    variables = [tensor("x", -1), tensor("out", -1)]
    desc = program(variables, [op("elementwise_add", {"X": "x", "Y": "x"}, {"Out": "out"}, half)])
    read = as_this_version(serde.from_bytes(desc.SerializeToString()))
    with pytest.raises(ProgramError, match="attribute 'axis' must be INT, not FLOAT"):
        verify(read, registry.find)
