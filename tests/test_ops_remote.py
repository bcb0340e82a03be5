"""Ops that talk to servers, against servers that are plain tables in this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluidlite.core import edit
from fluidlite.core.ir import Operator, Program, Variable
from fluidlite.dtypes import VarKind
from fluidlite.errors import ProgramError, ShapeError, TableError, UninitializedError
from fluidlite.ops import registry
from fluidlite.ops.infer import infer_op
from fluidlite.protocol.messages import DenseRequest, Gradient, PullRequest, Reply, RowRequest
from fluidlite.runtime.plan import Env, Plan
from fluidlite.runtime.scope import Scope
from fluidlite.values.initial import Uniform
from fluidlite.values.lod import LoDTensor, lod_from_lengths
from fluidlite.values.selected_rows import SelectedRows
from fluidlite.values.sparse_table import SparseTable
from tests.op_harness import describe

ENDPOINTS = ["s0:1", "s1:1", "s2:1"]
FLOAT64 = 6


class FakeServers:
    """Implements ServerPort: one table ``emb`` of width 2 per endpoint, slices of a matrix, and dense variables."""

    def __init__(self) -> None:
        self.tables = {endpoint: SparseTable("emb", 2, "float64", Uniform()) for endpoint in ENDPOINTS}
        self.dense: dict[tuple[str, str], Any] = {}
        self.pulls: list[list[PullRequest]] = []
        self.staged: list[Gradient] = []
        self.commits: list[list[str]] = []
        self.checkpoints: list[tuple[Sequence[str], str]] = []
        self.drop_a_row = False

    def pull(self, requests: Sequence[PullRequest]) -> list[Any]:
        self.pulls.append(list(requests))
        return [self._answer(request) for request in requests]

    def _answer(self, request: PullRequest) -> Any:
        if isinstance(request, DenseRequest):
            return self.dense[request.endpoint, request.name]
        assert isinstance(request, RowRequest)
        if request.table == "emb":
            rows = self.tables[request.endpoint].lookup(request.ids, read_only=request.read_only)
        else:
            rows = self.dense[request.endpoint, request.table][request.ids]
        return rows[:-1] if self.drop_a_row else rows

    def stage(self, gradient: Gradient) -> None:
        self.staged.append(gradient)

    def commit(self, endpoints: Sequence[str]) -> Reply:
        self.commits.append(list(endpoints))
        return Reply()

    def checkpoint(self, endpoints: Sequence[str], folder: str) -> int:
        self.checkpoints.append((endpoints, folder))
        return 1


class FakePorts:
    """Implements the part of Ports that these ops use."""

    salt = 0

    def __init__(self, servers: FakeServers) -> None:
        self.servers = servers
        self.served: list[tuple[Program, Operator, Any]] = []

    @property
    def host(self) -> FakePorts:
        return self

    def prepare(self, program: Program) -> None:
        pass

    def server(self, op: Operator) -> FakeServers:
        return self.servers

    def serve(self, program: Program, op: Operator, scope: Any) -> None:
        self.served.append((program, op, scope))


class Script:
    """A program written op by op, run against fake servers."""

    def __init__(self, **feeds: Any) -> None:
        self.program = Program()
        self.feeds = feeds
        self.servers = FakeServers()
        self.ports = FakePorts(self.servers)
        for name, value in feeds.items():
            self.declare(name)
            describe(self.program.root.vars[name], value)

    def declare(self, name: str, **fields: Any) -> None:
        edit.add_var(self.program, self.program.root, Variable(name, **fields))

    def op(self, type: str, inputs: dict[str, list[str]], outputs: dict[str, list[str]], **attrs: Any) -> None:
        for name in (name for names in outputs.values() for name in names):
            if name not in self.program.root.vars:
                self.declare(name)
        op = Operator(type, inputs, outputs, registry.attrs_for(registry.get(type), attrs), origin="script")
        registry.check_arguments(registry.get(type), op)
        edit.append_op(self.program, self.program.root, op)
        infer_op(self.program, self.program.root, op)

    def run(self) -> Env:
        return Plan(self.program, self.ports).run(Scope(), dict(self.feeds))  # type: ignore[arg-type]


def ids_of(*ids: int) -> Any:
    return np.array(ids, np.int64).reshape(-1, 1)


def remote_lookup(script: Script, servers: int, ids: str = "ids", out: str = "vec", **attrs: Any) -> None:
    """What the transpiler makes of a lookup of table ``emb``."""
    shards = [f"{out}.ids{k}" for k in range(servers)]
    rows = [f"{out}.rows{k}" for k in range(servers)]
    script.op("split_ids", {"Ids": [ids]}, {"Out": shards}, padding_idx=attrs.get("padding_idx"))
    where = {"epmap": ENDPOINTS[:servers], "table_names": ["emb"] * servers, "width": 2, "dtype": FLOAT64}
    script.op("prefetch", {"X": shards}, {"Out": rows}, is_test=attrs.pop("is_test", None), **where)
    script.op("concat", {"X": rows}, {"Out": [f"{out}.rows"]})
    lookup = {"Ids": [ids], "W": [f"{out}.rows"]}
    script.op("lookup_table", lookup, {"Out": [out]}, is_distributed=True, **attrs)


def prefetch(servers: int = 1, **attrs: Any) -> Script:
    script = Script(**{f"ids{k}": ids_of(4, 9) for k in range(servers)})
    inputs, outputs = [f"ids{k}" for k in range(servers)], [f"rows{k}" for k in range(servers)]
    given = {"epmap": ENDPOINTS[:servers], "table_names": ["emb"] * servers, "width": 2, "dtype": FLOAT64, **attrs}
    script.op("prefetch", {"X": inputs}, {"Out": outputs}, **given)
    return script


# ---- prefetch


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 2), max_size=10), st.integers(1, 3))
def test_a_remote_lookup_equals_a_local_one(ids: list[int], servers: int) -> None:
    script = Script(ids=ids_of(*ids))
    remote_lookup(script, servers)
    expected = SparseTable("emb", 2, "float64", Uniform()).lookup(np.array(ids, np.int64))
    np.testing.assert_array_equal(script.run().read("vec"), expected)
    held = [table.ids for table in script.servers.tables.values()]
    assert sorted(np.concatenate(held).tolist()) == sorted(set(ids))


def test_c47_the_mean_of_a_bag_spread_over_servers_divides_by_the_whole_bag() -> None:
    bag = LoDTensor(ids_of(0, 1, 2, 3, 7), lod_from_lengths([[4, 1]]))
    script = Script(ids=bag)
    remote_lookup(script, 3)
    script.op("sequence_pool", {"X": ["vec"]}, {"Out": ["mean"], "MaxIndex": ["index"]}, pooltype="AVERAGE")
    rows = SparseTable("emb", 2, "float64", Uniform()).lookup(bag.array)
    np.testing.assert_allclose(script.run().read("mean"), [rows[:4].mean(axis=0), rows[4]], rtol=1e-15)


def test_c34_padding_never_reaches_a_server() -> None:
    script = Script(ids=ids_of(3, 5, 3))
    remote_lookup(script, 2, padding_idx=3)
    out = script.run().read("vec")
    np.testing.assert_array_equal(out[[0, 2]], np.zeros((2, 2)))
    assert [table.ids.tolist() for table in script.servers.tables.values()] == [[], [5], []]


def test_a_server_without_ids_is_not_asked() -> None:
    script = Script(ids=ids_of(2, 4))
    remote_lookup(script, 2)
    script.run()
    assert [request.endpoint for request in script.servers.pulls[0]] == ["s0:1"]


def test_lookups_that_do_not_wait_for_each_other_are_asked_together() -> None:
    script = Script(ids=ids_of(2, 4), more=ids_of(6))
    remote_lookup(script, 2, out="a")
    remote_lookup(script, 2, ids="more", out="b")
    script.run()
    assert [len(requests) for requests in script.servers.pulls] == [2]


def test_an_inference_pull_makes_no_row() -> None:
    script = Script(ids=ids_of(2))
    remote_lookup(script, 1, is_test=True)
    np.testing.assert_array_equal(script.run().read("vec"), [[0, 0]])
    assert len(script.servers.tables["s0:1"]) == 0


def test_rows_of_a_sliced_parameter_are_asked_for_from_the_start_of_their_slice() -> None:
    script = Script(a=ids_of(0, 3), b=ids_of(4, 6))
    whole = np.arange(14.0).reshape(7, 2)
    script.servers.dense = {("s0:1", "w.block0"): whole[:4], ("s1:1", "w.block1"): whole[4:]}
    script.op(
        "prefetch",
        {"X": ["a", "b"]},
        {"Out": ["x", "y"]},
        epmap=ENDPOINTS[:2],
        table_names=["w.block0", "w.block1"],
        height_sections=[4, 3],
        width=2,
        dtype=FLOAT64,
        height=7,
    )
    env = script.run()
    for name, ids in (("x", [0, 3]), ("y", [4, 6])):
        assert env.read(name).rows.tolist() == ids
        assert env.read(name).height == 7
        np.testing.assert_array_equal(env.read(name).value, whole[ids])
        assert script.program.root.vars[name].kind is VarKind.SELECTED_ROWS


def test_c42_an_answer_of_the_wrong_size_is_refused() -> None:
    script = prefetch()
    script.servers.drop_a_row = True
    with pytest.raises(TableError, match=r"s0:1 was asked for 2 rows of width 2 float64, it answered \[1, 2\]"):
        script.run()
    with pytest.raises(TableError, match=r"2 rows of width 2 float32, it answered \[2, 2\] float64"):
        prefetch(dtype=5).run()


def test_lists_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(ProgramError, match="X has 2, epmap has 2, table_names has 1"):
        prefetch(2, table_names=["emb"]).run()
    with pytest.raises(ProgramError, match="X has 2, height_sections has 3"):
        prefetch(2, height_sections=[1, 1, 1]).run()


# ---- recv, send


def test_recv_takes_variables_by_their_name_on_the_server() -> None:
    script = Script()
    script.servers.dense = {("s0:1", "w.block0"): np.ones((2, 3)), ("s1:1", "b"): np.zeros(4)}
    script.declare("w0", shape=(2, 3), dtype="float64")
    script.declare("b", shape=(4,), dtype="float64")
    script.op("recv", {}, {"Out": ["w0", "b"]}, epmap=["s0:1", "s1:1"], varnames=["w.block0", "b"])
    env = script.run()
    assert env.read("w0").shape == (2, 3)
    assert env.read("b").shape == (4,)
    assert len(script.servers.pulls) == 1


def test_recv_refuses_a_value_that_is_not_as_declared() -> None:
    for shape, dtype in (((2, 4), "float64"), ((2, 3), "float32"), ((6,), "float64")):
        script = Script()
        script.servers.dense = {("s0:1", "w"): np.ones((2, 3))}
        script.declare("w", shape=shape, dtype=dtype)
        script.op("recv", {}, {"Out": ["w"]}, epmap=["s0:1"])
        with pytest.raises(ShapeError, match=r"'w' is declared .* the server answered \[2, 3\] float64"):
            script.run()


def test_recv_can_be_switched_off_and_refuses_pieces() -> None:
    script = Script()
    script.op("recv", {}, {"Out": ["w"]}, epmap=["s0:1"], do_not_run=1)
    assert script.run().read("w") is None
    script.op("recv", {}, {"Out": ["v"]}, epmap=["s0:1"], recv_varnames=["v.block0"])
    with pytest.raises(ProgramError, match="recv_varnames is not supported"):
        script.run()


def test_send_stages_every_gradient_also_empty_ones_and_the_barrier_commits_once() -> None:
    empty = SelectedRows(np.zeros(0, np.int64), np.zeros((0, 2)), 0)
    rows = SelectedRows(np.array([-1, 5]), np.ones((2, 2)), 9)
    script = Script(dense=np.ones(3), rows=rows, empty=empty)
    names = ["w@GRAD", "emb@GRAD", "emb@GRAD"]
    script.op("send", {"X": ["dense", "rows", "empty"]}, {"Out": ["done"]}, epmap=ENDPOINTS, send_varnames=names)
    script.op("send_barrier", {"X": ["done"]}, {}, endpoints=ENDPOINTS)
    script.op("fetch_barrier", {}, {}, endpoints=ENDPOINTS)
    script.run()
    assert [(g.endpoint, g.name) for g in script.servers.staged] == list(zip(ENDPOINTS, names, strict=True))
    dense, sparse, nothing = script.servers.staged
    assert dense.rows is None
    assert sparse.rows is not None
    assert nothing.rows is not None
    assert (sparse.rows.tolist(), sparse.height, nothing.rows.tolist()) == ([-1, 5], 9, [])
    assert script.servers.commits == [ENDPOINTS]


def test_send_names_a_gradient_that_nothing_wrote() -> None:
    script = Script()
    script.declare("g")
    script.op("send", {"X": ["g"]}, {}, epmap=ENDPOINTS[:1])
    with pytest.raises(UninitializedError, match="nothing wrote 'g', which is to be sent"):
        script.run()


# ---- servers


def test_listen_and_serv_hands_its_program_to_the_host() -> None:
    script = Script()
    script.op("listen_and_serv", {}, {}, endpoint="127.0.0.1:0", Fanin=2)
    script.run()
    ((program, op, scope),) = script.ports.served
    assert program is script.program
    assert op.attr("Fanin") == 2
    assert isinstance(scope, Scope)


def test_ops_of_a_cluster_need_ports() -> None:
    script = Script()
    script.op("send_barrier", {}, {}, endpoints=ENDPOINTS)
    with pytest.raises(ProgramError, match="'send_barrier' talks to other processes but this executor has no ports"):
        Plan(script.program, None).run(Scope(), {})


def test_fake_init_declares_and_writes_nothing() -> None:
    script = Script()
    script.op("fake_init", {}, {"Out": ["emb"]}, shape=[10**12, 16])
    assert script.run().read("emb") is None
    assert script.program.root.vars["emb"].shape == (10**12, 16)


def test_checkpoint_notify_asks_each_server_once() -> None:
    script = Script()
    script.op("checkpoint_notify", {}, {}, dir="d", lookup_table="", epmap=[ENDPOINTS[1], ENDPOINTS[0], ENDPOINTS[1]])
    script.run()
    assert script.servers.checkpoints == [((ENDPOINTS[1], ENDPOINTS[0]), "d")]
