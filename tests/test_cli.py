"""The command line: show, transpile, and how errors reach the user."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

import fluidlite as fluid
from fluidlite import cli
from tests.frontend import fresh_programs


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """A training program in text form and as bytes, and its startup program."""
    with fresh_programs():
        ids = fluid.data("ids", [None, 1], "int64")
        rows = fluid.layers.embedding(ids, [100, 4], is_sparse=True, is_distributed=True, param_attr="emb")
        loss = fluid.layers.mean(fluid.layers.fc(rows, 2))
        clip = fluid.clip.GradientClipByNorm(1.0)
        fluid.optimizer.Adam(0.1, grad_clip=clip).minimize(loss)
        main, startup = fluid.default_main_program(), fluid.default_startup_program()
    contents = {"main": str(main).encode(), "startup": str(startup).encode(), "bytes": main.serialize_to_string()}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    return {name: str(tmp_path / name) for name in contents}


def run(*args: str) -> str:
    done = CliRunner().invoke(cli.app, list(args), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_show_prints_both_forms(files: dict[str, str]) -> None:
    for name in ("main", "bytes"):
        assert "lookup_table(Ids=[ids], W=[emb]) -> (Out=[embedding_0.tmp_0])" in run("show", files[name])


def test_bytes_that_begin_like_text_are_read_as_bytes(tmp_path: Path) -> None:
    program = fluid.Program()
    program.global_block().create_var("vv", shape=[1])
    content = program.serialize_to_string()
    assert content.startswith(b"\n#")
    (tmp_path / "program").write_bytes(content)
    assert "var vv: [1]" in run("show", str(tmp_path / "program"))


def test_transpile_prints_a_role_after_any_pass(files: dict[str, str]) -> None:
    both = files["main"], files["startup"]
    trainer = run("transpile", *both)
    assert "send_barrier(" in trainer
    assert "adam(" not in trainer
    lowered = run("transpile", *both, "--after", "lower_lookups")
    assert "prefetch(X=[emb.ids0.shard0 emb.ids0.shard1])" in lowered
    assert "send_barrier(" not in lowered
    server = run("transpile", *both, "--pserver", "1", "--pservers", "3", "--async")
    assert "Fanin=2" in server
    assert 'endpoint="pserver1:6174"' in server
    assert "adam(" in server


def test_transpile_leaves_dense_parameters_to_the_only_trainer(files: dict[str, str]) -> None:
    both = [files["main"], files["startup"], "--dense-on-trainer"]
    trainer = run("transpile", *both, "--trainers", "1")
    assert "recv" not in trainer
    assert "dense_on_trainer leaves it" in run("transpile", *both, "--trainers", "1", "--why")


def test_transpile_says_why(files: dict[str, str]) -> None:
    said = run("transpile", files["main"], files["startup"], "--why")
    assert "send_gradients: fc_0.w_0: not sliced: clip_by_norm needs the whole gradient" in said
    assert "send_gradients" not in run("transpile", files["main"], files["startup"], "--why", "--after", "move_updates")


def test_trace_follows_an_id(files: dict[str, str]) -> None:
    said = run("trace", files["main"], files["startup"], "--table", "emb", "--id", "-1", "--pservers", "3").splitlines()
    assert said[:2] == ["emb: rows of 4 float32 on 3 server(s)", "id -1: part 0, at pserver0:6174"]
    assert said[2].startswith("first value: ")
    assert said[3] == "pull:"
    assert said[-1].startswith("  pserver0:6174: adam(Param=[emb]")


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["show", "{tmp}/absent"], "No such file"),
        (["show", "{tmp}/garbage"], "garbage"),
        (["show", "{tmp}/latin"], "latin: 'utf-8' codec can't decode"),
        (["show", "{tmp}/broken"], "broken: line 2"),
        (["transpile", "{main}", "{startup}", "--after", "no_such_pass"], "'no_such_pass' is no pass of the trainer"),
        (["transpile", "{startup}", "{startup}"], "cannot be transpiled"),
        (["transpile", "{main}", "{startup}", "--dense-on-trainer"], "needs exactly one trainer, not 2"),
    ],
)
def test_errors_are_one_message_and_exit_code_1(
    files: dict[str, str],
    tmp_path: Path,
    args: list[str],
    text: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "garbage").write_bytes(b"\x00\xffgarbage")
    (tmp_path / "latin").write_bytes(b"# \xe9\nblock 0\n")
    (tmp_path / "broken").write_bytes(b"block 0\n  var ?\n")
    monkeypatch.setattr("sys.argv", ["fluidlite", *(arg.format(tmp=tmp_path, **files) for arg in args)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
    shown = capsys.readouterr().err
    assert shown.startswith("fluidlite: ")
    assert text in shown
    assert "Traceback" not in shown


def test_a_server_that_is_not_there_is_refused(files: dict[str, str]) -> None:
    done = CliRunner().invoke(cli.app, ["transpile", files["main"], files["startup"], "--pserver", "2"])
    assert done.exit_code == 2
    assert "numbered from 0" in done.output
