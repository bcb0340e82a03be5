"""Longer checks than the gate runs.

- ``nox -s full``: every test, the slow ones too, on each Python with the newest packages; what trains once more with the
  kernels in numpy, without fusion, and both; and ten minutes of killed processes and lost messages
- ``nox -s floor``: the gate's tests on the oldest supported packages
- ``nox -s package``: what the wheel and the sdist hold, and that they work outside the repository, without a compiler too
- ``nox -s sanitize``: the tests of tables, parsers and kernels with C kernels that report what is undefined or out of bounds
- ``nox -s oracle``: real Fluid 1.8.5, in an environment of its own with Python 3.7: whether the recorded numbers of scripts
  are still what it prints, and the tests that train together with it; not run unless asked for
- ``nox -s interop``: our models in Paddle 3, ONNX and Netron (in a Chromium, where one is), and Paddle's models here; not
  run unless asked for
- ``nox -s bench``: how fast it is, with the options of ``python -m benchmarks``; not run unless asked for
"""

from __future__ import annotations

import os
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

#: what a sanitized library needs of the process that loads it
SANITIZED = {"ASAN_OPTIONS": "detect_leaks=0", "PYTHONMALLOC": "malloc", "FLUIDLITE_KERNELS": "c"}
OF_TABLES = [
    f"tests/test_{name}.py" for name in ("sparse_table", "row_kernels", "table_threads", "rows", "reader_parse")
]

#: what runs programs, to be compared with other runs, numeric gradients or records of Fluid
OF_RUNS = [
    f"tests/test_{name}.py"
    for name in (
        *("backward_numeric", "backward_gradients", "equivalence", "plan", "executor", "transpiler_runs"),
        *(
            "fusion",
            "fusion_overwrites",
            "fusion_subsets",
            "dense_on_trainer",
            "optimizer",
            "look_ahead",
            "clip_regularizer",
        ),
        *("golden_training", "golden_jobs", "io", "dist_io", "dataset", "sparse_table", "rows", "optimizer_ops"),
    )
]
#: the first run of `full` takes the kernels in C where there is a compiler, and every pass
OTHER_CORNERS = [("auto", "0"), ("numpy", "1"), ("numpy", "0")]

#: a Python with Fluid 1.8.5, in place of the environment of the session `fluid`
ORACLE = os.environ.get("FLUIDLITE_ORACLE_PYTHON", "")

nox.options.sessions = ["full", "floor", "package", "sanitize"]


@nox.session(python=["3.11", "3.12", "3.13"])
def full(session: nox.Session) -> None:
    """Everything, the tests marked ``full`` included."""
    session.install("--upgrade", "-e", ".[test]")
    session.run("pytest", "-n", "2", "-m", "full or not full", *session.posargs)
    for kernels, fusion in OTHER_CORNERS:
        corner = {"FLUIDLITE_KERNELS": kernels, "FLUIDLITE_FUSION": fusion}
        session.run("pytest", "-n", "2", "-m", "full or not full", *(session.posargs or OF_RUNS), env=corner)
    session.run("python", "-m", "benchmarks.chaos", "--minutes", "10")


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
    kernels_are(session, "c" if shutil.which("cc") else "numpy")
    session.run(
        "pip", "install", "--no-cache-dir", "--force-reinstall", "--no-deps", str(sdist), env={"CC": "/bin/false"}
    )
    kernels_are(session, "numpy")
    session.run("python", "typed_user.py")
    auc_is_fine(session, session.run("python", f"{unpacked}/examples/wide_deep.py", "--epochs", "1", silent=True))


@nox.session(python="3.11")
def sanitize(session: nox.Session) -> None:
    """Tables and kernels with AddressSanitizer and UndefinedBehaviorSanitizer, on a copy of the package."""
    folder = Path(session.create_tmp()).resolve() / "sanitized"
    shutil.rmtree(folder, ignore_errors=True)
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    for name in ("fluidlite", "tests"):
        shutil.copytree(name, folder / name, ignore=ignored)
    for name in ("setup.py", "pyproject.toml", "README.md"):
        shutil.copy(name, folder)
    session.install("setuptools", *PROJECT["dependencies"], *PROJECT["optional-dependencies"]["test"])
    session.chdir(folder)
    session.run("python", "setup.py", "build_ext", "--inplace", env={"FLUIDLITE_BUILD": "sanitized", "CC": "gcc"})
    library = str(session.run("gcc", "-print-file-name=libasan.so", silent=True, external=True)).strip()
    kernels = [str(path) for path in Path("tests").glob("test_kernels*.py") if path.stem != "test_kernels_sanitized"]
    chosen = ["-k", "not resident", *OF_TABLES, *kernels]  # sanitizers take memory of their own
    session.run("python", "-m", "pytest", *chosen, env={**SANITIZED, "LD_PRELOAD": library})


