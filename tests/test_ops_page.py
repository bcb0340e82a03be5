"""docs/ops.md says what the records say. If not: ``python -m fluidlite.ops_page docs/ops.md``."""

from __future__ import annotations

import re

from fluidlite.ops import registry
from fluidlite.ops_page import page
from tests.shared_data import REPO


def test_the_page_is_current() -> None:
    assert (REPO / "docs" / "ops.md").read_text(encoding="utf-8") == page()


def test_every_op_is_on_the_page() -> None:
    text = page()
    headings = set(re.findall(r"^## (\S+)$", text, re.MULTILINE))
    for op_def in registry.all_defs():
        assert op_def.type in headings or f"`{op_def.type}(" in text, op_def.type


def test_an_entry_shows_arguments_attributes_and_gradient() -> None:
    entry = page().split("\n## clip\n")[1].split("\n## ")[0]
    assert "`X, Min?, Max? → Out`" in entry
    assert "| `min` | float |  | lower limit, unless Min gives it |" in entry
    assert "Gradient: `clip_grad(X, Min, Max, Out@GRAD) → X@GRAD`; SelectedRows accepted as X." in entry
