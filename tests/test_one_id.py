"""docs/one_id.md is true: a step of a job passes every place it names, in that order."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from types import FrameType

import numpy as np

import fluidlite as fluid
from tests.frontend import fresh_programs

ROOT = Path(__file__).parent.parent
PACKAGE = str(ROOT / "fluidlite") + "/"


def documented(section: str) -> list[str]:
    text = (ROOT / "docs" / "one_id.md").read_text(encoding="utf-8")
    part = text.split(f"## {section}\n")[1].split("\n## ")[0]
    return re.findall(r"^\| `([\w.]+:[\w.]+)` \|", part, re.MULTILINE)


class Recorder:
    """The functions of fluidlite in the order in which they are called, by whichever thread."""

    def __init__(self) -> None:
        self.places: list[str] = []

    def __call__(self, frame: FrameType, event: str, arg: object) -> None:
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(PACKAGE):
            module = path.removeprefix(PACKAGE).removesuffix(".py").replace("/", ".")
            self.places.append(f"{module}:{frame.f_code.co_qualname}")


def test_a_step_passes_every_documented_place() -> None:
    with fresh_programs():
        ids = fluid.data("ids", [None, 1], "int64")
        rows = fluid.layers.embedding(ids, [1000, 4], is_sparse=True, is_distributed=True, param_attr="emb")
        loss = fluid.layers.mean(rows)
        fluid.optimizer.SGD(0.1).minimize(loss)
        programs = fluid.default_main_program(), fluid.default_startup_program()
    recorder = Recorder()
    feed = {"ids": np.array([[42], [7], [42]])}
    with fluid.LocalCluster(*programs, pservers=2, trainers=2) as cluster:
        threading.setprofile(recorder)  # of threads yet to be started: those of the trainers
        try:
            cluster.run([feed, feed], loss)
        finally:
            threading.setprofile(None)
    rest = iter(recorder.places)
    missing = [place for place in documented("Pull") + documented("Push") if place not in rest]
    assert not missing, f"not passed, or not in this order: {missing}"
