"""Lazy regularisation of rows against `row_reference`, where every row decays at every step.

Here tables are driven directly; tests/test_row_regularisation_programs.py runs whole programs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluidlite.dtypes import Array
from fluidlite.errors import TableError
from fluidlite.kernels.updates import Rule
from fluidlite.values.initial import Constant, FromArray
from fluidlite.values.row_decay import Decay, FtrlDecay, Shrinkage
from fluidlite.values.row_momentum import MomentumClock, MomentumDecay
from fluidlite.values.selected_rows import SelectedRows
from fluidlite.values.sparse_table import SparseTable, TableColumn
from tests.row_reference import Reference
from tests.shared_data import REPO

ROWS, WIDTH = 16, 2
L1, L2 = 2e-4, 0.01
TOLERANCE = {"float64": 1e-9, "float32": 1e-5}

#: penalty -> (form, l1, l2, by_row)
PENALTIES: dict[str, tuple[Any, float, float, bool]] = {
    "l2": ("proximal", 0.0, L2, False),
    "l2_multiplicative": ("multiplicative", 0.0, L2, False),
    "l1": ("proximal", L1, 0.0, False),
    "elastic_net": ("proximal", L1, L2, False),
    "group_l1": ("proximal", L1, 0.0, True),
    "l2_gradient": ("gradient", 0.0, L2, False),
}
SHRINKING = [
    (optimizer, penalty)
    for optimizer in ("sgd", "adagrad", "adam")
    for penalty in PENALTIES
    if penalty != "l2_gradient" or optimizer == "sgd"
]
MOVING = [
    ("momentum", "l2"),
    ("momentum", "l2_gradient"),
    ("nesterov", "l2"),
    ("nesterov", "l2_gradient"),
    ("ftrl", "elastic_net"),
]
#: optimizer -> the accumulators of its op
STATE = {
    "sgd": (),
    "adagrad": ("squared",),
    "adam": ("first", "second"),
    "momentum": ("velocity",),
    "nesterov": ("velocity",),
    "ftrl": ("squared", "linear"),
}


class Lazy:
    """A table with an optimizer and a penalty, driven as the ops of a program drive it."""

    def __init__(self, start: Array, dtype: str, optimizer: str, penalty: str, mu: float = 0.9) -> None:
        self.form, self.l1, self.l2, by_row = PENALTIES[penalty]
        self.optimizer, self.mu = optimizer, mu
        self.table = SparseTable("emb", start.shape[1], dtype, FromArray(start))
        self.columns = [TableColumn(name, start.shape[1], 0.0, dtype) for name in STATE[optimizer]]
        self.decay: Decay = Shrinkage(self.l1, self.l2, self.form, by_row)
        if optimizer in ("momentum", "nesterov"):
            self.decay = MomentumDecay(mu, optimizer == "nesterov", self.l2, self.form)
        elif optimizer == "ftrl":
            self.decay = FtrlDecay(self.l1, self.l2)
        self.moves = not isinstance(self.decay, Shrinkage)
        self.steps = 0

    def rule(self, rate: float) -> Rule:
        correction = np.sqrt(1 - 0.999**self.steps) / (1 - 0.9**self.steps)
        scalars: dict[str, tuple[float, ...]] = {
            "sgd": (rate,),
            "adagrad": (rate, 1e-6),
            "adam": (rate * correction, 0.9, 0.999, 1e-8),
            "momentum": (rate, self.mu),
            "nesterov": (rate, self.mu),
            "ftrl": (rate, self.l1, self.l2),
        }
        return Rule(self.optimizer, scalars[self.optimizer])

    def tick(self, rate: float, ids: Array | None = None) -> None:
        with_rows = ids is not None and (self.moves or self.form == "gradient")
        self.table.tick(self.decay, self.columns if self.moves else (), rate, ids if with_rows else None)

    def step(self, rate: float, ids: Array | None = None, gradient: Array | None = None) -> None:
        """One step; ``gradient`` (n, width) of rows ``ids``."""
        self.steps += 1
        if self.form == "multiplicative":
            self.tick(rate)
        if ids is not None and gradient is not None:
            gradient = gradient.astype(self.table.dtype)
            if self.form == "gradient":
                gradient = gradient + self.table.dtype.type(self.l2) * self.table.lookup(ids)
            self.table.update(SelectedRows(ids, gradient, 0), self.columns, self.rule(rate))
        if self.form != "multiplicative":
            self.tick(rate, ids)

    def rows(self, ids: Array) -> Array:
        return self.table.lookup(ids, read_only=True).astype(np.float64)


def jumping_rates(steps: int, seed: int = 3) -> Array:
    """A rate for each step: constant for a while, then another, over two orders of magnitude, 0 now and then."""
    random = np.random.default_rng(seed)
    rates = 10 ** random.uniform(-3, -1, steps // 500 + 1)
    rates[random.random(len(rates)) < 0.05] = 0.0
    return np.repeat(rates, 500)[:steps]


def touches(steps: int, rows: int, seed: int = 5) -> dict[int, tuple[Array, Array]]:
    """Step -> (its rows, their gradients, equal in float32 and float64); some rows come often, the last ones never."""
    random = np.random.default_rng(seed)
    chance = np.append(10 ** random.uniform(-3.5, -2, rows - 2), [0.0, 0.0])
    found = {}
    for step in np.flatnonzero(random.random(steps) < chance.max()):
        ids = np.flatnonzero(random.random(rows) < chance / chance.max())
        if len(ids):
            found[int(step)] = ids, random.normal(0, 0.3, (len(ids), WIDTH)).astype(np.float32).astype(np.float64)
    return found


def start_values(rows: int = ROWS) -> Array:
    return np.random.default_rng(1).normal(0, 1, (rows, WIDTH)).astype(np.float32).astype(np.float64)


def reference(optimizer: str, penalty: str, **more: Any) -> Reference:
    form, l1, l2, by_row = PENALTIES[penalty]
    return Reference(start_values(), optimizer, form, l1, l2, by_row, **more)


LONG, SHORT = 100_000, 3_000
#: what runs 100,000 steps in every run of the tests; the others do in ``nox -s full``
IN_EVERY_RUN = {
    ("sgd", "l2"),
    ("sgd", "l2_gradient"),
    ("sgd", "group_l1"),
    ("adagrad", "elastic_net"),
    ("adam", "l2_multiplicative"),
    ("momentum", "l2"),
}


def run_plain(pairs: Sequence[tuple[str, str]], steps: int) -> dict[tuple[str, str], Array]:
    """The rows after all steps, by (optimizer, penalty)."""
    found = {}
    for kind in {_kind(*pair) for pair in pairs}:
        members = [pair for pair in pairs if _kind(*pair) == kind]
        found.update(zip(members, _run_alike(members, steps), strict=True))
    return found


def _kind(optimizer: str, penalty: str) -> str:
    """What a step makes of rows without gradient: alike for all penalties of one kind, but for their numbers."""
    form, _, _, by_row = PENALTIES[penalty]
    if optimizer in ("momentum", "nesterov", "ftrl"):
        return f"{optimizer} {form}"
    return "by_row" if by_row else "proximal" if form == "proximal" else "factor"


def _run_alike(members: Sequence[tuple[str, str]], steps: int) -> Array:
    """The rows of references whose steps without gradients are done at once, on one array that holds all of them."""
    references = [reference(*pair) for pair in members]
    whole = np.stack([one.value for one in references])
    for one, view in zip(references, whole, strict=True):
        one.value = view
    together = reference(*members[0])
    penalties = np.array([PENALTIES[penalty][1:3] for _, penalty in members])
    together.value, together.l1, together.l2 = whole, penalties[:, :1, None], penalties[:, 1:, None]
    touched, moves = touches(steps, ROWS), members[0][0] in ("momentum", "nesterov", "ftrl")
    for step, rate in enumerate(jumping_rates(steps).tolist()):
        if step in touched or moves:
            for one in references:
                one.steps = step
                one.step(rate, *touched.get(step, ()))
        else:
            together.idle(rate)
    return whole


def run_lazy(optimizer: str, penalty: str, dtype: str, steps: int) -> Array:
    lazy = Lazy(start_values(), dtype, optimizer, penalty)
    lazy.table.lookup(np.arange(ROWS))
    touched = touches(steps, ROWS)
    for step, rate in enumerate(jumping_rates(steps).tolist()):
        lazy.step(rate, *touched.get(step, ()))
    return lazy.rows(np.arange(ROWS))


def check_against_plain(pairs: Sequence[tuple[str, str]], steps: int) -> None:
    for pair, plain in run_plain(pairs, steps).items():
        for dtype, tolerance in TOLERANCE.items():
            error = np.abs(run_lazy(*pair, dtype, steps) - plain).max()
            assert error < tolerance, (pair, dtype, error)


def test_100_000_steps() -> None:
    check_against_plain(sorted(IN_EVERY_RUN), LONG)


@pytest.mark.full
@pytest.mark.parametrize("pair", sorted({*SHRINKING, *MOVING} - IN_EVERY_RUN))
def test_100_000_steps_of_every_pair(pair: tuple[str, str]) -> None:
    check_against_plain([pair], LONG)


def test_3_000_steps_of_every_pair() -> None:
    check_against_plain([*SHRINKING, *MOVING], SHORT)


# any schedule, any rows


RATES = st.lists(st.floats(1e-12, 0.9) | st.sampled_from([0.0, 0.5]), min_size=1, max_size=40)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([*SHRINKING, *MOVING]), RATES, st.data())
def test_any_schedule_and_any_touches(pair: tuple[str, str], rates: list[float], data: st.DataObject) -> None:
    lazy, plain = Lazy(start_values(), "float64", *pair), reference(*pair)
    lazy.table.lookup(np.arange(ROWS))
    for rate in rates:
        ids = np.array(data.draw(st.lists(st.integers(0, ROWS - 1), max_size=3, unique=True)), np.int64)
        gradient = np.random.default_rng(len(ids)).normal(0, 1, (len(ids), WIDTH))
        lazy.step(rate, ids, gradient)
        plain.step(rate, ids, gradient)
        seen = np.array(data.draw(st.lists(st.integers(0, ROWS - 1), max_size=3)), np.int64)
        np.testing.assert_allclose(lazy.rows(seen), plain.value[seen], rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(lazy.table.export().value, plain.value, rtol=1e-12, atol=1e-13)
    for column in lazy.columns:
        if column.table is not None:
            np.testing.assert_allclose(column.export().value, plain.state[column.name], rtol=1e-12, atol=1e-13)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0.0, 50.0), min_size=1, max_size=60), st.sampled_from(sorted(PENALTIES)))
def test_any_rate_however_large(rates: list[float], penalty: str) -> None:
    """Also where 1 - rate * l2 is 0 or less, and where the product of factors falls below what one segment holds."""
    lazy, plain = Lazy(start_values(), "float64", "sgd", penalty), reference("sgd", penalty)
    lazy.l2 = plain.l2 = 0.1
    lazy.decay = Shrinkage(lazy.l1, lazy.l2, lazy.form, PENALTIES[penalty][3])
    lazy.table.lookup(np.arange(ROWS))
    for step, rate in enumerate(rates):
        ids = np.array([step % 5])
        lazy.step(rate, ids, np.ones((1, WIDTH)))
        plain.step(rate, ids, np.ones((1, WIDTH)))
    np.testing.assert_allclose(lazy.rows(np.arange(ROWS)), plain.value, rtol=1e-11, atol=1e-13)


def test_segments_change_nothing() -> None:
    """400 steps by 1 / 8 each, e^-832 in all, which no float64 holds: rows are carried over borders."""
    lazy, plain = Lazy(start_values(), "float64", "sgd", "elastic_net"), reference("sgd", "elastic_net")
    lazy.l2 = plain.l2 = 14.0
    lazy.decay = Shrinkage(lazy.l1, lazy.l2)
    lazy.table.lookup(np.arange(ROWS))
    for step in range(400):
        given = (np.array([0]), np.ones((1, WIDTH))) if step % 57 == 56 else ()
        lazy.step(0.5, *given)
        plain.step(0.5, *given)
    assert plain.value[0].any()
    np.testing.assert_allclose(lazy.rows(np.arange(ROWS)), plain.value, rtol=1e-11, atol=0)


@pytest.mark.parametrize("steps", [1, 2, 63, 64, 65, 200])
def test_segments_of_momentum(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    monkeypatch.setattr(MomentumClock, "most", 64)
    lazy, plain = Lazy(start_values(), "float64", "momentum", "l2_gradient"), reference("momentum", "l2_gradient")
    lazy.table.lookup(np.arange(ROWS))
    for step in range(steps):
        given = (np.array([step % 7, 8]), np.ones((2, WIDTH))) if step % 30 == 0 else ()
        lazy.step(0.1, *given)
        plain.step(0.1, *given)
    np.testing.assert_allclose(lazy.rows(np.arange(ROWS)), plain.value, rtol=1e-12)


# rows


def decayed_table(dtype: str = "float64", value: float = 1.0) -> SparseTable:
    return SparseTable("emb", WIDTH, dtype, Constant(value))


HALVES = Shrinkage(l2=2.0)


def test_reading_writes_nothing() -> None:
    table = decayed_table()
    table.lookup(np.array([1, 2]))
    table.tick(HALVES, (), 0.5)
    before = table._records.copy()
    np.testing.assert_array_equal(table.lookup(np.array([2, 1])), 0.5)
    np.testing.assert_array_equal(table.read(np.array([0])), 0.5)
    np.testing.assert_array_equal(table._records[:2], before[:2])


def test_a_new_row_starts_at_its_first_value() -> None:
    table = decayed_table()
    table.lookup(np.array([1]))
    table.tick(HALVES, (), 0.5)
    np.testing.assert_array_equal(table.lookup(np.array([1, 2])), [[0.5, 0.5], [1.0, 1.0]])
    table.tick(HALVES, (), 0.5)
    np.testing.assert_array_equal(table.lookup(np.array([1, 2])), [[0.25, 0.25], [0.5, 0.5]])


def test_a_row_that_nobody_made_is_not_made_by_decay() -> None:
    table = decayed_table()
    table.tick(HALVES, (), 0.5, done=np.array([7]))
    assert len(table) == 0
    np.testing.assert_array_equal(table.lookup(np.array([7]), read_only=True), 0.0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_any_id_decays(dtype: str) -> None:
    ids = np.array([-(2**63), 2**63 - 1, -1, 0, 2**53 + 1])
    table = decayed_table(dtype)
    table.lookup(ids)
    for _ in range(3):
        table.tick(HALVES, (), 0.5)
    np.testing.assert_allclose(table.lookup(ids), 0.125, rtol=1e-15)


def test_a_gradient_without_rows_is_a_step() -> None:
    table = decayed_table()
    table.lookup(np.array([1]))
    empty = SelectedRows(np.empty(0, np.int64), np.empty((0, WIDTH)), 0)
    table.update(empty, (), Rule("sgd", (0.5,)))
    table.tick(HALVES, (), 0.5, done=empty.rows)
    np.testing.assert_array_equal(table.lookup(np.array([1])), 0.5)


def test_overwritten_rows_are_up_to_date() -> None:
    table = decayed_table()
    table.lookup(np.array([1, 2]))
    table.tick(HALVES, (), 0.5)
    table.load(SelectedRows(np.array([2]), np.full((1, WIDTH), 8.0), 0))
    np.testing.assert_array_equal(table.lookup(np.array([1, 2])), [[0.5, 0.5], [8.0, 8.0]])
    table.replace(SelectedRows(np.array([1, 3]), np.full((2, WIDTH), 4.0), 0))
    table.tick(HALVES, (), 0.5)
    np.testing.assert_array_equal(table.lookup(np.array([1, 3])), 2.0)


def test_an_accumulator_that_is_overwritten_leaves_the_value_where_it_was() -> None:
    table = decayed_table()
    velocity = TableColumn("velocity", WIDTH, 1.0, "float64")
    table.attach(velocity)
    table.lookup(np.array([1]))
    moves = MomentumDecay(mu=0.5)
    table.tick(moves, (velocity,), 1.0)
    velocity.load(SelectedRows(np.array([1]), np.zeros((1, WIDTH)), 0))
    table.tick(moves, (velocity,), 1.0)
    np.testing.assert_array_equal(table.lookup(np.array([1])), 0.5)


def test_accumulators_read_up_to_date() -> None:
    table = decayed_table()
    velocity = TableColumn("velocity", WIDTH, 1.0, "float64")
    other = TableColumn("other", WIDTH, 3.0, "float64")
    table.attach(velocity)
    table.attach(other)
    table.lookup(np.array([1]))
    table.tick(MomentumDecay(mu=0.5), (velocity,), 1.0)
    np.testing.assert_array_equal(table.read(np.array([0]), velocity), 0.5)
    np.testing.assert_array_equal(table.read(np.array([0]), other), 3.0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_export_is_a_border(dtype: str) -> None:
    """After an export nothing is to be caught up, so a table that is loaded from it goes on bit for bit."""
    lazy, twin = (Lazy(start_values(), dtype, "adagrad", "elastic_net") for _ in range(2))
    lazy.table.lookup(np.arange(ROWS))
    for step, rate in enumerate(jumping_rates(1_000).tolist()):
        lazy.step(rate, *touches(1_000, ROWS).get(step, ()))
    twin.table.load(lazy.table.export())
    for column, loaded in zip(lazy.columns, twin.columns, strict=True):
        twin.table.attach(loaded)
        loaded.load(column.export())
    for step in range(200):
        given = (np.array([step % ROWS]), np.full((1, WIDTH), 0.1)) if step % 7 == 0 else ()
        lazy.step(0.05, *given)
        twin.step(0.05, *given)
    assert lazy.table.export().value.tobytes() == twin.table.export().value.tobytes()


def test_bookkeeping_is_no_accumulator() -> None:
    table = decayed_table()
    table.tick(HALVES, (), 0.5)
    assert table.columns == ()


def test_another_rule_takes_over() -> None:
    table = decayed_table()
    table.lookup(np.array([1]))
    table.tick(HALVES, (), 0.5)
    table.tick(Shrinkage(l1=0.25), (), 1.0)
    np.testing.assert_array_equal(table.lookup(np.array([1])), 0.25)


@pytest.mark.parametrize("rate", [-0.1, float("nan"), float("inf")])
def test_a_rate_that_is_none_is_refused(rate: float) -> None:
    table = decayed_table()
    table.lookup(np.array([1]))
    with pytest.raises(TableError, match="learning rate"):
        table.tick(HALVES, (), rate)
    np.testing.assert_array_equal(table.lookup(np.array([1])), 1.0)


def test_a_snapshot_has_rows_up_to_date() -> None:
    table = decayed_table()
    table.lookup(np.array([1]))
    table.tick(HALVES, (), 0.5)
    snapshot = table.snapshot()
    table.tick(HALVES, (), 0.5)
    table.update(SelectedRows(np.array([1]), np.ones((1, WIDTH)), 0), (), Rule("sgd", (1.0,)))
    chunk = snapshot.take(10)
    assert chunk is not None
    np.testing.assert_array_equal(chunk.records[:, :WIDTH], 0.5)


def _error_of_peers_rule(rates: Array) -> float:
    """Of "the rate of now to the power of the gap": a row left alone from the first step to the last."""
    exact = np.prod(1 - rates * L2)
    return float(abs((1 - rates[-1] * L2) ** len(rates) - exact))


def test_the_power_of_the_gap_is_right_for_one_rate_only() -> None:
    assert _error_of_peers_rule(np.full(2_000, 0.05)) < 1e-12
    assert _error_of_peers_rule(np.append(np.full(1_000, 0.1), np.full(1_000, 0.001))) > 0.3


def test_the_page_names_tests_that_there_are() -> None:
    """docs/regularisation.md: R is this file, P the one of programs."""
    page = (REPO / "docs" / "regularisation.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(test_\w+)`", page))
    written = "".join(
        path.read_text(encoding="utf-8") for path in sorted(REPO.glob("tests/test_row_regularisation*.py"))
    )
    assert len(named) > 20
    assert named <= set(re.findall(r"^def (test_\w+)", written, re.MULTILINE))
