"""Ops that only programs of Fluid have: saving through servers, tables that a server knows by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.core.ir import Program
from fluidlite.dtypes import VarKind
from fluidlite.errors import ProgramError, TableError
from fluidlite.runtime.executor import ExecutorCore
from fluidlite.runtime.scope import Scope
from fluidlite.values import files
from fluidlite.values.selected_rows import SelectedRows
from tests.fluid_jobs import recorded
from tests.pserver_program import append, declare
from tests.test_legacy_programs import job

META = "emb:Param,Moment1,Moment2:2,2,2:0:emb@GRAD:none:fill_constant&0.5,fill_constant&0,fill_constant&0:none"


def test_a_table_and_a_cut_parameter_are_saved_through_servers_into_files_of_fluid(tmp_path: Path) -> None:
    running = job("1.1", 1 + 1)
    try:
        desc = Program()
        append(
            desc, desc.root, "checkpoint_notify", {}, {}, epmap=["s0:0", "s1:0"], dir=str(tmp_path), lookup_table="emb"
        )
        whole = {"shape": [8, 1], "endpoints": ["s0:0", "s0:0"], "remote_varnames": ["w", "w"]}
        append(desc, desc.root, "recv_save", {}, {}, file_path=str(tmp_path / "twice"), **whole)
        feeds = [{"one": np.array([[0], [3]]), "two": np.array([[2], [4]]), "y": np.ones((2, 1), np.float32)}] * 2
        running.run(feeds, ["loss"])
        running.executors[0].run(fluid.Program(desc), scope=running.scopes[0])
    finally:
        running.close()
    even, odd = (files.load(tmp_path / f"emb_{index}", "emb", rows=True) for index in range(2))
    assert isinstance(even, SelectedRows)
    assert isinstance(odd, SelectedRows)
    assert (sorted(even.rows), sorted(odd.rows)) == ([0, 2, 4], [3])
    saved = files.load(tmp_path / "twice", "twice")
    assert isinstance(saved, np.ndarray)
    np.testing.assert_array_equal(saved[:4], saved[4:])
    assert not np.allclose(saved[:4], 0.25)


@pytest.mark.parametrize(
    ("changed", "match"),
    [({"endpoints": ["s0:0"]}, "2 remote_varnames but 1 endpoints"), ({"shape": [9]}, "gave 8 elements")],
)
def test_what_recv_save_refuses(changed: dict[str, Any], match: str, tmp_path: Path) -> None:
    running = job("1.1", 2)
    try:
        desc = Program()
        given = {"shape": [8, 1], "endpoints": ["s0:0", "s0:0"], "remote_varnames": ["w", "w"], **changed}
        append(desc, desc.root, "recv_save", {}, {}, file_path=str(tmp_path / "w"), **given)
        with pytest.raises(fluid.errors.FluidliteError, match=match):
            running.executors[0].run(fluid.Program(desc), scope=running.scopes[0])
    finally:
        running.close()


def test_a_variable_is_sent_and_another_received() -> None:
    """A gradient of ones, to a server that takes every step as it comes."""
    running = job("1.1-async", 1)
    try:
        desc = Program()
        declare(desc, desc.root, "ones", dtype="float32", shape=(4, 1), is_data=True)
        declare(desc, desc.root, "after", dtype="float32", shape=(4, 1))
        names = {"send_var_name": "w@GRAD", "recv_var_name": "w", "endpoint": "s0:0"}
        append(desc, desc.root, "send_and_recv", {"X": ["ones"]}, {"Out": ["after"]}, **names)
        feed, program = {"ones": np.ones((4, 1), np.float32)}, fluid.Program(desc)
        steps = [running.executors[0].run(program, feed, ["after"], scope=running.scopes[0])[0] for _ in range(2)]
    finally:
        running.close()
    np.testing.assert_allclose([step.ravel() for step in steps], [[0.125] * 4, [0.0] * 4])


class Server:
    """Ops on named tables in one scope."""

    def __init__(self, *metas: str) -> None:
        self.scope = Scope()
        self.run("lookup_sparse_table_init", {}, {}, large_scale_metas=metas)

    def run(self, type: str, inputs: dict[str, list[Any]], outputs: dict[str, int], **attrs: Any) -> list[Any]:
        desc, feed, named = Program(), {}, {}
        for key, values in inputs.items():
            named[key] = [f"{key}{index}" for index in range(len(values))]
            feed.update(zip(named[key], values, strict=True))
        for name, value in list(feed.items()):
            rows = isinstance(value, SelectedRows)
            kind = VarKind.SELECTED_ROWS if rows else VarKind.LOD_TENSOR
            array = value.value if rows else value
            declare(
                desc, desc.root, name, dtype=array.dtype.name, shape=None, kind=kind, persistable=rows, is_data=not rows
            )
            if rows:
                self.scope.set(name, feed.pop(name))
        made = {
            key: [declare(desc, desc.root, f"{key}_out{i}", shape=None) for i in range(n)] for key, n in outputs.items()
        }
        append(desc, desc.root, type, named, made, **attrs)
        return ExecutorCore().run(desc, feed, [name for names in made.values() for name in names], self.scope)

    def rows(self, *ids: int, values: tuple[str, ...] = ("Param",), init: bool = True) -> list[Any]:
        given = {"Ids": [np.array([[i] for i in ids])]}
        return self.run(
            "lookup_sparse_table_read", given, {"Out": len(values)}, tablename="emb", value_names=values, init=init
        )


def gradient(*ids: int) -> SelectedRows:
    return SelectedRows(np.array(ids), np.ones((len(ids), 2), np.float32), 10)


RATE = np.array([0.5], np.float32)


def test_tables_by_name_are_made_read_written_and_trained_by_sgd() -> None:
    server = Server(META)
    assert server.rows(7, init=False)[0].tolist() == [[0.0, 0.0]]
    assert server.rows(7)[0].tolist() == [[0.5, 0.5]]
    server.run(
        "lookup_sparse_table_write",
        {"Ids": [np.array([[3]])], "In": [np.array([[1.0, 2.0]], np.float32), np.array([[4.0, 4.0]], np.float32)]},
        {},
        tablename="emb",
        value_names=("Param", "Moment1"),
    )
    assert [part.tolist() for part in server.rows(3, 7, values=("Param", "Moment1"))] == [
        [[1.0, 2.0], [0.5, 0.5]],
        [[4.0, 4.0], [0.0, 0.0]],
    ]
    given = {"Grad": [gradient(3, 3)], "LearningRate": [RATE]}
    server.run("lookup_sparse_table_fuse_sgd", given, {}, tablename="emb")
    assert server.rows(3)[0].tolist() == [[0.0, 1.0]]


def test_tables_by_name_are_trained_by_adam() -> None:
    """The first step of adam is the learning rate, whatever the gradient's size."""
    server = Server(META)
    powers = {"Beta1Pow": [np.array([0.9], np.float32)], "Beta2Pow": [np.array([0.999], np.float32)]}
    given = {"Grad": [gradient(3)], "LearningRate": [RATE], **powers}
    outputs = {"Beta1PowOut": 1, "Beta2PowOut": 1}
    names = ("Param", "Moment1", "Moment2")
    found = server.run("lookup_sparse_table_fuse_adam", given, outputs, tablename="emb", value_names=names)
    np.testing.assert_allclose(np.ravel(found), [0.81, 0.998001], rtol=1e-6)
    param, first, second = server.rows(3, values=names)
    np.testing.assert_allclose(param, [[0.0, 0.0]], atol=1e-6)
    np.testing.assert_allclose([first, second], [[[0.1, 0.1]], [[0.001, 0.001]]], rtol=1e-4)


