"""Variables of a program to files and back, and where their values are: this process, or the servers of a job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from io import BufferedIOBase, BytesIO
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from fluidlite import framework
from fluidlite.core import ir
from fluidlite.dist_io import NOT_SAVED, ServerStore, Store, load_on_server, names_on_server
from fluidlite.dtypes import VarKind, numpy_dtype
from fluidlite.errors import CorruptFileError, DtypeError, ProgramError, ShapeError, UninitializedError
from fluidlite.framework import Parameter, Program, Variable, VarOrName
from fluidlite.runtime.scope import Scope, global_scope
from fluidlite.values import files
from fluidlite.values.lod import LoDTensor
from fluidlite.values.selected_rows import SelectedRows

Predicate: TypeAlias = Callable[[Variable], bool]


class ScopeStore:
    """Implements `Store` for the values of this process."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def read(self, names: Sequence[str]) -> list[Any]:
        return [self._scope.get(name) for name in names]

    def write(self, name: str, value: Any) -> None:
        self._scope.set(name, files.into_table(self._scope.get(name), value))

    def holds_rows(self, name: str) -> bool:
        return files.holds_rows(self._scope.get(name))


def _trained_or_there(original: ir.Program, folder: Path, predicate: Predicate) -> Predicate:
    """What of a distributed program is loaded: parameters and accumulators, and of learning rates and counters those that
    have a file. Fluid's trainers, which do not have them, save none."""
    trained = {
        argument
        for _, op in original.all_ops()
        if op.attr("op_role", 0) & ir.OpRole.OPTIMIZE
        for name, arguments in op.inputs.items()
        if name != "LearningRate"
        for argument in arguments
    }
    return lambda var: (
        predicate(var) and (var.name in trained or isinstance(var, Parameter) or _file(folder, var.name).is_file())
    )


def is_parameter(var: Variable) -> bool:
    """Whether training changes the variable by an optimizer."""
    return isinstance(var, Parameter)


def is_persistable(var: Variable) -> bool:
    """Whether the variable outlives a run: parameters, accumulators, learning rates, counters."""
    return var.persistable and var.type not in NOT_SAVED


def is_belong_to_optimizer(var: Variable) -> bool:
    """Whether the variable is persistable but no parameter and not fed."""
    return is_persistable(var) and not is_parameter(var) and not var.desc.need_check_feed


def get_program_parameter(program: Program) -> list[Variable]:
    """The program's parameters."""
    return [var for var in program.list_vars() if is_parameter(var)]


def get_program_persistable_vars(program: Program) -> list[Variable]:
    """The program's persistable variables."""
    return [var for var in program.list_vars() if is_persistable(var)]


def save_vars(
    executor: Any,
    dirname: str | Path | None,
    main_program: Program | None = None,
    vars: Sequence[VarOrName] | None = None,
    predicate: Predicate | None = None,
    filename: str | None = None,
) -> bytes | None:
    """Save variables of a program: those listed in ``vars``, or those that ``predicate`` accepts.

    With neither ``dirname`` nor ``filename`` the content of a combined file is returned.

    ``main_program`` defaults to the default main program. Of a pserver's program, what that server holds is saved under
    its names there. Raises UninitializedError for a variable without a value.
    """
    program = program_of(main_program)
    store, variables = store_of(executor, program), chosen(program, vars, predicate)
    if dirname is not None:
        save_values(store, Path(dirname), variables, filename)
        return None
    if filename is not None:
        raise ProgramError(f"there is no folder for the file {filename!r}: give dirname")
    content = BytesIO()
    files.write(content, _to_save(store, variables))
    return content.getvalue()


def save_params(
    executor: Any, dirname: str | Path | None, main_program: Program | None = None, filename: str | None = None
) -> bytes | None:
    """Save the parameters."""
    return save_vars(executor, dirname, main_program, predicate=is_parameter, filename=filename)


