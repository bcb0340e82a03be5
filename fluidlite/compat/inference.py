"""Fluid's predictors: ``fluid.core.AnalysisConfig``, ``PaddleTensor``, ``create_paddle_predictor``, over an executor."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from fluidlite import io
from fluidlite.compat.places import tell_once
from fluidlite.dtypes import Array
from fluidlite.errors import FeedError, ProgramError
from fluidlite.executor import Executor
from fluidlite.runtime.scope import Scope, scope_guard
from fluidlite.values.lod import LoDTensor


class PaddleDType(enum.IntEnum):
    """Dtypes of predictors."""

    FLOAT32 = 0
    INT64 = 1
    INT32 = 2


class PaddlePlace(enum.IntEnum):
    """Places of predictors."""

    UNK = -1
    CPU = 0
    GPU = 1


_DTYPES: Final[dict[PaddleDType, np.dtype[Any]]] = {
    PaddleDType.FLOAT32: np.dtype(np.float32),
    PaddleDType.INT64: np.dtype(np.int64),
    PaddleDType.INT32: np.dtype(np.int32),
}


class PaddleBuf:
    """Memory of a `PaddleTensor`: flat numbers. Made of an array, a list of numbers, or a length in bytes."""

    def __init__(self, data: Any = ()) -> None:
        if isinstance(data, int):
            data = np.zeros(data // 4, np.float32)
        self.array: Array = _number_array(data).reshape(-1)

    def resize(self, length: int) -> None:
        """Make room for ``length`` bytes."""
        self.array = np.resize(self.array, length // self.array.itemsize)

    def reset(self, data: Any) -> None:
        """Take over other numbers."""
        self.array = _number_array(data).reshape(-1)

    def empty(self) -> bool:
        """Whether there are none."""
        return not self.array.size

    def length(self) -> int:
        """Bytes."""
        return self.array.nbytes

    def tolist(self, dtype: str = "float32") -> list[Any]:
        """The numbers, as ``dtype``."""
        numbers: list[Any] = self.array.astype(dtype).tolist()
        return numbers

    def float_data(self) -> list[float]:
        """The numbers as float32."""
        return self.tolist("float32")

    def int64_data(self) -> list[int]:
        """The numbers as int64."""
        return self.tolist("int64")

    def int32_data(self) -> list[int]:
        """The numbers as int32."""
        return self.tolist("int32")


def _number_array(data: Any) -> Array:
    """An array of a dtype that predictors have: float32, int64 or int32."""
    array = np.asarray(data)
    if array.dtype in _DTYPES.values():
        return array.copy()
    if array.dtype.kind == "f" or not array.size:
        return array.astype(np.float32)
    if array.dtype.kind in "biu":
        return array.astype(np.int64)
    raise FeedError(f"a predictor takes float32, int64 and int32, not {array.dtype}")


class PaddleTensor:
    """An input or a result of a predictor: name, shape, lod, dtype, data."""

    def __init__(self, data: Any = None, name: str = "", lod: Sequence[Sequence[int]] = ()) -> None:
        array = _number_array(() if data is None else data)
        self.name = name
        self.shape: list[int] = list(array.shape) if data is not None else []
        self.lod: list[list[int]] = [list(level) for level in lod]
        self.data = PaddleBuf(array)
        self._dtype: PaddleDType | None = None

    @property
    def dtype(self) -> PaddleDType:
        """The dtype: as set, else that of the data."""
        if self._dtype is not None:
            return self._dtype
        return next(kind for kind, dtype in _DTYPES.items() if dtype == self.data.array.dtype)

    @dtype.setter
    def dtype(self, dtype: PaddleDType) -> None:
        self._dtype = PaddleDType(dtype)

    def as_ndarray(self) -> Array:
        """The data in its shape."""
        return np.asarray(self.data.array, _DTYPES[self.dtype]).reshape(self.shape)


class NativeConfig:
    """Where the model is. What concerns GPUs is accepted and changes nothing."""

    def __init__(self) -> None:
        self.model_dir = ""
        self.prog_file = ""
        self.param_file = ""
        self.use_gpu = False
        self.device = 0
        self.fraction_of_gpu_memory = -1.0
        self.specify_input_name = False

    def set_cpu_math_library_num_threads(self, cpu_math_library_num_threads: int) -> None:
        """Accepted; numpy has its own setting."""

    def cpu_math_library_num_threads(self) -> int:
        """1."""
        return 1

    def files(self) -> tuple[str, str | None, str | None]:
        """Folder, program file and parameter file."""
        return _files(self.model_dir, self.prog_file, self.param_file)


def _files(folder: str, program: str, parameters: str) -> tuple[str, str | None, str | None]:
    """As `io.load_inference_model` takes them; a program file with a path says the folder itself."""
    if folder:
        return folder, program or None, parameters or None
    if not program:
        raise ProgramError("the config of a predictor needs model_dir, or prog_file and params_file")
    parent = Path(program).parent
    return str(parent), Path(program).name, str(Path(parameters).absolute()) if parameters else None


class AnalysisConfig:
    """Where the model is: ``AnalysisConfig(folder)`` or ``AnalysisConfig(program file, parameter file)``.

    Switches of optimisations, engines and GPUs are accepted and change nothing: fluidlite runs the program by its executor.
    """

    class Precision(enum.IntEnum):
        """Precisions of engines."""

        Float32 = 0
        Int8 = 1
        Half = 2

    Native = NativeConfig

    def __init__(self, model_dir: str = "", params_file: str | None = None) -> None:
        self._folder = model_dir if params_file is None else ""
        self._program = "" if params_file is None else model_dir
        self._parameters = params_file or ""
        self._switches = {"ir_optim": True, "use_feed_fetch_ops_enabled": True, "specify_input_name": False}

    def set_model(self, model_dir: str, params_file: str | None = None) -> None:
        """Set the folder, or with ``params_file`` the two files."""
        self._folder, self._program = (model_dir, "") if params_file is None else ("", model_dir)
        self._parameters = params_file or ""

    def set_prog_file(self, path: str) -> None:
        """Set the program file."""
        self._program = path

    def set_params_file(self, path: str) -> None:
        """Set the parameter file."""
        self._parameters = path

    def model_dir(self) -> str:
        """The folder."""
        return self._folder

    def prog_file(self) -> str:
        """The program file."""
        return self._program

    def params_file(self) -> str:
        """The parameter file."""
        return self._parameters

    def files(self) -> tuple[str, str | None, str | None]:
        """Folder, program file and parameter file."""
        return _files(self._folder, self._program, self._parameters)

    def enable_use_gpu(self, memory_pool_init_size_mb: int, device_id: int = 0) -> None:
        """Falls back to the CPU with a warning."""
        tell_once("AnalysisConfig.enable_use_gpu")

    def disable_gpu(self) -> None:
        """It is the CPU anyway."""

    def use_gpu(self) -> bool:
        """False."""
        return False

    def switch_ir_optim(self, x: int = True) -> None:
        """Kept for `ir_optim`."""
        self._switches["ir_optim"] = bool(x)

    def ir_optim(self) -> bool:
        """As set."""
        return self._switches["ir_optim"]

    def switch_use_feed_fetch_ops(self, x: int = True) -> None:
        """Kept for `use_feed_fetch_ops_enabled`."""
        self._switches["use_feed_fetch_ops_enabled"] = bool(x)

    def use_feed_fetch_ops_enabled(self) -> bool:
        """As set."""
        return self._switches["use_feed_fetch_ops_enabled"]

    def switch_specify_input_names(self, x: bool = True) -> None:
        """Whether inputs of `PaddlePredictor.run` are told by their names; else by their order."""
        self._switches["specify_input_name"] = bool(x)

    def specify_input_name(self) -> bool:
        """As set."""
        return self._switches["specify_input_name"]

    def set_cpu_math_library_num_threads(self, cpu_math_library_num_threads: int) -> None:
        """Accepted; numpy has its own setting."""

    def enable_memory_optim(self) -> None:
        """Accepted; temporaries are released after their last use anyway."""

    def enable_mkldnn(self) -> None:
        """Accepted; there is none."""

    def enable_profile(self) -> None:
        """Accepted; use `fluid.profiler`."""

    def disable_glog_info(self) -> None:
        """Accepted; nothing is logged."""

    def switch_ir_debug(self, x: int = True) -> None:
        """Accepted."""

    def delete_pass(self, name: str) -> None:
        """Accepted; Fluid's passes are not there."""

    def set_optim_cache_dir(self, path: str) -> None:
        """Accepted; nothing is cached."""


