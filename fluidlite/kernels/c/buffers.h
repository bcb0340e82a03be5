/* Arguments of kernels: arrays by the buffer protocol and numbers, all checked before any loop.
 *
 * A function lists what it wants, one fl_want per argument, and gets one fl_arg per argument:
 *
 *     static const fl_want wants[] = {{"matrix", FL_FLOATS | FL_WRITE, 2}, {"rows", FL_I64, 1}, {"count", FL_SIZE, 0}};
 *     fl_arg args[3];
 *     if (fl_parse("add_rows", objects, count, wants, 3, args) < 0) return NULL;
 *     ...
 *     return fl_done(args, 3);
 *
 * Arrays are C-contiguous, aligned and of native byte order, and one that is written shares no memory with another, else
 * DtypeError or ShapeError is raised. Lengths that must agree and values that index are for the function to check:
 * fl_same_length, fl_all_below.
 */

#ifndef FLUIDLITE_BUFFERS_H
#define FLUIDLITE_BUFFERS_H

#include "kernels.h"
#include <string.h>

enum {
    FL_F32 = 1,
    FL_F64 = 2,
    FL_FLOATS = FL_F32 | FL_F64,
    FL_I64 = 4,
    FL_I32 = 8,
    FL_U8 = 16,      /* bool and uint8 */
    FL_ANY = 32,     /* items of any kind but Python objects, moved as bytes */
    FL_WRITE = 64,   /* the function writes into it */
    FL_NONE = 128,   /* None is allowed: data is NULL and rows is 0 */
    FL_SIZE = 256,   /* not an array: an int of at least 0 */
    FL_REAL = 512,   /* not an array: a float */
};

typedef struct {
    const char *name;
    unsigned accepts;
    int ndim; /* dimensions of the array; 0: any, taken as one dimension */
} fl_want;

typedef struct {
    Py_buffer view;
    void *data;       /* never NULL for an array, even an empty one */
    Py_ssize_t rows;  /* first dimension */
    Py_ssize_t width; /* product of the others */
    unsigned type;    /* FL_F32, FL_F64, FL_I64, FL_I32, FL_U8; 0 for another one */
    Py_ssize_t item;  /* bytes of an element */
    Py_ssize_t size;  /* of FL_SIZE */
    double real;      /* of FL_REAL */
    int held;         /* whether view is to be released */
} fl_arg;

static inline void fl_release(fl_arg *args, Py_ssize_t count)
{
    for (Py_ssize_t i = 0; i < count; i++)
        if (args[i].held) {
            PyBuffer_Release(&args[i].view);
            args[i].held = 0;
        }
}

/* Release the arguments and answer None. */
static inline PyObject *fl_done(fl_arg *args, Py_ssize_t count)
{
    fl_release(args, count);
    Py_RETURN_NONE;
}

/* Release the arguments and answer NULL, for an error that is set. */
static inline PyObject *fl_failed(fl_arg *args, Py_ssize_t count)
{
    fl_release(args, count);
    return NULL;
}

static inline unsigned fl_type_of(const Py_buffer *view)
{
    const char *format = view->format ? view->format : "B";
    /* The order of the machine by name is what numpy says of a dtype that `newbyteorder` made. */
    if (*format == '@' || *format == '=' || *format == (PY_LITTLE_ENDIAN ? '<' : '>'))
        format++;
    if (!format[0] || format[1])
        return 0;
    switch (format[0]) {
    case 'f':
        return view->itemsize == 4 ? FL_F32 : 0;
    case 'd':
        return view->itemsize == 8 ? FL_F64 : 0;
    case 'i':
    case 'l':
    case 'q':
        return view->itemsize == 8 ? FL_I64 : view->itemsize == 4 ? FL_I32 : 0;
    case '?':
    case 'B':
        return view->itemsize == 1 ? FL_U8 : 0;
    default:
        return 0;
    }
}

static inline int fl_take_array(const char *function, PyObject *object, const fl_want *want, fl_arg *arg)
{
    static char nothing[64];
    const int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | ((want->accepts & FL_WRITE) ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(object, &arg->view, flags) < 0) {
        PyErr_Clear();
        PyErr_Format(fl_shape_error, "%s: %s must be a C-contiguous%s array", function, want->name,
                     (want->accepts & FL_WRITE) ? ", writable" : "");
        return -1;
    }
    arg->held = 1;
    arg->item = arg->view.itemsize;
    arg->type = fl_type_of(&arg->view);
    arg->data = arg->view.len ? arg->view.buf : nothing;
    const int moved = (want->accepts & FL_ANY) && arg->view.format && !strchr(arg->view.format, 'O');
    if (!moved && !(want->accepts & arg->type)) {
        PyErr_Format(fl_dtype_error, "%s: %s has items of format %s", function, want->name,
                     arg->view.format ? arg->view.format : "B");
        return -1;
    }
    if (want->ndim && arg->view.ndim != want->ndim) {
        PyErr_Format(fl_shape_error, "%s: %s has %d dimensions, not %d", function, want->name, arg->view.ndim,
                     want->ndim);
        return -1;
    }
    if (!moved && (uintptr_t)arg->data % (uintptr_t)arg->item) {
        PyErr_Format(fl_shape_error, "%s: %s is not aligned", function, want->name);
        return -1;
    }
    arg->rows = want->ndim ? arg->view.shape[0] : arg->view.len / arg->item;
    arg->width = 1;
    for (int i = 1; want->ndim && i < want->ndim; i++)
        arg->width *= arg->view.shape[i];
    return 0;
}

