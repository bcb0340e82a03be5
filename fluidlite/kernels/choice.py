"""Which kernels run: those in C where the extension was built, or those in numpy. Decided once, at import.

The environment variable ``FLUIDLITE_KERNELS`` decides: ``auto`` (default), ``c``, ``numpy``.
"""

from __future__ import annotations

import importlib
import os
from typing import Final

from fluidlite.errors import KernelError

VARIABLE: Final = "FLUIDLITE_KERNELS"
#: Stands for the functions of the extension and their arguments: the lower 31 bits of the CRC-32 of `_c.pyi`. It is built
#: into the extension, which in a checkout may be older than the modules around it.
INTERFACE: Final = 0x2809310B


def _choose(wanted: str) -> tuple[str, str]:
    """(``c`` or ``numpy``, why). Raises KernelError for another ``wanted`` than the three, and for ``c`` without it."""
    if wanted not in ("auto", "c", "numpy"):
        raise KernelError(f"{VARIABLE} is {wanted!r}, not auto, c or numpy")
    if wanted == "numpy":
        return "numpy", f"{VARIABLE}=numpy"
    try:
        extension = importlib.import_module("fluidlite.kernels._c")
        if getattr(extension, "INTERFACE", None) != INTERFACE:
            raise ImportError(f"{extension.__file__} was built from other sources; build or install it again")
    except (ImportError, AttributeError) as error:  # an older one may ask `errors` for what is no longer there
        if wanted == "c":
            raise KernelError(f"{VARIABLE}=c, but the extension cannot be imported: {error}") from error
        return "numpy", f"the extension cannot be imported: {error}"
    return "c", f"{VARIABLE}=c" if wanted == "c" else "the extension is there"


#: ``c`` or ``numpy``, and why
NAME, REASON = _choose(os.environ.get(VARIABLE) or "auto")
IN_C: Final = NAME == "c"
