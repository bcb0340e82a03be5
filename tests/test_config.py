"""`show_config` and ``fluidlite doctor``: what the installation is made of, and whether it works."""

from __future__ import annotations

import os
import platform
import socket
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import fluidlite
from fluidlite import cli, config
from fluidlite.errors import KernelError
from fluidlite.kernels import choice, in_numpy


def test_show_config_prints_versions_and_the_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    fluidlite.show_config()
    shown = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert list(shown) == ["fluidlite", "python", "system", "numpy", "grpcio", "protobuf", "kernels", "fusion"]
    assert (shown["fluidlite"], shown["numpy"]) == (fluidlite.__version__, np.__version__)
    assert platform.python_version() in shown["python"]
    assert shown["kernels"] == f"{choice.NAME} ({choice.REASON})"


def test_the_environment_chooses_the_kernels() -> None:
    script = "import fluidlite; fluidlite.show_config()"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "FLUIDLITE_KERNELS": "numpy"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "numpy (FLUIDLITE_KERNELS=numpy)" in done.stdout


def doctor() -> tuple[int, str]:
    done = CliRunner().invoke(cli.app, ["doctor"], catch_exceptions=False)
    return done.exit_code, done.output


def test_doctor_tells_what_is_in_order() -> None:
    code, output = doctor()
    assert code == 0
    assert output.splitlines()[-2:] == ["loopback       ok", "kernels agree  ok"]


def test_doctor_tells_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise OSError(99, "Cannot assign requested address")

    monkeypatch.setattr(socket, "create_server", refuse)
    code, output = doctor()
    assert code == 1
    assert "loopback       OSError: [Errno 99] Cannot assign requested address\nkernels agree  ok" in output


def test_kernels_that_compute_something_else_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fluidlite.kernels._c", reason="the C kernels are not built", exc_type=ImportError)
    from fluidlite.kernels.in_c import rows

    monkeypatch.setattr(choice, "IN_C", True)
    monkeypatch.setattr(rows, "sum_rows", lambda *args: in_numpy.rows.sum_rows(*args) + 1e-16)
    with pytest.raises(KernelError, match="the kernels in C compute"):
        config.check_kernels()
