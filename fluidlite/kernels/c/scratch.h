/* A hash over a few ids that lives for one call. */

#ifndef FLUIDLITE_SCRATCH_H
#define FLUIDLITE_SCRATCH_H

#include "kernels.h"
#include <stdlib.h>

/* 64 bits of which the upper ones are spread well: multiplicative hashing of both halves of the id. */
FL_INLINE uint64_t fl_hash(int64_t id)
{
    const uint64_t bits = (uint64_t)id;
    return (bits ^ (bits >> 32)) * UINT64_C(0x9E3779B97F4A7C15);
}

typedef struct {
    uint32_t *cells; /* 0, or 1 + position of an id in a list */
    int shift;
    uint64_t mask;
} fl_scratch;

/* Empty cells for up to `most` ids, at least two per id; 0 without memory. */
static inline int fl_scratch_open(fl_scratch *scratch, Py_ssize_t most)
{
    int bits = 4;
    while ((INT64_C(1) << bits) < 2 * (int64_t)most)
        bits++;
    scratch->shift = 64 - bits;
    scratch->mask = (UINT64_C(1) << bits) - 1;
    scratch->cells = (uint64_t)most < UINT32_MAX ? calloc((size_t)1 << bits, sizeof *scratch->cells) : NULL;
    return scratch->cells != NULL;
}

/* The cell that holds the position of `id` in `list`, or the free one where it belongs. */
FL_INLINE uint32_t *fl_scratch_cell(const fl_scratch *scratch, const int64_t *list, int64_t id)
{
    uint64_t at = fl_hash(id) >> scratch->shift;
    while (scratch->cells[at] && list[scratch->cells[at] - 1] != id)
        at = (at + 1) & scratch->mask;
    return &scratch->cells[at];
}

/* Number the `missing` ids of wanted (n,) whose position is -1: next, next + 1, ... in order of first occurrence.
 * Positions get the numbers, `fresh` the ids; how many there are, or -1 without memory. */
static inline Py_ssize_t fl_number(const int64_t *wanted, Py_ssize_t n, Py_ssize_t missing, int64_t next,
                                   int64_t *positions, int64_t *fresh)
{
    fl_scratch scratch;
    Py_ssize_t count = 0;
    if (!fl_scratch_open(&scratch, missing))
        return -1;
    for (Py_ssize_t i = 0; i < n; i++) {
        if (positions[i] != -1)
            continue;
        uint32_t *cell = fl_scratch_cell(&scratch, fresh, wanted[i]);
        if (!*cell) {
            fresh[count++] = wanted[i];
            *cell = (uint32_t)count;
        }
        positions[i] = next + *cell - 1;
    }
    free(scratch.cells);
    return count;
}

#endif
