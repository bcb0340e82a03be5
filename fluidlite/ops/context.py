"""What a kernel may know besides its arguments: its op, its randomness, sub-blocks, and the ports to other processes."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from fluidlite.core.ir import EMPTY, Block, Operator, Program, Variable
from fluidlite.dtypes import Array
from fluidlite.errors import ProgramError
from fluidlite.protocol.messages import Gradient, PullRequest, Reply
from fluidlite.values.selected_rows import SelectedRows


class ServerPort(Protocol):
    """All that a kernel may know of the servers. One step is one transaction: stage gradients, then commit."""

    def pull(self, requests: Sequence[PullRequest]) -> list[Any]:
        """One answer per request: an array, or SelectedRows for a TableRequest. Requests to one server travel together.

        A DenseRequest right after a commit is answered from the commit's reply, without a message.
        """
        ...

    def stage(self, gradient: Gradient) -> None:
        """Add a gradient to the open step; it may leave early, it counts at the commit."""
        ...

    def pull_ahead(self, requests: Sequence[PullRequest]) -> bool:
        """Ask for rows that a `pull` to come will ask for, which then gets them as they were; False where that is not
        done: in sync mode."""
        ...

    def commit(self, endpoints: Sequence[str]) -> Reply:
        """Close the step on every server (also one that gets no gradient: its clock ticks). Where no other trainer is
        waited for, it returns at once: the next call raises what went wrong."""
        ...

    def barrier(self, endpoints: Sequence[str]) -> None:
        """Wait until every live trainer has reached this point."""
        ...

    def assign(self, endpoint: str, name: str, value: Array | SelectedRows) -> None:
        """Overwrite a variable of a server: a dense array, all rows of a table, or rows of an accumulator of one."""
        ...

    def checkpoint(self, endpoints: Sequence[str], folder: str = "") -> int:
        """Make servers write a checkpoint, and wait until it is written; its number. ``folder``: where they keep
        checkpoints; "": wherever that is."""
        ...

    def complete(self) -> None:
        """Say that this trainer is done; idempotent."""
        ...


class HostPort(Protocol):
    """How `listen_and_serv` becomes a server: serves ``program`` until all trainers are done."""

    def serve(self, program: Program, op: Operator, scope: Any) -> None: ...


class Ports(Protocol):
    """The ports of one process; made by the composition layer and handed to the executor."""

    def prepare(self, program: Program) -> None:
        """Called when a program is compiled: what it will exchange with other processes can be read off its ops."""
        ...

    @property
    def salt(self) -> int:
        """Makes the randomness of the processes of one job differ."""
        ...

    def server(self, op: Operator) -> ServerPort:
        """The port to the servers that ``op`` (a send, recv, prefetch, ...) addresses."""
        ...

    @property
    def host(self) -> HostPort: ...

    @property
    def version(self) -> int:
        """The highest version of a server that this process has heard of; 0 before it has."""
        ...

    @property
    def traffic(self) -> Mapping[str, tuple[int, int]]:
        """Bytes sent and received so far, by verb."""
        ...

    def resume(self) -> int:
        """Meet the servers of what was prepared; how many steps of this trainer count there already."""
        ...

    def abandon(self) -> None:
        """A run failed: what this thread has sent of its step does not count."""
        ...

    def run_at_close(self, program: Program, block: int, scope: Any, feeds: Mapping[str, Any]) -> None:
        """When the process is done, and before the others are told, run a block of a program in a scope: once, however
        often this is called for it."""
        ...

    def close(self) -> None:
        """The process is done: say so to the others."""
        ...

    def leave(self) -> None:
        """The process failed: drop the connections without a word."""
        ...


class KernelContext:
    """One op of one compiled plan; made once, passed to the kernel at every run."""

    __slots__ = ("_ports", "_run_state", "block", "memo", "op", "program", "run_block")

    def __init__(
        self,
        program: Program,
        block: Block,
        op: Operator,
        *,
        ports: Ports | None = None,
        run_state: RunState | None = None,
        run_block: Callable[[int], None] | None = None,
    ) -> None:
        self.program = program
        self.block = block
        self.op = op
        self._ports = ports
        self._run_state = run_state if run_state is not None else RunState()
        self.run_block = run_block
        #: what the kernel worked out about its op in an earlier run
        self.memo: Any = None

    def n_outputs(self, name: str) -> int:
        """How many arguments an output has."""
        return len(self.op.outputs.get(name, ()))

    def wants(self, name: str, index: int = 0) -> bool:
        """Whether an output is asked for (gradient ops skip what nobody reads)."""
        arguments = self.op.outputs.get(name, ())
        return index < len(arguments) and arguments[index] != EMPTY

    def var(self, argument: str) -> Variable:
        """The declaration of a variable that the op names."""
        found = self.program.find_var(argument, self.block)
        if found is None:
            raise ProgramError(f"op {self.op.type!r} names undeclared variable {argument!r}")
        return found

    def output_var(self, name: str) -> Variable:
        """The declaration of the first argument of an output."""
        return self.var(self.op.outputs[name][0])

    def generator(self, seed: int, name: str | None = None) -> np.random.Generator:
        """Randomness that differs by op and run but repeats from run to run of the process.

        Keyed by (seed, else the program's seed), the op's first output (or ``name``, for ops that draw the same), the
        process' salt and the number of the run.
        """
        return self._generator(seed or self.program.random_seed, self._run_state.salt, self._run_state.run, name)

    def initial_generator(self) -> np.random.Generator:
        """Randomness keyed by the name of the op's first output alone: the same in every process and run.

        It is what `generator` gives without a seed in a plan's first run, so a temporary starts like the parameter of
        its name.
        """
        return self._generator(0, 0, 0)

    def _generator(self, seed: int, salt: int, run: int, name: str | None = None) -> np.random.Generator:
        name = name or next(self.op.output_arguments(), self.op.type)
        key = (seed, zlib.crc32(name.encode()), salt, run)
        return np.random.Generator(np.random.Philox(np.random.SeedSequence(key)))

    @property
    def run(self) -> int:
        """How many runs of the plan came before this one."""
        return self._run_state.run

    def read(self, argument: str) -> Any:
        """The value that a variable has now (ops that run blocks see it change), None when nothing wrote it."""
        return None if self._run_state.env is None else self._run_state.env.read(argument)

    def write(self, argument: str, value: Any) -> None:
        """Give a variable a value, besides what the kernel returns (ops that run blocks hand values to them)."""
        self._run_state.env.write(argument, value)

    def forget(self, arguments: Sequence[str]) -> None:
        """Drop the values that variables have in this run."""
        local = self._run_state.env.local
        for argument in arguments:
            local.pop(argument, None)

    def erase(self, arguments: Sequence[str]) -> None:
        """Forget the values of variables, in this run and in its scope."""
        for argument in arguments:
            self._run_state.env.local.pop(argument, None)
        self._run_state.scope.erase(arguments)

    @property
    def server(self) -> ServerPort:
        return self._need_ports().server(self.op)

    def run_at_close(self, block: int, feeds: Mapping[str, Any]) -> None:
        """Run a block of this program once more, in this scope, with ``feeds``, when the executor is closed."""
        self._need_ports().run_at_close(self.program, block, self._run_state.scope, feeds)

    @property
    def scope(self) -> Any:
        """The scope of the current run (ops that run other programs need it)."""
        return self._run_state.scope

    @property
    def host(self) -> HostPort:
        return self._need_ports().host

    def _need_ports(self) -> Ports:
        if self._ports is None:
            raise ProgramError(
                f"op {self.op.type!r} talks to other processes but this executor has no ports; use fluidlite.Executor"
            )
        return self._ports


class RunState(threading.local):
    """What changes from run to run of a plan; each thread that runs the plan has its own."""

    def __init__(self) -> None:
        self.run = 0
        self.salt = 0
        self.scope: Any = None
        self.env: Any = None
