"""The command line: ``fluidlite checkpoint | demo | doctor | export | fuse | launch | run | show | trace | transpile``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

import fluidlite
from fluidlite import config, fusion
from fluidlite import export_command as exporter
from fluidlite import launch as launcher
from fluidlite.checkpoint import commands as checkpoints
from fluidlite.core import ir, serde, text
from fluidlite.errors import FluidliteError, TextFormError
from fluidlite.transpiler import explain
from fluidlite.transpiler.plan import Cluster, Options
from fluidlite.transpiler.planner import make_plan

#: how the text form begins. ProgramDesc bytes may begin so too (a newline and a length), but then hold the index 0 of
#: block 0 as a zero byte, which text never does
_TEXT_FORM = re.compile(rb"\s*(#|program\b|block\b)")

_PASSES = "; ".join(f"{role}: {', '.join(explain.pass_names(role))}" for role in explain.ROLES)

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: rich takes a fifth of the time of `--help` to import
    help="Programs with distributed embedding tables: train, launch, look inside.",
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"fluidlite {fluidlite.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True)] = False,
) -> None:
    """Options that stand before the command."""


app.command("launch", context_settings=launcher.CONTEXT)(launcher.command)
app.add_typer(checkpoints.app, name="checkpoint")
app.command("export")(exporter.command)


@app.command("run", context_settings={**launcher.CONTEXT, "help_option_names": []})
def run_command(context: typer.Context) -> None:
    """Run a script for Fluid 1.x as it is: run script.py [args], or run -m module [args]."""
    from fluidlite.compat.run import main as run_script

    run_script(context.args)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="folder for the model, the tables and the logs")] = Path("fluidlite-demo"),
    pservers: Annotated[int, typer.Option(min=1)] = 2,
    trainers: Annotated[int, typer.Option(min=1)] = 2,
    asynchronous: Annotated[bool, typer.Option("--async", help="servers apply pushes on arrival")] = False,
) -> None:
    """Train Wide & Deep on census income data with parameter servers and trainers as processes."""
    from fluidlite.demo.run import demo as run_demo

    try:
        run_demo(out, pservers, trainers, asynchronous)
    except KeyboardInterrupt:
        typer.echo("fluidlite demo: interrupted; all processes were ended", err=True)
        raise typer.Exit(130) from None


@app.command()
def doctor() -> None:
    """Tell what this installation is made of and try it; exit code 1 when something is wrong."""
    failures = config.failures()
    typer.echo(config.lines_of({**config.facts(), **{name: wrong or "ok" for name, wrong in failures.items()}}))
    if any(failures.values()):
        raise typer.Exit(1)


@app.command()
def show(file: Annotated[Path, typer.Argument(help="a program: ProgramDesc bytes or the text form")]) -> None:
    """Print a program."""
    typer.echo(text.show(read_program(file)))


@app.command()
def fuse(
    file: Annotated[Path, typer.Argument(help="a program: ProgramDesc bytes or the text form")],
    fetch: Annotated[list[str] | None, typer.Option(help="a variable that is fetched; may be given again")] = None,
    after: Annotated[str, typer.Option(help=f"stop after this pass: {', '.join(fusion.NAMES)}")] = "",
) -> None:
    """Show a program as an executor runs it: what fusion passes make of it."""
    typer.echo(fusion.show(read_program(file), fetch or (), after or None))


@app.command()
def transpile(
    file: Annotated[Path, typer.Argument(help="the main program after minimize, in text form")],
    startup: Annotated[Path, typer.Argument(help="the startup program, in text form")],
    after: Annotated[str, typer.Option(help=f"print the program as this pass leaves it: {_PASSES}")] = "",
    why: Annotated[bool, typer.Option("--why", help="print what each pass leaves alone, and why")] = False,
    pserver: Annotated[int | None, typer.Option(min=0, help="number of a pserver; default: the trainer")] = None,
    pservers: Annotated[int, typer.Option(min=1)] = 2,
    trainers: Annotated[int, typer.Option(min=1)] = 2,
    asynchronous: Annotated[bool, typer.Option("--async", help="servers apply pushes on arrival")] = False,
    min_block_size: Annotated[int, typer.Option(min=1, help="elements of the smallest slice")] = 8192,
    dense_on_trainer: Annotated[
        bool, typer.Option("--dense-on-trainer", help="dense parameters stay on the only trainer")
    ] = False,
) -> None:
    """Show what the distribute transpiler makes of a program, pass by pass."""
    cluster = _cluster(pservers, trainers, asynchronous)
    main_program = read_program(file)
    startup_program = read_program(startup)
    options = Options(min_block_size=min_block_size, dense_on_trainer=dense_on_trainer)
    plan = make_plan(main_program, startup_program, cluster, options)
    if why:
        typer.echo("\n".join(explain.why(plan, after or None)) or "every pass took everything it looks for")
        return
    role = "trainer" if pserver is None else "pserver"
    if pserver is not None:
        if pserver >= pservers:
            raise typer.BadParameter(f"there are {pservers} pservers, numbered from 0")
        plan = plan.at(cluster.endpoints[pserver])
    typer.echo(explain.after(main_program, startup_program, plan, role, after or explain.last_pass(role, plan)))


@app.command()
def trace(
    file: Annotated[Path, typer.Argument(help="the main program after minimize, in text form")],
    startup: Annotated[Path, typer.Argument(help="the startup program, in text form")],
    table: Annotated[str, typer.Option(help="a distributed table, or a parameter that is fetched by row")],
    id: Annotated[int, typer.Option(min=-(2**63), max=2**63 - 1, help="the id of a row, an int64")],
    pservers: Annotated[int, typer.Option(min=1)] = 2,
    trainers: Annotated[int, typer.Option(min=1)] = 2,
    asynchronous: Annotated[bool, typer.Option("--async", help="servers apply pushes on arrival")] = False,
) -> None:
    """Show where the row of an id is, and the ops that it passes in a step."""
    from fluidlite.tracing import describe

    main_program, startup_program = read_program(file), read_program(startup)
    plan = make_plan(main_program, startup_program, _cluster(pservers, trainers, asynchronous))
    typer.echo("\n".join(describe(main_program, startup_program, plan, table, id)))


def _cluster(pservers: int, trainers: int, asynchronous: bool) -> Cluster:
    """A job to look at: endpoints with made-up names."""
    return Cluster(tuple(f"pserver{index}:6174" for index in range(pservers)), trainers, sync=not asynchronous)


def read_program(file: Path) -> ir.Program:
    """A program from a file in text form or as ProgramDesc bytes.

    Raises CorruptFileError or TextFormError, and OSError for a file that cannot be read.
    """
    content = file.read_bytes()
    if b"\0" in content or not _TEXT_FORM.match(content):
        return serde.from_bytes(content, str(file))
    try:
        return text.parse(content.decode("utf-8"))
    except (TextFormError, UnicodeDecodeError) as error:
        raise TextFormError(f"{file}: {error}") from error


def main() -> None:
    """Entry point: typed errors become one message and exit code 1."""
    try:
        app()
    except (FluidliteError, OSError) as error:
        typer.echo(f"fluidlite: {error}", err=True)
        raise SystemExit(1) from None
