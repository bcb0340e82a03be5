"""What this installation is made of, and whether it works: `fluidlite.show_config()` and ``fluidlite doctor``."""

from __future__ import annotations

import importlib
import platform
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from fluidlite import fusion
from fluidlite.dtypes import Array
from fluidlite.errors import KernelError, SettingError
from fluidlite.framework.state import launch_seed
from fluidlite.kernels import ABSENT, choice
from fluidlite.kernels.rules import Rule
from fluidlite.ports import server_options, starts_before, trainer_patience
from fluidlite.runtime import in_place

_PARTS: Final = ("cells", "ids", "rows", "updates")


def show_config() -> None:
    """Print what this installation is made of, for a report: versions, system, kernels in C or in numpy and why."""
    print(lines_of(facts()))


def facts() -> dict[str, str]:
    """Versions, system, which kernels run and why, and which fusion passes; by name, in the order in which they are shown."""
    from importlib import metadata

    import fluidlite

    return {
        "fluidlite": fluidlite.__version__,
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "system": f"{platform.system()} {platform.machine()}",
        **{package: metadata.version(package) for package in ("numpy", "grpcio", "protobuf")},
        "kernels": f"{choice.NAME} ({choice.REASON})",
        "fusion": _fusion(),
    }


def _fusion() -> str:
    """Which fusion passes run, or why none can."""
    try:
        return fusion.describe()
    except SettingError as error:
        return str(error)


def failures() -> dict[str, str]:
    """Each part that is tried, and what is wrong with it: "" where nothing is."""
    found = {}
    for name, check in _CHECKS.items():
        try:
            check()
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
        else:
            found[name] = ""
    return found


def lines_of(entries: Mapping[str, str]) -> str:
    """A line for each entry, the values below each other."""
    width = max(map(len, entries))
    return "\n".join(f"{name:<{width}}  {value}" for name, value in entries.items())


def check_environment() -> None:
    """What environment variables say is accepted. Raises SettingError or KernelError for the first that is not."""
    choice.check()
    fusion.chosen()
    launch_seed()
    trainer_patience()
    server_options()
    starts_before()
    in_place.chosen()


def check_loopback() -> None:
    """Servers and trainers of one machine meet at 127.0.0.1. Raises OSError where that cannot be."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(5.0)
        with socket.create_connection(server.getsockname()[:2], timeout=5.0):
            server.accept()[0].close()


def check_kernels() -> None:
    """The kernels in C, when they are in use, compute what those in numpy do. Raises KernelError where they do not."""
    if not choice.IN_C:
        return
    for got, wanted in zip(_sample("in_c"), _sample("in_numpy"), strict=True):
        if (got.dtype, got.shape, got.tobytes()) != (wanted.dtype, wanted.shape, wanted.tobytes()):
            raise KernelError(f"the kernels in C compute {got.tolist()}, those in numpy {wanted.tolist()}")


def _sample(kernels: str) -> list[Array]:
    """A small step of a table: ids without duplicates, an index of them, sums of rows, an update."""
    cells, ids, rows, updates = (importlib.import_module(f"fluidlite.kernels.{kernels}.{part}") for part in _PARTS)
    unique, _, inverse = ids.unique_ids(np.array([7, -1, 2**62, 7, -(2**63), -1], np.int64))
    index = np.full(8, ABSENT, np.int32)
    cells.claim_cells(index, unique, 0, len(unique))
    positions = cells.find_positions(index, unique, unique[::-1])
    gradient = rows.sum_rows(np.linspace(-1.0, 1.0, 24).reshape(6, 4), inverse, len(unique))
    value, moment = np.full((2, len(unique), 4), 0.1)
    updates.update_arrays(Rule("adagrad", (0.1, 1e-6)), positions, gradient, [value, moment])
    return [unique, inverse, positions, gradient, value, moment]


_CHECKS: Final[dict[str, Callable[[], None]]] = {
    "environment": check_environment,
    "loopback": check_loopback,
    "kernels agree": check_kernels,
}
