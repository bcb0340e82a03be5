"""`fluid.save` and `fluid.load`: a program and its values as three files, and values by name as arrays.

``PREFIX.pdparams`` and ``PREFIX.pdopt`` are pickles of arrays by name (`fluidlite.values.state_reader`), of the parameters and
of what else the optimizer keeps; ``PREFIX.pdmodel`` is the program. Those that Paddle 2 and 3 write are read too.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from fluidlite.core import edit
from fluidlite.dtypes import Array
from fluidlite.errors import DtypeError, MissingFileError, ProgramError, UninitializedError
from fluidlite.framework import Program, Variable
from fluidlite.runtime.scope import global_scope
from fluidlite.values import files
from fluidlite.values.lod import LoDTensor
from fluidlite.values.state_reader import read_arrays
from fluidlite.values.state_writer import write_state
from fluidlite.var_io import (
    ScopeStore,
    checked,
    is_belong_to_optimizer,
    is_parameter,
    is_persistable,
    load_vars,
)

_PARAMETERS: Final = ".pdparams"
_OPTIMIZER: Final = ".pdopt"
_PROGRAM: Final = ".pdmodel"


def save(program: Program, model_path: str | Path) -> None:
    """Write ``model_path`` + ``.pdparams``, ``.pdopt`` and ``.pdmodel``. Makes the folder.

    Raises UninitializedError for a variable without a value, and ProgramError for a table, which is no array:
    `save_persistables` keeps tables.
    """
    from fluidlite.core.op_compat import add_compatibility_map

    prefix = _prefix(model_path)
    _write_arrays(_with_end(prefix, _PARAMETERS), program, is_parameter)
    _write_arrays(_with_end(prefix, _OPTIMIZER), program, is_belong_to_optimizer)
    twin = edit.clone(program.desc)
    add_compatibility_map(twin)
    with files.replacing(_with_end(prefix, _PROGRAM)) as stream:
        stream.write(twin.serialize_to_string())


def load(
    program: Program, model_path: str | Path, executor: Any = None, var_list: Sequence[Variable] | None = None
) -> None:
    """Give the variables of ``program`` the values that `save` wrote, or `save_params`, `save_persistables`, `save_vars`.

    ``model_path`` is the prefix of `save`'s files (or one of them), a folder with a file for each variable, or one file
    that holds all of ``var_list``. Raises MissingFileError when there is none of them, or a variable is not among the
    values; CorruptFileError, ShapeError and DtypeError as `load_vars`.
    """
    prefix = _prefix(model_path)
    path = _with_end(prefix, _PARAMETERS)
    if not path.exists():
        _load_vars(program, Path(model_path), executor, var_list)
        return
    _set_all(program, path, is_parameter)
    if any(map(is_belong_to_optimizer, program.list_vars())):
        _set_all(program, _with_end(prefix, _OPTIMIZER), is_belong_to_optimizer)


def load_program_state(model_path: str | Path, var_list: Sequence[Variable] | None = None) -> dict[str, Any]:
    """Values by name, without a program: from the prefix of `save`'s files, a folder of files, or one combined file.

    A combined file holds no names: ``var_list`` says what is in it. Values are arrays (rows by id: SelectedRows); a file
    of Paddle 2 or 3 may keep other plain values beside them.
    """
    prefix = _prefix(model_path)
    path = _with_end(prefix, _PARAMETERS)
    if path.exists():
        state = _read_arrays(path)
        optimizer = _with_end(prefix, _OPTIMIZER)
        return {**state, **(_read_arrays(optimizer) if optimizer.exists() else {})}
    path = Path(model_path)
    if path.is_file():
        if var_list is None:
            raise ProgramError(f"{path} holds values without names: say by var_list which variables are in it")
        named = sorted(var_list, key=lambda var: var.name)
        rows = [var.type.name == "SELECTED_ROWS" for var in named]
        values = files.load_all(path, [var.name for var in named], rows)
        return {var.name: _bare(value) for var, value in zip(named, values, strict=True)}
    found = [item for item in sorted(path.rglob("*")) if item.is_file()] if path.is_dir() else []
    wanted = None if var_list is None else {var.name for var in var_list}
    names = {item.relative_to(path).as_posix(): item for item in found}
    missing = sorted((wanted or set()) - set(names))
    if not found or missing:
        raise MissingFileError(
            f"no values can be loaded: there is neither a file {prefix}{_PARAMETERS} nor "
            f"{'one of ' + ', '.join(missing) if missing else 'any file'} in a folder {path}"
        )
    return {name: _bare(files.load(names[name], name)) for name in sorted(names) if wanted is None or name in wanted}


def set_program_state(program: Program, state_dict: Mapping[str, Any]) -> None:
    """Give the persistable variables of ``program`` the arrays of the same name; the others stay as they are.

    Raises UninitializedError for a variable that has no value yet (run the startup program first), ShapeError and
    DtypeError when an array is not what the variable is declared to be. Names that the program lacks are left out with
    one warning.
    """
    scope = global_scope()
    store = ScopeStore(scope)
    used = set()
    for var in filter(is_persistable, program.list_vars()):
        if scope.get(var.name) is None:
            raise UninitializedError(f"variable {var.name!r} has no value yet; run the startup program first")
        if var.name in state_dict:
            store.write(var.name, checked(var.desc, _own_array(var.name, state_dict[var.name]), "the state"))
            used.add(var.name)
    if unused := [name for name in state_dict if name not in used]:
        warnings.warn(f"not used, the program has no such variables: {', '.join(unused)}", stacklevel=2)


def _prefix(model_path: str | Path) -> str:
    """The common beginning of the names of `save`'s files."""
    text = str(model_path)
    for end in (_PARAMETERS, _OPTIMIZER, _PROGRAM):
        text = text.removesuffix(end)
    if not text or text.endswith("/"):
        if Path(text or "").is_dir() and text:
            return text
        raise ProgramError(f"{str(model_path)!r} must be FOLDER/NAME or NAME, as files are named after it")
    return text