def save_persistables(
    executor: Any, dirname: str | Path | None, main_program: Program | None = None, filename: str | None = None
) -> bytes | None:
    """Save all that training must remember: parameters, accumulators, learning rate, step counters."""
    return save_vars(executor, dirname, main_program, predicate=is_persistable, filename=filename)


def load_vars(
    executor: Any,
    dirname: str | Path | None,
    main_program: Program | None = None,
    vars: Sequence[VarOrName] | None = None,
    predicate: Predicate | None = None,
    filename: str | bytes | None = None,
) -> None:
    """Load variables that `save_vars` wrote; with ``filename`` the file must hold exactly these. With ``dirname`` None,
    ``filename`` is the content of such a file, as bytes.

    Raises MissingFileError and CorruptFileError naming the file, ShapeError and DtypeError when a value is not what the
    variable is declared to be. Of a pserver's program, the server's own slices and shards are taken from the files of the
    whole model, one file per variable.
    """
    program = program_of(main_program)
    if dirname is None:
        content = BytesIO(in_memory(filename, "filename"))
        load_combined(store_of(executor, program), content, chosen(program, vars, predicate), "the values in memory")
        return
    if vars is None and filename is None and program.distribution is not None:
        predicate = _trained_or_there(program.distribution.main, Path(dirname), predicate or is_persistable)
    if _is_server(program):
        if filename is not None:
            raise ProgramError(
                f"a pserver loads from one file per variable, not from {filename!r}; load that by a trainer"
            )
        names = [var.name for var in chosen(Program(program.distribution.main), vars, predicate)]
        load_on_server(program.distribution.plan, global_scope(), Path(dirname), names)
        return
    load_values(store_of(executor, program), Path(dirname), chosen(program, vars, predicate), _named(filename))


def load_params(
    executor: Any, dirname: str | Path | None, main_program: Program | None = None, filename: str | bytes | None = None
) -> None:
    """Load what `save_params` wrote."""
    load_vars(executor, dirname, main_program, predicate=is_parameter, filename=filename)


def load_persistables(
    executor: Any, dirname: str | Path | None, main_program: Program | None = None, filename: str | bytes | None = None
) -> None:
    """Load what `save_persistables` wrote."""
    load_vars(executor, dirname, main_program, predicate=is_persistable, filename=filename)


def in_memory(content: str | bytes | None, argument: str) -> bytes:
    """The content of a file that is given as such, in ``argument``."""
    if not isinstance(content, bytes):
        raise ProgramError(f"with dirname None, {argument} is the content of the file, as bytes")
    return content


def _named(filename: str | bytes | None) -> str | None:
    if isinstance(filename, bytes):
        raise ProgramError("a file in memory goes with dirname None")
    return filename


def program_of(program: Program | None) -> Program:
    """The program that a function was given, or the default main program."""
    program = framework.as_program(program)
    if program is None:
        return framework.default_main_program()
    if not isinstance(program, Program):
        raise ProgramError(f"main_program must be a Program, not {type(program).__name__}")
    return program


def chosen(program: Program, vars: Sequence[VarOrName] | None, predicate: Predicate | None) -> list[ir.Variable]:
    """The declarations of what is to be saved or loaded, each once, by name."""
    candidates = _candidates(program, predicate or is_persistable) if vars is None else vars
    found = {}
    for item in candidates:
        var = item if isinstance(item, Variable) else program.global_block().var(item)
        found[var.name] = var.desc
    return [found[name] for name in sorted(found)]


def _candidates(program: Program, predicate: Predicate) -> list[Variable]:
    """What the predicate accepts: of a trainer's program among the variables of the model as it was before."""
    distribution = program.distribution
    if _is_server(program):
        held = names_on_server(distribution.plan)
        return [var for var in program.list_vars() if var.name in held]
    original = program if distribution is None else Program(distribution.main)
    return [var for var in original.list_vars() if var.type not in NOT_SAVED and predicate(var)]


def _is_server(program: Program) -> bool:
    """Whether this is the program of a pserver, whose scope holds its part of the model."""
    return program.distribution is not None and program.distribution.plan.endpoint is not None


