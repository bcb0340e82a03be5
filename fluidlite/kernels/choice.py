"""Which kernels run: those in C where the extension was built, or those in numpy. Decided once, at import.

The environment variable ``FLUIDLITE_KERNELS`` decides: ``auto`` (default), ``c``, ``numpy``.
"""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Final

from fluidlite.environment import one_of
from fluidlite.errors import KernelError, SettingError
from fluidlite.kernels.elf import check_whole

VARIABLE: Final = "FLUIDLITE_KERNELS"
_EXTENSION: Final = "fluidlite.kernels._c"
#: Stands for the functions of the extension and their arguments: the lower 31 bits of the CRC-32 of `_c.pyi`. It is built
#: into the extension, which in a checkout may be older than the modules around it.
INTERFACE: Final = 0x59DC1B31


def _choose(wanted: str) -> tuple[str, str]:
    """(``c`` or ``numpy``, why). Raises KernelError for ``c`` without the extension."""
    if wanted == "numpy":
        return "numpy", f"{VARIABLE}=numpy"
    try:
        _import_extension()
    except (ImportError, OSError, AttributeError) as error:  # an older one may ask `errors` for what is no longer there
        if wanted == "c":
            raise KernelError(f"{VARIABLE}=c, but the extension cannot be imported: {error}") from error
        return "numpy", f"the extension cannot be imported: {error}"
    return "c", f"{VARIABLE}=c" if wanted == "c" else "the extension is there"


def _import_extension() -> None:
    """Raises ImportError, OSError or AttributeError where it is not there, damaged, or built from other sources."""
    spec = importlib.util.find_spec(_EXTENSION)
    if spec is not None and spec.origin is not None:
        check_whole(Path(spec.origin))
    extension = importlib.import_module(_EXTENSION)
    if getattr(extension, "INTERFACE", None) != INTERFACE:
        raise ImportError(f"{extension.__file__} was built from other sources; build or install it again")


def _chosen() -> tuple[str, str, SettingError | KernelError | None]:
    """(``c`` or ``numpy``, why, what is wrong with what was asked for). Raises nothing: an import that fails could not tell
    the user of ``fluidlite doctor`` what is wrong."""
    try:
        return *_choose(one_of(VARIABLE, ("auto", "c", "numpy"), "auto")), None
    except (SettingError, KernelError) as error:
        return "numpy", str(error), error


#: ``c`` or ``numpy``, and why
NAME, REASON, _WRONG = _chosen()
IN_C: Final = NAME == "c"


def check() -> None:
    """Raise SettingError or KernelError where the environment asks for kernels that there are not: every executor does,
    before it computes anything."""
    if _WRONG is not None:
        raise _WRONG.with_traceback(None)
