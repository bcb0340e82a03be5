"""``fluidlite checkpoint ls | verify | diff | show``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from fluidlite.checkpoint.catalogue import Catalogue, Checkpoint
    from fluidlite.checkpoint.source import Source
    from fluidlite.dtypes import Array

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Look at checkpoints: which are there, what they hold."
)

_FOLDER = "a folder of checkpoints, as a path or a URL (s3://..., memory://...)"
_ONE = "a folder of checkpoints, of which the last good one is taken, or one of its folders checkpoint-..."
Folder = Annotated[str, typer.Argument(metavar="FOLDER", help=_FOLDER)]
One = Annotated[str, typer.Argument(metavar="CHECKPOINT", help=_ONE)]
#: numbers of a row that are printed
_MOST_NUMBERS = 64


@app.command("ls")
def list_(folder: Folder) -> None:
    """List the checkpoints of a folder; contents are not read."""
    catalogue, found = _checkpoints(folder)
    table = _table("number", "version", "servers", "kind", "rows", "size", "written (UTC)", "state")
    for checkpoint in found:
        manifests = checkpoint.manifests.values()
        problems = catalogue.problems(checkpoint, contents=False)
        table.add_row(
            str(checkpoint.number),
            _span([manifest.version for manifest in manifests]),
            str(checkpoint.servers),
            _kind(checkpoint),
            f"{sum(table.rows for manifest in manifests for table in manifest.tables):,}",
            _bytes(sum(file.size for manifest in manifests for file in manifest.files)),
            max((manifest.written for manifest in manifests), default="").rstrip("Z").replace("T", " "),
            "; ".join(problems) or "whole",
        )
    _print(table)


@app.command()
def verify(folder: One) -> None:
    """Read every byte of the checkpoints of a folder, or of one; exit code 1 when something is wrong."""
    catalogue, found = _checkpoints(folder)
    failed = False
    for checkpoint in found:
        problems = catalogue.problems(checkpoint)
        failed |= bool(problems)
        typer.echo(f"{checkpoint}: {'good' if not problems else 'BAD'}")
        for problem in problems:
            typer.echo(f"  {problem}")
    if failed:
        raise typer.Exit(1)


@app.command()
def show(
    checkpoint: One,
    table: Annotated[str, typer.Option(help="a table")] = "",
    id: Annotated[int | None, typer.Option(min=-(2**63), max=2**63 - 1, help="the id of a row of it, an int64")] = None,
) -> None:
    """Show what a checkpoint holds, or one row of a table."""
    from fluidlite.checkpoint.compare import find_row

    if (id is None) != (not table):
        raise typer.BadParameter("--table and --id belong together")
    source = _open(checkpoint)
    if id is None:
        _show_contents(source)
        return
    found = find_row(source, table, id)
    if found is None:
        typer.echo(f"checkpoint {source.number}: table {table!r} has no row {id}")
        raise typer.Exit(1)
    typer.echo(
        f"checkpoint {source.number}, table {table!r}, id {id}: on server {found.server} of {source.servers}, "
        f"last written by checkpoint {found.number}"
    )
    width = max(map(len, found.parts))
    for name, numbers in found.parts.items():
        typer.echo(f"  {name:{width}}  {_numbers(numbers)}")


@app.command()
def diff(
    first: One,
    second: One,
    all: Annotated[bool, typer.Option("--all", help="list what is equal, too")] = False,
) -> None:
    """Compare two checkpoints; exit code 1 when they differ."""
    from fluidlite.checkpoint.compare import differences

    one, two = _open(first), _open(second)
    table = _table("variable", "part", "same", "changed", "only first", "only second", "largest difference")
    found = list(differences(one, two))
    differ = [difference for difference in found if not difference.is_empty]
    for item in found if all else differ:
        counts = (item.same, item.changed, item.only_first, item.only_second)
        numbers = [""] * 4 if item.note else [f"{count:,}" for count in counts]
        table.add_row(item.name, item.part, *numbers, item.note or f"{item.largest:.6g}")
    if table.row_count:
        _print(table)
    typer.echo(f"{len(differ)} of {len(found)} parts differ; tables are counted in rows, arrays in elements")
    if differ:
        raise typer.Exit(1)


def _show_contents(source: Source) -> None:
    from fluidlite.checkpoint.manifest import as_text

    kind = _kind(source.checkpoint)
    typer.echo(
        f"checkpoint {source.number}: {source.servers} servers, version {_span(list(source.versions.values()))}, {kind}"
    )
    tables = _table("table", "rows", "width", "dtype", "accumulators", "new rows")
    for name, info in sorted(source.tables.items()):
        columns = ", ".join(f"{column.name} ({column.width})" for column in info.columns)
        numbers = f"{source.row_count(name):,}", str(info.width)
        tables.add_row(name, *numbers, info.dtype.name, columns or "none", as_text(info.init))
    if tables.row_count:
        _print(tables)
    arrays = _table("array", "shape")
    for name, shape in sorted(source.dense.items()):
        arrays.add_row(name, "x".join(map(str, shape)) or "scalar")
    if arrays.row_count:
        _print(arrays)


def _checkpoints(url: str) -> tuple[Catalogue, list[Checkpoint]]:
    """The checkpoints of a folder, or the one that the URL names; MissingFileError where there is none."""
    from fluidlite.checkpoint.catalogue import Catalogue, split
    from fluidlite.checkpoint.storage import open_folder
    from fluidlite.errors import MissingFileError

    folder, number = split(url)
    catalogue = Catalogue(open_folder(folder))
    if number is not None:
        return catalogue, [catalogue.checkpoint(number)]
    if not catalogue.checkpoints:
        raise MissingFileError(f"{url} has no checkpoints")
    return catalogue, list(catalogue.checkpoints)


def _open(url: str) -> Source:
    from fluidlite.checkpoint.catalogue import split
    from fluidlite.checkpoint.source import open_checkpoint

    return open_checkpoint(*split(url))


def _kind(checkpoint: Checkpoint) -> str:
    tables = [table for manifest in checkpoint.manifests.values() for table in manifest.tables]
    bases = sorted({table.changed_since.number for table in tables if table.changed_since})
    return f"since {', '.join(map(str, bases))}" if bases else "full"


def _span(values: list[int]) -> str:
    low, high = min(values, default=0), max(values, default=0)
    return str(low) if low == high else f"{low}-{high}"


def _bytes(size: float) -> str:
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def _numbers(row: Array) -> str:
    flat = [f"{number:.9g}" for number in row.reshape(-1)[:_MOST_NUMBERS].tolist()]
    more = f" ... ({row.size} numbers)" if row.size > _MOST_NUMBERS else ""
    return " ".join(flat) + more


def _table(*columns: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for name in columns:
        numeric = name in ("number", "servers", "rows", "size", "width", "same", "changed", "only first", "only second")
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    return table


def _print(item: Any) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 200
    console.print(item)
