"""`fluidlite trace`: the server of an id, the first value of its row, and the ops on its way."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fluidlite as fluid
from fluidlite import tracing
from fluidlite.core.ir import Program
from fluidlite.errors import OutOfRangeError, ProgramError
from fluidlite.transpiler import trace
from fluidlite.transpiler.plan import Cluster, Options, Plan
from fluidlite.transpiler.planner import make_plan
from tests.frontend import fresh_programs
from tests.transpiler_jobs import JOBS, Job


def types(program: Program, plan: Plan, name: str, server: int) -> list[list[str]]:
    """(where, op type) of the hops of a pull and of a push, as words."""
    source = trace.source_of(plan, name)
    return [
        [f"{'ps' if hop.where != trace.TRAINER else 'tr'} {hop.op.type}" for hop in way(program, plan, source, server)]
        for way in (trace.pull, trace.push)
    ]


def test_the_way_of_a_row_of_a_table() -> None:
    job = JOBS["table"]
    pull, push = types(job.main, job.plan, "emb", 1)
    fetch = ["tr split_ids", "tr prefetch", "ps lookup_sparse_table", "tr concat"]
    assert pull == [*fetch, "tr lookup_table", *fetch, "tr lookup_table_v2"]
    assert push == [
        *("tr lookup_table_v2_grad", "tr lookup_table_grad", "tr sum", "tr merge_selected_rows", "tr split_ids"),
        *("tr send", "tr send_barrier", "ps sum", "ps scale", "ps sgd"),
    ]


def test_clips_are_on_the_way_and_other_parameters_are_not() -> None:
    job = JOBS["global_norm"]
    source = trace.source_of(job.plan, "emb")
    hops = list(trace.push(job.main, job.plan, source, 0))
    assert {"square", "reduce_sum", "sqrt", "elementwise_mul"} <= {hop.op.type for hop in hops}
    assert not any(name.startswith("w") for hop in hops for name in hop.op.output_arguments())
    assert [hop.where for hop in hops][-3:] == ["ps0:1"] * 3


def test_a_hop_names_the_module() -> None:
    job = Job("table", servers=1, trainers=1)
    source = trace.source_of(job.plan, "emb")
    first = next(trace.pull(job.main, job.plan, source, 0))
    assert str(first) == "trainer: split_ids(Ids=[user]) -> (Out=[emb.ids0.shard0])  # fluidlite.ops.split_ids"


def test_a_row_fetched_parameter_is_found_by_section() -> None:
    job = JOBS["rows"]
    source = next(source for source in job.plan.row_sources if len(source.sections) == 2)
    ids = range(source.height)
    expected = [0] * source.sections[0] + [1] * source.sections[1]
    assert [tracing.server_of(source, id) for id in ids] == expected
    with pytest.raises(OutOfRangeError, match=f"has {source.height} rows; it has none of id -1"):
        tracing.server_of(source, -1)
    pull, push = types(job.main, job.plan, source.name, 1)
    assert pull[:4] == ["tr split_ids", "tr prefetch", "ps lookup_table_v2", "tr concat"]
    assert "ps sum" in push


def test_a_parameter_whose_rows_do_not_travel() -> None:
    with pytest.raises(ProgramError, match="no rows of 'w' travel in this job; rows travel of emb"):
        trace.source_of(JOBS["global_norm"].plan, "w")


@settings(max_examples=30, deadline=None)
@given(st.integers(-(2**63), 2**63 - 1), st.integers(1, 4))
def test_the_row_is_where_training_finds_it(id: int, servers: int) -> None:
    with fresh_programs():
        ids = fluid.data("ids", [None, 1], "int64")
        rows = fluid.layers.embedding(ids, [9, 3], is_sparse=True, is_distributed=True, param_attr="emb")
        fluid.optimizer.SGD(0.1).minimize(fluid.layers.mean(rows))
        main, startup = fluid.default_main_program(), fluid.default_startup_program()
        endpoints = tuple(f"pserver{index}:0" for index in range(servers))
        plan = make_plan(main.desc, startup.desc, Cluster(endpoints, 1), Options())
        server = tracing.server_of(trace.source_of(plan, "emb"), id)
        with fluid.LocalCluster(main, startup, servers) as cluster:
            (found,) = cluster.trainers[0].run({"ids": np.array([[id]])}, [rows])
            assert [len(scope.get("emb").export().rows) for scope in cluster.scopes.values()] == [
                int(index == server) for index in range(servers)
            ]
        np.testing.assert_array_equal(tracing.first_row(startup.desc, plan.at(endpoints[server]), "emb", id), found[0])
