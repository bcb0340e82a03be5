"""Longer checks than the gate runs.

- ``nox -s full``: every test, the slow ones too, on each Python with the newest packages
- ``nox -s floor``: the gate's tests on the oldest supported packages
- ``nox -s package``: what the wheel and the sdist hold, and that they work outside the repository
- ``nox -s bench``: how fast it is, with the options of ``python -m benchmarks``; not run unless asked for
"""

from __future__ import annotations

import re
import shutil
import tarfile
import tomllib
import zipfile
from pathlib import Path, PurePosixPath

import nox

PROJECT = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
FLOOR = [requirement.replace(">=", "==") for requirement in PROJECT["dependencies"]]
#: imports pkg_resources, which later setuptools warn about and the present ones lack
PROTOC = ["grpcio-tools==1.60.0", "setuptools<67"]
DATA = {"py.typed", "demo/data/ATTRIBUTION.md", "demo/data/test.csv.xz", "demo/data/train.csv.xz"}
OF_THE_SDIST = {"README.md", "CHANGELOG.md", "docs/one_id.md", "examples/wide_deep.py", "proto/framework.proto"}

nox.options.sessions = ["full", "floor", "package"]


@nox.session(python=["3.11", "3.12", "3.13"])
def full(session: nox.Session) -> None:
    """Everything, the tests marked ``full`` included."""
    session.install("--upgrade", "-e", ".[test]")
    session.run("pytest", "-n", "2", "-m", "full or not full", *session.posargs)


@nox.session(python="3.11")
def floor(session: nox.Session) -> None:
    """The suite on the oldest supported packages, among them the oldest protoc for the staleness test."""
    session.install("-e", ".[test]", *FLOOR, *PROTOC)
    session.run("pytest", "-n", "2", *session.posargs)


@nox.session(python="3.11")
def package(session: nox.Session) -> None:
    """Build both, look inside, and use the wheel that is built from the sdist."""
    folder = Path(session.create_tmp()).resolve()
    shutil.rmtree(folder / "dist", ignore_errors=True)
    session.install("build", "mypy")
    session.run("python", "-m", "build", "--outdir", str(folder / "dist"))  # the wheel is built from the sdist
    (wheel,), (sdist,) = (folder / "dist").glob("*.whl"), (folder / "dist").glob("*.tar.gz")
    look_into_wheel(session, wheel)
    look_into_sdist(session, sdist)
    shutil.copy("tests/typed_user.py", folder)
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    session.install(str(wheel))
    session.chdir(folder)
    session.run("python", "-c", "import fluidlite; assert 'site-packages' in fluidlite.__file__")
    session.run("mypy", "--strict", "--config-file=", "typed_user.py")
    session.run("python", "typed_user.py")
    auc_is_fine(session, session.run("fluidlite", "demo", silent=True))
    unpacked = sdist.name.removesuffix(".tar.gz")
    auc_is_fine(session, session.run("python", f"{unpacked}/examples/wide_deep.py", "--epochs", "1", silent=True))


@nox.session(python="3.11")
def bench(session: nox.Session) -> None:
    """Measure everything, with the peers that are there, and write the page."""
    session.install("-e", ".", "matplotlib")
    written = ["--page", "docs/performance.md", "--plot", "docs/performance.svg", "--json", "logs/benchmarks.json"]
    options = session.posargs or written
    Path("logs").mkdir(exist_ok=True)
    session.run("python", "-m", "benchmarks", *options)


def look_into_wheel(session: nox.Session, wheel: Path) -> None:
    """The package and nothing else, for any platform."""
    if not wheel.name.endswith("-py3-none-any.whl"):
        session.error(f"{wheel.name} is not for every platform")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    tracked = {str(path) for path in Path("fluidlite").rglob("*") if path.is_file() and path.suffix != ".pyc"}
    if names != tracked:
        session.error(f"{wheel.name} and the folder fluidlite differ in {sorted(names ^ tracked)}")
    require(session, wheel.name, names, {f"fluidlite/{name}" for name in DATA})


def look_into_sdist(session: nox.Session, sdist: Path) -> None:
    """The package with documents, examples and .proto files; no tests, no caches."""
    with tarfile.open(sdist) as archive:
        names = {str(PurePosixPath(*PurePosixPath(name).parts[1:])) for name in archive.getnames()}
    require(session, sdist.name, names, OF_THE_SDIST | {f"fluidlite/{name}" for name in DATA})
    odd = [name for name in names if re.search(r"^tests\b|__pycache__|\.py[cod]$|^\.(?!$)|^logs\b", name)]
    if odd:
        session.error(f"{sdist.name} holds {odd}")


def require(session: nox.Session, where: str, names: set[str], wanted: set[str]) -> None:
    """All of ``wanted`` are there."""
    if wanted - names:
        session.error(f"{where} lacks {sorted(wanted - names)}")


def auc_is_fine(session: nox.Session, output: object) -> None:
    """The demo's claim."""
    found = re.search(r"test AUC (0\.\d+)", str(output))
    if found is None or float(found[1]) < 0.905:
        session.error(f"test AUC of at least 0.905 expected:\n{output}")
    session.log(found[0])
