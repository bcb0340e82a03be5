"""Every example runs, alone and as a job, on the shared data where it is there and on made-up data elsewhere."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests import typed_user
from tests.shared_data import REPO, shared

EXAMPLES = sorted(path.name for path in (REPO / "examples").glob("*.py"))


def run(*command: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr or done.stdout
    return done.stdout


def example(name: str) -> str:
    return str(REPO / "examples" / name)


def losses(output: str) -> list[float]:
    return [float(value) for value in re.findall(r"loss (\S+)", output)]


@pytest.fixture
def some_text(tmp_path: Path) -> str:
    """A text in which some words always go together."""
    random = np.random.default_rng(0)
    groups = [("king", "queen", "crown"), ("sheep", "lamb", "wool"), ("water", "river", "well")]
    lines = [f"Ma1:{i} " + " ".join(random.permutation(groups[i % 3] * 4)) + "." for i in range(300)]
    path = tmp_path / "text.txt"
    path.write_text("\n".join(lines), encoding="utf-8")
    return str(path)


def test_wide_deep(tmp_path: Path) -> None:
    output = run(example("wide_deep.py"), "--epochs", "1", "--batch", "2048", "--save", "out", folder=tmp_path)
    assert float(re.findall(r"test AUC (\S+)", output)[0]) > 0.85
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"main.program", "startup.program", "persistables", "model"}


def test_criteo_on_made_up_examples(tmp_path: Path) -> None:
    output = run(example("criteo_ctr.py"), "--epochs", "2", "--batch", "256", "--steps", "6", folder=tmp_path)
    first, last = losses(output)
    assert last < first


def test_criteo_on_files(tmp_path: Path) -> None:
    """The three forms of lines; ids above 2^63 are among them."""
    files = [shared("data", "criteo", name) for name in ("criteo_raw_200.txt", "criteo_slots_80.txt", "feasign_slots_10.txt")]  # fmt: skip
    output = run(example("criteo_ctr.py"), "--epochs", "2", *map(str, files), folder=tmp_path)
    first, last = losses(output)
    assert last < first
    assert math.isfinite(last)


def test_word2vec(tmp_path: Path, some_text: str) -> None:
    output = run(example("word2vec.py"), some_text, "--epochs", "4", "--batch", "64", folder=tmp_path)
    assert losses(output)[-1] < losses(output)[0]
    assert set(output.split("king: ")[1].split("\n")[0].split(", ")[:2]) == {"queen", "crown"}


def test_word2vec_launched_on_a_real_text(tmp_path: Path) -> None:
    text = str(shared("data", "kjv", "kjv.txt.gz"))
    options = ["--epochs", "1", "--batch", "256", "--steps", "10", "--async"]
    output = run("-m", "fluidlite.launch", example("word2vec.py"), text, *options, folder=tmp_path)
    assert "[trainer 0] jerusalem: " in output


def test_a_typed_script_runs() -> None:
    """``.ci/run`` checks its types."""
    first, *_, last = typed_user.main()
    assert last < first


def test_the_readme_names_every_example() -> None:
    readme = (REPO / "README.md").read_text(encoding="utf-8")
    assert [name for name in EXAMPLES if f"- `examples/{name}`: " not in readme] == []


def test_the_code_in_the_readme_runs(tmp_path: Path) -> None:
    readme = (REPO / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    assert run("-c", code, folder=tmp_path).startswith("[array([0.6")


def test_links_in_the_readme_lead_somewhere() -> None:
    readme = (REPO / "README.md").read_text(encoding="utf-8")
    assert [link for link in re.findall(r"\]\(([^)#]+)\)", readme) if not (REPO / link).exists()] == []
