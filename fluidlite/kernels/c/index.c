/* The cells of a hash index: 2**bits cells (int32 or int64), each -1 or the position of an id in a list of ids.
 *
 * An id's first cell comes from multiplicative hashing; probe k moves on by k cells. fluidlite/kernels/in_numpy/cells.py
 * does the same. Ids are looked for in batches: their cells, then the ids that these name, are fetched into the cache
 * before they are compared, so that the waits overlap.
 */

#include "buffers.h"
#include "scratch.h"

#define BATCH 256
#define PART (1 << 30) /* ids found by one call of find_all */

typedef struct {
    void *cells;
    int wide; /* cells are int64 */
    int shift;
    uint64_t mask;
    const int64_t *ids;
    uint64_t known; /* number of ids */
} fl_index;

/* The search for one id */
typedef struct {
    uint64_t cell; /* to look at next */
    uint32_t step; /* cells looked at */
    uint32_t at;   /* place among the ids wanted */
} fl_probe;

FL_INLINE int64_t cell_at(const fl_index *index, uint64_t cell, const int wide)
{
    return wide ? ((const int64_t *)index->cells)[cell] : ((const int32_t *)index->cells)[cell];
}

/* The position where it is one of an id, else 0. */
FL_INLINE uint64_t within(const fl_index *index, int64_t position)
{
    return (uint64_t)position < index->known ? (uint64_t)position : 0;
}

FL_INLINE const char *address_of(const fl_index *index, uint64_t cell, const int wide)
{
    return (const char *)index->cells + (cell << (wide ? 3 : 2));
}

/* Cells that take turns in a batch: an id whose cell holds another one goes on to its next cell, and the others make room
 * for the next ids, so a batch is always full. */
FL_INLINE void find_all(const fl_index *index, const int wide, const int64_t *wanted, uint32_t n, int64_t *positions)
{
    fl_probe open[BATCH];
    uint32_t next = 0;
    int count = 0;
    while (count || next < n) {
        for (; count < BATCH && next < n; next++) {
            open[count] = (fl_probe){fl_hash(wanted[next]) >> index->shift, 0, next};
            FL_PREFETCH(address_of(index, open[count++].cell, wide));
        }
        for (int i = 0; i < count; i++) {
            const int64_t position = cell_at(index, open[i].cell, wide);
            positions[open[i].at] = position;
            FL_PREFETCH(index->ids + within(index, position));
        }
        int left = 0;
        for (int i = 0; i < count; i++) {
            fl_probe probe = open[i];
            const int64_t position = positions[probe.at];
            const uint64_t at = within(index, position);
            /* without branches: nobody could foretell them */
            const int other = (position != -1) & ((at != (uint64_t)position) | (index->ids[at] != wanted[probe.at]));
            probe.step++;
            probe.cell = (probe.cell + probe.step) & index->mask;
            open[left] = probe;
            FL_PREFETCH(address_of(index, probe.cell, wide));
            left += other;
            if (other && probe.step > index->mask) { /* every cell was looked at */
                positions[probe.at] = -1;
                left--;
            }
        }
        count = left;
    }
}

FL_CLONES static void find(const fl_index *index, const int64_t *wanted, Py_ssize_t n, int64_t *positions)
{
    if (index->known == 0)
        memset(positions, -1, (size_t)n * sizeof *positions);
    for (Py_ssize_t i = 0; index->known && i < n; i += PART) {
        const uint32_t part = n - i < PART ? (uint32_t)(n - i) : PART;
        if (index->wide)
            find_all(index, 1, wanted + i, part, positions + i);
        else
            find_all(index, 0, wanted + i, part, positions + i);
    }
}

/* Cells for ids[first:last], which have none; 0 where no cell is free. */
FL_INLINE int claim(const fl_index *index, const int wide, uint64_t first, uint64_t last)
{
    uint64_t cell[BATCH];
    for (uint64_t start = first; start < last; start += BATCH) {
        const uint64_t n = last - start < BATCH ? last - start : BATCH;
        for (uint64_t i = 0; i < n; i++) {
            cell[i] = fl_hash(index->ids[start + i]) >> index->shift;
            FL_PREFETCH_WRITE(address_of(index, cell[i], wide));
        }
        for (uint64_t i = 0; i < n; i++) {
            uint64_t at = cell[i], probe = 0;
            while (cell_at(index, at, wide) != -1) {
                if (++probe > index->mask)
                    return 0;
                at = (at + probe) & index->mask;
            }
            if (wide)
                ((int64_t *)index->cells)[at] = (int64_t)(start + i);
            else
                ((int32_t *)index->cells)[at] = (int32_t)(start + i);
        }
    }
    return 1;
}