static inline int fl_take(const char *function, PyObject *object, const fl_want *want, fl_arg *arg)
{
    if (want->accepts & FL_SIZE) {
        arg->size = PyLong_AsSsize_t(object);
        if (arg->size < 0 && !PyErr_Occurred())
            PyErr_Format(fl_shape_error, "%s: %s is negative", function, want->name);
        return arg->size < 0 ? -1 : 0;
    }
    if (want->accepts & FL_REAL) {
        arg->real = PyFloat_AsDouble(object);
        return arg->real == -1.0 && PyErr_Occurred() ? -1 : 0;
    }
    if ((want->accepts & FL_NONE) && object == Py_None)
        return 0;
    return fl_take_array(function, object, want, arg);
}

/* Whether two arguments are arrays that share memory. */
static inline int fl_overlap(const fl_arg *one, const fl_arg *other)
{
    const uintptr_t a = (uintptr_t)one->data, b = (uintptr_t)other->data;
    return one->held && other->held && a < b + (uintptr_t)other->view.len && b < a + (uintptr_t)one->view.len;
}

/* Whether no array that is written shares memory with another; if one does, ShapeError is set. What was checked in an
 * array would change in the loop. */
static inline int fl_apart(const char *function, const fl_want *wants, const fl_arg *args, Py_ssize_t count)
{
    for (Py_ssize_t i = 0; i < count; i++)
        for (Py_ssize_t j = 0; (wants[i].accepts & FL_WRITE) && j < count; j++)
            if (i != j && fl_overlap(&args[i], &args[j])) {
                PyErr_Format(fl_shape_error, "%s: %s and %s share memory", function, wants[i].name, wants[j].name);
                return 0;
            }
    return 1;
}

/* All arguments, or -1 with an error set and none of them held. */
static inline int fl_parse(const char *function, PyObject *const *objects, Py_ssize_t count, const fl_want *wants,
                           Py_ssize_t wanted, fl_arg *args)
{
    memset(args, 0, (size_t)wanted * sizeof *args);
    if (count != wanted) {
        PyErr_Format(PyExc_TypeError, "%s takes %zd arguments, not %zd", function, wanted, count);
        return -1;
    }
    for (Py_ssize_t i = 0; i < wanted; i++)
        if (fl_take(function, objects[i], &wants[i], &args[i]) < 0) {
            fl_release(args, wanted);
            return -1;
        }
    if (!fl_apart(function, wants, args, wanted)) {
        fl_release(args, wanted);
        return -1;
    }
    return 0;
}

/* Whether two lengths agree; if not, ShapeError is set. */
static inline int fl_same_length(const char *function, const char *what, Py_ssize_t one, Py_ssize_t other)
{
    if (one != other)
        PyErr_Format(fl_shape_error, "%s: %s, %zd and %zd, differ", function, what, one, other);
    return one == other;
}

/* Whether each of n positions is in [0, limit). Needs no GIL. */
static inline int fl_all_below(const int64_t *positions, Py_ssize_t n, Py_ssize_t limit)
{
    uint64_t most = 0;
    for (Py_ssize_t i = 0; i < n; i++)
        most = (uint64_t)positions[i] > most ? (uint64_t)positions[i] : most;
    return n == 0 || most < (uint64_t)limit;
}

/* The k-th position, of those that fl_all_below found to be in [0, limit). Another thread that writes it in the meantime
 * makes it another one, or 0, but not one outside. */
FL_INLINE size_t fl_position(const int64_t *positions, Py_ssize_t k, Py_ssize_t limit)
{
    const uint64_t position = *(const volatile uint64_t *)(positions + k);
    return position < (uint64_t)limit ? (size_t)position : 0;
}

/* OutOfRangeError for positions that fl_all_below refused; returns NULL. */
static inline PyObject *fl_outside(const char *function, const char *name, Py_ssize_t limit)
{
    return PyErr_Format(fl_range_error, "%s: %s holds a position outside 0..%zd", function, name, limit - 1);
}

#endif
