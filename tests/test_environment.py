"""What environment variables may say, and what is answered to anything else."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import fluidlite as fluid
from fluidlite import cli, environment, fusion
from fluidlite.errors import SettingError
from fluidlite.framework.state import launch_seed
from fluidlite.ports import job_id, server_options, trainer_patience


@pytest.mark.parametrize("word", [*environment.YES, "All", " TRUE "])
def test_words_for_all_passes(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLUIDLITE_FUSION", word)
    assert len(fusion.chosen()) == len(fusion.chosen(word)) == len(fusion.NAMES)


@pytest.mark.parametrize("word", [*environment.NO, "Off", " NONE "])
def test_words_for_no_pass(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLUIDLITE_FUSION", word)
    assert fusion.chosen() == fusion.chosen(word) == ()
    assert fluid.Executor()._core._passes == ()


def test_what_is_no_choice_of_passes_is_told_what_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLUIDLITE_FUSION", "maybe")
    with pytest.raises(
        SettingError, match=r"FLUIDLITE_FUSION names 'maybe'.* there are fetches.* all, 1,.* 0, false, no, off, none"
    ):
        fluid.Executor()
    for wrong in (3, [1], object()):
        with pytest.raises(SettingError, match="fusion"):
            fluid.Executor(fusion=wrong)  # type: ignore[arg-type]
    for number, count in ((0, 0), (1, len(fusion.NAMES))):
        assert len(fusion.chosen(number)) == count


@pytest.mark.parametrize(("text", "value"), [("", 60.0), (" ", 60.0), ("0", 0.0), (" 1.5", 1.5), ("1e2", 100.0)])
def test_seconds(text: str, value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLUIDLITE_CONNECT_SECONDS", text)
    assert trainer_patience().connect == value


@pytest.mark.parametrize("text", ["soon", "nan", "inf", "-1"])
def test_what_is_no_number_of_seconds(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLUIDLITE_CONNECT_SECONDS", text)
    with pytest.raises(SettingError, match=f"FLUIDLITE_CONNECT_SECONDS must be a number of seconds, not '{text}'"):
        trainer_patience()


def test_how_long_servers_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, text in (("LEASE_SECONDS", "5"), ("GRACE_SECONDS", "0.5"), ("STAY", "1")):
        monkeypatch.setenv(f"FLUIDLITE_{variable}", text)
    options = server_options()
    assert (options.lease, options.grace, options.stays) == (5.0, 0.5, True)


def test_whole_numbers_and_names(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, seed in (("", 0), (" 7 ", 7)):
        monkeypatch.setenv("FLUIDLITE_SEED", text)
        assert launch_seed() == seed
    for text in ("-1", "1.5", "x"):
        monkeypatch.setenv("FLUIDLITE_SEED", text)
        with pytest.raises(SettingError, match=f"FLUIDLITE_SEED must be a whole number, not '{text}'"):
            fluid.Program()
    monkeypatch.setenv("FLUIDLITE_JOB", "")
    assert job_id() == "job"


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("FLUIDLITE_FUSION", "nonsense"),
        ("FLUIDLITE_KERNELS", "nonsense"),
        ("FLUIDLITE_SEED", "nonsense"),
        ("FLUIDLITE_CONNECT_SECONDS", "nonsense"),
        ("FLUIDLITE_RETRY_SECONDS", "-1"),
        ("FLUIDLITE_LEASE_SECONDS", "abc"),
        ("FLUIDLITE_RESTARTS", "x"),
    ],
)
def test_doctor_tells_of_a_variable_that_is_not_understood(variable: str, text: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fluidlite", "doctor"],
        env={**os.environ, variable: text},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, "")
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("environment ")]
    assert f"SettingError: the environment variable {variable} " in line
    assert repr(text) in line


def test_show_config_tells_it_too(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FLUIDLITE_FUSION", "nonsense")
    fluid.show_config()
    assert "FLUIDLITE_FUSION names 'nonsense'" in capsys.readouterr().out
    assert CliRunner().invoke(cli.app, ["doctor"]).exit_code == 1
