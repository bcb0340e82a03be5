"""What each fusion pass makes of a small program, as text.

``FLUIDLITE_REWRITE=1 pytest tests/test_fusion_texts.py`` writes the files anew; read the difference.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

import fluidlite as fluid
from fluidlite import fusion
from fluidlite.core import ir, text
from tests.frontend import fresh_programs

FOLDER: Final = Path(__file__).with_name("fusion")


def _slots(layer: Callable[..., fluid.Variable], count: int = 2) -> list[fluid.Variable]:
    options: dict[str, Any] = {"is_sparse": True, "is_distributed": True, "param_attr": "emb"}
    return [layer(fluid.data(f"ids{slot}", [None, 1], "int64"), [100, 4], **options) for slot in range(count)]


def _train(loss: fluid.Variable) -> None:
    fluid.optimizer.SGD(0.1).minimize(loss)


def lookups() -> None:
    _train(fluid.layers.mean(fluid.layers.sums(_slots(fluid.layers.embedding))))


def lookup_concat() -> None:
    rows = [fluid.layers.reshape(slot, [-1, 4]) for slot in _slots(fluid.embedding)]
    _train(fluid.layers.mean(fluid.layers.concat([*rows, fluid.data("dense", [None, 2])], axis=1)))


def lookup_concat_alone() -> None:
    _train(fluid.layers.mean(fluid.layers.concat(_slots(fluid.layers.embedding), axis=1)))


def fetches() -> None:
    lookups()
    fluid.DistributeTranspiler().transpile(0, pservers="ps0:1,ps1:1", trainers=1)


def fc() -> None:
    hidden = fluid.layers.fc(fluid.data("x", [None, 3]), 4, act="relu")
    _train(fluid.layers.mean(fluid.layers.fc(hidden, 2)))


def softmax_loss() -> None:
    probabilities = fluid.layers.softmax(fluid.layers.fc(fluid.data("x", [None, 3]), 4))
    label = fluid.data("label", [None, 1], "int64")
    fluid.layers.accuracy(probabilities, label)
    _train(fluid.layers.mean(fluid.layers.cross_entropy(probabilities, label)))


def sigmoid_loss() -> None:
    logit = fluid.layers.fc(fluid.data("x", [None, 3]), 1)
    losses = fluid.layers.sigmoid_cross_entropy_with_logits(logit, fluid.data("label", [None, 1]))
    _train(fluid.layers.mean(losses))


def updates() -> None:
    loss = fluid.layers.mean(fluid.layers.fc(fluid.data("x", [None, 3]), 4))
    fluid.optimizer.Adam(0.1).minimize(loss)


#: file -> (pass, what appends the program)
JOBS: Final[dict[str, tuple[str, Callable[[], None]]]] = {
    "fetches": ("fetches", fetches),
    "lookup_concat": ("lookup_concat", lookup_concat),
    "lookup_concat_alone": ("lookup_concat", lookup_concat_alone),
    "lookups": ("lookups", lookups),
    "fc": ("fc", fc),
    "softmax_loss": ("softmax_loss", softmax_loss),
    "sigmoid_loss": ("sigmoid_loss", sigmoid_loss),
    "updates": ("updates", updates),
}


def _shown(program: ir.Program) -> str:
    """The text with the user's lines shortened: they change with this file."""
    return re.sub(r"[^ ,]*test_fusion_texts.py:\d+", "model.py", text.show(program))


@pytest.mark.parametrize("job", JOBS)
def test_pass_makes_this_text(job: str) -> None:
    name, build = JOBS[job]
    with fresh_programs() as (main, _):
        build()
    after = fusion.fuse(main.desc, (), fusion.chosen([name]))
    found = f"== before {name}\n{_shown(main.desc)}== after {name}\n{_shown(after)}"
    path = FOLDER / f"{job}.txt"
    if os.environ.get("FLUIDLITE_REWRITE"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(found, encoding="utf-8")
    assert found == path.read_text(encoding="utf-8")


def test_every_pass_has_a_text() -> None:
    assert {name for name, _ in JOBS.values()} == set(fusion.NAMES)
    assert {path.stem for path in FOLDER.iterdir()} == set(JOBS)
