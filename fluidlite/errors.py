"""Every exception that fluidlite raises on purpose.

Each class is also the builtin exception that a user would expect (``ValueError``, ``IndexError``, ...), so
``except ValueError`` in an old script keeps working. Messages name the op, variable, position and what to do.
"""

from __future__ import annotations

from collections.abc import Sequence


class FluidliteError(Exception):
    """Base of all errors raised by fluidlite."""


class ProgramError(FluidliteError, ValueError):
    """A program breaks an invariant: unknown variable, wrong argument, bad attribute, broken block structure."""


class UnknownOpError(ProgramError):
    """An op type that no record declares; the message names the close ones."""


class NotSupported(FluidliteError, NotImplementedError):  # noqa: N818 (says of a name of Fluid what it is)
    """A name of Fluid that fluidlite leaves out on purpose; names it, says why, and what to use in its place."""


class ShapeError(ProgramError):
    """Shapes that do not fit each other, found while a program is built or run."""


class DtypeError(ProgramError, TypeError):
    """Dtypes that do not fit each other, found while a program is built or run."""


class GradientError(ProgramError):
    """A gradient was asked for where none can be computed."""


class FeedError(FluidliteError, ValueError):
    """A fed value is unknown, missing, or has the wrong dtype, rank, shape or LoD."""


class FetchError(FluidliteError, ValueError):
    """A fetched name is not in the program or was never written."""


class DataError(FluidliteError, ValueError):
    """Data, or how it is to be read, is not what was said: names file, line and slot, or the argument."""


class ReaderError(FluidliteError, RuntimeError):
    """A reader failed in a process of its own, or cannot be used in this way; carries the traceback from there."""


class EOFException(FluidliteError):  # noqa: N818 (scripts for Fluid catch this name)
    """A loader that feeds a program has no more batches in this pass; call its ``reset()``."""


class OutOfRangeError(FluidliteError, IndexError):
    """An id outside a table of fixed height; names op, variable, position and id."""


class UninitializedError(FluidliteError, RuntimeError):
    """A variable is read before anything wrote it (often: the startup program was not run)."""


class OpRunError(FluidliteError, RuntimeError):
    """A kernel failed; carries op, block, arguments and the user's source line. The cause is chained."""


class CorruptFileError(FluidliteError, ValueError):
    """A file that cannot be what it claims to be: truncated, wrong version, unknown form. Names the file."""


class MissingFileError(FluidliteError, FileNotFoundError):
    """A file that is to be read is not there; names the file and what was wanted of it."""


class MissingPackageError(FluidliteError, ImportError):
    """An optional package is not installed; names it and the extra of fluidlite that brings it."""


class UnwritableFileError(FluidliteError, OSError):
    """A file that is to be written cannot be; names it. What it held before is still there."""


class TextFormError(FluidliteError, ValueError):
    """Text that is not the text form of a program; names line and column."""


class TranspileError(FluidliteError, ValueError):
    """A program that cannot be transpiled. ``refusals`` lists every reason at once."""

    def __init__(self, refusals: Sequence[str]) -> None:
        self.refusals = tuple(refusals)
        lines = "\n".join(f"  - {reason}" for reason in self.refusals)
        super().__init__(f"the program cannot be transpiled ({len(self.refusals)} reason(s)):\n{lines}")


class PassError(FluidliteError, RuntimeError):
    """A transpiler pass failed; names the pass and shows the program before it."""


class TableError(FluidliteError, ValueError):
    """A table, or a request to one, is not what its declaration says (width, dtype, initialiser)."""


class KernelError(FluidliteError, RuntimeError):
    """The kernels that were asked for are not there."""


class SettingError(FluidliteError, ValueError):
    """An environment variable, or an argument of the same meaning, says what is not accepted; lists what is."""


class RemoteError(FluidliteError, RuntimeError):
    """Base of what can go wrong between a trainer and a pserver; names method and endpoint."""


class RequestRefusedError(RemoteError):
    """The server refused a request as wrong (unknown variable, width, dtype). Repeating it cannot help."""


class StaleError(RemoteError):
    """The server refused a step from an older incarnation or from too old a version of the parameters."""


class OutdatedStepError(StaleError):
    """A step was computed from too old a version of the parameters. An executor computes it again before a user sees it."""


class LeaseLostError(StaleError):
    """The server does not know the trainer (any more): it never registered there, or its lease ran out."""


class PeerLostError(RemoteError, ConnectionError):
    """A peer cannot be reached, or died; retries within the deadline did not help."""


class UnreachableError(PeerLostError):
    """One attempt got no answer: the request may or may not have arrived. Retried before a user sees it."""


class ForgottenError(RemoteError):
    """The server does not know what a signature stands for (any more). The request is sent in full before a user sees it."""


class ServerFailedError(RemoteError):
    """An update failed inside the server; carries the server's own error text."""


class AddressInUseError(RemoteError, OSError):
    """The port that a server was told to listen on is taken."""


class FleetError(FluidliteError, ValueError, TypeError):
    """A call of fleet that comes too early or at the wrong role, or an argument that it cannot take; says what it needs."""


class LaunchError(FluidliteError, RuntimeError):
    """A launched job failed; names the first process that did and its exit code."""
