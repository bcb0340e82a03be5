"""``paddle.fluid.incubate.fleet.utils.fleet_util``: what online training of a fleet needs besides the fleet."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NoReturn

import numpy as np

from fluidlite.compat.fleet import distribute_transpiler, pslib, utils
from fluidlite.compat.fleet.distribute_transpiler import DistributedTranspiler
from fluidlite.dtypes import numpy_dtype
from fluidlite.errors import FleetError, NotSupported
from fluidlite.runtime.scope import Scope, global_scope

__all__ = ["FleetUtil"]

_logger: Final = logging.getLogger("fluidlite.fleet")
#: a range of the shell, ``{20190720..20190729}``
_RANGE: Final = re.compile(r"\{(\d+)\.\.(\d+)\}")
_DONEFILES: Final = (
    "write_model_donefile",
    "write_xbox_donefile",
    "write_cache_donefile",
    "save_batch_model",
    "save_delta_model",
    "save_xbox_base_model",
    "save_cache_model",
    "save_cache_base_model",
    "save_paddle_inference_model",
    "save_paddle_params",
    "get_last_save_xbox_base",
    "get_last_save_xbox",
    "get_last_save_model",
    "load_fleet_model_one_table",
    "pull_all_dense_params",
    "get_global_metrics",
    "print_global_metrics",
    "draw_from_program_file",
    "draw_from_program",
    "check_two_programs",
    "check_vars_and_dump",
    "parse_program_proto",
)


class FleetUtil:
    """Helpers over the fleet of ``mode``: "pslib" or "transpiler". Others of Fluid's methods raise NotSupported."""

    def __init__(self, mode: str = "pslib") -> None:
        fleets: dict[str, DistributedTranspiler] = {"pslib": pslib.fleet, "transpiler": distribute_transpiler.fleet}
        if mode not in fleets:
            raise FleetError(f"FleetUtil: mode must be one of {', '.join(fleets)}, not {mode!r}")
        self._fleet = fleets[mode]

    def __getattr__(self, name: str) -> Any:
        """What is left out, as a function that says so."""
        if name not in _DONEFILES:
            raise AttributeError(f"'FleetUtil' has no attribute {name!r}")

        def refuse(*arguments: object, **keywords: object) -> NoReturn:
            raise NotSupported(
                f"FleetUtil.{name} is not supported by fluidlite: it serves Baidu's own formats and caches; use fleet.save_persistables"
            )

        return refuse

    def rank0_print(self, s: object) -> None:
        """Print at worker 0."""
        if self._fleet.is_first_worker():
            print(s, flush=True)

    def rank0_info(self, s: str) -> None:
        """Log at worker 0."""
        if self._fleet.is_first_worker():
            _logger.info(s)

    def rank0_error(self, s: str) -> None:
        """Log an error at worker 0."""
        if self._fleet.is_first_worker():
            _logger.error(s)

    def set_zero(
        self, var_name: str, scope: Scope | None = None, place: object = None, param_type: str = "int64"
    ) -> None:
        """Make a variable of the scope zeros of its shape, of ``param_type``. Raises FleetError for one without a value."""
        scope = scope if scope is not None else global_scope()
        scope.set(var_name, np.zeros(np.shape(self._value(scope, var_name)), numpy_dtype(param_type)))

    def get_global_auc(
        self,
        scope: Scope | None = None,
        stat_pos: str = "_generated_var_2",
        stat_neg: str = "_generated_var_3",
    ) -> float:
        """The AUC of what all workers have counted in two variables of the ``auc`` layer; 0.5 while a class is missing."""
        scope = scope if scope is not None else global_scope()
        positive = np.cumsum(self._of_all_workers(scope, stat_pos)[::-1])
        negative = np.cumsum(self._of_all_workers(scope, stat_neg)[::-1])
        if not positive[-1] * negative[-1]:
            return 0.5
        height = (positive + np.concatenate(([0], positive[:-1]))) / 2
        return float((np.diff(negative, prepend=0) * height).sum() / positive[-1] / negative[-1])

    def print_global_auc(
        self,
        scope: Scope | None = None,
        stat_pos: str = "_generated_var_2",
        stat_neg: str = "_generated_var_3",
        print_prefix: str = "",
    ) -> None:
        """Print `get_global_auc` at worker 0; every worker must call it."""
        self.rank0_print(f"{print_prefix} global auc = {self.get_global_auc(scope, stat_pos, stat_neg)}")

    def load_fleet_model(self, path: str | Path, mode: int = 0) -> None:
        """Start this pserver with what `save_fleet_model` wrote."""
        self._fleet.init_server(path, mode=mode)

    def save_fleet_model(self, path: str | Path, mode: int = 0) -> None:
        """Save all that training must remember."""
        self._fleet.save_persistables(self._fleet._own_executor(), path, mode=mode)  # noqa: SLF001 (Fluid passes none)

    def save_model(self, output_path: str, day: object, pass_id: object) -> None:
        """Save to ``<output_path>/<day>/<pass_id>``."""
        self.save_fleet_model(_folder(output_path, day, pass_id))

    def load_model(self, output_path: str, day: object, pass_id: object) -> None:
        """Load from ``<output_path>/<day>/<pass_id>``."""
        self.load_fleet_model(_folder(output_path, day, pass_id))

    def get_online_pass_interval(
        self, days: str, hours: str, split_interval: int, split_per_pass: int, is_data_hourly_placed: bool
    ) -> list[list[str]]:
        """The names of the data of each pass of a day: ``split_per_pass`` of them, ``split_interval`` minutes apart,
        within the ``hours`` (``"{0..23}"``, or numbers with blanks). Raises FleetError for hours that are none."""
        wanted = _hours(hours)
        names = [
            f"{minute // 60:02d}" + ("" if is_data_hourly_placed else f"{minute % 60:02d}")
            for minute in range(0, 24 * 60, int(split_interval))
            if wanted[0] <= minute // 60 <= wanted[-1]
        ]
        size = int(split_per_pass)
        return [names[first : first + size] for first in range(0, len(names) - size + 1, size)]

    def program_type_trans(self, prog_dir: str | Path, prog_fn: str, is_text: bool) -> str:
        """Write the other form of a program beside it; the name of the file."""
        return utils.program_type_trans(prog_dir, prog_fn, is_text)

    def _value(self, scope: Scope, name: str) -> Any:
        value = scope.get(name)
        if value is None:
            raise FleetError(f"FleetUtil: variable {name!r} has no value in the scope")
        return value

    def _of_all_workers(self, scope: Scope, name: str) -> Any:
        mine = np.asarray(self._value(scope, name)).reshape(-1)
        total = np.zeros_like(mine)
        self._fleet.all_reduce_worker(mine, total)
        return total.astype(np.float64)


def _folder(output_path: str, day: object, pass_id: object) -> Path:
    return Path(output_path) / str(day) / str(pass_id)


def _hours(said: str) -> list[int]:
    words = list(_spelled_out(said))
    if not words or not all(word.isdecimal() for word in words):
        raise FleetError(f"get_online_pass_interval: hours must be like '{{0..23}}' or '0 1 2', not {said!r}")
    return [int(word) for word in words]


def _spelled_out(said: str) -> Iterator[str]:
    for word in said.split():
        found = _RANGE.fullmatch(word)
        yield from map(str, range(int(found[1]), int(found[2]) + 1)) if found else [word]
