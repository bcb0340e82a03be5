"""Small functions of ``fluid`` that scripts call and that have nothing to do here, or little."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TextIO

from fluidlite import framework, layers
from fluidlite.core import names
from fluidlite.errors import DataError, ProgramError, UninitializedError
from fluidlite.framework import Program, Variable
from fluidlite.inference import inference_program
from fluidlite.runtime.scope import Scope, global_scope


def memory_optimize(
    input_program: Program,
    skip_opt_set: object = None,
    print_log: bool = False,
    level: int = 0,
    skip_grads: bool = True,
) -> None:
    """Nothing, as in Fluid 1.8: temporaries are released after their last use anyway."""
    warnings.warn(
        "memory_optimize has no effect: temporaries are released after their last use anyway", UserWarning, stacklevel=2
    )


def release_memory(input_program: Program, skip_opt_set: object = None) -> None:
    """Nothing; see `memory_optimize`."""
    warnings.warn(
        "release_memory has no effect: temporaries are released after their last use anyway", UserWarning, stacklevel=2
    )


class InferenceTranspiler:
    """Fluid's rewriting of programs for inference; `fluidlite.fusion` does such things when a program is run."""

    def transpile(self, program: Program, place: object, scope: Scope | None = None) -> None:
        """Make ``program`` one for tests, in place: ``is_test`` is set on its ops."""
        if not isinstance(program, Program):
            raise ProgramError(f"InferenceTranspiler.transpile needs a Program, not {type(program).__name__}")
        for block in program.blocks:
            for op in block.ops:
                if op.has_attr("is_test"):
                    op.set_attr("is_test", value=True)


def get_inference_program(target_vars: Any, main_program: Program | None = None) -> Program:
    """The part of a program that computes ``target_vars``, for tests."""
    program = main_program if main_program is not None else framework.default_main_program()
    targets = target_vars if isinstance(target_vars, (list, tuple)) else [target_vars]
    feeds = [name for name, var in program.global_block().vars.items() if var.is_data]
    pruned, _ = inference_program(program.desc, feeds, [framework.name_of(item) for item in targets])
    return Program(pruned)


def get_var(name: str, program: Program | None = None) -> Variable:
    """A variable of a program's block 0; ProgramError (a ValueError) where it is not there."""
    program = program if program is not None else framework.default_main_program()
    return program.global_block().var(name)


def decay_step_counter(begin: int = 0) -> Variable:
    """The step that learning-rate schedules count, float32 [1]."""
    return layers.cast(layers.autoincreased_step_counter(names.LR_COUNTER, begin), "float32")


def fetch_var(name: str, scope: Scope | None = None, return_numpy: bool = True) -> Any:
    """The value of a variable in a scope, by default the global one; UninitializedError where nothing wrote it."""
    found = (scope if scope is not None else global_scope()).find_var(name)
    if found is None:
        raise UninitializedError(f"fetch_var: nothing wrote {name!r} in this scope")
    tensor = found.get_tensor()
    return tensor.array.copy() if return_numpy else tensor


#: what scripts set, by FLAGS_ name
_flags: dict[str, Any] = {}


@contextmanager
def init_on_cpu() -> Iterator[None]:
    """Variables made inside are first written on the CPU, as all are here; Fluid before 1.7 has it in ``initializer``."""
    yield


def force_init_on_cpu() -> bool:
    """False: no op needs to be told."""
    return False


def set_flags(flags: Mapping[str, Any]) -> None:
    """Keep flags for `get_flags`; they change nothing. DataError for a name that does not begin with FLAGS_."""
    if not isinstance(flags, Mapping):
        raise DataError(f"set_flags takes a dict of flags, not {type(flags).__name__}")
    for name, value in flags.items():
        if not name.startswith("FLAGS_"):
            raise DataError(f"flags begin with FLAGS_, unlike {name!r}")
        _flags[name] = value


def get_flags(flags: str | Iterable[str]) -> dict[str, Any]:
    """The flags of these names: as set, else from the environment; DataError for one that is in neither."""
    names = [flags] if isinstance(flags, str) else list(flags)
    found = {}
    for name in names:
        if name not in _flags and name not in os.environ:
            raise DataError(f"flag {name!r} is not set")
        found[name] = _flags.get(name, os.environ.get(name))
    return found


class Communicator:
    """Fluid's thread that sends and receives for a trainer: here the ops of the program do, so there is nothing to start."""

    def __init__(
        self, program: Program, mode: object = None, kwargs: object = None, envs: Mapping[str, Any] | None = None
    ) -> None:
        if not isinstance(program, Program):
            raise ProgramError(f"Communicator needs a Program, not {type(program).__name__}")
        self._running = False

    def start(self) -> None:
        """From now on `is_running`."""
        self._running = True

    def stop(self) -> None:
        """No longer `is_running`. What a trainer sent is sent; ``exe.close()`` tells the servers that it is done."""
        self._running = False

    def is_running(self) -> bool:
        """Whether it was started and not stopped."""
        return self._running


def program_to_code(prog: Program, fout: TextIO | None = None, skip_op_callstack: bool = True) -> None:
    """Print the text of a program, or write it to ``fout``."""
    print(prog, file=fout)


def in_dygraph_mode() -> bool:
    """False: there is no imperative mode."""
    return False
