"""Runs a script for Fluid 1.x as it is: ``fluidlite run script.py [args]`` or ``fluidlite run -m package.module [args]``.

The script is ``__main__``, has its arguments in ``sys.argv`` and its folder first on ``sys.path``, as if python ran it; behind
that folder stands ``site/``, where ``import paddle`` finds fluidlite. Processes that the script starts find it by PYTHONPATH.
"""

from __future__ import annotations

import atexit
import os
import runpy
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any, Final, NoReturn

from fluidlite.errors import NotSupported

#: the folder that holds the package ``paddle``
SITE: Final = Path(__file__).with_name("site")
USAGE: Final = "usage: fluidlite run script.py [args]   or   fluidlite run -m module [args]"
#: what python exits with for a wrong command line
_USAGE_ERROR: Final = 2


def install() -> None:
    """Make ``import paddle`` find fluidlite, in this process and in those that it starts.

    Raises NotSupported when another ``paddle`` was imported before: two of them in one process would be mixed.
    """
    loaded = sys.modules.get("paddle")
    if loaded is not None and not _is_ours(loaded):
        where = getattr(loaded, "__file__", None) or "an unknown place"
        raise NotSupported(f"another paddle was imported already (from {where}); start a process without it")
    site = str(SITE)
    if site not in sys.path:
        sys.path.insert(0, site)
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if site not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([site, *filter(None, paths)])


def _is_ours(module: ModuleType) -> bool:
    return Path(getattr(module, "__file__", None) or "/").is_relative_to(SITE)


def main(arguments: Sequence[str]) -> NoReturn:
    """Run what the command line names and exit as python would."""
    if not arguments or arguments[0] in ("-h", "--help") or (arguments[0] == "-m" and len(arguments) < 2):
        wrong = not arguments or arguments[0] == "-m"
        print(USAGE, file=sys.stderr if wrong else sys.stdout)
        raise SystemExit(_USAGE_ERROR if wrong else 0)
    try:
        install()
    except NotSupported as error:
        raise SystemExit(f"fluidlite run: {error}") from None
    if arguments[0] == "-m":
        run_module(arguments[1], arguments[2:])
    else:
        run_script(arguments[0], arguments[1:])
    raise SystemExit(0)


def run_module(name: str, arguments: Sequence[str]) -> None:
    """``python -m name arguments``; how errors end is as in `run_script`."""
    sys.argv = [name, *arguments]
    sys.path.insert(0, str(Path.cwd()))
    _as_python(lambda: runpy.run_module(name, run_name="__main__", alter_sys=True))


def run_script(script: str, arguments: Sequence[str]) -> None:
    """``python script arguments``: an error is printed with the script's own frames and becomes exit code 1."""
    path = Path(script)
    try:
        source = path.read_bytes()
    except OSError as error:
        print(f"fluidlite run: can't open file {script!r}: {error.strerror}", file=sys.stderr)
        raise SystemExit(_USAGE_ERROR) from None
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(path.resolve().parent))
    module = ModuleType("__main__")
    module.__dict__.update(__file__=script, __builtins__=__builtins__, __cached__=None)
    sys.modules["__main__"] = module

    def run() -> None:
        code: CodeType = compile(source, script, "exec", dont_inherit=True)
        exec(code, module.__dict__)  # noqa: S102 (running the user's script is its job)

    _as_python(run)


def _as_python(run: Any) -> None:
    """Call ``run``; what it raises ends the process as it would end python."""
    interrupted: list[bool] = []
    atexit.register(_die_of_interrupt, interrupted)
    try:
        run()
    except SystemExit:
        raise
    except BaseException as error:
        interrupted += [True] * isinstance(error, KeyboardInterrupt)
        error.__traceback__ = _users_part(error.__traceback__)
        sys.excepthook(type(error), error, error.__traceback__)
        hint = hint_for(error)
        if hint:
            print(f"fluidlite run: {hint}", file=sys.stderr)
        raise SystemExit(1) from None


def _die_of_interrupt(interrupted: Sequence[bool]) -> None:
    """At the very end, a script that Ctrl-C ended dies of the signal, so that shells and launchers see it."""
    if interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)


def _users_part(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the first frame of the script on; all of it when no frame is the script's."""
    ours = (__file__, runpy.__file__, "<frozen runpy>")
    rest = trace
    while rest is not None and rest.tb_frame.f_code.co_filename in ours:
        rest = rest.tb_next
    return rest


def hint_for(error: BaseException) -> str:
    """What to say of an error that comes of the age of a script; empty for others."""
    if isinstance(error, (SyntaxError, TabError)):
        return _syntax_hint(error)
    if isinstance(error, ModuleNotFoundError) and error.name is not None:
        return _module_hint(error.name)
    if isinstance(error, NameError) and error.name in _GONE_NAMES:
        return f"{error.name!r} is a name of Python 2; in Python 3 it is {_GONE_NAMES[error.name]!r}"
    if isinstance(error, AttributeError) and error.name in _GONE_ATTRIBUTES:
        return f".{error.name} is of Python 2; in Python 3 it is {_GONE_ATTRIBUTES[error.name]}"
    if isinstance(error, TypeError) and "0-dimensional arrays" in str(error):
        return "numpy 2.4 and later take no array of one element for a number: take its element, or install 'numpy<2.4'"
    return ""


_GONE_MODULES: Final = {
    "cPickle",
    "ConfigParser",
    "Queue",
    "StringIO",
    "cStringIO",
    "urllib2",
    "__builtin__",
    "commands",
}
_GONE_NAMES: Final = {
    "xrange": "range",
    "unicode": "str",
    "raw_input": "input",
    "reload": "importlib.reload",
    "long": "int",
}
_GONE_ATTRIBUTES: Final = {"iteritems": "items()", "iterkeys": "keys()", "itervalues": "values()", "has_key": "in"}


#: what was installed with Fluid, by the name under which it is installed
_BROUGHT: Final = {
    "PIL": "pillow",
    "cv2": "opencv-python",
    **{name: name for name in ("nltk", "requests", "scipy", "six")},
}


def _module_hint(name: str) -> str:
    package = name.partition(".")[0]
    if package in _GONE_MODULES:
        return f"{name!r} is a module of Python 2; the script must be ported to Python 3 first (for example by 2to3)"
    if package in _BROUGHT:
        return f"{name!r} came with Fluid, and does not with fluidlite: pip install {_BROUGHT[package]}"
    return ""


def _syntax_hint(error: SyntaxError) -> str:
    line = (error.text or "").strip()
    if "print" in (error.msg or "") or line.startswith("print ") or isinstance(error, TabError):
        return "the script is written for Python 2, which fluidlite cannot run; port it to Python 3 first (for example by 2to3)"
    if line.startswith(("except ", "exec ")) or (line.startswith("raise ") and "," in line):
        return "this looks like Python 2, which fluidlite cannot run; port it to Python 3 first (for example by 2to3)"
    return ""