def store_of(executor: Any, program: Program) -> Store:
    """Where a program's values are. A program that was cloned for testing before ``transpile`` shares its variables
    with the default main program."""
    trainer = program if program.distribution is not None else framework.default_main_program()
    local = ScopeStore(global_scope())
    if trainer.distribution is None or _is_server(program):
        return local
    return ServerStore(trainer.distribution.plan, trainer.desc, local, executor)


def save_values(store: Store, folder: Path, variables: Sequence[ir.Variable], filename: str | None) -> None:
    values = _to_save(store, variables)
    if filename is not None:
        files.save(folder / filename, values)
        return
    for name, value in values.items():
        files.save(_file(folder, name), {name: value})


def _to_save(store: Store, variables: Sequence[ir.Variable]) -> dict[str, Any]:
    """The values by name; UninitializedError for a variable without one."""
    names = [var.name for var in variables]
    values = dict(zip(names, store.read(names), strict=True))
    for name, value in values.items():
        if value is None:
            raise UninitializedError(f"variable {name!r} has no value to save; run the startup program first")
    return values


def load_values(store: Store, folder: Path, variables: Sequence[ir.Variable], filename: str | None) -> None:
    """Load by name: a table comes before its accumulators, whose names begin with its own."""
    if filename is not None:
        path = folder / filename
        with files.opened(path, f"{len(variables)} variables") as stream:
            load_combined(store, stream, variables, str(path))
        return
    for var, is_rows in [(var, _is_rows(store, var)) for var in variables]:
        path = _file(folder, var.name)
        value = files.load(path, var.name, rows=is_rows)
        if isinstance(value, SelectedRows) and not is_rows:
            raise CorruptFileError(f"{path} holds rows by id, but variable {var.name!r} is an array")
        store.write(var.name, checked(var, value, str(path)))


def load_combined(store: Store, stream: BufferedIOBase, variables: Sequence[ir.Variable], source: str) -> None:
    """Load from what `save_vars` wrote into one file, which must hold exactly these variables."""
    rows = [_is_rows(store, var) for var in variables]
    values = files.read_all(stream, source, [var.name for var in variables], rows)
    for var, value in zip(variables, values, strict=True):
        store.write(var.name, checked(var, value, source))


def _is_rows(store: Store, var: ir.Variable) -> bool:
    if store.holds_rows(var.name):
        return True
    if isinstance(var, ir.Parameter) and var.is_distributed:
        raise UninitializedError(f"table {var.name!r} does not exist yet; run the startup program before loading it")
    return var.kind is VarKind.SELECTED_ROWS


def checked(var: ir.Variable, value: files.Saved, source: str) -> files.Saved:
    """The value, if it is what the variable is declared to be; a number without axes, as Paddle 2.5 and later save it, is
    one of the shape [1]."""
    if isinstance(value, np.ndarray) and value.ndim == 0 and var.shape == (1,):
        value = value.reshape(1)
    if isinstance(value, SelectedRows):
        array, declared = value.value, (var.shape or ())[1:]
        actual = array.shape[1:]
    else:
        array, declared = value.array if isinstance(value, LoDTensor) else value, var.shape or ()
        actual = array.shape
    if array.dtype != numpy_dtype(var.dtype):
        raise DtypeError(f"{source} holds {array.dtype.name}, but variable {var.name!r} is {var.dtype}")
    fits = len(actual) == len(declared) and all(d in {-1, a} for d, a in zip(declared, actual, strict=True))
    if declared and not fits:
        raise ShapeError(
            f"{source} holds shape {list(array.shape)}, but variable {var.name!r} is {list(var.shape or ())}"
        )
    return value


def _file(folder: Path, name: str) -> Path:
    """The file of a variable; "/" in a name makes folders, but none outside ``folder``."""
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise ProgramError(f"variable name {name!r} points outside the folder {folder}")
    return folder / name
