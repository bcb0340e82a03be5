/* Rows of a matrix by position: copied out, put back, added to. Rows some way ahead are fetched into the cache. */

#include "buffers.h"

#define AHEAD 32 /* rows */
#define LINE 64  /* bytes of a cache line */
#define LINES 4  /* of a row that are fetched; the processor sees where the rest lies */

/* Rows of a matrix: how many, and their positions, each below its height. */
typedef struct {
    const int64_t *positions;
    Py_ssize_t n, height;
} fl_rows;

FL_INLINE size_t row_at(fl_rows rows, Py_ssize_t i)
{
    return fl_position(rows.positions, i, rows.height);
}

/* Ask for the i-th row's first lines; `start` is where that of row 0 is. */
FL_INLINE void prefetch_row(fl_rows rows, Py_ssize_t i, const char *start, size_t stride, size_t bytes)
{
    if (i >= rows.n)
        return;
    const char *const row = start + row_at(rows, i) * stride;
    for (size_t line = 0; line < LINES && line * LINE < bytes; line++)
        FL_PREFETCH(row + line * LINE);
}

/* Every `stride` bytes a row of the matrix begins; `bytes` of it, from where `matrix` points, are moved. */
FL_INLINE void take_all(const char *matrix, size_t stride, fl_rows rows, char *out, const size_t bytes)
{
    for (Py_ssize_t i = 0; i < rows.n; i++) {
        prefetch_row(rows, i + AHEAD, matrix, stride, bytes);
        memcpy(out + (size_t)i * bytes, matrix + row_at(rows, i) * stride, bytes);
    }
}

FL_INLINE void put_all(char *matrix, size_t stride, fl_rows rows, const char *values, const size_t bytes)
{
    for (Py_ssize_t i = 0; i < rows.n; i++) {
        prefetch_row(rows, i + AHEAD, matrix, stride, bytes);
        memcpy(matrix + row_at(rows, i) * stride, values + (size_t)i * bytes, bytes);
    }
}

/* Rows of the sizes that occur most are moved without a call. */
FL_CLONES static void take(const char *matrix, size_t stride, fl_rows rows, char *out, size_t bytes)
{
    switch (bytes) {
    case 4: take_all(matrix, stride, rows, out, 4); break;
    case 8: take_all(matrix, stride, rows, out, 8); break;
    case 32: take_all(matrix, stride, rows, out, 32); break;
    case 64: take_all(matrix, stride, rows, out, 64); break;
    case 128: take_all(matrix, stride, rows, out, 128); break;
    default: take_all(matrix, stride, rows, out, bytes);
    }
}

FL_CLONES static void put(char *matrix, size_t stride, fl_rows rows, const char *values, size_t bytes)
{
    switch (bytes) {
    case 4: put_all(matrix, stride, rows, values, 4); break;
    case 8: put_all(matrix, stride, rows, values, 8); break;
    case 32: put_all(matrix, stride, rows, values, 32); break;
    case 64: put_all(matrix, stride, rows, values, 64); break;
    case 128: put_all(matrix, stride, rows, values, 128); break;
    default: put_all(matrix, stride, rows, values, bytes);
    }
}

#define ADD(NAME, REAL)                                                                                                \
    FL_INLINE void NAME##_all(REAL *matrix, fl_rows rows, const REAL *values, const size_t width)                      \
    {                                                                                                                  \
        for (Py_ssize_t i = 0; i < rows.n; i++) {                                                                      \
            prefetch_row(rows, i + AHEAD, (const char *)matrix, width * sizeof(REAL), width * sizeof(REAL));           \
            REAL *restrict to = matrix + row_at(rows, i) * width;                                                      \
            const REAL *restrict from = values + (size_t)i * width;                                                    \
            for (size_t j = 0; j < width; j++)                                                                         \
                to[j] += from[j];                                                                                      \
        }                                                                                                              \
    }                                                                                                                  \
    FL_CLONES static void NAME(REAL *matrix, fl_rows rows, const REAL *values, size_t width)                           \
    {                                                                                                                  \
        switch (width) {                                                                                               \
        case 1: NAME##_all(matrix, rows, values, 1); break;                                                            \
        case 8: NAME##_all(matrix, rows, values, 8); break;                                                            \
        case 16: NAME##_all(matrix, rows, values, 16); break;                                                          \
        default: NAME##_all(matrix, rows, values, width);                                                              \
        }                                                                                                              \
    }

ADD(add_f32, float)
ADD(add_f64, double)

/* The positions in `rows`; 0 with an error set unless `values` hold, for each of them, a part of a row of the matrix that
 * begins with element `start`, and no row is outside. */
