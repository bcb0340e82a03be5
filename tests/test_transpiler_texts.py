"""Every pass in every situation that matters to it: the program before it and after it, as text.

``FLUIDLITE_REWRITE=1 pytest tests/test_transpiler_texts.py`` writes the files anew; read the difference.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fluidlite.core import text
from tests.transpiler_jobs import FOLDER, JOBS, ROLES

#: (role, pass) -> jobs
CASES = {
    ("trainer", "keep_on_trainer"): ["global_norm", "table_adam", "dense"],
    ("trainer", "lower_lookups"): ["table", "rows"],
    ("trainer", "send_table_gradients"): ["table", "table_adam"],
    ("trainer", "send_gradients"): ["dense", "rows", "rows_one_server", "global_norm", "global_norm_on_trainer"],
    ("trainer", "commit_step"): ["dense", "table", "dense_one_server", "global_norm_on_trainer"],
    ("trainer", "drop_updates"): [
        "dense",
        "schedule",
        "global_norm",
        "global_norm_on_trainer",
        "schedule_on_trainer",
    ],
    ("trainer", "forget_unused"): ["dense", "table"],
    ("trainer_startup", "fake_rows"): ["table", "rows"],
    ("trainer_startup", "receive_parameters"): ["dense", "table", "schedule", "schedule_on_trainer"],
    ("trainer_startup", "forget_unused"): ["dense"],
    ("pserver", "copy_schedule"): ["schedule", "schedule_on_trainer"],
    ("pserver", "move_updates"): ["dense", "dense_together", "table_adam", "rows", "global_norm_on_trainer"],
    ("pserver", "drop_trainer_ops"): ["schedule", "table"],
    ("pserver", "merge_contributions"): ["dense", "dense_async", "table", "dense_one_server", "dense_pushes"],
    ("pserver", "compensate_delay"): ["dense_compensated", "dense_async"],
    ("pserver", "serve_rows"): ["table", "rows"],
    ("pserver", "listen"): [
        "table",
        "table_async",
        "rows",
        "schedule",
        "schedule_idle",
        "dense_compensated",
        "dense_pushes",
    ],
    ("pserver_startup", "keep_own_inits"): ["dense", "schedule_idle", "global_norm_on_trainer"],
    ("pserver_startup", "grow_tables"): ["table_adam"],
    ("pserver_startup", "slice_inits"): ["dense", "dense_together", "rows"],
    ("pserver_startup", "back_up_parameters"): ["dense_compensated", "dense_async"],
    ("geo_trainer", "fetch_new_rows"): ["geo_table", "geo_rows"],
    ("geo_trainer", "exchange"): ["geo_table", "geo_rows", "geo_dense", "geo_schedule"],
    ("geo_trainer_startup", "keep_rows"): ["geo_table", "geo_rows"],
    ("geo_trainer_startup", "receive_parameters"): ["geo_schedule"],
    ("geo_trainer_startup", "begin_exchanges"): ["geo_dense"],
    ("geo_pserver", "add_deltas"): ["geo_table", "geo_rows", "geo_dense"],
    ("geo_pserver", "drop_trainer_ops"): ["geo_schedule"],
    ("geo_pserver", "serve_rows"): ["geo_rows"],
    ("geo_pserver", "listen"): ["geo_table"],
    ("geo_pserver_startup", "keep_own_inits"): ["geo_table"],
    ("geo_pserver_startup", "grow_tables"): ["geo_table"],
    ("geo_pserver_startup", "slice_inits"): ["geo_dense"],
}
PARAMS = [(role, name, job) for (role, name), jobs in CASES.items() for job in jobs]


def _file(role: str, name: str, job: str) -> Path:
    return (
        FOLDER / (f"startup_{name}" if role == "trainer_startup" and name == "forget_unused" else name) / f"{job}.txt"
    )


def _text(role: str, name: str, job_name: str) -> str:
    job = JOBS[job_name]
    before, after = job.around(role, name)
    mode = "geo" if role.startswith("geo") else "sync" if job.sync else "async"
    where = f", seen by {job.endpoints[job.server]}" if ROLES[role][2] else f", trainer {job.trainer_id}"
    head = f"# {job.intro}\n# {job.servers} servers, {job.trainers} trainers, {mode}{where}\n"
    return f"{head}== before {name}\n{text.show(before)}== after {name}\n{text.show(after)}"


@pytest.mark.parametrize(("role", "name", "job"), PARAMS, ids=str)
def test_pass_makes_this_text(role: str, name: str, job: str) -> None:
    path = _file(role, name, job)
    found = _text(role, name, job)
    if os.environ.get("FLUIDLITE_REWRITE"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(found, encoding="utf-8")
    assert found == path.read_text(encoding="utf-8")


def test_every_pass_has_a_text() -> None:
    passes = {(role, step.__name__) for role, (steps, _, _) in ROLES.items() for step in steps}
    assert passes == set(CASES)


def test_no_text_is_left_over() -> None:
    written = {path for path in FOLDER.rglob("*.txt") if path.parent.name != "programs"}
    assert written == {_file(*param) for param in PARAMS}