class ZeroCopyTensor:
    """An input or result of a predictor by its name."""

    def __init__(self, name: str, values: dict[str, LoDTensor]) -> None:
        self.name = name
        self._values = values

    def reshape(self, shape: Sequence[int]) -> None:
        """Make the tensor have a shape; `copy_from_cpu` brings its own."""
        before = self._tensor().array
        self._values[self.name] = LoDTensor(np.resize(before, tuple(shape)), ())

    def copy_from_cpu(self, data: Array) -> None:
        """Set the values of an input."""
        before = self._values.get(self.name)
        self._values[self.name] = LoDTensor(np.array(data), () if before is None else before.lod)

    def copy_to_cpu(self) -> Array:
        """The values, as an array of their own."""
        return self._tensor().array.copy()

    def set_lod(self, lod: Sequence[Sequence[int]]) -> None:
        """Set the offsets of the sequences."""
        tensor = self._tensor()
        tensor.set_lod(lod)
        self._values[self.name] = tensor

    def lod(self) -> list[list[int]]:
        """The offsets of the sequences."""
        return [list(level) for level in self._tensor().lod]

    def shape(self) -> list[int]:
        """The shape."""
        return list(self._tensor().array.shape)

    def type(self) -> PaddleDType:
        """The dtype."""
        return next(kind for kind, dtype in _DTYPES.items() if dtype == self._tensor().array.dtype)

    def _tensor(self) -> LoDTensor:
        return self._values.get(self.name) or LoDTensor()