static int rows_of(const char *function, const fl_arg *matrix, const fl_arg *rows, Py_ssize_t start, const fl_arg *values,
                   fl_rows *out)
{
    if (!fl_same_length(function, "sizes of items", matrix->item, values->item) ||
        !fl_same_length(function, "numbers of rows", rows->rows, values->rows))
        return 0;
    if (start > matrix->width || values->width > matrix->width - start) {
        PyErr_Format(fl_shape_error, "%s: elements %zd to %zd of rows of %zd", function, start, start + values->width,
                     matrix->width);
        return 0;
    }
    if (!fl_all_below(rows->data, rows->rows, matrix->rows)) {
        fl_outside(function, "rows", matrix->rows);
        return 0;
    }
    *out = (fl_rows){rows->data, rows->rows, matrix->rows};
    return 1;
}

static PyObject *take_rows(PyObject *Py_UNUSED(self), PyObject *const *objects, Py_ssize_t count)
{
    static const fl_want wants[] = {
        {"matrix", FL_ANY, 2}, {"rows", FL_I64, 1}, {"start", FL_SIZE, 0}, {"out", FL_ANY | FL_WRITE, 2}};
    fl_arg args[4], *const matrix = &args[0], *const out = &args[3];
    fl_rows rows;
    if (fl_parse("take_rows", objects, count, wants, 4, args) < 0)
        return NULL;
    const Py_ssize_t start = args[2].size;
    if (!rows_of("take_rows", matrix, &args[1], start, out, &rows))
        return fl_failed(args, 4);
    Py_BEGIN_ALLOW_THREADS
    take((const char *)matrix->data + start * matrix->item, (size_t)(matrix->width * matrix->item), rows, out->data,
         (size_t)(out->width * out->item));
    Py_END_ALLOW_THREADS
    return fl_done(args, 4);
}

static PyObject *put_rows(PyObject *Py_UNUSED(self), PyObject *const *objects, Py_ssize_t count)
{
    static const fl_want wants[] = {
        {"matrix", FL_ANY | FL_WRITE, 2}, {"rows", FL_I64, 1}, {"start", FL_SIZE, 0}, {"values", FL_ANY, 2}};
    fl_arg args[4], *const matrix = &args[0], *const values = &args[3];
    fl_rows rows;
    if (fl_parse("put_rows", objects, count, wants, 4, args) < 0)
        return NULL;
    const Py_ssize_t start = args[2].size;
    if (!rows_of("put_rows", matrix, &args[1], start, values, &rows))
        return fl_failed(args, 4);
    Py_BEGIN_ALLOW_THREADS
    put((char *)matrix->data + start * matrix->item, (size_t)(matrix->width * matrix->item), rows, values->data,
        (size_t)(values->width * values->item));
    Py_END_ALLOW_THREADS
    return fl_done(args, 4);
}

static PyObject *add_rows(PyObject *Py_UNUSED(self), PyObject *const *objects, Py_ssize_t count)
{
    static const fl_want wants[] = {{"matrix", FL_FLOATS | FL_WRITE, 2}, {"rows", FL_I64, 1}, {"values", FL_FLOATS, 2}};
    fl_arg args[3];
    fl_rows rows;
    if (fl_parse("add_rows", objects, count, wants, 3, args) < 0)
        return NULL;
    if (!fl_same_length("add_rows", "widths of matrix and values", args[0].width, args[2].width) ||
        !rows_of("add_rows", &args[0], &args[1], 0, &args[2], &rows))
        return fl_failed(args, 3);
    Py_BEGIN_ALLOW_THREADS
    if (args[0].type == FL_F32)
        add_f32(args[0].data, rows, args[2].data, (size_t)args[0].width);
    else
        add_f64(args[0].data, rows, args[2].data, (size_t)args[0].width);
    Py_END_ALLOW_THREADS
    return fl_done(args, 3);
}

PyMethodDef fl_rows_methods[] = {
    {"take_rows", FL_FUNCTION(take_rows), METH_FASTCALL,
     "take_rows(matrix, rows, start, out): out[i] = matrix[rows[i], start : start + width of out]."},
    {"put_rows", FL_FUNCTION(put_rows), METH_FASTCALL,
     "put_rows(matrix, rows, start, values): matrix[rows[i], start : start + width of values] = values[i], in order."},
    {"add_rows", FL_FUNCTION(add_rows), METH_FASTCALL,
     "add_rows(matrix, rows, values): matrix[rows[i]] += values[i], one after the other."},
    {NULL, NULL, 0, NULL},
};
