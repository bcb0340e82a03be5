"""``fluidlite export``: an inference model for Paddle 2 and 3, or as ONNX.

For Paddle: ``OUT.pdmodel`` and ``OUT.pdiparams``, in the ops that Paddle 2 and 3 (and their converters) still know. ONNX is
made of these by the package paddle2onnx, in a process of its own: it ends the process that it works in when it meets an
op that it does not know.
"""

from __future__ import annotations

import enum
import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from fluidlite import io
from fluidlite.core import edit, serde
from fluidlite.core.ir import Attr, AttrType, Block, Operator, Program, Variable
from fluidlite.core.op_compat import add_compatibility_map
from fluidlite.dtypes import Array, VarKind
from fluidlite.errors import MissingPackageError, NotSupported
from fluidlite.executor import CPUPlace, Executor
from fluidlite.inference import append_fetch, prepend_feed, spell_defaults
from fluidlite.runtime.scope import Scope, scope_guard
from fluidlite.values import files
from fluidlite.values.selected_rows import SelectedRows
from fluidlite.values.sparse_table import SparseTable
from fluidlite.var_io import chosen, is_persistable

#: bytes of the largest table that is written row by row, those that no id was seen for included
MOST: Final = 1 << 31
OPSET: Final = 13
_MODEL_END: Final = ".pdmodel"
_PARAMS_END: Final = ".pdiparams"
_LOOKUPS: Final = ("lookup_table", "lookup_sparse_table")
_CONVERT: Final = """
import sys
import paddle2onnx
paddle2onnx.export(sys.argv[1], sys.argv[2], sys.argv[3], opset_version=int(sys.argv[4]), verbose=True)
"""


class Form(enum.StrEnum):
    """What a model is exported to."""

    ONNX = "onnx"
    PADDLE = "paddle"


def export(
    model: Path,
    form: Form,
    out: Path,
    *,
    model_filename: str | None = None,
    params_filename: str | None = None,
    opset: int = OPSET,
) -> list[Path]:
    """Write an inference model (a folder, or a prefix of ``.pdmodel`` and ``.pdiparams``) in another form.

    Returns the files written. Raises MissingPackageError when ONNX is asked for and paddle2onnx is not installed,
    NotSupported for a table that is too high to write out and for a model that paddle2onnx refuses, and what
    `fluidlite.io.load_inference_model` raises.
    """
    if form is Form.PADDLE:
        return list(to_paddle(model, out, model_filename, params_filename))
    if importlib.util.find_spec("paddle2onnx") is None or importlib.util.find_spec("paddle") is None:
        raise MissingPackageError(
            "ONNX needs the packages paddle2onnx and paddlepaddle: install fluidlite[interop] (Python 3.11 or 3.12)"
        )
    with tempfile.TemporaryDirectory() as folder:
        written = to_paddle(model, Path(folder) / "model", model_filename, params_filename)
        _convert(written, out, opset)
    return [out]


def to_paddle(
    model: Path, out: Path, model_filename: str | None = None, params_filename: str | None = None
) -> tuple[Path, Path]:
    """Write ``out.pdmodel`` and ``out.pdiparams``; returns them."""
    stem = out.with_name(out.name.removesuffix(_MODEL_END).removesuffix(_PARAMS_END))
    paths = stem.with_name(stem.name + _MODEL_END), stem.with_name(stem.name + _PARAMS_END)
    scope = Scope()
    with scope_guard(scope):
        loaded, feeds, fetches = io.load_inference_model(model, Executor(CPUPlace()), model_filename, params_filename)
    program = loaded.desc
    values = {var.name: _dense(var, scope.get(var.name)) for var in chosen(loaded, None, is_persistable)}
    modernize(program)
    prepend_feed(program, feeds)
    append_fetch(program, [var.name for var in fetches])
    spell_defaults(program)
    add_compatibility_map(program)
    with files.replacing(paths[0]) as stream:
        stream.write(serde.to_bytes(program))
    files.save(paths[1], values)
    return paths


def modernize(program: Program) -> None:
    """Put ops of Paddle 2 in the place of those that Paddle 3 knows in name only. Tables become dense parameters."""
    for block in program.blocks:
        for var in block.vars.values():
            if var.kind is VarKind.SELECTED_ROWS and var.persistable:
                var.kind = VarKind.LOD_TENSOR
        for op in list(block.ops):
            if op.type in _LOOKUPS:
                _modern_lookup(program, block, op)
            elif op.type == "matmul":
                _modern_matmul(program, block, op)


