"""The command ``fluidlite export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fluidlite.export import OPSET, Form, export


def command(
    model: Annotated[Path, typer.Argument(help="folder of an inference model, or prefix of .pdmodel and .pdiparams")],
    out: Annotated[Path, typer.Argument(help="onnx: the file; paddle: the prefix of .pdmodel and .pdiparams")],
    to: Annotated[Form, typer.Option("--to", help="what to write")],
    model_filename: Annotated[str | None, typer.Option(help="file of the program in the folder")] = None,
    params_filename: Annotated[str | None, typer.Option(help="file of all parameters in the folder")] = None,
    opset: Annotated[int, typer.Option(min=7, help="version of the ONNX operators")] = OPSET,
) -> None:
    """Write an inference model for Paddle 2 and 3, or as ONNX (needs fluidlite[interop])."""
    written = export(model, to, out, model_filename=model_filename, params_filename=params_filename, opset=opset)
    for path in written:
        typer.echo(path)