/* The index of the arguments (cells, ids); 0 with ShapeError set where the number of cells is no power of two. */
static int index_of(const char *function, const fl_arg *cells, const fl_arg *ids, fl_index *index)
{
    const uint64_t count = (uint64_t)cells->rows;
    int bits = 0;
    while (bits < 62 && (UINT64_C(1) << bits) < count)
        bits++;
    if (bits < 1 || (UINT64_C(1) << bits) != count) {
        PyErr_Format(fl_shape_error, "%s: %zd cells, not a power of two from 2 on", function, cells->rows);
        return 0;
    }
    *index = (fl_index){cells->data, cells->type == FL_I64, 64 - bits, count - 1, ids->data, (uint64_t)ids->rows};
    return 1;
}

static PyObject *index_find(PyObject *Py_UNUSED(self), PyObject *const *objects, Py_ssize_t count)
{
    static const fl_want wants[] = {
        {"cells", FL_I32 | FL_I64, 1}, {"ids", FL_I64, 1}, {"wanted", FL_I64, 1}, {"positions", FL_I64 | FL_WRITE, 1}};
    fl_arg args[4];
    fl_index index;
    if (fl_parse("index_find", objects, count, wants, 4, args) < 0)
        return NULL;
    if (!index_of("index_find", &args[0], &args[1], &index) ||
        !fl_same_length("index_find", "lengths of wanted and positions", args[2].rows, args[3].rows))
        return fl_failed(args, 4);
    Py_BEGIN_ALLOW_THREADS
    find(&index, args[2].data, args[2].rows, args[3].data);
    Py_END_ALLOW_THREADS
    return fl_done(args, 4);
}

static PyObject *index_find_or_number(PyObject *Py_UNUSED(self), PyObject *const *objects, Py_ssize_t count)
{
    static const fl_want wants[] = {{"cells", FL_I32 | FL_I64, 1},
                                    {"ids", FL_I64, 1},
                                    {"wanted", FL_I64, 1},
                                    {"positions", FL_I64 | FL_WRITE, 1},
                                    {"new", FL_I64 | FL_WRITE, 1}};
    fl_arg args[5];
    fl_index index;
    if (fl_parse("index_find_or_number", objects, count, wants, 5, args) < 0)
        return NULL;
    const Py_ssize_t n = args[2].rows;
    if (!index_of("index_find_or_number", &args[0], &args[1], &index) ||
        !fl_same_length("index_find_or_number", "lengths of wanted and positions", n, args[3].rows) ||
        !fl_same_length("index_find_or_number", "lengths of wanted and new", n, args[4].rows))
        return fl_failed(args, 5);
    const int64_t *wanted = args[2].data;
    int64_t *positions = args[3].data;
    Py_ssize_t missing = 0, found_new = 0;
    Py_BEGIN_ALLOW_THREADS
    find(&index, wanted, n, positions);
    for (Py_ssize_t i = 0; i < n; i++)
        missing += positions[i] == -1;
    if (missing)
        found_new = fl_number(wanted, n, missing, (int64_t)index.known, positions, args[4].data);
    Py_END_ALLOW_THREADS
    fl_release(args, 5);
    return found_new < 0 ? PyErr_NoMemory() : PyLong_FromSsize_t(found_new);
}

static PyObject *index_claim(PyObject *Py_UNUSED(self), PyObject *const *objects, Py_ssize_t count)
{
    static const fl_want wants[] = {
        {"cells", FL_I32 | FL_I64 | FL_WRITE, 1}, {"ids", FL_I64, 1}, {"first", FL_SIZE, 0}, {"last", FL_SIZE, 0}};
    fl_arg args[4];
    fl_index index;
    if (fl_parse("index_claim", objects, count, wants, 4, args) < 0)
        return NULL;
    const Py_ssize_t first = args[2].size, last = args[3].size;
    if (!index_of("index_claim", &args[0], &args[1], &index))
        return fl_failed(args, 4);
    if (first > last || last > args[1].rows || (!index.wide && last > INT32_MAX)) {
        PyErr_Format(fl_shape_error, "index_claim: ids %zd to %zd of %zd", first, last, args[1].rows);
        return fl_failed(args, 4);
    }
    int all;
    Py_BEGIN_ALLOW_THREADS
    all = index.wide ? claim(&index, 1, (uint64_t)first, (uint64_t)last)
                     : claim(&index, 0, (uint64_t)first, (uint64_t)last);
    Py_END_ALLOW_THREADS
    if (!all) {
        PyErr_Format(fl_shape_error, "index_claim: no cell of %zd is free", args[0].rows);
        return fl_failed(args, 4);
    }
    return fl_done(args, 4);
}

PyMethodDef fl_index_methods[] = {
    {"index_find", FL_FUNCTION(index_find), METH_FASTCALL,
     "index_find(cells, ids, wanted, positions): where each id wanted stands in ids, or -1."},
    {"index_find_or_number", FL_FUNCTION(index_find_or_number), METH_FASTCALL,
     "index_find_or_number(cells, ids, wanted, positions, new): as index_find, but unknown ids are numbered on from\n"
     "len(ids) in order of occurrence and written to new; how many these are."},
    {"index_claim", FL_FUNCTION(index_claim), METH_FASTCALL,
     "index_claim(cells, ids, first, last): cells for ids[first:last], which have none yet."},
    {NULL, NULL, 0, NULL},
};
