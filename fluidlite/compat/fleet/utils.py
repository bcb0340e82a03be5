"""``paddle.fluid.incubate.fleet.utils.utils``: programs and variables in files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fluidlite.core import serde, text
from fluidlite.dtypes import Array, numpy_dtype
from fluidlite.errors import ShapeError, TextFormError
from fluidlite.framework import Program
from fluidlite.io import is_persistable
from fluidlite.values import files

__all__ = [
    "check_pruned_program_vars",
    "check_saved_vars_try_dump",
    "feed_gen",
    "load_program",
    "load_var",
    "program_type_trans",
    "reader",
    "save_program",
    "save_var",
]


def load_program(model_filename: str | Path, is_text: bool = False) -> Program:
    """A program from a file: ProgramDesc bytes, or with ``is_text`` fluidlite's text form.

    Raises OSError, CorruptFileError, TextFormError.
    """
    path = Path(model_filename)
    content = path.read_bytes()
    if not is_text:
        return Program(serde.from_bytes(content, str(path)))
    try:
        return Program(text.parse(content.decode("utf-8")))
    except (TextFormError, UnicodeDecodeError) as error:
        raise TextFormError(f"{path}: {error} (the text form is fluidlite's, not protobuf's)") from error


def save_program(program: Program, model_filename: str | Path = "__model__", is_text: bool = False) -> None:
    """Write a program as `load_program` reads it."""
    content = text.show(program.desc).encode() if is_text else program.serialize_to_string()
    Path(model_filename).write_bytes(content)


def program_type_trans(prog_dir: str | Path, prog_fn: str, is_text: bool) -> str:
    """Write the other form of a program beside it; the name of the file: ``.bin`` or ``.pbtxt`` is added."""
    name = f"{prog_fn}.{'bin' if is_text else 'pbtxt'}"
    save_program(load_program(Path(prog_dir) / prog_fn, is_text), Path(prog_dir) / name, not is_text)
    return name


def check_pruned_program_vars(train_prog: Program, pruned_prog: Program) -> bool:
    """Whether persistable variables that both programs have are of the same shape and dtype."""
    trained = {var.name: var for var in train_prog.list_vars()}
    pairs = [(var, trained[var.name]) for var in pruned_prog.list_vars() if is_persistable(var) and var.name in trained]
    return all((kept.shape, kept.dtype) == (var.shape, var.dtype) for kept, var in pairs)


def check_saved_vars_try_dump(
    dump_dir: str | Path, dump_prog_fn: str, is_text_dump_program: bool, *unused: Any, **rest: Any
) -> list[Array]:
    """The persistable variables of a saved program, each read from its file. Raises what `load_var` does."""
    program = load_program(Path(dump_dir) / dump_prog_fn, is_text_dump_program)
    return [
        load_var(var.name, list(var.shape), var.dtype, Path(dump_dir) / var.name)[0]
        for var in program.list_vars()
        if is_persistable(var)
    ]


def save_var(np_array: Array, var_name: str, shape_list: Sequence[int], dtype: str, save_path: str | Path) -> None:
    """Write one array in Fluid's form of a variable."""
    array = np.asarray(np_array, numpy_dtype(dtype)).reshape(list(shape_list))
    files.save(Path(save_path), {var_name: array})


def load_var(var_name: str, shape_list: Sequence[int], dtype: str, save_path: str | Path) -> list[Array]:
    """The array of one variable's file, in a list of one. Raises MissingFileError, CorruptFileError, and ShapeError for an
    array of another dtype or, where ``shape_list`` says it, another shape."""
    value: Any = files.load(Path(save_path), var_name)
    array: Array = np.asarray(getattr(value, "array", value))
    wanted = [size for size in shape_list if size >= 0]
    if array.dtype != numpy_dtype(dtype) or (
        len(wanted) == len(shape_list) == array.ndim and list(array.shape) != wanted
    ):
        raise ShapeError(
            f"{save_path} holds {array.dtype.name}{list(array.shape)}, but {var_name!r} is to be {dtype}{list(shape_list)}"
        )
    return [array]


def reader(batch_size: int, fn: str | Path, dim: int | Sequence[int]) -> list[Array]:
    """Lines of numbers as arrays of ``[batch_size, *dim]``; what is left of a line is dropped."""
    shape = [batch_size, *(dim if isinstance(dim, (list, tuple)) else [dim])]
    size = int(np.prod(shape))
    made = []
    for line in Path(fn).read_text(encoding="utf-8").splitlines():
        numbers = [float(word) for word in re.split(r"\s+", line.strip()) if word]
        whole = len(numbers) - len(numbers) % size
        made += [np.array(numbers[first : first + size]).reshape(shape) for first in range(0, whole, size)]
    return made


def feed_gen(
    batch_size: int, feeded_vars_dims: Sequence[Any], feeded_vars_filelist: Sequence[str | Path]
) -> list[list[Array]]:
    """`reader` of each fed variable's file."""
    return [reader(batch_size, path, dim) for dim, path in zip(feeded_vars_dims, feeded_vars_filelist, strict=True)]
