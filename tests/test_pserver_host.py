"""The host: a pserver program applied to a scope."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from fluidlite.core import verify
from fluidlite.core.ir import Operator
from fluidlite.dtypes import Array
from fluidlite.errors import ProgramError, RequestRefusedError, UninitializedError
from fluidlite.protocol.messages import Declared, DenseRequest, Gradient, RowRequest, TableRequest, Use
from fluidlite.pserver import catalog
from fluidlite.pserver.host import Host
from fluidlite.pserver.policy import Step
from fluidlite.runtime.scope import Scope
from fluidlite.values.selected_rows import SelectedRows
from fluidlite.values.sparse_table import TableColumn
from tests.pserver_program import append, declare, pserver_program


def dense(name: str, value: Any) -> Gradient:
    return Gradient("e", name, np.asarray(value))


def rows(name: str, ids: list[int], value: float = 1.0, width: int = 2, dtype: str = "float64") -> Gradient:
    return Gradient("e", name, np.full((len(ids), width), value, dtype), np.array(ids, np.int64))


def apply(host: Host, steps: Mapping[int, Sequence[Gradient]], tick: bool) -> int:
    """Apply gradients of trainers as one step."""
    return host.apply({trainer: Step(gradients) for trainer, gradients in steps.items()}, tick)


def pull_rows(host: Host, table: str, ids: list[int], **options: Any) -> Array:
    request = RowRequest("e", table, np.array(ids, np.int64), options.pop("width", 2), "float64", **options)
    return host.pull([request])[1][0]


def test_gradients_of_several_trainers_need_a_block_that_sums_them() -> None:
    with pytest.raises(ProgramError, match=r"block 2 does not sum the gradients 'w@GRAD' of 2 trainers"):
        Host(*pserver_program(sync=False, trainers=2, distributed_mode=0))


def test_one_trainer_needs_no_sum() -> None:
    host = Host(*pserver_program(sync=False, trainers=1, distributed_mode=0))
    apply(host, {0: [dense("w@GRAD", [1.0, 2.0, 3.0])]}, tick=True)
    np.testing.assert_array_equal(host.dense(["w"])["w"], [-1.0, -2.0, -3.0])


def test_a_sync_round_is_the_mean_in_trainer_order_after_one_tick_of_the_schedule() -> None:
    host = Host(*pserver_program(trainers=2))
    steps = {0: [dense("w@GRAD", [1.0, 2.0, 3.0])], 1: [dense("w@GRAD", [3.0, 4.0, 5.0])]}
    assert apply(host, steps, tick=True) == host.version == 1
    np.testing.assert_array_equal(host.dense(["w"])["w"], [-2.0, -3.0, -4.0])
    assert apply(host, steps, tick=False) == 2
    np.testing.assert_array_equal(host.dense(["w"])["w"], [-4.0, -6.0, -8.0])
    np.testing.assert_array_equal(host.dense(["lr"])["lr"], [1.0])


def test_C11_the_divisor_is_the_number_of_contributions_summed() -> None:
    host = Host(*pserver_program(trainers=3))
    apply(host, {2: [dense("w@GRAD", [6.0] * 3)]}, tick=True)
    np.testing.assert_array_equal(host.dense(["w"])["w"], [-6.0] * 3)
    apply(host, {0: [dense("w@GRAD", [3.0] * 3)], 1: [], 2: [dense("w@GRAD", [5.0] * 3)]}, tick=False)
    np.testing.assert_array_equal(host.dense(["w"])["w"], [-10.0] * 3)


def test_duplicates_of_one_and_of_several_trainers_are_summed() -> None:
    host = Host(*pserver_program(trainers=2))
    apply(host, {0: [rows("emb@GRAD", [5, -1, 5])], 1: [rows("emb@GRAD", [5, 2**63 - 1])]}, tick=True)
    np.testing.assert_array_equal(
        pull_rows(host, "emb", [5, -1, 2**63 - 1, 7]), [[-0.5] * 2, [0.5] * 2, [0.5] * 2, [1.0] * 2]
    )


def test_async_applies_the_gradient_itself() -> None:
    host = Host(*pserver_program(sync=False, trainers=2))
    apply(host, {1: [dense("w@GRAD", [1.0] * 3), rows("emb@GRAD", [3])]}, tick=True)
    np.testing.assert_array_equal(host.dense(["w"])["w"], [-1.0] * 3)
    np.testing.assert_array_equal(pull_rows(host, "emb", [3]), [[0.0, 0.0]])


@pytest.mark.parametrize("sync", [True, False])
def test_C01_C37_B021_steps_without_rows_or_without_gradients(sync: bool) -> None:
    host = Host(*pserver_program(sync=sync))
    empty = [rows("emb@GRAD", []), rows("v.block0@GRAD", [])]
    host.check_step(empty, [])
    apply(host, {0: empty}, tick=True)
    apply(host, {1: []}, tick=True)
    assert host.version == 2
    np.testing.assert_array_equal(host.dense(["w"])["w"], [0.0] * 3)
    np.testing.assert_array_equal(pull_rows(host, "v.block0", [0, 3]), [[0, 1], [6, 7]])
    assert pull_rows(host, "emb", []).shape == (0, 2)


def test_B110_rows_for_a_dense_parameter() -> None:
    host = Host(*pserver_program(trainers=1))
    apply(host, {0: [rows("v.block0@GRAD", [1, 1])]}, tick=True)
    np.testing.assert_array_equal(host.dense(["v.block0"])["v.block0"], [[0, 1], [0, 1], [4, 5], [6, 7]])


def test_a_read_only_pull_makes_no_row() -> None:
    host = Host(*pserver_program())
    np.testing.assert_array_equal(pull_rows(host, "emb", [4], read_only=True), [[0.0, 0.0]])
    assert len(host.pull([TableRequest("e", "emb")])[1][0].rows) == 0
    np.testing.assert_array_equal(pull_rows(host, "emb", [4]), [[1.0, 1.0]])
    np.testing.assert_array_equal(pull_rows(host, "emb", [4], read_only=True), [[1.0, 1.0]])


def test_pulls_are_copies() -> None:
    host = Host(*pserver_program(trainers=1))
    before = host.pull([DenseRequest("e", "w")])[1][0]
    apply(host, {0: [dense("w@GRAD", [1.0] * 3)]}, tick=True)
    np.testing.assert_array_equal(before, [0.0] * 3)


def test_tables_are_read_and_loaded_whole_with_their_accumulators() -> None:
    program, listen, scope = pserver_program()
    declare(program, program.root, "moment", shape=(0, 2), persistable=True)
    scope.set("moment", TableColumn("moment", 2, 0.0, "float64"))
    scope.get("emb").attach(scope.get("moment"))
    host = Host(program, listen, scope)
    for name, value in (("emb", 7.0), ("moment", 8.0)):
        host.assign(name, SelectedRows(np.array([9, -9]), np.full((2, 2), value), 0))
    for name, value in (("emb", 7.0), ("moment", 8.0)):
        exported = host.pull([TableRequest("e", name)])[1][0]
        assert exported.rows.tolist() == [9, -9]
        assert (exported.value == value).all()


def test_an_assigned_array_is_a_copy_that_updates_may_change() -> None:
    host = Host(*pserver_program(trainers=1))
    value = np.ones(3)
    value.flags.writeable = False
    host.assign("w", value)
    apply(host, {0: [dense("w@GRAD", [1.0] * 3)]}, tick=True)
    np.testing.assert_array_equal(host.dense(["w"])["w"], [0.0] * 3)
    np.testing.assert_array_equal(value, [1.0] * 3)


@pytest.mark.parametrize(
    ("gradient", "text"),
    [
        (dense("nothing", [1.0]), "unknown gradient 'nothing'; this server takes 'w@GRAD'"),
        (dense("w@GRAD", [1.0]), r"'w@GRAD' has shape \[1\], parameter 'w' \[3\]"),
        (dense("w@GRAD", np.ones(3, np.float32)), "'w@GRAD' is float32, parameter 'w' float64"),
        (dense("emb@GRAD", np.ones((1, 2))), "'emb' is a table: send rows"),
        (rows("emb@GRAD", [1], width=5), r"1 ids and values of shape \[1, 5\], but 'emb' has rows of \[2\]"),
        (Gradient("e", "emb@GRAD", np.ones((2, 2)), np.arange(3)), "3 ids"),
        (rows("v.block0@GRAD", [0, 4]), "id 4 at position 1 is outside 'v.block0', which has 4 rows"),
        (rows("v.block0@GRAD", [-1]), "id -1 at position 0"),
    ],
)
def test_H26_C42_a_gradient_that_does_not_fit_is_refused(gradient: Gradient, text: str) -> None:
    host = Host(*pserver_program())
    with pytest.raises(RequestRefusedError, match=text):
        host.check_step([gradient], [])


def test_a_gradient_twice_in_one_step_is_refused() -> None:
    host = Host(*pserver_program())
    with pytest.raises(RequestRefusedError, match="'w@GRAD' comes twice"):
        host.check_step([dense("w@GRAD", [1.0] * 3)] * 2, [])
    with pytest.raises(RequestRefusedError, match="unknown variable 'u'"):
        host.check_step([], ["u"])


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda h: h.pull([DenseRequest("e", "u")]), "unknown variable 'u'"),
        (lambda h: h.pull([DenseRequest("e", "w@GRAD")]), "has no value"),
        (lambda h: h.pull([DenseRequest("e", "emb")]), "holds SparseTable"),
        (lambda h: h.pull([TableRequest("e", "w")]), "not a table"),
        (lambda h: pull_rows(h, "w", [1]), "unknown table 'w'; this server has rows of 'emb', 'v.block0'"),
        (lambda h: pull_rows(h, "emb", [1], width=3), "rows of 'emb' are 2 float64, not 3 float64"),
        (lambda h: h.pull([RowRequest("e", "emb", np.zeros((1, 1), np.int64), 2, "float64")]), r"must be \[n\] int64"),
        (lambda h: pull_rows(h, "v.block0", [1, 4]), "id 4 at position 1"),
        (lambda h: h.assign("w", np.ones(4)), r"'w' is \[3\] float64, the new value \[4\] float64"),
        (lambda h: h.assign("emb", np.ones((1, 2))), "holds SparseTable"),
        (lambda h: h.assign("emb", SelectedRows(np.array([1]), np.ones((1, 3)), 0)), "emb"),
        (lambda h: h.assign("w", SelectedRows(np.array([1]), np.ones((1, 3)), 0)), "assign it whole"),
    ],
)
def test_wrong_requests_name_what_is_wrong(call: Callable[[Host], Any], text: str) -> None:
    host = Host(*pserver_program())
    with pytest.raises(RequestRefusedError, match=text):
        call(host)
    assert pull_rows(host, "emb", [1]).shape == (1, 2)


def test_declarations_are_checked_all_at_once() -> None:
    host = Host(*pserver_program())
    fitting = [
        Declared("emb", Use.ROWS, "float64", (2,)),
        Declared("w", Use.DENSE, "float64", (-1,)),
        Declared("w@GRAD", Use.GRADIENT, "float64", (3,)),
        Declared("emb@GRAD", Use.ROW_GRADIENT, "float64", (2,)),
    ]
    host.check_declared(fitting)
    wrong = [
        Declared("emb", Use.ROWS, "float64", (4,)),
        Declared("w", Use.DENSE, "float32", (3,)),
        Declared("u", Use.GRADIENT, "float64", (3,)),
        Declared("emb@GRAD", Use.ROW_GRADIENT, "float64", (2, 2)),
    ]
    with pytest.raises(RequestRefusedError) as refused:
        host.check_declared([*fitting, *wrong])
    reasons = str(refused.value).split("; ")
    assert reasons[0] == "'emb' is [2] float64 here, not [4] float64"
    assert reasons[1] == "'w' is [3] float64 here, not [3] float32"
    assert len(reasons) == 5


def test_a_program_with_an_unknown_op_is_refused_before_anything_runs() -> None:
    program, listen, scope = pserver_program()
    program.blocks[2].ops.append(Operator("rm_rf"))
    with pytest.raises(ProgramError, match=r"'rm_rf'.*unknown op"):
        Host(program, listen, scope)
    assert len(scope.get("emb")) == 0


@pytest.mark.parametrize(
    ("attrs", "text"),
    [
        ({"grad_to_block_id": ["w@GRAD:99"]}, "block '99' for 'w@GRAD'"),
        ({"grad_to_block_id": ["w@GRAD"]}, "does not exist"),
        ({"grad_to_block_id": ["u@GRAD:5"]}, "no op of it updates a parameter"),
        ({"prefetch_var_name_to_block_id": ["u:5"]}, "look up rows of 'u'"),
    ],
)
def test_a_program_that_contradicts_itself_is_refused(attrs: dict[str, Any], text: str) -> None:
    with pytest.raises(ProgramError, match=text):
        Host(*pserver_program(**attrs))


def test_absurd_size_and_depth_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    program, listen, scope = pserver_program()
    monkeypatch.setattr(catalog, "MAX_OPS", 5)
    with pytest.raises(ProgramError, match="a server takes 5"):
        Host(program, listen, scope)
    monkeypatch.undo()
    monkeypatch.setattr(verify, "MAX_DEPTH", 1)
    with pytest.raises(ProgramError, match="lies 2 deep"):
        Host(program, listen, scope)


def test_without_the_startup_program_there_is_nothing_to_serve() -> None:
    program, listen, _ = pserver_program()
    with pytest.raises(UninitializedError, match=r"'w'.*startup program"):
        Host(program, listen, Scope())


def test_blocks_that_optimize_blocks_leaves_out_run_all_the_same() -> None:
    program, listen, scope = pserver_program(trainers=1, optimize_blocks=[])
    host = Host(program, listen, scope)
    apply(host, {0: [dense("w@GRAD", [1.0] * 3)]}, tick=False)
    np.testing.assert_array_equal(host.dense(["w"])["w"], [-2.0] * 3)


def test_a_block_without_gradients_runs_every_step() -> None:
    program, listen, scope = pserver_program(trainers=1)
    append(program, program.blocks[1], "scale", {"X": ["w"]}, {"Out": ["w"]}, bias=1.0)
    block = program.blocks[1].idx
    listen.attrs["optimize_blocks"] = listen.attrs["optimize_blocks"]._replace(value=(block,))
    host = Host(program, listen, scope)
    apply(host, {0: []}, tick=False)
    np.testing.assert_array_equal(host.dense(["w"])["w"], [1.0] * 3)
