"""``fluid.Trainer`` and ``fluid.Inferencer``: training loops as Fluid had them until 1.2."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

from fluidlite import io, unique_name
from fluidlite.compat.events import BeginEpochEvent, BeginStepEvent, EndEpochEvent, EndStepEvent
from fluidlite.compat.fetched import Executor
from fluidlite.data_feeder import DataFeeder
from fluidlite.errors import FluidliteError, ProgramError, SettingError
from fluidlite.framework import Program, Variable, program_guard
from fluidlite.optimizer import Optimizer
from fluidlite.runtime.scope import Scope, scope_guard
from fluidlite.transpiler.distribute import DistributeTranspiler

Reader: TypeAlias = Callable[[], Iterable[Any]]
_PREFIX: Final = "checkpoint"
_SUCCESS: Final = "_SUCCESS"


class CheckpointConfig:
    """Where and how often a `Trainer` saves: after every ``step_interval`` steps of every ``epoch_interval``-th epoch; the
    newest ``max_num_checkpoints`` are kept."""

    def __init__(
        self,
        checkpoint_dir: str | None = None,
        max_num_checkpoints: int = 3,
        epoch_interval: int = 1,
        step_interval: int = 10,
    ) -> None:
        if epoch_interval < 1 or step_interval < 1:
            raise ProgramError("CheckpointConfig: epoch_interval and step_interval must be 1 or more")
        self.checkpoint_dir = checkpoint_dir if checkpoint_dir is not None else str(Path.cwd())
        self.max_num_checkpoints = max_num_checkpoints
        self.epoch_interval = epoch_interval
        self.step_interval = step_interval


class Trainer:
    """Trains what ``train_func`` builds: it returns the loss, or the loss and further metrics in a list.

    ``optimizer_func`` returns the optimizer. ``param_path``: a folder with parameters to begin with. ``parallel`` changes
    nothing, there is one device. ``checkpoint_config``: save on the way, and go on from the newest checkpoint that is
    whole. In a process with the environment of a job (``PADDLE_TRAINING_ROLE``, as Fluid read it) a trainer trains
    through parameter servers, and a pserver serves.
    """

    def __init__(
        self,
        train_func: Callable[[], Any],
        optimizer_func: Callable[[], Optimizer],
        param_path: str | None = None,
        place: object = None,
        parallel: bool = False,
        checkpoint_config: CheckpointConfig | None = None,
    ) -> None:
        self.scope = Scope()
        self.startup_program = Program()
        self.train_program = Program()
        self.checkpoint_cfg = checkpoint_config
        self._stopped = False
        #: whether this process is a pserver of a job
        self._serves = False
        with program_guard(self.train_program, self.startup_program), unique_name.guard():
            outputs = train_func()
            self.train_func_outputs: list[Variable] = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
            self.test_program = self.train_program.clone(for_test=True)
            optimizer = optimizer_func()
            if not isinstance(optimizer, Optimizer):
                raise ProgramError(f"optimizer_func must return an optimizer, not {type(optimizer).__name__}")
            optimizer.minimize(self.train_func_outputs[0])
        self.exe = Executor(place)
        self._begin(param_path)

    def _begin(self, param_path: str | None) -> None:
        """Initial values, or those of a folder or of the newest checkpoint; the roles of a job."""
        self._transpile()
        self._first = (0, 0)
        with scope_guard(self.scope):
            self.exe.run(self.startup_program)
            found = _newest(self.checkpoint_cfg)
            if found is not None:
                io.load_persistables(self.exe, str(found), self.train_program)
                epoch, step = (found / _SUCCESS).read_text(encoding="utf-8").split()
                self._first = int(epoch), int(step)
            elif param_path and Path(param_path).is_dir():
                io.load_persistables(self.exe, param_path, self.startup_program)

    def _transpile(self) -> None:
        role = os.environ.get("PADDLE_TRAINING_ROLE")
        if role is None:
            return
        port = _needed("PADDLE_PSERVER_PORT")
        endpoints = ",".join(f"{address}:{port}" for address in _needed("PADDLE_PSERVER_IPS").split(","))
        transpiler = DistributeTranspiler()
        with program_guard(self.train_program, self.startup_program):
            transpiler.transpile(
                int(os.environ.get("PADDLE_TRAINER_ID", "0")),
                pservers=endpoints,
                trainers=int(_needed("PADDLE_TRAINERS")),
            )
        if role == "PSERVER":
            here = f"{_needed('PADDLE_CURRENT_IP')}:{port}"
            self.train_program, self.startup_program = transpiler.get_pserver_programs(here)
        elif role == "TRAINER":
            self.train_program = transpiler.get_trainer_program()
        else:
            raise ProgramError(f"PADDLE_TRAINING_ROLE is {role!r}, neither TRAINER nor PSERVER")
        self._serves = role == "PSERVER"

    def stop(self) -> None:
        """End the training after the step that runs."""
        self._stopped = True

    def train(
        self,
        num_epochs: int,
        event_handler: Callable[[Any], Any],
        reader: Reader | None = None,
        feed_order: Sequence[str] | Mapping[str, int] | None = None,
    ) -> None:
        """Train ``num_epochs`` passes over the batches of ``reader()``; a pserver serves instead.

        ``feed_order``: the variables that a sample's entries are for; by default the data variables as they were declared.
        ``event_handler`` gets a `BeginEpochEvent`, `BeginStepEvent`, `EndStepEvent` and `EndEpochEvent` each.
        """
        with scope_guard(self.scope):
            if self._serves:
                self.exe.run(self.train_program)
                return
            if reader is None:
                raise ProgramError("Trainer.train needs a reader")
            feeder = _feeder(self.train_program, feed_order)
            for epoch in range(self._first[0], num_epochs):
                event_handler(BeginEpochEvent(epoch))
                self._epoch(epoch, event_handler, reader, feeder)
                if self._stopped:
                    return
                event_handler(EndEpochEvent(epoch))
            _forget(self.checkpoint_cfg)

    def _epoch(self, epoch: int, handler: Callable[[Any], Any], reader: Reader, feeder: DataFeeder) -> None:
        for step, data in enumerate(reader()):
            if self._stopped:
                return
            if (epoch, step) < self._first:
                continue
            begin = BeginStepEvent(epoch, step)
            handler(begin)
            fetches = self.train_func_outputs if begin.fetch_metrics else []
            metrics = self.exe.run(self.train_program, feeder.feed(data), fetches)
            self._save(epoch, step)
            handler(EndStepEvent(epoch, step, metrics))

    def _save(self, epoch: int, step: int) -> None:
        config = self.checkpoint_cfg
        if config is None or epoch % config.epoch_interval or (step + 1) % config.step_interval:
            return
        folder = Path(config.checkpoint_dir)
        numbers = [int(path.name.rpartition("_")[2]) for path in _checkpoints(config)]
        new = folder / f"{_PREFIX}_{max(numbers, default=-1) + 1}"
        io.save_persistables(self.exe, str(new), self.train_program)
        (new / _SUCCESS).write_text(f"{epoch} {step + 1}", encoding="utf-8")
        for old in _checkpoints(config)[: -config.max_num_checkpoints]:
            shutil.rmtree(old)

    def test(self, reader: Reader, feed_order: Sequence[str] | Mapping[str, int] | None = None) -> list[float]:
        """The mean over all batches of ``reader()`` of each thing that ``train_func`` returned."""
        sums, count = [0.0] * len(self.train_func_outputs), 0
        feeder = _feeder(self.test_program, feed_order)
        with scope_guard(self.scope):
            for data in reader():
                values = self.exe.run(self.test_program, feeder.feed(data), self.train_func_outputs)
                sums = [total + float(value.reshape(-1)[0]) for total, value in zip(sums, values, strict=True)]
                count += 1
        if not count:
            raise FluidliteError("Trainer.test: the reader has no batch")
        return [total / count for total in sums]

    def save_params(self, param_path: str) -> None:
        """Save the parameters, for an `Inferencer` or another `Trainer`."""
        with scope_guard(self.scope):
            io.save_persistables(self.exe, param_path, self.train_program)

    def save_inference_model(
        self, param_path: str, feeded_var_names: Sequence[str], target_var_indexes: Sequence[int]
    ) -> None:
        """Save the model that computes, of what ``train_func`` returned, the items of these indexes."""
        targets = [self.train_func_outputs[index] for index in target_var_indexes]
        with scope_guard(self.scope):
            io.save_inference_model(param_path, feeded_var_names, targets, self.exe, self.train_program)


class Inferencer:
    """Runs what ``infer_func`` builds, with the parameters that a `Trainer` saved in ``param_path``."""

    def __init__(
        self, infer_func: Callable[[], Any], param_path: str, place: object = None, parallel: bool = False
    ) -> None:
        self.scope = Scope()
        self.inference_program = Program()
        with program_guard(self.inference_program, Program()), unique_name.guard():
            outputs = infer_func()
        self.predict_var: list[Variable] = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
        self.exe = Executor(place)
        with scope_guard(self.scope):
            io.load_params(self.exe, param_path, self.inference_program)
        self.inference_program = self.inference_program.clone(for_test=True)

    def infer(self, inputs: Mapping[str, Any], return_numpy: bool = True) -> list[Any]:
        """The results for inputs by name."""
        if not isinstance(inputs, Mapping):
            raise ProgramError("Inferencer.infer takes a dict of the input variables, such as {'x': array}")
        return self.exe.run(
            self.inference_program, inputs, self.predict_var, scope=self.scope, return_numpy=return_numpy
        )


def _feeder(program: Program, feed_order: Sequence[str] | Mapping[str, int] | None) -> DataFeeder:
    """The feeder of variables by name: in a list, in a dict of their places in a sample, or all data variables."""
    if feed_order is None:
        names = [var.name for var in program.global_block().vars.values() if var.is_data]
    elif isinstance(feed_order, Mapping):
        names = sorted(feed_order, key=lambda name: feed_order[name])
        if sorted(feed_order.values()) != list(range(len(feed_order))):
            raise ProgramError("the values of feed_order must be 0, 1, 2 ... without gaps")
    else:
        names = list(feed_order)
    return DataFeeder(names, program=program)


def _needed(name: str) -> str:
    """An environment variable of a job."""
    value = os.environ.get(name)
    if not value:
        raise SettingError(f"PADDLE_TRAINING_ROLE is set, so the environment variable {name} must be, too")
    return value


def _checkpoints(config: CheckpointConfig) -> list[Path]:
    """The checkpoints that are whole, the oldest first."""
    found = [path.parent for path in Path(config.checkpoint_dir).glob(f"{_PREFIX}_*/{_SUCCESS}")]
    return sorted(found, key=lambda path: int(path.name.rpartition("_")[2]))


def _newest(config: CheckpointConfig | None) -> Path | None:
    found = _checkpoints(config) if config is not None else []
    return found[-1] if found else None


def _forget(config: CheckpointConfig | None) -> None:
    """A training that came to its end leaves no checkpoint, so that the next one begins anew, as in Fluid."""
    for path in _checkpoints(config) if config is not None else []:
        shutil.rmtree(path)
