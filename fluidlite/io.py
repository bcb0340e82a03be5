"""Saving and loading: variables to files and back, and inference models. Fluid's functions, names and formats.

As in Fluid, the readers of `fluidlite.reader` and the loaders of `fluidlite.data_loader` have their names here too.

What is saved are values of ``global_scope()``, or, for a transpiled trainer's program, what the servers hold
(`fluidlite.dist_io`): the files are those of a local run either way. A variable's file is named like the variable,
below ``dirname``; with ``filename`` all variables go into that one file, sorted by name. The formats: docs/files.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, Final, NoReturn

import numpy as np

from fluidlite import framework
from fluidlite.checkpoint_io import load_checkpoint, save_checkpoint, watch_checkpoints
from fluidlite.core import ir
from fluidlite.core.verify import verify
from fluidlite.data_loader import DataLoader, PyReader
from fluidlite.errors import NotSupported, ProgramError, UninitializedError
from fluidlite.framework import Parameter, Program, Variable, VarOrName
from fluidlite.inference import (
    append_fetch,
    inference_program,
    looked_up_tables,
    only_computing,
    prepend_feed,
    take_feed_fetch,
)
from fluidlite.ops import registry
from fluidlite.ops.versions import as_this_version
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
from fluidlite.runtime.scope import global_scope
from fluidlite.serving import ask_servers
from fluidlite.state_io import load, load_program_state, save, set_program_state
from fluidlite.values import files
from fluidlite.values.initial import Constant
from fluidlite.values.selected_rows import SelectedRows
from fluidlite.values.sparse_table import SparseTable
from fluidlite.var_io import (
    ScopeStore,
    chosen,
    get_program_parameter,
    get_program_persistable_vars,
    in_memory,
    is_belong_to_optimizer,
    is_parameter,
    is_persistable,
    load_combined,
    load_params,
    load_persistables,
    load_values,
    load_vars,
    program_of,
    save_params,
    save_persistables,
    save_values,
    save_vars,
    store_of,
)

__all__ = [
    "ComposeNotAligned",
    "DataLoader",
    "PyReader",
    "append_fetch_ops",
    "batch",
    "buffered",
    "cache",
    "chain",
    "compose",
    "firstn",
    "get_inference_program",
    "get_parameter_value",
    "get_parameter_value_by_name",
    "get_program_parameter",
    "get_program_persistable_vars",
    "is_belong_to_optimizer",
    "is_parameter",
    "is_persistable",
    "load",
    "load_checkpoint",
    "load_inference_model",
    "load_params",
    "load_persistables",
    "load_program_state",
    "load_vars",
    "map_readers",
    "multiprocess_reader",
    "prepend_feed_ops",
    "save",
    "save_checkpoint",
    "save_inference_model",
    "save_params",
    "save_persistables",
    "save_vars",
    "set_program_state",
    "shuffle",
    "watch_checkpoints",
    "xmap_readers",
]

_MODEL: Final = "__model__"
#: the ends of the names of Paddle 2's files
_MODEL_END: Final = ".pdmodel"
_PARAMS_END: Final = ".pdiparams"


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
    from fluidlite.core.op_compat import add_compatibility_map

    program = program_of(main_program)
    original = program.desc if program.distribution is None else program.distribution.main
    feeds = [feeded_var_names] if isinstance(feeded_var_names, str) else list(feeded_var_names)
    targets = [target_vars] if isinstance(target_vars, (str, Variable)) else list(target_vars)
    saved, results = inference_program(original, feeds, [framework.name_of(target) for target in targets])
    name = Path(model_filename or _MODEL).name
    if not export_for_deployment:
        saved, name = original, f"{name}.main_program"
    else:
        add_compatibility_map(saved)
    folder = Path(dirname)
    content = saved.serialize_to_string()
    with files.replacing(folder / name) as stream:
        stream.write(content)
    if not program_only:
        variables = chosen(Program(saved), None, is_persistable)
        save_values(
            store_of(executor, program), folder, variables, Path(params_filename).name if params_filename else None
        )
    return results


def load_inference_model(
    dirname: str | Path | None,
    executor: Any,
    model_filename: str | bytes | None = None,
    params_filename: str | bytes | None = None,
    pserver_endpoints: Sequence[str] | None = None,
) -> list[Any]:
    """Load what `save_inference_model` wrote, of fluidlite, Fluid or Paddle 2 and 3, into the global scope.

    ``dirname`` is the folder with ``model_filename`` (default ``__model__``) and the parameters, one file each or all in
    ``params_filename``; or the prefix of ``.pdmodel`` and ``.pdiparams`` (or the former itself); or None, and the file names are the contents
    themselves, as bytes. Returns ``[program, names to feed, variables to fetch]``. Tables become read-only for the
    program: an id without a row reads zeros. With ``pserver_endpoints``, the servers of a job that has such tables, in the
    job's order, the rows of every table are those that the servers have when the program is run: its file is not read.
    The process need be none of the job's; its executor is to be closed. ``executor`` is Fluid's and not used.

    Raises MissingFileError, CorruptFileError, ProgramError (an op that there is not here) and NotSupported (a model in
    the JSON form of Paddle 3), naming the file.
    """
    if dirname is None:
        return _load_model(
            in_memory(model_filename, "model_filename"), "the model in memory", pserver_endpoints, None, params_filename
        )
    if isinstance(model_filename, bytes) or isinstance(params_filename, bytes):
        raise ProgramError("a model in memory goes with dirname None")
    folder, model, params = _places(Path(dirname), model_filename, params_filename)
    with files.opened(folder / model, "the inference model") as stream:
        content = stream.read()
    return _load_model(content, str(folder / model), pserver_endpoints, folder, params)


def _places(folder: Path, model: str | None, params: str | None) -> tuple[Path, str, str | None]:
    """(folder, file of the program, file of all parameters); a prefix stands for Paddle 2's two files."""
    itself = folder.suffix == _MODEL_END and folder.is_file()
    if itself:
        folder = folder.with_suffix("")
    prefixed = folder.with_name(folder.name + _MODEL_END)
    if model is None and (itself or not folder.is_dir()):
        if folder.with_name(f"{folder.name}.json").is_file() and not prefixed.is_file():
            _refuse_json(f"{folder}.json")
        if prefixed.is_file():
            beside = folder.with_name(folder.name + _PARAMS_END)
            return folder.parent, prefixed.name, params or (beside.name if beside.is_file() else None)
    return folder, Path(model or _MODEL).name, Path(params).name if params else None


