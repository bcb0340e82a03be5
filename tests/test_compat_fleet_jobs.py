"""Scripts for Fluid's fleets as real processes: the losses are those that Fluid 1.8.5 printed for the same scripts."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import launch
from fluidlite.launch import command_line, is_for_fluid

HERE = Path(__file__).parent
SCRIPT, STATIC, PSLIB = (str(HERE / f"{name}_script.py") for name in ("fleet", "static", "pslib"))
LAUNCH_PS = [sys.executable, "-m", "fluidlite.compat", "-m", "paddle.distributed.launch_ps"]
ORACLE = os.environ.get("FLUIDLITE_ORACLE_PYTHON", "")
#: what Fluid 1.8.5 prints for ``fleet_script.py``: by its fleet with 2 pservers, local, and local on each trainer's half
SYNC = {
    0: [0.015251260250806808, 0.10348692536354065, 0.053582463413476944, 0.04844491928815842],
    1: [0.1603982150554657, 0.20974327623844147, 0.2214212864637375, 0.0683508887887001],
}
LOCAL = [0.0878247395157814, 0.15661509335041046, 0.13750186562538147, 0.05839790403842926]
HALVES = {
    0: [0.015251260250806808, 0.11649394035339355, 0.07290689647197723, 0.01623222418129444],
    1: [0.1603982150554657, 0.18396136164665222, 0.15664708614349365, 0.13550138473510742],
}
SUMS = {"emb": 40.11039733886719, "fc_w": 3.9962544441223145, "out_w": 1.2984882593154907}
#: the first two losses of a fleet that starts from what the one of `SYNC` has saved
CONTINUED = {0: [0.046835459768772125, 0.09689965844154358], 1: [0.10364139825105667, 0.1697254627943039]}


def run(command: Sequence[str], folder: Path) -> str:
    """What a command prints."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PADDLE_", "TRAINING_ROLE"))}
    done = subprocess.run(command, cwd=folder, env=inherited, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def launched(folder: Path, pservers: int, trainers: int, script: str, *arguments: str) -> str:
    """What ``fluidlite launch`` prints for a script whose last argument is a folder."""
    folder.mkdir(exist_ok=True)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        launch.launch([script, *arguments, str(folder)], pservers, trainers, folder / "logs")
    return printed.getvalue()


def printed(output: str, word: str) -> dict[int, Any]:
    """What each trainer printed behind a word."""
    lines = [line.partition("] ") for line in output.splitlines() if f"] {word} " in line]
    return {int(who.split()[1]): json.loads(said.split(" ", 1)[1]) for who, _, said in lines}


def losses(output: str) -> dict[int, list[float]]:
    return printed(output, "losses")


def close(found: dict[int, list[float]], wanted: dict[int, list[float]]) -> None:
    assert found.keys() == wanted.keys()
    for trainer, numbers in wanted.items():
        np.testing.assert_allclose(found[trainer], numbers, rtol=1e-5)


@pytest.fixture(scope="module")
def synchronous(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder and the output of a synchronous job that launch_ps ran."""
    folder = tmp_path_factory.mktemp("sync")
    job = [*LAUNCH_PS, "--start_port", "0", "--worker_num", "2", "--server_num", "2", SCRIPT, "sync", "4", str(folder)]
    return folder, run(job, folder)


def test_a_synchronous_fleet_by_launch_ps(synchronous: tuple[Path, str]) -> None:
    folder, output = synchronous
    found = losses(output)
    close(found, SYNC)
    np.testing.assert_allclose(np.mean([found[0], found[1]], axis=0), LOCAL, rtol=1e-5)
    logs = sorted(path.name for path in (folder / "logs").iterdir())
    assert logs == ["serverlog.0", "serverlog.1", "workerlog.0", "workerlog.1"]


def test_what_a_fleet_saves_loads_in_a_plain_process(synchronous: tuple[Path, str]) -> None:
    folder, _ = synchronous
    exe = fluid.Executor()
    with fluid.scope_guard(fluid.Scope()):
        program, feeds, targets = fluid.io.load_inference_model(folder / "model", exe)
        fluid.io.load_persistables(exe, folder / "persistables", program)
        values = {name: np.asarray(fluid.global_scope().get(name)) for name in (*SUMS, "fc_0.b_0", "fc_1.b_0")}
        for name, wanted in SUMS.items():
            assert values[name].sum() == pytest.approx(wanted, rel=1e-5)
        ids = fluid.create_lod_tensor(np.array([[3], [4], [4]]), [[1, 2]])
        dense = np.linspace(0, 1, 8, dtype=np.float32).reshape(2, 4)
        (predicted,) = exe.run(program, dict(zip(feeds, (ids, dense), strict=True)), targets)
    pooled = np.stack([values["emb"][3], 2 * values["emb"][4]])
    hidden = np.maximum(np.hstack([pooled, dense]) @ values["fc_w"] + values["fc_0.b_0"], 0)
    np.testing.assert_allclose(predicted, hidden @ values["out_w"] + values["fc_1.b_0"], rtol=1e-5)


def test_pservers_go_on_from_what_was_saved(
    synchronous: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also from what Fluid's trainers save, which has no learning rate."""
    saved = synchronous[0] / "persistables"
    (saved / "learning_rate_0").unlink(missing_ok=True)
    monkeypatch.setenv("MODEL_DIR", str(saved))
    close(losses(launched(tmp_path, 1, 2, SCRIPT, "sync", "2")), CONTINUED)


@pytest.mark.skipif(not ORACLE, reason="FLUIDLITE_ORACLE_PYTHON names no python with Fluid 1.8.5")
def test_recorded_losses_are_what_fluid_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And pservers here go on from what Fluid's fleet has saved."""
    for mode, wanted in (("local", LOCAL), ("half0", HALVES[0]), ("half1", HALVES[1])):
        said = run([ORACLE, SCRIPT, mode, "4", str(tmp_path)], tmp_path)
        close({0: json.loads(said.splitlines()[0].partition(" ")[2])}, {0: wanted})
    endpoints = ",".join(launch.free_endpoints(2))
    run(
        [ORACLE, "-m", "paddle.distributed.launch_ps", "--endpoints", endpoints, SCRIPT, "sync", "4", str(tmp_path)],
        tmp_path,
    )
    logs = [(tmp_path / "logs" / f"workerlog.{trainer}").read_text(encoding="utf-8") for trainer in (0, 1)]
    close(losses("\n".join(f"[trainer {i}] {line}" for i, log in enumerate(logs) for line in log.splitlines())), SYNC)
    monkeypatch.setenv("MODEL_DIR", str(tmp_path / "persistables"))
    close(losses(launched(tmp_path / "again", 1, 2, SCRIPT, "sync", "2")), CONTINUED)


def test_a_geo_fleet_trains_by_itself_between_exchanges(tmp_path: Path) -> None:
    """The first exchange is behind the second step."""
    found = losses(launched(tmp_path, 2, 2, SCRIPT, "geo", "4"))
    close({trainer: numbers[:2] for trainer, numbers in found.items()}, {t: half[:2] for t, half in HALVES.items()})
    assert [len(found[trainer]) for trainer in (0, 1)] == [4, 4]


def test_a_local_script_of_paddle_2(tmp_path: Path) -> None:
    output = run([sys.executable, "-m", "fluidlite.compat", STATIC, "local", str(tmp_path)], tmp_path).splitlines()
    assert len(json.loads(output[0].partition(" ")[2])) == 4
    assert output[1] == "predicted 8"


def test_an_asynchronous_fleet_of_paddle_2(tmp_path: Path) -> None:
    output = launched(tmp_path, 2, 2, STATIC, "async")
    found = losses(output)
    assert [len(found[trainer]) for trainer in (0, 1)] == [4, 4]
    assert np.isfinite([found[0], found[1]]).all()
    assert printed(output, "total") == {0: 3, 1: 3}


@pytest.mark.full
def test_a_synchronous_fleet_of_paddle_2(tmp_path: Path) -> None:
    local = run([sys.executable, "-m", "fluidlite.compat", STATIC, "local", str(tmp_path)], tmp_path).splitlines()
    found = losses(launched(tmp_path, 1, 2, STATIC, "sync"))
    np.testing.assert_allclose(np.mean([found[0], found[1]], axis=0), json.loads(local[0].partition(" ")[2]), rtol=1e-5)


@pytest.mark.full
def test_a_configuration_as_strategy(tmp_path: Path) -> None:
    close(losses(launched(tmp_path, 2, 2, SCRIPT, "config", "4")), SYNC)


@pytest.mark.full
@pytest.mark.parametrize("mode", ["async", "half_async"])
def test_asynchronous_fleets(mode: str, tmp_path: Path) -> None:
    found = losses(launched(tmp_path, 2, 2, SCRIPT, mode, "4"))
    assert [len(found[trainer]) for trainer in (0, 1)] == [4, 4]
    assert np.isfinite([found[0], found[1]]).all()
    assert {"emb", "fc_w", "out_w"} <= {path.name for path in (tmp_path / "persistables").iterdir()}


@pytest.mark.full
def test_a_pslib_script(tmp_path: Path) -> None:
    output = launched(tmp_path, 1, 2, PSLIB)
    assert output.count("total [2.0, 1.0] counted 8") == 2
    assert output.count("pass 0 global auc = ") == 1
    (saved,) = (line for line in output.splitlines() if " saved " in line)
    assert "'emb', 'emb_beta1_pow_acc_0'" in saved
    assert "change nothing, the optimizer's own hold: use_cvm" in output


@pytest.mark.parametrize(
    ("text", "ours"),
    [
        ("import paddle.fluid as fluid\n", True),
        ("if x:\n    from paddle import fluid\n", True),
        ("import paddle\nimport fluidlite\n", False),
        ("import paddleocr\n# import paddle\n", False),
    ],
)
def test_the_launcher_knows_scripts_for_fluid(text: str, ours: bool, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(text, encoding="utf-8")
    assert is_for_fluid(script) is ours
    assert command_line([str(script), "-x"], None)[1:] == [
        *(["-m", "fluidlite.compat"] if ours else []),
        str(script),
        "-x",
    ]
    assert command_line([str(script)], not ours)[-2:] == (
        [sys.executable, str(script)] if ours else ["fluidlite.compat", str(script)]
    )
    assert not is_for_fluid(tmp_path / "nothing.py")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--worker_num", "0", "x.py"], "at least one worker"),
        (["--endpoints", "127.0.0.1:1", "x.py"], "--endpoints names 1 pservers, --server_num says 2"),
        ([], "training_script"),
    ],
)
def test_launch_ps_refuses(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    from fluidlite.compat import launch_ps

    with pytest.raises(SystemExit) as caught:
        launch_ps.launch(arguments)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_the_launcher_of_paddle_2(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from fluidlite.compat import launch_ps

    started: list[list[str]] = []
    monkeypatch.setattr(launch_ps, "launch", started.append)
    launch_ps.launch_two(["--server_num", "2", "--worker_num=3", "train.py", "--lr", "1"])
    launch_ps.launch_two(["--servers=h:1,h:2", "--workers=h:3", "--log_dir", "out", "train.py"])
    ports = ["--start_port", "0", "--log_dir"]
    assert started == [
        ["--server_num", "2", "--worker_num", "3", "--endpoints", "", *ports, "log", "train.py", "--lr", "1"],
        ["--server_num", "2", "--worker_num", "1", "--endpoints", "h:1,h:2", *ports, "out", "train.py"],
    ]
    with pytest.raises(SystemExit):
        launch_ps.launch_two(["train.py"])
    assert "a job without pservers is not supported by fluidlite" in capsys.readouterr().err


def test_what_launch_ps_refuses_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from fluidlite.compat import launch_ps

    script = tmp_path / "train.py"
    script.touch()
    for arguments, message in (
        ([str(tmp_path / "no.py")], "there is no script"),
        (["--endpoints", "a,b:1", str(script)], "must be HOST:PORT, separated by commas, unlike 'a'"),
    ):
        with pytest.raises(SystemExit):
            launch_ps.parse_args(arguments)
        assert message in capsys.readouterr().err


def test_a_job_that_fails_ends_launch_ps(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from fluidlite.compat import launch_ps

    script = tmp_path / "train.py"
    script.write_text(
        "import os, sys\nprint(os.environ['PADDLE_PSERVERS_IP_PORT_LIST'])\nsys.exit(3)\n", encoding="utf-8"
    )
    options = [
        "--worker_num",
        "1",
        "--server_num",
        "1",
        "--endpoints",
        "127.0.0.1:6291",
        "--log_dir",
        str(tmp_path / "logs"),
    ]
    with pytest.raises(SystemExit) as caught:
        launch_ps.launch([*options, str(script)])
    assert caught.value.code == 1
    output = capfd.readouterr()
    assert "ended with exit code 3" in output.err
    assert "127.0.0.1:6291" in output.out + output.err
