"""Jobs whose rows travel at half their width: what the transpiler writes, what is refused, and how far losses move."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.cluster import LocalCluster
from fluidlite.errors import RequestRefusedError, TranspileError
from tests.frontend import fresh_programs

HEIGHT = 50


def build(start: float = 0.1) -> Any:
    ids, label = fluid.data("ids", [None, 1], "int64"), fluid.data("label", [None, 1], "float32")
    attr = fluid.ParamAttr(name="emb", initializer=fluid.initializer.Uniform(-start, start))
    rows = fluid.layers.embedding(ids, [HEIGHT, 8], is_sparse=True, is_distributed=True, param_attr=attr)
    loss = fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(rows, 1, param_attr="w"), label))
    fluid.optimizer.Adagrad(0.1).minimize(loss)
    return loss


def feeds(steps: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(3)
    return [
        {"ids": rng.integers(0, HEIGHT, (16, 1)), "label": rng.normal(size=(16, 1)).astype(np.float32)}
        for _ in range(steps)
    ]


def losses(steps: int = 8, start: float = 0.1, **options: Any) -> list[float]:
    config = fluid.DistributeTranspilerConfig(**options)
    with fresh_programs() as (main, startup):
        loss = build(start)
        with LocalCluster(main, startup, pservers=2, config=config) as cluster:
            return [float(cluster.run([feed], [loss])[0][0].reshape(())) for feed in feeds(steps)]


@pytest.mark.parametrize(
    "options",
    [
        {"rows_wire_dtype": "float16"},
        {"rows_wire_dtype": "bfloat16"},
        {"gradients_wire_dtype": "bfloat16"},
        {"rows_wire_dtype": "float16", "gradients_wire_dtype": "bfloat16"},
    ],
)
def test_losses_move_by_no_more_than_the_rounding(options: dict[str, str]) -> None:
    plain, rounded = losses(), losses(**options)
    assert plain != rounded
    np.testing.assert_allclose(rounded, plain, rtol=2**-6)


def test_what_the_transpiler_writes() -> None:
    with fresh_programs() as (main, _):
        build()
        config = fluid.DistributeTranspilerConfig(rows_wire_dtype="float16", gradients_wire_dtype="bfloat16")
        fluid.DistributeTranspiler(config).transpile(0, main, "a:1,b:1", 1)
        ops = main.desc.root.ops
    (prefetch,) = (op for op in ops if op.type == "prefetch")
    assert prefetch.attr("wire_dtype") == "float16"
    assert {op.attr("wire_dtype") for op in ops if op.type == "send"} == {"bfloat16"}


def test_without_the_options_programs_do_not_mention_them() -> None:
    with fresh_programs() as (main, _):
        build()
        fluid.DistributeTranspiler().transpile(0, main, "a:1", 1)
        assert not any("wire_dtype" in op.attrs for op in main.desc.root.ops)


@pytest.mark.parametrize("name", ["rows_wire_dtype", "gradients_wire_dtype"])
def test_other_dtypes_are_refused_with_all_reasons(name: str) -> None:
    config = fluid.DistributeTranspilerConfig(**{name: "int8", "min_block_size": 0})
    with fresh_programs() as (main, _):
        build()
        with pytest.raises(TranspileError, match=f"{name} must be 'float16', 'bfloat16'") as caught:
            fluid.DistributeTranspiler(config).transpile(0, main, "a:1", 1)
    assert "min_block_size" in str(caught.value)


def test_a_row_too_large_for_float16_stops_the_trainer_with_its_place() -> None:
    with pytest.raises(RequestRefusedError, match=r"rows of 'emb': .* at \[\d+, \d+\] is too large for float16"):
        losses(1, start=1e6, rows_wire_dtype="float16")
