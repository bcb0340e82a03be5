"""``fluid.contrib.memory_usage`` and ``op_freq_statistic``: what a program is made of, in numbers."""

from __future__ import annotations

from collections import Counter
from math import prod

from fluidlite.dtypes import VarKind, numpy_dtype
from fluidlite.errors import DtypeError, ProgramError, ShapeError
from fluidlite.framework import Program


def memory_usage(program: Program, batch_size: int) -> tuple[float, float, str]:
    """An estimate of the memory of all that the program's ops write, for a batch: from, to, unit ("B", "KB" or "MB").

    From 5 to 10% above the sum. Raises ShapeError for a variable with more than one unknown size.
    """
    if not isinstance(program, Program):
        raise DtypeError(f"memory_usage needs a Program, not {type(program).__name__}")
    if batch_size <= 0:
        raise ProgramError(f"memory_usage: batch_size must be positive, not {batch_size}")
    block = program.global_block()
    written = dict.fromkeys(name for op in block.ops for name in op.output_arg_names if block.has_var(name))
    total = 0.0
    for var in (block.var(name) for name in written):
        if var.type != VarKind.LOD_TENSOR:
            continue
        if sum(dim < 0 for dim in var.shape) > 1:
            raise ShapeError(f"memory_usage: variable {var.name!r} has more than one unknown size: {list(var.shape)}")
        total += prod(dim if dim >= 0 else -dim * batch_size for dim in var.shape) * numpy_dtype(var.dtype).itemsize
    unit = "B"
    for larger in ("KB", "MB"):
        if total > 1024:
            total, unit = total / 1024, larger
    return total * 1.05, total * 1.1, unit


def op_freq_statistic(program: Program) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """How often the program has each op type, and each pair "writer->reader" of them; the most frequent first."""
    if not isinstance(program, Program):
        raise DtypeError(f"op_freq_statistic needs a Program, not {type(program).__name__}")
    parameters = {parameter.name for parameter in program.all_parameters()}
    single: Counter[str] = Counter()
    pairs: Counter[str] = Counter()
    writer: dict[str, str] = {}
    for op in program.global_block().ops:
        if not parameters.issuperset(op.output_arg_names):
            single[op.type] += 1
        read = [name for name in op.input_arg_names if name not in parameters and name in writer]
        pairs.update(f"{writer[name]}->{op.type}" for name in read)
        writer.update(dict.fromkeys(op.output_arg_names, op.type))
    return single.most_common(), pairs.most_common()
