"""Saving and loading: variables to files and back, and inference models. Fluid's functions, names and formats.

As in Fluid, the readers of `fluidlite.reader` and the loaders of `fluidlite.data_loader` have their names here too.

What is saved are values of ``global_scope()``, or, for a transpiled trainer's program, what the servers hold
(`fluidlite.dist_io`): the files are those of a local run either way. A variable's file is named like the variable,
below ``dirname``; with ``filename`` all variables go into that one file, sorted by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from fluidlite import framework
from fluidlite.checkpoint_io import load_checkpoint, save_checkpoint, watch_checkpoints
from fluidlite.core import ir
from fluidlite.core.verify import verify
from fluidlite.data_loader import DataLoader, PyReader
from fluidlite.dist_io import NOT_SAVED, ServerStore, Store, load_on_server, names_on_server
from fluidlite.dtypes import VarKind, numpy_dtype
from fluidlite.errors import CorruptFileError, DtypeError, ProgramError, ShapeError, UninitializedError
from fluidlite.framework import Parameter, Program, Variable, VarOrName
from fluidlite.inference import inference_program, looked_up_tables, take_feed_fetch
from fluidlite.ops import registry
from fluidlite.reader import (
    ComposeNotAligned,
    batch,
    buffered,
    cache,
    chain,
    compose,
    firstn,
    map_readers,
    multiprocess_reader,
    shuffle,
    xmap_readers,
)
from fluidlite.runtime.scope import Scope, global_scope
from fluidlite.serving import ask_servers
from fluidlite.values import files
from fluidlite.values.initial import Constant
from fluidlite.values.lod import LoDTensor
from fluidlite.values.selected_rows import SelectedRows
from fluidlite.values.sparse_table import SparseTable

__all__ = [
    "ComposeNotAligned",
    "DataLoader",
    "PyReader",
    "batch",
    "buffered",
    "cache",
    "chain",
    "compose",
    "firstn",
    "get_program_parameter",
    "get_program_persistable_vars",
    "is_belong_to_optimizer",
    "is_parameter",
    "is_persistable",
    "load_checkpoint",
    "load_inference_model",
    "load_params",
    "load_persistables",
    "load_vars",
    "map_readers",
    "multiprocess_reader",
    "save_checkpoint",
    "save_inference_model",
    "save_params",
    "save_persistables",
    "save_vars",
    "shuffle",
    "watch_checkpoints",
    "xmap_readers",
]

Predicate: TypeAlias = Callable[[Variable], bool]
_MODEL = "__model__"


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
    dirname: str | Path,
    main_program: Program | None = None,
    vars: Sequence[VarOrName] | None = None,
    predicate: Predicate | None = None,
    filename: str | None = None,
) -> None:
    """Save variables of a program: those listed in ``vars``, or those that ``predicate`` accepts.

    ``main_program`` defaults to the default main program. Of a pserver's program, what that server holds is saved under
    its names there. Raises UninitializedError for a variable without a value.
    """
    program = _program(main_program)
    _save(_store(executor, program), Path(dirname), _chosen(program, vars, predicate), filename)


def save_params(
    executor: Any, dirname: str | Path, main_program: Program | None = None, filename: str | None = None
) -> None:
    """Save the parameters."""
    save_vars(executor, dirname, main_program, predicate=is_parameter, filename=filename)


def save_persistables(
    executor: Any, dirname: str | Path, main_program: Program | None = None, filename: str | None = None
) -> None:
    """Save all that training must remember: parameters, accumulators, learning rate, step counters."""
    save_vars(executor, dirname, main_program, predicate=is_persistable, filename=filename)


def load_vars(
    executor: Any,
    dirname: str | Path,
    main_program: Program | None = None,
    vars: Sequence[VarOrName] | None = None,
    predicate: Predicate | None = None,
    filename: str | None = None,
) -> None:
    """Load variables that `save_vars` wrote; with ``filename`` the file must hold exactly these.

    Raises MissingFileError and CorruptFileError naming the file, ShapeError and DtypeError when a value is not what the
    variable is declared to be. Of a pserver's program, the server's own slices and shards are taken from the files of the
    whole model, one file per variable.
    """
    program = _program(main_program)
    if _is_server(program):
        if filename is not None:
            raise ProgramError(
                f"a pserver loads from one file per variable, not from {filename!r}; load that by a trainer"
            )
        names = [var.name for var in _chosen(Program(program.distribution.main), vars, predicate)]
        load_on_server(program.distribution.plan, global_scope(), Path(dirname), names)
        return
    _load(_store(executor, program), Path(dirname), _chosen(program, vars, predicate), filename)


def load_params(
    executor: Any, dirname: str | Path, main_program: Program | None = None, filename: str | None = None
) -> None:
    """Load what `save_params` wrote."""
    load_vars(executor, dirname, main_program, predicate=is_parameter, filename=filename)


def load_persistables(
    executor: Any, dirname: str | Path, main_program: Program | None = None, filename: str | None = None
) -> None:
    """Load what `save_persistables` wrote."""
    load_vars(executor, dirname, main_program, predicate=is_persistable, filename=filename)


def save_inference_model(
    dirname: str | Path,
    feeded_var_names: str | Sequence[str],
    target_vars: VarOrName | Sequence[VarOrName],
    executor: Any,
    main_program: Program | None = None,
    model_filename: str | None = None,
    params_filename: str | None = None,
    export_for_deployment: bool = True,
    program_only: bool = False,
) -> list[str]:
    """Save the part of a program that computes ``target_vars`` from the fed variables, with its parameters.

    Writes ``dirname/__model__`` (or ``model_filename``) and the persistable variables, unless ``program_only``. The
    given program stays as it is; of a transpiled one the untouched original is saved, so that inference needs no
    servers. With ``export_for_deployment`` False the whole program is saved, as ``__model__.main_program``, for
    training on. Returns the names of the saved program's results.
    """
    from fluidlite.core import serde

    program = _program(main_program)
    original = program.desc if program.distribution is None else program.distribution.main
    feeds = [feeded_var_names] if isinstance(feeded_var_names, str) else list(feeded_var_names)
    targets = [target_vars] if isinstance(target_vars, (str, Variable)) else list(target_vars)
    saved, results = inference_program(original, feeds, [framework.name_of(target) for target in targets])
    name = model_filename or _MODEL
    if not export_for_deployment:
        saved, name = original, f"{name}.main_program"
    folder = Path(dirname)
    content = serde.to_bytes(saved)
    with files.replacing(folder / name) as stream:
        stream.write(content)
    if not program_only:
        variables = _chosen(Program(saved), None, is_persistable)
        _save(_store(executor, program), folder, variables, params_filename)
    return results


def load_inference_model(
    dirname: str | Path,
    executor: Any,
    model_filename: str | None = None,
    params_filename: str | None = None,
    pserver_endpoints: Sequence[str] | None = None,
) -> list[Any]:
    """Load what `save_inference_model` wrote, of fluidlite or of Fluid, into the global scope.

    Returns ``[program, names to feed, variables to fetch]``. Tables become read-only for the program: an id without a
    row reads zeros. With ``pserver_endpoints``, the servers of a job that has such tables, in the job's order, the rows
    of every table are those that the servers have when the program is run: its file is not read. The process need be none
    of the job's; its executor is to be closed. ``executor`` is Fluid's and not used.
    """
    from fluidlite.core import serde

    path = Path(dirname) / (model_filename or _MODEL)
    with files.opened(path, "the inference model") as stream:
        desc = serde.from_bytes(stream.read(), str(path))
    try:
        feeds, results = take_feed_fetch(desc)
        verify(desc, registry.find)
    except ProgramError as error:
        raise ProgramError(f"{path}: {error}") from error
    program = Program(ask_servers(desc, pserver_endpoints) if pserver_endpoints else desc)
    store = ScopeStore(global_scope())
    _load(store, Path(dirname), _chosen(program, None, is_persistable), params_filename)
    for var in looked_up_tables(program.desc):
        (rows,) = store.read([var.name])
        if isinstance(rows, SelectedRows):
            store.write(var.name, _as_table(var, rows))
    return [program, feeds, [program.global_block().var(name) for name in results]]


def _program(program: Program | None) -> Program:
    if program is None:
        return framework.default_main_program()
    if not isinstance(program, Program):
        raise ProgramError(f"main_program must be a Program, not {type(program).__name__}")
    return program


def _chosen(program: Program, vars: Sequence[VarOrName] | None, predicate: Predicate | None) -> list[ir.Variable]:
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


def _store(executor: Any, program: Program) -> Store:
    """Where a program's values are. A program that was cloned for testing before ``transpile`` shares its variables
    with the default main program."""
    trainer = program if program.distribution is not None else framework.default_main_program()
    local = ScopeStore(global_scope())
    if trainer.distribution is None or _is_server(program):
        return local
    return ServerStore(trainer.distribution.plan, trainer.desc, local, executor)


def _save(store: Store, folder: Path, variables: Sequence[ir.Variable], filename: str | None) -> None:
    names = [var.name for var in variables]
    values = dict(zip(names, store.read(names), strict=True))
    for name, value in values.items():
        if value is None:
            raise UninitializedError(f"variable {name!r} has no value to save; run the startup program first")
    if filename is not None:
        files.save(folder / filename, values)
        return
    for name, value in values.items():
        files.save(_file(folder, name), {name: value})


def _load(store: Store, folder: Path, variables: Sequence[ir.Variable], filename: str | None) -> None:
    """Load by name: a table comes before its accumulators, whose names begin with its own."""
    rows = [_is_rows(store, var) for var in variables]
    if filename is not None:
        path = folder / filename
        values = files.load_all(path, [var.name for var in variables], rows)
        for var, value in zip(variables, values, strict=True):
            store.write(var.name, _checked(var, value, path))
        return
    for var, is_rows in zip(variables, rows, strict=True):
        path = _file(folder, var.name)
        value = files.load(path, var.name, rows=is_rows)
        if isinstance(value, SelectedRows) and not is_rows:
            raise CorruptFileError(f"{path} holds rows by id, but variable {var.name!r} is an array")
        store.write(var.name, _checked(var, value, path))


def _is_rows(store: Store, var: ir.Variable) -> bool:
    if store.holds_rows(var.name):
        return True
    if isinstance(var, ir.Parameter) and var.is_distributed:
        raise UninitializedError(f"table {var.name!r} does not exist yet; run the startup program before loading it")
    return var.kind is VarKind.SELECTED_ROWS


def _checked(var: ir.Variable, value: files.Saved, path: Path) -> files.Saved:
    """The value, if it is what the variable is declared to be."""
    if isinstance(value, SelectedRows):
        array, declared = value.value, (var.shape or ())[1:]
        actual = array.shape[1:]
    else:
        array, declared = value.array if isinstance(value, LoDTensor) else value, var.shape or ()
        actual = array.shape
    if array.dtype != numpy_dtype(var.dtype):
        raise DtypeError(f"{path} holds {array.dtype.name}, but variable {var.name!r} is {var.dtype}")
    fits = len(actual) == len(declared) and all(d in {-1, a} for d, a in zip(declared, actual, strict=True))
    if declared and not fits:
        raise ShapeError(
            f"{path} holds shape {list(array.shape)}, but variable {var.name!r} is {list(var.shape or ())}"
        )
    return value


def _file(folder: Path, name: str) -> Path:
    """The file of a variable; "/" in a name makes folders, but none outside ``folder``."""
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise ProgramError(f"variable name {name!r} points outside the folder {folder}")
    return folder / name


def _as_table(var: ir.Variable, rows: SelectedRows) -> SparseTable:
    """The rows of an inference model as a table, so that lookups find them by index and unknown ids read zeros."""
    table = SparseTable(var.name, rows.value.shape[1], rows.value.dtype, Constant(0.0), height=rows.height)
    files.into_table(table, rows)
    return table