def _with_end(prefix: str, end: str) -> Path:
    return Path(prefix + end)


def _write_arrays(path: Path, program: Program, predicate: Callable[[Variable], bool]) -> None:
    names = list(dict.fromkeys(var.name for var in program.list_vars() if predicate(var)))
    store = ScopeStore(global_scope())
    values = dict(zip(names, store.read(names), strict=True))
    arrays = {name: _array_of(name, value) for name, value in values.items()}
    with files.replacing(path) as stream:
        write_state(stream, arrays)


def _array_of(name: str, value: Any) -> Array:
    if value is None:
        raise UninitializedError(f"variable {name!r} has no value to save; run the startup program first")
    if isinstance(value, LoDTensor):
        return value.array
    if not isinstance(value, np.ndarray):
        raise ProgramError(f"variable {name!r} holds a {type(value).__name__}, no array: use save_persistables")
    return value


def _own_array(name: str, value: Any) -> Array:
    """An array that the caller may go on changing."""
    if not isinstance(value, (np.ndarray, np.generic)):
        raise DtypeError(f"the value for variable {name!r} is a {type(value).__name__}, no array")
    return np.array(value)


def _bare(value: Any) -> Any:
    return value.array if isinstance(value, LoDTensor) else value


def _read_arrays(path: Path) -> dict[str, Any]:
    with files.opened(path, "values by name") as stream:
        return read_arrays(stream.read(), str(path))


def _set_all(program: Program, path: Path, predicate: Callable[[Variable], bool]) -> None:
    """Every variable that the predicate accepts gets its value of the file; nothing changes when one is missing."""
    state = _read_arrays(path)
    variables = list(filter(predicate, program.list_vars()))
    if missing := [var.name for var in variables if var.name not in state]:
        raise MissingFileError(f"{path} has no values for {', '.join(missing)}; it has {', '.join(state) or 'none'}")
    store = ScopeStore(global_scope())
    values = [(var, checked(var.desc, _own_array(var.name, state[var.name]), str(path))) for var in variables]
    for var, value in values:
        store.write(var.name, value)


def _load_vars(program: Program, path: Path, executor: Any, var_list: Iterable[Variable] | None) -> None:
    """From the files of `save_vars`: of a folder, the variables that have one there."""
    if path.is_dir():
        wanted = list(filter(is_persistable, program.list_vars()))
        there = [var for var in wanted if (path / var.name).is_file()]
        if wanted and not there:
            raise MissingFileError(
                f"the folder {path} has a file of none of the program's variables, such as {wanted[0].name}"
            )
        load_vars(executor, path, program, vars=there)
        return
    if not path.is_file():
        raise MissingFileError(
            f"the program's values cannot be loaded: there is no file {path}{_PARAMETERS}, no folder {path} and no file of that name"
        )
    if var_list is None:
        raise ProgramError(f"{path} holds values without names: say by var_list which variables are in it")
    known = {var.name for var in program.list_vars()}
    if strangers := [var.name for var in var_list if var.name not in known]:
        raise ProgramError(f"the program has no variables {', '.join(strangers)}")
    load_vars(executor, path.parent, program, vars=list(var_list), filename=path.name)