@nox.session(python="3.7", venv_backend="venv")
def fluid(session: nox.Session) -> None:
    """An environment with the last Fluid, for `oracle`."""
    session.install("paddlepaddle==1.8.5", "protobuf<3.21")  # whose generated code a later protobuf refuses
    session.run("python", "-c", "import paddle; print(paddle.__version__)")


@nox.session(python="3.11", requires=[] if ORACLE else ["fluid"])
def oracle(session: nox.Session) -> None:
    """Whether scripts still print what was recorded (with names of scripts: these), and the tests that run real Fluid."""
    made = Path(session.virtualenv.location).absolute().with_name("fluid") / "bin" / "python"
    environment = {"FLUIDLITE_ORACLE_PYTHON": ORACLE or str(made)}
    session.install("-e", ".[test]")
    session.run("python", "-m", "tests.oracle.record_scripts", "--verify", *session.posargs, env=environment)
    tests = [path for path in Path("tests").glob("test_*.py") if "FLUIDLITE_ORACLE_PYTHON" in path.read_text("utf-8")]
    session.run("pytest", "-m", "full or not full", "tests/oracle", *map(str, tests), env=environment)


@nox.session(python="3.11")
def interop(session: nox.Session) -> None:
    """What others make of our files, and we of theirs."""
    session.install("-e", ".[test,interop]")
    session.run("pytest", "tests/interop", "tests/test_export.py", "tests/test_files_of_paddle.py", *session.posargs)


@nox.session(python="3.11")
def bench(session: nox.Session) -> None:
    """Measure and write the page. Say what beyond numpy is there, e.g. ``-- --torch-python PYTHON``; names of figures
    measure these anew and keep the others."""
    session.install("-e", ".", "matplotlib")
    written = [f"--{what}=docs/performance.{end}" for what, end in (("json", "json"), ("page", "md"), ("plot", "svg"))]
    session.run("python", "-m", "benchmarks", *written, "--merge", *session.posargs)


def look_into_wheel(session: nox.Session, wheel: Path) -> None:
    """The package and nothing else; one wheel for every Python 3 from 3.11 on. C kernels where there is a compiler."""
    if "-cp311-abi3-" not in wheel.name:
        session.error(f"{wheel.name} is not for every Python 3 from 3.11 on")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    compiled = {name for name in names if name.endswith(".so")}
    if len(compiled) != bool(shutil.which("cc")):
        session.error(f"{wheel.name} holds {sorted(compiled)}")
    unwanted = {".pyc", ".so", ".c", ".h"}
    tracked = {str(path) for path in Path("fluidlite").rglob("*") if path.is_file() and path.suffix not in unwanted}
    if names - compiled != tracked:
        session.error(f"{wheel.name} and the folder fluidlite differ in {sorted((names - compiled) ^ tracked)}")
    require(session, wheel.name, names, {f"fluidlite/{name}" for name in DATA})


def kernels_are(session: nox.Session, wanted: str) -> None:
    """What `fluidlite doctor` says of the package that is installed, which must be in order."""
    output = str(session.run("fluidlite", "doctor", silent=True))
    session.log(output)
    if not re.search(rf"kernels *{wanted}\b", output):
        session.error(f"kernels in {wanted} expected")


def look_into_sdist(session: nox.Session, sdist: Path) -> None:
    """The package with documents, examples and .proto files; no tests, no caches."""
    with tarfile.open(sdist) as archive:
        names = {str(PurePosixPath(*PurePosixPath(name).parts[1:])) for name in archive.getnames()}
    sources = {str(path) for path in Path("fluidlite/kernels/c").iterdir()}
    require(session, sdist.name, names, OF_THE_SDIST | sources | {f"fluidlite/{name}" for name in DATA})
    odd = [name for name in names if re.search(r"^tests\b|__pycache__|\.py[cod]$|\.so$|^\.(?!$)|^logs\b", name)]
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
