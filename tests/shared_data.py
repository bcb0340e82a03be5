"""Where the shared goldens and data sets lie, and visible skips when they do not."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fluidlite.values.lod import LoDTensor, lod_from_lengths

REPO = Path(__file__).resolve().parent.parent
#: specifications, goldens and data sets that lie beside the repository
SHARED = REPO.parent / "shared"
GOLDEN = Path(os.environ.get("FLUIDLITE_GOLDEN") or SHARED / "golden" / "public")
#: programs that Fluid 1.8.5 wrote, below the goldens' ``files``
MODELS = [
    "ctr_lod/__model__",
    "mlp_separate/__model__",
    "selected_rows_table/__model__",
    "fluid_save/ckpt.pdmodel",
    "persistables_adam/program.bin",
]

needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason=f"no shared data at {SHARED}")
needs_golden = pytest.mark.skipif(not GOLDEN.is_dir(), reason=f"no goldens at {GOLDEN} (set FLUIDLITE_GOLDEN)")


def shared(*parts: str) -> Path:
    """A path below the shared folder; skips the test when it is absent."""
    return _present(SHARED.joinpath(*parts))


def golden(*parts: str) -> Path:
    """A path below the golden folder; skips the test when it is absent."""
    return _present(GOLDEN.joinpath(*parts))


def golden_json(*parts: str) -> Any:
    """A parsed golden file; skips the test when it is absent."""
    return json.loads(golden(*parts).read_text(encoding="utf-8"))


def golden_names(folder: str, suffix: str = ".json") -> list[str]:
    """The names, without suffix, of the files of a golden folder, sorted; empty when it is absent."""
    return sorted(path.name.removesuffix(suffix) for path in (GOLDEN / folder).glob(f"*{suffix}"))


def golden_array(tensor: dict[str, Any]) -> np.ndarray[Any, np.dtype[Any]]:
    """The array of a golden tensor: ``{"d": dtype, "s": shape, "v": flat row-major values}``.

    "nan", "inf" and "-inf" stand for themselves; ``"v": null`` gives zeros (only shape and dtype are the contract).
    """
    dtype = np.dtype(tensor["d"] or "float32")
    values = tensor["v"]
    if values is None:
        return np.zeros(tensor["s"], dtype)
    return np.array([float(v) if isinstance(v, str) else v for v in values], dtype).reshape(tensor["s"])


def golden_feed(tensor: dict[str, Any]) -> np.ndarray[Any, np.dtype[Any]] | LoDTensor:
    """A golden tensor as a feed: a LoDTensor where it has LoD."""
    array = golden_array(tensor)
    return LoDTensor(array, lod_from_lengths(tensor["lod"])) if tensor.get("lod") else array


def _present(path: Path) -> Path:
    if not path.exists():
        pytest.skip(f"no shared data at {path}")
    return path
