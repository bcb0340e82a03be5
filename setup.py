"""Build script: the C kernels, which are optional; everything static is in pyproject.toml.

The environment variable ``FLUIDLITE_BUILD`` chooses: ``auto`` (default: with the C kernels where a compiler is there),
``pure`` (without them), ``sanitized`` (they report what is undefined or out of bounds; for tests). In a checkout,
``pip install -e .`` builds them in place, and ``python setup.py build_ext --inplace`` does so again after an edit.
"""

import os
import re
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup

SOURCES = Path("fluidlite/kernels/c")
CHOICE = Path("fluidlite/kernels/choice.py")
# no contraction to fused multiply-add: results must be those of numpy, bit for bit
FLAGS = ["-std=c11", "-g0", "-O3", "-ffp-contract=off", "-fno-strict-aliasing", "-fno-math-errno", "-Wall", "-Wextra"]
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
BUILD = os.environ.get("FLUIDLITE_BUILD", "auto")

#: the limited API is that of CPython with its lock
LIMITED = sys.implementation.name == "cpython" and not sysconfig.get_config_var("Py_GIL_DISABLED")

if BUILD not in ("auto", "pure", "sanitized"):
    raise SystemExit(f"FLUIDLITE_BUILD is {BUILD!r}, not auto, pure or sanitized")

found = re.search(r"^INTERFACE.* = (0x[0-9A-F]+)$", CHOICE.read_text(encoding="utf-8"), re.MULTILINE)
if found is None:
    raise SystemExit(f"{CHOICE} has no INTERFACE")

sanitized = BUILD == "sanitized"
kernels = Extension(
    "fluidlite.kernels._c",
    sources=sorted(str(path) for path in SOURCES.glob("*.c")),
    depends=sorted(str(path) for path in (CHOICE, *SOURCES.glob("*.h"))),
    define_macros=[
        ("Py_LIMITED_API", "0x030b0000"),
        ("FL_INTERFACE", found[1]),
        *([("FL_SANITIZED", "1")] if sanitized else []),
    ],
    extra_compile_args=FLAGS + (["-O1", "-g", "-fno-omit-frame-pointer", *SANITIZERS] if sanitized else []),
    extra_link_args=SANITIZERS if sanitized else [],
    py_limited_api=True,
    optional=not sanitized,
)
if BUILD == "pure" or not LIMITED:
    setup()
else:
    setup(ext_modules=[kernels], options={"bdist_wheel": {"py_limited_api": "cp311"}})
