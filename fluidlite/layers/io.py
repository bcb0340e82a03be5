"""Variables that are fed: ``layers.data``, and readers in programs: ``layers.py_reader``, ``read_file``."""

from __future__ import annotations

from collections.abc import Sequence

from fluidlite import framework, unique_name
from fluidlite.core import ir, reader_desc
from fluidlite.data_loader import FeedQueue, Loader, Reader, ReaderLoader
from fluidlite.dtypes import VarKind
from fluidlite.errors import ProgramError
from fluidlite.framework import Variable, readers, user_line
from fluidlite.framework.dtypes import dtype_name
from fluidlite.layer_helper import LayerHelper


def data(
    name: str,
    shape: Sequence[int | None],
    append_batch_size: bool = True,
    dtype: object = "float32",
    lod_level: int = 0,
    type: VarKind = VarKind.LOD_TENSOR,
    stop_gradient: bool = True,
) -> Variable:
    """Declare a variable that is fed.

    A batch dimension of -1 is put in front of ``shape`` unless ``append_batch_size`` is False or a dimension is
    already unknown (None or negative). `fluidlite.data` adds no dimension.
    """
    dims = [-1 if dim is None else int(dim) for dim in shape]
    if append_batch_size and all(dim >= 0 for dim in dims):
        dims = [-1, *dims]
    return declare(name, dims, dtype, lod_level, type, stop_gradient, need_check_feed=False)


def declare(
    name: str,
    shape: Sequence[int],
    dtype: object,
    lod_level: int,
    type: VarKind = VarKind.LOD_TENSOR,
    stop_gradient: bool = True,
    need_check_feed: bool = True,
) -> Variable:
    """A data variable of the main program's block 0; a second declaration of a name must agree with the first."""
    if not isinstance(name, str) or not name:
        raise ProgramError(f"a data variable needs a name, not {name!r} ({user_line()})")
    block = framework.default_main_program().global_block()
    wanted = (tuple(shape), dtype_name(dtype), lod_level)
    if block.has_var(name):
        var = block.var(name)
        if (var.shape, var.dtype, var.lod_level) != wanted:
            raise ProgramError(
                f"variable {name!r} is already declared as {var.dtype} {list(var.shape)} with lod_level {var.lod_level}, "
                f"not {wanted[1]} {list(shape)} with lod_level {lod_level} ({user_line()})"
            )
        return var
    return block.create_var(
        name,
        dtype,
        shape,
        lod_level,
        stop_gradient=stop_gradient,
        type=type,
        is_data=True,
        need_check_feed=need_check_feed,
    )


def py_reader(
    capacity: int,
    shapes: Sequence[Sequence[int]],
    dtypes: Sequence[object],
    lod_levels: Sequence[int] | None = None,
    name: str | None = None,
    use_double_buffer: bool = True,
) -> PyReaderVariable:
    """A reader in the program: its batches come from a generator, and `read_file` gives the variables that they fill.

    ``shapes``, ``dtypes``, ``lod_levels`` (default 0): of each item of a batch, -1 for any size; up to ``capacity`` batches
    are made ahead. Give it a generator by ``decorate_paddle_reader`` (lists of samples) or ``decorate_tensor_provider``
    (batches), then ``start()``, run the program until EOFException, ``reset()``. ``use_double_buffer`` is Fluid's.
    """
    levels = list(lod_levels) if lod_levels is not None else [0] * len(shapes)
    if not len(shapes) == len(dtypes) == len(levels):
        raise ProgramError(
            f"py_reader: {len(shapes)} shapes, {len(dtypes)} dtypes and {len(levels)} lod_levels ({user_line()})"
        )
    items = [
        ir.Variable(f"item {at}", dtype=dtype_name(dtype), shape=tuple(shape), lod_level=level)
        for at, (shape, dtype, level) in enumerate(zip(shapes, dtypes, levels, strict=True))
    ]
    return _py_reader(capacity, items, name, use_double_buffer)


def create_py_reader_by_data(
    capacity: int, feed_list: Sequence[Variable], name: str | None = None, use_double_buffer: bool = True
) -> PyReaderVariable:
    """`py_reader` of items that are like the data variables of ``feed_list``."""
    return _py_reader(capacity, [var.desc for var in feed_list], name, use_double_buffer)


def _py_reader(capacity: int, items: Sequence[ir.Variable], name: str | None, buffered: bool) -> PyReaderVariable:
    if name is None:
        keys = ("lod_tensor_blocking_queue", "create_py_reader", "double_buffer")
        queue, reader_name, buffer = map(unique_name.generate, keys)
    else:
        queue, reader_name, buffer = (f"{name}_{part}" for part in ("queue", "reader", "double_buffer"))
    made = readers.append_create(framework.default_startup_program().current_block(), queue, reader_name, items)
    made.stop_gradient = False
    program = framework.default_main_program()
    reader = readers.declare(program.current_block(), reader_name)
    reader.desc.unknown = made.desc.unknown
    loader = ReaderLoader(program, reader_name, items, capacity)
    if buffered:
        reader = readers.append_double_buffer(program.current_block(), reader, buffer)
    return PyReaderVariable(reader, loader)


class PyReaderVariable(Variable):
    """A READER variable with the methods of the loader behind it."""

    def __init__(self, reader: Variable, loader: Loader) -> None:
        super().__init__(reader.block, reader.name)
        self.loader = loader

    def decorate_paddle_reader(self, reader: Reader, places: object = None) -> None:
        """Batches are lists of samples, as `DataFeeder` takes them."""
        self.loader.set_sample_list_generator(reader, places)

    def decorate_tensor_provider(self, reader: Reader, places: object = None) -> None:
        """Batches are lists of arrays or LoDTensors."""
        self.loader.set_batch_generator(reader, places)

    decorate_sample_list_generator = decorate_paddle_reader
    decorate_batch_generator = decorate_tensor_provider

    @property
    def queue(self) -> FeedQueue:
        """The batches made ahead; scripts log ``reader.queue.size()``."""
        return self.loader.queue

    def start(self) -> None:
        """Begin a pass."""
        self.loader.start()

    def reset(self) -> None:
        """End a pass, after EOFException or before."""
        self.loader.reset()


def double_buffer(reader: Variable, place: object = None, name: str | None = None) -> Variable:
    """A reader of the same batches, which Fluid copies ahead to a device; the methods of a `py_reader` stay."""
    new_name = name if name is not None else unique_name.generate("create_double_buffer_reader")
    text = None if place is None else str(place).upper()
    block = framework.default_main_program().current_block()
    buffered = readers.append_double_buffer(block, reader, new_name, text)
    return PyReaderVariable(buffered, reader.loader) if isinstance(reader, PyReaderVariable) else buffered


def read_file(reader: Variable) -> Variable | list[Variable]:
    """The variables that each batch of a reader fills, in order; one alone where a batch has one item."""
    items = reader_desc.decode(reader.desc.unknown)
    if not items:
        raise ProgramError(f"read_file needs a reader, not {reader.name!r} ({user_line()})")
    helper = LayerHelper("read_file")
    outputs = [helper.create_variable_for_type_inference(item.dtype) for item in items]
    readers.append_read(helper.block, reader, outputs)
    for output in outputs:
        output.stop_gradient = True
    return outputs[0] if len(outputs) == 1 else outputs


def load(out: Variable, file_path: str, load_as_fp16: bool | None = None) -> None:
    """Read a variable from a file that `save` wrote, when the program is run."""
    LayerHelper("load").append_op("load", None, {"Out": [out]}, {"file_path": file_path, "load_as_fp16": load_as_fp16})
