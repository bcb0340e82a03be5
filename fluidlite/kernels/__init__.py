"""The inner loops of tables and dense kernels, each in numpy and in C, with the same results bit for bit, except that a NaN
may be another NaN (which of two a sum keeps is for the processor to say).

The functions in `in_numpy` say what each one does; those in `in_c` take and return the same. Which set these names stand
for is decided by `choice`.
"""

from fluidlite.kernels.choice import IN_C
from fluidlite.kernels.in_numpy.cells import ABSENT

if IN_C:
    from fluidlite.kernels.in_c.cells import claim_cells, find_or_number, find_positions
    from fluidlite.kernels.in_c.ids import find_ids, group_ids, is_ascending, unique_ids
    from fluidlite.kernels.in_c.rows import put_parts, put_rows, sum_rows, take_parts, take_rows
else:
    from fluidlite.kernels.in_numpy.cells import claim_cells, find_or_number, find_positions
    from fluidlite.kernels.in_numpy.ids import find_ids, group_ids, is_ascending, unique_ids
    from fluidlite.kernels.in_numpy.rows import put_parts, put_rows, sum_rows, take_parts, take_rows

__all__ = [
    "ABSENT",
    "claim_cells",
    "find_ids",
    "find_or_number",
    "find_positions",
    "group_ids",
    "is_ascending",
    "put_parts",
    "put_rows",
    "sum_rows",
    "take_parts",
    "take_rows",
    "unique_ids",
]
