"""Jobs of 2 trainers and 2 servers that real Fluid ran in sync mode: the same losses, parameters and saved files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.values import files
from tests.golden_programs import Snippet
from tests.shared_data import golden_array, golden_feed, golden_json, golden_names, needs_golden

#: float32, five steps
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


@needs_golden
@pytest.mark.parametrize("job", golden_names("dist"))
def test_golden_job(job: str, tmp_path: Path) -> None:
    golden: dict[str, Any] = golden_json("dist", f"{job}.json")
    snippet = Snippet(golden["text"], str(tmp_path))
    loss = snippet.names["loss"]
    with fluid.LocalCluster(
        snippet.main, snippet.startup, pservers=int(golden["servers"]), trainers=int(golden["trainers"])
    ) as cluster:
        for step in range(int(golden["steps"])):
            feeds = [{k: golden_feed(v) for k, v in trainer["feeds"][step].items()} for trainer in golden["trainer"]]
            losses = [result[0].item() for result in cluster.run(feeds, loss)]
            np.testing.assert_allclose(losses, [t["losses"][step] for t in golden["trainer"]], **CLOSE)
        first = cluster.trainers[0]
        for name, tensor in golden["trainer_params_after_last_step"].items():
            np.testing.assert_allclose(first.scope.get(name), golden_array(tensor), **CLOSE)
        with fluid.scope_guard(first.scope):
            fluid.io.save_persistables(first.executor, str(tmp_path / "saved"), first.main)
    for name, tensor in golden["saved_params"].items():
        saved = files.load(tmp_path / "saved" / name, name)
        np.testing.assert_allclose(saved, golden_array(tensor), **CLOSE)
