"""Training runs of real Fluid 1.8.5, step by step: losses and every persistable variable at the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fluidlite.runtime.scope import Scope
from tests.frontend import Session
from tests.golden_programs import Snippet, missing
from tests.shared_data import golden_array, golden_feed, golden_json, golden_names, needs_golden


def trained(snippet: Snippet, train: dict[str, Any]) -> tuple[list[list[float]], Scope]:
    """What each step fetched, and the scope after the last one."""
    session = Session(snippet.startup)
    for name, tensor in train["initial_params"].items():
        session.scope.set(name, golden_array(tensor))
    fetched = []
    for feed in train["feeds"]:
        values = session.run(snippet.main, {name: golden_feed(t) for name, t in feed.items()}, train["fetch"])
        fetched.append([float(np.asarray(value).reshape(-1)[0]) for value in values])
    return fetched, session.scope


@needs_golden
@pytest.mark.parametrize(
    "name", [name for name in golden_names("programs") if "train" in golden_json("programs", f"{name}.json")]
)
@pytest.mark.parametrize("fusion", ["1", "0"])
def test_golden_training(name: str, fusion: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLUIDLITE_FUSION", fusion)
    golden = golden_json("programs", f"{name}.json")
    lacking = missing(golden)
    if lacking:
        pytest.skip(f"not available: {', '.join(lacking)}")
    train = golden["train"]
    losses, scope = trained(Snippet(golden["text"], str(tmp_path)), train)
    expected = {**train, **train.get("expected_correct", {})}
    np.testing.assert_allclose(losses, expected["losses"], rtol=1e-4, atol=1e-6)
    for variable, tensor in expected["final_persistables"].items():
        found = scope.get(variable)
        wanted = golden_array(tensor)
        assert isinstance(found, np.ndarray), variable
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape), variable
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6, err_msg=variable)
