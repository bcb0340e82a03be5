"""`fluidlite run`: a script ends, fails and finds its things as if python ran it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fluidlite.cli import app
from fluidlite.compat import run
from fluidlite.errors import NotSupported
from tests.shared_data import REPO

Script = Callable[[str], str]


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Script:
    """Writes a script; what `run` changes in the process is put back."""
    for name in ("argv", "path"):
        monkeypatch.setattr(sys, name, list(getattr(sys, name)))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.setenv("PYTHONPATH", "")

    def write(text: str) -> str:
        path = tmp_path / "script.py"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def ended(arguments: list[str]) -> object:
    with pytest.raises(SystemExit) as info:
        run.main(arguments)
    return info.value.code


def in_a_process(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=REPO, env=env, capture_output=True, text=True, timeout=60, check=False)


def test_a_script_is_main_with_its_arguments_and_its_folder(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("FOUND = 'beside'\n", encoding="utf-8")
    text = (
        "import os, subprocess, sys\n"
        "import beside, paddle, paddle.fluid as fluid\n"
        "print(__name__, os.path.basename(__file__), sys.argv[1:], sys.path[0] == os.path.dirname(os.path.abspath(__file__)))\n"
        "print(beside.FOUND, paddle.__version__, fluid.Program is __import__('fluidlite').Program)\n"
        "code = 'import paddle.fluid; print(paddle.__version__)'\n"
        "print(subprocess.check_output([sys.executable, '-c', code], text=True).strip())\n"
        "raise SystemExit(3)\n"
    )
    (tmp_path / "script.py").write_text(text, encoding="utf-8")
    done = in_a_process("-m", "fluidlite", "run", str(tmp_path / "script.py"), "--help", "-x", "1")
    assert done.stdout.splitlines() == [
        "__main__ script.py ['--help', '-x', '1'] True",
        "beside 1.8.5 True",
        "1.8.5",
    ]
    assert (done.returncode, done.stderr) == (3, "")


def test_an_interrupted_script_dies_of_the_signal(tmp_path: Path) -> None:
    text = "import atexit, os, signal\natexit.register(print, 'bye')\nos.kill(os.getpid(), signal.SIGINT)\n"
    (tmp_path / "script.py").write_text(text, encoding="utf-8")
    done = in_a_process("-m", "fluidlite.compat", str(tmp_path / "script.py"))
    assert done.returncode == -2
    assert done.stdout == "bye\n"
    assert done.stderr.splitlines()[-1] == "KeyboardInterrupt"


def test_another_paddle_is_refused(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    other = type(sys)("paddle")
    other.__file__ = "/somewhere/paddle/__init__.py"
    monkeypatch.setitem(sys.modules, "paddle", other)
    with pytest.raises(NotSupported, match="another paddle was imported already"):
        run.install()
    assert "/somewhere/paddle" in str(ended([script("")]))


def test_errors_show_the_script_only(script: Script, capsys: pytest.CaptureFixture[str]) -> None:
    path = script("def f():\n    return 1 / 0\nf()\n")
    assert ended([path]) == 1
    shown = capsys.readouterr().err
    assert shown.startswith(f'Traceback (most recent call last):\n  File "{path}", line 3, in <module>\n')
    assert shown.rstrip().endswith("ZeroDivisionError: division by zero")
    assert "compat" not in shown


@pytest.mark.parametrize(
    ("text", "code"), [("", 0), ("raise SystemExit(7)", 7), ("import sys; sys.exit('text')", "text")]
)
def test_exit_codes(script: Script, text: str, code: object) -> None:
    assert ended([script(text)]) == code


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("print 'hello'\n", "written for Python 2"),
        ("if 1:\n\tx = 1\n        y = 2\n", "written for Python 2"),
        ("try:\n    pass\nexcept ValueError, e:\n    pass\n", "looks like Python 2"),
        ("raise ValueError, 'x'\n", "looks like Python 2"),
        ("import cPickle\n", "'cPickle' is a module of Python 2"),
        ("raise ModuleNotFoundError(name='six.moves')\n", "'six.moves' came with Fluid, .*: pip install six"),
        ("xrange(3)\n", "in Python 3 it is 'range'"),
        ("{}.iteritems()\n", r"\.iteritems is of Python 2; in Python 3 it is items\(\)"),
    ],
)
def test_python_2_is_told(script: Script, capsys: pytest.CaptureFixture[str], text: str, hint: str) -> None:
    assert ended([script(text)]) == 1
    assert re.search(hint, capsys.readouterr().err.splitlines()[-1])


def test_other_errors_get_no_hint() -> None:
    errors: list[BaseException] = [ValueError("x"), SyntaxError("invalid syntax"), ModuleNotFoundError(name="numpie")]
    assert [run.hint_for(error) for error in errors] == ["", "", ""]


def test_a_module_is_run(script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script("import sys\nsys.exit(' '.join([__name__, *sys.argv[1:]]))\n")
    monkeypatch.chdir(tmp_path)
    assert ended(["-m", "script", "a", "b"]) == "__main__ a b"


def test_wrong_command_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert [ended(arguments) for arguments in ([], ["-m"], ["no_such_script.py"])] == [2, 2, 2]
    shown = capsys.readouterr().err
    assert shown.count(run.USAGE) == 2
    assert "can't open file 'no_such_script.py': No such file or directory" in shown
    assert ended(["--help"]) == 0
    assert capsys.readouterr().out.strip() == run.USAGE


def test_the_command_line_hands_everything_on() -> None:
    done = CliRunner().invoke(app, ["run", "--help"])
    assert (done.exit_code, done.output.strip()) == (0, run.USAGE)