def _refuse_json(source: str) -> NoReturn:
    raise NotSupported(
        f"{source} is a model in the JSON form of Paddle 3 (PIR), which has other ops; save it in the ProgramDesc form: set "
        "the environment variable FLAGS_enable_pir_api=0 before paddle is imported, then paddle.static.save_inference_model"
    )


def _load_model(
    content: bytes, source: str, endpoints: Sequence[str] | None, folder: Path | None, params: str | bytes | None
) -> list[Any]:
    from fluidlite.core import serde

    if content[:1] == b"{":
        _refuse_json(source)
    desc = as_this_version(serde.from_bytes(content, source))
    try:
        feeds, results = take_feed_fetch(desc)
        verify(desc, registry.find)
    except ProgramError as error:
        raise ProgramError(f"{source}: {error}") from error
    program = Program(ask_servers(desc, endpoints) if endpoints else desc)
    store = ScopeStore(global_scope())
    variables = chosen(program, None, is_persistable)
    if folder is None:
        load_combined(store, BytesIO(in_memory(params, "params_filename")), variables, "the parameters in memory")
    else:
        load_values(store, folder, variables, None if params is None else str(params))
    for var in looked_up_tables(program.desc):
        (rows,) = store.read([var.name])
        if isinstance(rows, SelectedRows):
            store.write(var.name, _as_table(var, rows))
    return [program, feeds, [program.global_block().var(name) for name in results]]


def get_inference_program(target_vars: VarOrName | Sequence[VarOrName], main_program: Program | None = None) -> Program:
    """The part of a program that computes ``target_vars``, for inference: no training ops, ``is_test`` set."""
    targets = [target_vars] if isinstance(target_vars, (str, Variable)) else list(target_vars)
    return Program(only_computing(program_of(main_program).desc, [framework.name_of(target) for target in targets]))


def prepend_feed_ops(
    inference_program: Program, feed_target_names: Sequence[str], feed_holder_name: str = "feed"
) -> None:
    """Put a `feed` op for each name before the ops of a program: in column 0 the first name, whose op comes last."""
    prepend_feed(inference_program.desc, feed_target_names, feed_holder_name)


def append_fetch_ops(
    inference_program: Program, fetch_target_names: Sequence[str], fetch_holder_name: str = "fetch"
) -> None:
    """Put a `fetch` op for each name behind the ops of a program."""
    append_fetch(inference_program.desc, fetch_target_names, fetch_holder_name)


def get_parameter_value(para: Parameter, executor: Any) -> Any:
    """The value of a parameter as an array of its own. Raises ProgramError for another variable."""
    if not is_parameter(para):
        raise ProgramError(f"{framework.name_of(para)!r} is no parameter")
    return get_parameter_value_by_name(para.name, executor, para.program)


def get_parameter_value_by_name(name: str, executor: Any, program: Program | None = None) -> Any:
    """The value of the parameter ``name`` of a program (default: the default main program) as an array of its own."""
    var = program_of(program).global_block().var(name)
    if not is_parameter(var):
        raise ProgramError(f"{name!r} is no parameter")
    (value,) = store_of(executor, var.program).read([name])
    if value is None:
        raise UninitializedError(f"parameter {name!r} has no value; run the startup program first")
    return np.array(value)


def _as_table(var: ir.Variable, rows: SelectedRows) -> SparseTable:
    """The rows of an inference model as a table, so that lookups find them by index and unknown ids read zeros."""
    table = SparseTable(var.name, rows.value.shape[1], rows.value.dtype, Constant(0.0), height=rows.height)
    files.into_table(table, rows)
    return table
