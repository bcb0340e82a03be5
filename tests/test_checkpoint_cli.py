"""``fluidlite checkpoint ls | verify | diff | show``: what a user sees."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from fluidlite import cli
from fluidlite.checkpoint.writer import CheckpointWriter
from fluidlite.pserver.cut import take_cut
from tests.checkpoint_host import make_host, push, save


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Checkpoints 1 and 2 of two servers, 2 incremental; 3 of one of them only."""
    folder = tmp_path / "job"
    hosts = [make_host(range(server, 20, 2)) for server in range(2)]
    writers = [CheckpointWriter(folder, server, 2) for server in range(2)]
    for number in (1, 2):
        for server, host in enumerate(hosts):
            host.version = 10 * number + server
            push(host, [server], number)
            save(folder, host, number, writers[server])
    writers[0].write(take_cut(hosts[0], 3))
    return folder


def run(*args: str | Path, code: int = 0) -> str:
    done = CliRunner().invoke(cli.app, ["checkpoint", *map(str, args)], catch_exceptions=False)
    assert done.exit_code == code, done.output
    return done.output


def lines_of(text: str) -> list[list[str]]:
    """The rows of a table as words."""
    return [line.split() for line in text.splitlines() if line.strip() and "─" not in line]


def test_ls(job: Path) -> None:
    head, one, two, three = lines_of(run("ls", job))
    assert head[:5] == ["number", "version", "servers", "kind", "rows"]
    assert one[:5] == ["1", "10-11", "2", "full", "20"]
    assert one[-1] == "whole"
    assert two[:6] == ["2", "20-21", "2", "since", "1", "2"]
    assert " ".join(three).endswith("the manifest of server 1 is missing")


def test_verify(job: Path) -> None:
    said = run("verify", job, code=1)
    assert "checkpoint 1: good\ncheckpoint 2: good\ncheckpoint 3: BAD\n  the manifest of server 1 is missing" in said
    assert run("verify", job / "checkpoint-000000002") == "checkpoint 2: good\n"
    path = next((job / "checkpoint-000000001").glob("*.rows"))
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    said = run("verify", job / "checkpoint-000000002", code=1)
    assert "checkpoint 2: BAD" in said
    assert f"{path.name}: chunk 0 is damaged" in said


def test_show(job: Path) -> None:
    said = run("show", job)
    assert "checkpoint 2: 2 servers, version 20-21, since 1" in said
    assert ["emb", "20", "2", "float32", "emb_0", "(2)", "Constant(value=1.0)"] in lines_of(said)
    assert ["w", "2x3"] in lines_of(said)


def test_show_a_row(job: Path) -> None:
    said = run("show", job, "--table", "emb", "--id", "1")
    assert "checkpoint 2, table 'emb', id 1: on server 1 of 2, last written by checkpoint 2" in said
    assert lines_of(said)[1:] == [["value", "5", "5"], ["emb_0", "8.5", "8.5"]]
    said = run("show", job / "checkpoint-000000001", "--table", "emb", "--id", "18")
    assert "on server 0 of 2, last written by checkpoint 1" in said
    assert "has no row -5" in run("show", job, "--table", "emb", "--id=-5", code=1)
    run("show", job, "--table", "emb", code=2)


def test_diff(job: Path) -> None:
    first, second = job / "checkpoint-000000001", job / "checkpoint-000000002"
    said = run("diff", first, second, code=1)
    rows = lines_of(said)
    assert rows[1] == ["emb", "value", "18", "2", "0", "0", "2"]
    assert rows[2] == ["emb", "emb_0", "18", "2", "0", "0", "4"]
    assert said.endswith("2 of 4 parts differ; tables are counted in rows, arrays in elements\n")
    assert run("diff", second, second).startswith("0 of 4")
    assert "w" in run("diff", second, second, "--all")


def test_diff_tells_what_is_in_one_only(tmp_path: Path) -> None:
    one, two = make_host([1, 2, 3]), make_host([2, 3, 4, 5], columns=2)
    two.scope.values["v"] = two.scope.values.pop("w")
    two.scope.values["step"] = two.scope.values["step"].astype("int32")
    save(tmp_path / "one", one)
    save(tmp_path / "two", two)
    said = run("diff", tmp_path / "one", tmp_path / "two", code=1)
    rows = lines_of(said)
    assert ["emb", "value", "2", "0", "1", "2", "0"] in rows
    assert ["emb", "emb_1", "0", "0", "0", "4", "0"] in rows
    assert "only in checkpoint 1" in said
    assert "[1] int64 and [1] int32" in said


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["ls", "{}/nowhere"], "nowhere has no checkpoints"),
        (["verify", "nothing://x"], "nothing://x: Protocol not known: nothing"),
        (["show", "{}/checkpoint-000000009"], "has no checkpoint 9; it has 1, 2, 3"),
        (["show", "{}", "--table", "t", "--id", "1"], "checkpoint 2 has no table 't'; it has emb"),
        (["show", "{}/checkpoint-000000003"], "the manifest of server 1 is missing"),
    ],
)
def test_errors_are_one_line(
    job: Path, args: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["fluidlite", "checkpoint", *(arg.format(job) for arg in args)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("fluidlite: ")
    assert message in line
