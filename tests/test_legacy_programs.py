"""Programs in the forms that transpilers of Fluid made before 1.8.3, written by hand, run here.

Two lookups of one table, a product, squared error. Fluid 1.8.5 cannot make such programs any more (its defect 5), so the
losses are compared with a computation in numpy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.core import edit, text
from fluidlite.core.ir import Attr, AttrType, Operator, Program
from fluidlite.dtypes import Array
from fluidlite.errors import ProgramError
from fluidlite.inference import spell_defaults
from fluidlite.ports import needs_of
from fluidlite.transpiler.legacy import translate
from tests.fluid_jobs import Job, Programs, endpoint_of

FOLDER = Path(__file__).parent / "legacy_programs"
RATE, STEPS = 0.125, 4


def program(form: str, role: str, trainer: int = 0) -> fluid.Program:
    content = Template((FOLDER / f"{form}.{role}.txt").read_text(encoding="utf-8")).substitute(trainer=trainer)
    return fluid.Program(text.parse(content))


def job(form: str, trainers: int) -> Job:
    working = [
        Programs(program(form, "trainer", trainer), program(form, "trainer_startup", trainer))
        for trainer in range(trainers)
    ]
    serving = [Programs(program(form, f"pserver{k}"), program(form, f"pserver{k}_startup")) for k in range(2)]
    return Job(working, {endpoint_of(programs.main): programs for programs in serving})


def feed(trainer: int, step: int) -> dict[str, Array]:
    one, two = np.array([[0], [5], [3]]), np.array([[3], [1], [3]])
    y = np.array([[0.5], [-1.0], [2.0]], np.float32) * (1 + trainer)
    return {"one": (one + step) % 6, "two": (two + 2 * step + trainer) % 6, "y": y}


class Model:
    """The same in numpy: servers that sum the table's gradients (``mean``: average them) and average that of ``w``."""

    def __init__(self, *, mean: bool, adam: bool) -> None:
        self.emb, self.w = np.full((6, 2), 0.5), np.full((4, 1), 0.25)
        self.mean, self.adam = mean, adam
        self.moments, self.steps = np.zeros((2, 4, 1)), 0

    def step(self, feeds: list[dict[str, Array]]) -> list[float]:
        found = [self._gradients(**fed) for fed in feeds]
        w_grad = sum(w for _, w, _ in found) / len(feeds)
        self.emb -= RATE * sum(emb for _, _, emb in found) / (len(feeds) if self.mean else 1)
        self.steps += 1
        self.w -= RATE * (self._adam(w_grad) if self.adam else w_grad)
        return [loss for loss, _, _ in found]

    def _gradients(self, one: Array, two: Array, y: Array) -> tuple[float, Array, Array]:
        x = np.concatenate([self.emb[one[:, 0]], self.emb[two[:, 0]]], 1)
        difference = x @ self.w - y
        out = 2 * difference / len(y)
        x_grad, emb_grad = out @ self.w.T, np.zeros_like(self.emb)
        np.add.at(emb_grad, one[:, 0], x_grad[:, :2])
        np.add.at(emb_grad, two[:, 0], x_grad[:, 2:])
        return float((difference**2).mean()), x.T @ out, emb_grad

    def _adam(self, gradient: Array) -> Array:
        for index, (beta, value) in enumerate(((0.9, gradient), (0.999, gradient**2))):
            self.moments[index] += (1 - beta) * (value - self.moments[index])
        first, second = (m / (1 - beta**self.steps) for m, beta in zip(self.moments, (0.9, 0.999), strict=True))
        epsilon = 1e-8 / np.sqrt(1 - 0.999**self.steps)
        return first / (np.sqrt(second) + epsilon)


#: form -> (trainers, how the servers' model differs)
FORMS: dict[str, tuple[int, dict[str, bool]]] = {
    "0.12": (2, {"mean": False, "adam": False}),
    "0.14": (2, {"mean": False, "adam": True}),
    "1.1": (2, {"mean": False, "adam": False}),
    "1.1-async": (1, {"mean": False, "adam": False}),
    "1.2": (2, {"mean": True, "adam": False}),
}


@pytest.mark.parametrize("form", FORMS)
def test_old_forms_train(form: str) -> None:
    trainers, differs = FORMS[form]
    model, running = Model(**differs), job(form, trainers)
    try:
        for step in range(STEPS):
            feeds = [feed(trainer, step) for trainer in range(trainers)]
            found = [values[0].item() for values in running.run(feeds, ["loss"])]
            expected = model.step(feeds)
            np.testing.assert_allclose(found, expected, rtol=1e-5)
    finally:
        running.close()