@pytest.mark.parametrize(
    ("meta", "match"),
    [
        ("emb:Param", "has 2 fields, not 8"),
        (META.replace(":none", ":count_filter&3"), "entry"),
        (META.replace("Param", "Weight"), "has no value 'Param'"),
        (META.replace("fill_constant&0.5", "ones"), "initialiser 'ones' is none that there is"),
        (META.replace("fill_constant&0.5", "uniform_random&0&a&b"), "could not convert"),
        (META.replace("fill_constant&0,", "uniform_random&1&0&1,"), "must start with a constant"),
    ],
)
def test_descriptions_of_tables_that_are_refused(meta: str, match: str) -> None:
    with pytest.raises(ProgramError, match=match):
        Server(meta)


@pytest.mark.parametrize("rule", ["uniform_random&7&-1&1", "gaussian_random&7&0&1", "truncated_gaussian_random&7&0&1"])
def test_first_values_of_rows_by_name_are_drawn_by_id(rule: str) -> None:
    one, other = (Server(META.replace("fill_constant&0.5", rule)) for _ in range(2))
    np.testing.assert_array_equal(one.rows(5, 9)[0], other.rows(9, 5)[0][::-1])


def test_tables_that_there_are_not_are_named() -> None:
    server = Server(META)
    with pytest.raises(TableError, match="there is no table 'other'"):
        server.run(
            "lookup_sparse_table_fuse_sgd", {"Grad": [gradient(1)], "LearningRate": [RATE]}, {}, tablename="other"
        )
    with pytest.raises(TableError, match="table 'emb' has no value 'Velocity'"):
        server.rows(1, values=("Velocity",))
    with pytest.raises(ProgramError, match="is_entry is refused"):
        server.run("lookup_sparse_table_grad_split", {"Grad": [gradient(1)]}, {"Row": 1, "Value": 1}, is_entry=True)


def test_recordings_hold_what_fluid_wrote() -> None:
    """The version says which."""
    assert {programs.main.desc.version for programs in recorded("two_tables.sync").trainers} == {1008005}
