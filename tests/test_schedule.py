"""Pulls of one dependency level form one group; everything keeps the order that its variables demand."""

from __future__ import annotations

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.core import text
from fluidlite.runtime import schedule
from tests.frontend import fresh_programs

TWO_LEVELS = """
block 0
  var ids: int64[-1, 1] data
  var a0: int64[-1, 1]
  var b0: int64[-1, 1]
  var c0: int64[-1, 1]
  var a1: selected_rows [100, 2]
  var b1: selected_rows [100, 2]
  var c1: selected_rows [100, 2]
  var a: [-1, 2]
  var next: int64[-1, 2]

  split_ids(Ids=[ids]) -> (Out=[a0])
  prefetch(X=[a0]) -> (Out=[a1]) {epmap=["e"], table_names=["a"], width=2}
  lookup_table(W=[a1], Ids=[ids]) -> (Out=[a])
  cast(X=[a]) -> (Out=[next]) {in_dtype=5, out_dtype=3}
  split_ids(Ids=[next]) -> (Out=[b0])
  prefetch(X=[b0]) -> (Out=[b1]) {epmap=["e"], table_names=["b"], width=2}
  split_ids(Ids=[ids]) -> (Out=[c0])
  prefetch(X=[c0]) -> (Out=[c1]) {epmap=["e"], table_names=["c"], width=2}
"""

STEP_END = """
block 0
  var g: [2]
  var p: [2] persistable
  var q: [2] persistable

  send(X=[g]) -> () {epmap=["e"], send_varnames=["g"]}
  send_barrier() -> () {endpoints=["e"]}
  recv() -> (Out=[p]) {epmap=["e"], varnames=["p"]}
  recv() -> (Out=[q]) {epmap=["e"], varnames=["q"]}
  print(In=[p]) -> (Out=[p]) {first_n=-1, message="", summarize=1, print_tensor_name=true, print_tensor_type=true, print_tensor_shape=true, print_tensor_lod=true}
"""


def grouped(source: str) -> list[list[str]]:
    program = text.parse(source)
    return [
        [f"{op.type}:{next(op.output_arguments(), '')}" for op in group]
        for group in schedule.groups(program.root.ops, program.blocks)
    ]


def test_one_group_per_dependency_level() -> None:
    assert grouped(TWO_LEVELS) == [
        ["split_ids:a0"],
        ["split_ids:c0"],
        ["prefetch:a1", "prefetch:c1"],
        ["lookup_table:a"],
        ["cast:next"],
        ["split_ids:b0"],
        ["prefetch:b1"],
    ]


def test_receives_follow_the_commit_together() -> None:
    assert grouped(STEP_END) == [["send:"], ["send_barrier:"], ["recv:p", "recv:q"], ["print:p"]]


@pytest.mark.parametrize(("fusion", "requests"), [("0", 3), ("1", 2)])
def test_a_step_pulls_once_per_server_and_level(fusion: str, requests: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fused, both lookups of table a are one request."""
    monkeypatch.setenv("FLUIDLITE_FUSION", fusion)
    with fresh_programs():
        ids = fluid.data("ids", [None, 1], "int64")
        rows = [
            fluid.layers.embedding(ids, [50, 3], is_sparse=True, is_distributed=True, param_attr=name)
            for name in ("a", "b", "a")
        ]
        loss = fluid.layers.mean(fluid.layers.fc(fluid.layers.concat(rows, axis=1), 2))
        fluid.optimizer.SGD(0.1).minimize(loss)
        programs = fluid.default_main_program(), fluid.default_startup_program()
    with fluid.LocalCluster(*programs, pservers=2) as cluster:
        pulls: list[int] = []
        for service in cluster.services.values():
            inner = service.pull

            def counted(identity, requests, inner=inner):  # type: ignore[no-untyped-def]
                pulls.append(len(requests))
                return inner(identity, requests)

            service.pull = counted  # type: ignore[method-assign]
        cluster.trainers[0].run({"ids": np.arange(8).reshape(-1, 1)}, loss)
        pulls.clear()
        cluster.trainers[0].run({"ids": np.arange(8).reshape(-1, 1)}, loss)
    assert pulls == [requests, requests]