def test_a_program_without_gradients_names_the_only_table_that_no_op_reads() -> None:
    """Of inference: no gradient op says whose rows a `prefetch` asks for."""
    whole = program("0.14", "trainer").desc
    head = [op for op in whole.root.ops if op.type in ("split_ids", "prefetch", "merge_ids")]
    whole.root.ops = head
    fetched = [op for op in translate(whole).root.ops if op.type == "prefetch"]
    assert [op.attr("table_names") for op in fetched] == [("emb", "emb")] * 2
    whole.root.vars["other"] = whole.root.vars["emb"].__class__("other", shape=(9, 2), persistable=True)
    with pytest.raises(ProgramError, match="does not say which table it asks for; of that width are 'emb', 'other'"):
        translate(whole)


def _changed(form: str, role: str, change: Callable[[Program], Any]) -> Program:
    desc = program(form, role).desc
    change(desc)
    return desc


def _op(desc: Program, type: str) -> Any:
    return next(op for op in desc.root.ops if op.type == type)


@pytest.mark.parametrize(
    ("form", "change", "match"),
    [
        ("0.14", lambda desc: desc.root.ops.remove(_op(desc, "merge_ids")), "no merge_ids or concat joins"),
        ("0.14", lambda desc: desc.root.ops.remove(_op(desc, "split_ids")), "no split_ids makes"),
        ("1.2", lambda desc: _op(desc, "lookup_table").attrs.pop("table_names"), "2 endpoints, 0 table_names"),
        ("1.2", lambda desc: setattr(_op(desc, "lookup_table"), "type", "nce"), "op 'nce' fetches rows of 'emb'"),
        ("1.2", lambda desc: setattr(desc.root.vars["emb"], "shape", None), "'emb' is not declared with a shape"),
        (
            "1.2",
            lambda desc: _op(desc, "lookup_table").inputs.pop("Ids"),
            "not in a form that .* \\(look_up_here: KeyE",
        ),
        ("0.14", lambda desc: _op(desc, "prefetch").attrs.pop("epmap"), "not in a form that .* \\(look_up_here: TypeE"),
    ],
)
def test_malformed_programs_are_refused(form: str, change: Callable[[Program], Any], match: str) -> None:
    with pytest.raises(ProgramError, match=match):
        translate(_changed(form, "trainer", change))


@pytest.mark.parametrize("change", [lambda op: op.attrs.pop("epmap"), lambda op: op.inputs.pop("X")])
def test_what_is_sent_and_to_whom_belong_together(change: Callable[[Operator], Any]) -> None:
    """Also in a program of ours."""
    desc = translate(program("1.2", "trainer").desc)
    change(_op(desc, "send"))
    with pytest.raises(ProgramError, match=r"op 'send': one element each is needed, but X has \d, epmap has \d"):
        needs_of(desc)


def test_a_server_whose_block_is_missing_is_refused() -> None:
    desc = program("1.2", "pserver0").desc
    edit.set_attr(desc, desc.root.ops[0], "grad_to_block_id", Attr(AttrType.STRINGS, ("emb@GRAD:7",)))
    with pytest.raises(ProgramError, match="not in a form that Fluid's transpiler writes"):
        translate(desc)


def test_a_federated_server_is_one_in_sync_mode() -> None:
    desc = program("1.1", "pserver1").desc
    listen = desc.root.ops[0]
    listen.type = "fl_listen_and_serv"
    listen.attrs = {name: listen.attrs[name] for name in ("endpoint", "Fanin", "optimize_blocks", "sync_mode")}
    found = translate(desc).root.ops[0]
    assert (found.type, found.attr("distributed_mode"), found.attr("Fanin")) == ("listen_and_serv", 0, 2)
    assert found.attr("grad_to_block_id") == ("emb@GRAD:1",)


@pytest.fixture
def fresh_programs() -> Iterator[None]:
    with fluid.unique_name.guard(), fluid.program_guard(fluid.Program(), fluid.Program()):
        yield


@pytest.mark.usefixtures("fresh_programs")
def test_programs_of_ours_stay_as_they_are() -> None:
    x, ids = fluid.data("x", [None, 4]), fluid.data("ids", [None, 1], "int64")
    rows = fluid.layers.embedding(ids, [9, 4], is_sparse=True)
    table = fluid.layers.embedding(ids, [9, 4], is_distributed=True)
    loss = fluid.layers.mean(fluid.layers.fc(fluid.layers.concat([x, rows, table], 1), 1))
    fluid.optimizer.SGD(fluid.layers.exponential_decay(0.1, 5, 0.5)).minimize(loss)
    for sync in (True, False):
        main, startup = fluid.default_main_program().clone(), fluid.default_startup_program().clone()
        transpiler = fluid.DistributeTranspiler()
        transpiler.transpile(0, main, "a:1,b:1", 2, sync, startup)
        for mine in (main, startup, *transpiler.get_pserver_programs("a:1"), *transpiler.get_pserver_programs("b:1")):
            assert translate(mine.desc) is mine.desc
            again = fluid.Program.parse_from_string(mine.desc.serialize_to_string())
            assert translate(again.desc) is again.desc
            spell_defaults(again.desc)
            types = [op.type for _, op in translate(again.desc).all_ops()]
            assert types == [op.type for _, op in mine.desc.all_ops()]
