"""The front end's ground: whose line an op is of."""

from __future__ import annotations

from pathlib import Path

import pytest

import fluidlite

PACKAGE = Path(fluidlite.__file__).parent
CALL = "from fluidlite.framework import user_line\nline = user_line()\n"


def line_seen_from(file: Path) -> str:
    names: dict[str, str] = {}
    exec(compile(CALL, str(file), "exec"), names)
    return names["line"]


@pytest.mark.parametrize("file", ["train.py", "fluidlite_models.py", "fluidlite/demo/wide_deep.py"])
def test_a_file_outside_the_package_is_the_users_and_so_is_the_demo(file: str) -> None:
    path = PACKAGE.parent / file
    assert line_seen_from(path) == f"{path}:2"


def test_a_file_of_the_package_is_not() -> None:
    assert line_seen_from(PACKAGE / "layers" / "nn.py").startswith(f"{__file__}:")