def _modern_lookup(program: Program, block: Block, op: Operator) -> None:
    """Without the last dimension (1) of the ids, lookup_table_v2 makes what lookup_table does."""
    ids = program.find_var(op.inputs["Ids"][0], block)
    attrs = {name: attr for name, attr in op.attrs.items() if name in {"padding_idx", "op_role", "op_callstack"}}
    if ids is None or not ids.shape or ids.lod_level:
        plain = Operator("lookup_table", op.inputs, op.outputs, attrs, op.origin)
        edit.replace_op(program, block, op, [plain])
        return
    flat = _temporary(program, block, f"{ids.name}.flat", Variable("", dtype=ids.dtype, shape=ids.shape[:-1]))
    shape = _temporary(program, block, f"{ids.name}.shape", Variable("", dtype=ids.dtype, shape=(0, *ids.shape)))
    squeeze = Operator(
        "squeeze2",
        {"X": [ids.name]},
        {"Out": [flat], "XShape": [shape]},
        {"axes": Attr(AttrType.INTS, (len(ids.shape) - 1,)), "op_role": Attr(AttrType.INT, 0)},
        op.origin,
    )
    lookup = Operator("lookup_table_v2", {**op.inputs, "Ids": [flat]}, op.outputs, attrs, op.origin)
    edit.replace_op(program, block, op, [squeeze, lookup])


def _modern_matmul(program: Program, block: Block, op: Operator) -> None:
    """Matrices only: what vectors mean differs."""
    x, y = (program.find_var(op.inputs[name][0], block) for name in "XY")
    out = program.find_var(op.outputs["Out"][0], block)
    if x is None or y is None or out is None or min(len(x.shape or ()), len(y.shape or ())) < 2:
        return
    role = {"op_role": Attr(AttrType.INT, 0)}
    alpha = op.attr("alpha", 1.0)
    product = out.name if alpha == 1.0 else _temporary(program, block, f"{out.name}.product", out)
    attrs = {
        "trans_x": Attr(AttrType.BOOLEAN, op.attr("transpose_X", default=False)),
        "trans_y": Attr(AttrType.BOOLEAN, op.attr("transpose_Y", default=False)),
        **role,
    }
    ops = [Operator("matmul_v2", op.inputs, {"Out": [product]}, attrs, op.origin)]
    if alpha != 1.0:
        scale = {"scale": Attr(AttrType.FLOAT, alpha), **role}
        ops.append(Operator("scale", {"X": [product]}, {"Out": [out.name]}, scale, op.origin))
    edit.replace_op(program, block, op, ops)


def _temporary(program: Program, block: Block, name: str, like: Variable) -> str:
    """Declare a variable of a name that is not taken."""
    count = 0
    while program.find_var(wanted := f"{name}_{count}", block) is not None:
        count += 1
    edit.add_var(program, block, Variable(wanted, dtype=like.dtype, shape=like.shape))
    return wanted


def _dense(var: Variable, value: object) -> object:
    """A table as an array: ids without a row have zeros there, which is what inference reads for them."""
    rows = value.export() if isinstance(value, SparseTable) else value
    if not isinstance(rows, SelectedRows):
        return value
    height, *rest = var.shape or rows.value.shape
    size = height * int(np.prod(rest)) * rows.value.itemsize
    if height < 0 or size > MOST:
        raise NotSupported(
            f"table {var.name!r} of height {height} cannot be written row by row ({size} bytes; {MOST} are the most): "
            "Paddle 2 and 3 and ONNX have dense parameters only; train with a table of a smaller height"
        )
    table: Array = np.zeros((height, *rest), rows.value.dtype)
    known = rows.value[: len(rows.rows)]
    if len(rows.rows) and not 0 <= rows.rows.min() <= rows.rows.max() < height:
        raise NotSupported(
            f"table {var.name!r} has rows for ids outside 0 to {height - 1}, which a dense one cannot have"
        )
    table[rows.rows] = known
    return table


def _convert(paths: Sequence[Path], out: Path, opset: int) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-c", _CONVERT, *map(str, paths), str(out.resolve()), str(opset)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 (Python and what is above)
    if done.returncode or not out.is_file():
        ops = sorted({op.type for _, op in serde.from_bytes(paths[0].read_bytes()).all_ops()} - {"feed", "fetch"})
        raise NotSupported(
            f"paddle2onnx does not convert this model, whose ops are {', '.join(ops)}, to opset {opset}: "
            f"{_reason(done.stdout + done.stderr)}"
        )


def _reason(output: str) -> str:
    """What paddle2onnx says of a failure, without the stack of its own functions."""
    words = ("error", "unsupported", "not supported", "hint", "oops")
    lines = [line.strip() for line in output.splitlines() if any(word in line.lower() for word in words)]
    return "; ".join(dict.fromkeys(lines[:6])) or "it says nothing"
