"""What each pass over a program of Fluid changes, as a difference of texts.

``FLUIDLITE_REWRITE=1 pytest tests/test_legacy_texts.py`` writes the files anew; read the difference.
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path

import pytest

from fluidlite.core import edit, text
from fluidlite.core.ir import Program
from fluidlite.transpiler.legacy import PASSES, translate
from tests.fluid_jobs import recorded
from tests.test_legacy_programs import program

FOLDER = Path(__file__).parent / "legacy_programs" / "passes"
#: pass -> programs on which it does something: ``job.mode/role/part`` of a recording, or ``form/role`` written by hand
CASES = {
    "rename_old_ops": ["0.12/trainer"],
    "look_up_here": ["0.12/trainer", "0.14/trainer", "1.1/trainer", "1.2/trainer", "shared.sync/trainer0/main"],
    "cut_in_program": ["shared.async_rt/trainer0/main", "dense.async_rt/trainer0/main"],
    "name_gradients": ["1.1/trainer", "dense.sync/trainer1/main"],
    "commit_once": ["1.1-async/trainer", "two_tables.async/trainer0/main"],
    "drop_clock": ["schedule.async/trainer0/main"],
    "name_trainer": ["1.1/trainer_startup", "0.14/trainer"],
    "drop_control": ["1.1/trainer", "dense.sync/trainer0/startup"],
    "forget_dead_blocks": ["schedule.sync/trainer0/main"],
    "bind_gradients": ["federated/pserver"],
    "name_table_gradients": ["0.14/pserver0", "1.1-async/pserver1"],
    "apart_from_schedule": ["schedule.async/pserver0/main", "warmup.sync/pserver0/main"],
    "update_in_one_block": ["0.14/pserver0", "schedule.sync/pserver0/main", "schedule.sync/pserver1/main"],
    "add_deltas": ["shared.geo/pserver0/main"],
    "scale_by_contributions": ["1.1/pserver0", "two_tables.sync/pserver0/main"],
    "answer_lookups": ["0.14/pserver0", "1.2/pserver1", "two_tables.sync/pserver0/main"],
    "count_as_here": ["1.1/pserver0", "dense.dc_asgd/pserver0/main", "dense.async_rt/pserver0/main"],
    "grow_tables": ["1.1/pserver0_startup"],
    "count_from_here": ["schedule.async/pserver0/startup"],
}


def given(case: str) -> Program:
    first, role, *part = case.split("/")
    if not part:
        return program(first, role, trainer=1).desc
    job = recorded(first)
    held = job.trainers if role.startswith("trainer") else list(job.pservers.values())
    found: Program = getattr(held[int(role[-1])], part[0]).desc
    return found


def difference(before: str, after: str) -> str:
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=0)
    return "".join(f"{line}\n" for line in lines if not line.startswith(("---", "+++")))


@pytest.mark.parametrize(("step", "case"), [(step, case) for step, cases in CASES.items() for case in cases])
def test_what_a_pass_changes(step: str, case: str) -> None:
    copy = edit.clone(given(case))
    for one in PASSES:
        before = text.show(copy, brief=True)
        one(copy)
        if one.__name__ == step:
            break
    found = difference(before, text.show(copy, brief=True))
    path = FOLDER / f"{step}.{case.replace('/', '.')}.txt"
    if os.environ.get("FLUIDLITE_REWRITE"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(found, encoding="utf-8")
    assert found, "the pass does nothing here"
    assert found == path.read_text(encoding="utf-8")


def test_every_pass_has_a_text_and_no_text_is_left_over() -> None:
    assert list(CASES) == [step.__name__ for step in PASSES]
    expected = {f"{step}.{case.replace('/', '.')}.txt" for step, cases in CASES.items() for case in cases}
    assert {path.name for path in FOLDER.iterdir()} == expected


@pytest.mark.parametrize("case", ["shared.sync/trainer0/main", "1.1/pserver0", "schedule.async/pserver0/startup"])
def test_a_program_is_translated_once_and_the_original_stays(case: str) -> None:
    original = given(case)
    before = text.show(original)
    once = translate(original)
    assert text.show(original) == before
    assert once is not original
    assert translate(once) is once
