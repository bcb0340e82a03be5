"""The command line: ``fluidlite demo | launch | show | transpile``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fluidlite import launch as launcher
from fluidlite.core import ir, serde, text
from fluidlite.errors import FluidliteError
from fluidlite.transpiler import explain

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Programs with distributed embedding tables: train, launch, look inside.",
)
app.command("launch", context_settings=launcher.CONTEXT)(launcher.command)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="folder for the model, the tables and the logs")] = Path("fluidlite-demo"),
    pservers: Annotated[int, typer.Option(min=1)] = 2,
    trainers: Annotated[int, typer.Option(min=1)] = 2,
    asynchronous: Annotated[bool, typer.Option("--async", help="servers apply pushes on arrival")] = False,
) -> None:
    """Train Wide & Deep on census income data with parameter servers and trainers as processes."""
    from fluidlite.demo.run import demo as run_demo

    run_demo(out, pservers, trainers, asynchronous)


@app.command()
def show(file: Annotated[Path, typer.Argument(help="a program: ProgramDesc bytes or the text form")]) -> None:
    """Print a program."""
    typer.echo(text.show(read_program(file)))


@app.command()
def transpile(
    file: Annotated[Path, typer.Argument(help="the main program, after minimize")],
    startup: Annotated[Path | None, typer.Option(help="the startup program")] = None,
    after: Annotated[str, typer.Option(help="print the program as it is after this pass; default: the last")] = "",
    why: Annotated[bool, typer.Option("--why", help="print what each pass declined to touch, and why")] = False,
    pserver: Annotated[int | None, typer.Option(help="number of a pserver; default: the trainer's side")] = None,
    pservers: Annotated[int, typer.Option(min=1)] = 2,
    trainers: Annotated[int, typer.Option(min=1)] = 2,
    asynchronous: Annotated[bool, typer.Option("--async")] = False,
    min_block_size: Annotated[int, typer.Option(min=1)] = 8192,
) -> None:
    """Show what the distribute transpiler makes of a program, pass by pass."""
    raise NotImplementedError


def read_program(file: Path) -> ir.Program:
    """A program from a file in either form; raises CorruptFileError or TextFormError."""
    content = file.read_bytes()
    try:
        return text.parse(content.decode("utf-8"))
    except (UnicodeDecodeError, FluidliteError):
        return serde.from_bytes(content, str(file))


def main() -> None:
    """Entry point: typed errors become one message and exit code 1."""
    try:
        app()
    except FluidliteError as error:
        typer.echo(f"fluidlite: {error}", err=True)
        raise SystemExit(1) from None