class PaddlePredictor:
    """A loaded inference model: `run` on tensors, or the values of `get_input_tensor` by `zero_copy_run`.

    Raises what `io.load_inference_model` and `Executor.run` raise.
    """

    def __init__(self, config: NativeConfig | AnalysisConfig, *, like: PaddlePredictor | None = None) -> None:
        self._config = config
        self._executor = Executor()
        if like is None:
            self._scope = Scope()
            folder, program, parameters = config.files()
            with scope_guard(self._scope):
                self._program, self._feeds, results = io.load_inference_model(
                    folder, self._executor, program, parameters
                )
            self._results = [var.name for var in results]
        else:
            self._scope, self._program = like._scope, like._program  # noqa: SLF001 (a twin of the same class)
            self._feeds, self._results = like._feeds, like._results  # noqa: SLF001
        self._inputs: dict[str, LoDTensor] = {}
        self._outputs: dict[str, LoDTensor] = {}

    def clone(self) -> PaddlePredictor:
        """A predictor with the same parameters and values of its own."""
        return PaddlePredictor(self._config, like=self)

    def get_input_names(self) -> list[str]:
        """The variables that are fed, in order."""
        return list(self._feeds)

    def get_output_names(self) -> list[str]:
        """The variables that are computed, in order."""
        return list(self._results)

    def get_input_tensor(self, name: str) -> ZeroCopyTensor:
        """An input."""
        return ZeroCopyTensor(name, self._inputs)

    def get_output_tensor(self, name: str) -> ZeroCopyTensor:
        """A result of the last `zero_copy_run`."""
        return ZeroCopyTensor(name, self._outputs)

    def zero_copy_run(self) -> bool:
        """Compute the results of the inputs."""
        values = self._computed(self._inputs)
        self._outputs.update(zip(self._results, values, strict=True))
        return True

    def run(self, inputs: Sequence[PaddleTensor]) -> list[PaddleTensor]:
        """The results for inputs in the order of `get_input_names`, or by their names where the config says so."""
        if len(inputs) != len(self._feeds):
            raise FeedError(f"the model takes {len(self._feeds)} inputs ({', '.join(self._feeds)}), not {len(inputs)}")
        specified = self._config.specify_input_name
        by_name = specified if isinstance(specified, bool) else specified()
        names = [tensor.name for tensor in inputs] if by_name else self._feeds
        feed = {
            name: LoDTensor(tensor.as_ndarray(), tuple(tuple(level) for level in tensor.lod))
            for name, tensor in zip(names, inputs, strict=True)
        }
        values = self._computed(feed)
        return [PaddleTensor(value.array, name, value.lod) for name, value in zip(self._results, values, strict=True)]

    def _computed(self, feed: dict[str, LoDTensor]) -> list[LoDTensor]:
        values: list[LoDTensor] = self._executor.run(
            self._program, feed, self._results, scope=self._scope, return_numpy=False
        )
        return values


def create_paddle_predictor(config: NativeConfig | AnalysisConfig) -> PaddlePredictor:
    """The predictor of a model."""
    return PaddlePredictor(config)
