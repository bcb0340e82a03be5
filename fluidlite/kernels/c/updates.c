/* Optimizer steps: value and accumulators of each row changed in one pass, without temporaries. */

#include "buffers.h"
#include <math.h>

enum {
    FL_PARTS = 4,    /* most arrays that a formula changes: the value and three accumulators */
    FL_SCALARS = 4,  /* most numbers that a formula takes */
    FL_AHEAD = 16,   /* rows that are fetched ahead of the one at work */
};

/* Which elements change: part j of row rows[k] (k itself without rows) starts at part[j] + rows[k] * stride. */
typedef struct {
    Py_ssize_t n, width, stride; /* rows to change, elements of a row, elements between rows */
    const int64_t *rows;
    Py_ssize_t height;    /* each of rows is below */
    const char *gradient; /* (n, width) */
    char *part[FL_PARTS]; /* those behind the last are the first, and unused */
    int parts;
    double scalars[FL_SCALARS];
} fl_update;

/* Ask for the memory of the k-th row to change. */
FL_INLINE void fl_prefetch_row(const fl_update *u, Py_ssize_t k, size_t item)
{
    if (!u->rows || k >= u->n)
        return;
    const size_t bytes = (size_t)u->width * item, row = fl_position(u->rows, k, u->height) * (size_t)u->stride;
    for (int j = 0; j < u->parts; j++) {
        const char *start = u->part[j] + row * item;
        for (size_t at = 0; at < bytes; at += 64)
            FL_PREFETCH_WRITE(start + at);
    }
}

#define T float
#define SQRT sqrtf
#define ABS fabsf
#define NAME(x) x##_f32
#include "formulas.h"
#undef T
#undef SQRT
#undef ABS
#undef NAME
#define T double
#define SQRT sqrt
#define ABS fabs
#define NAME(x) x##_f64
#include "formulas.h"

typedef struct {
    const char *name;
    int parts, scalars;
    void (*f32)(const fl_update *), (*f64)(const fl_update *);
} fl_rule;

#define RULE(name, accumulators, scalars) {#name, 1 + accumulators, scalars, name##_rows_f32, name##_rows_f64}
static const fl_rule rules[] = {
    RULE(sgd, 0, 1),      RULE(momentum, 1, 2), RULE(nesterov, 1, 2),         RULE(adagrad, 1, 2),
    RULE(adam, 2, 4),     RULE(adamax, 2, 4),   RULE(decayed_adagrad, 1, 3),  RULE(rmsprop, 2, 4),
    RULE(adadelta, 2, 2), RULE(ftrl, 2, 3),     RULE(centered_rmsprop, 3, 4),
};

/* The rule called name, for a number of parts; NULL with an error set where there is none. */
static const fl_rule *find_rule(const char *function, PyObject *name, Py_ssize_t parts)
{
    const char *text = PyUnicode_AsUTF8AndSize(name, NULL);
    if (!text)
        return NULL;
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (!strcmp(rules[i].name, text)) {
            if (fl_same_length(function, "arrays and those that the rule changes", parts, rules[i].parts))
                return &rules[i];
            return NULL;
        }
    PyErr_Format(PyExc_KeyError, "%s: no rule %s", function, text);
    return NULL;
}

/* The scalars of a rule, or -1 with an error set. */
static int take_scalars(const char *function, PyObject *tuple, const fl_rule *rule, double *scalars)
{
    const Py_ssize_t given = PyTuple_Check(tuple) ? PyTuple_Size(tuple) : -1;
    if (!fl_same_length(function, "scalars and those of the rule", given, rule->scalars))
        return -1;
    for (Py_ssize_t i = 0; i < given; i++) {
        scalars[i] = PyFloat_AsDouble(PyTuple_GetItem(tuple, i));
        if (scalars[i] == -1.0 && PyErr_Occurred())
            return -1;
    }
    return 0;
}

/* Whether two arrays have the same shape beside their first `skip` dimensions; if not, ShapeError is set. */
static int same_shape(const char *function, const Py_buffer *one, const Py_buffer *other, int skip)
{
    int same = one->ndim == other->ndim;
    for (int i = skip; same && i < one->ndim; i++)
        same = one->shape[i] == other->shape[i];
    if (!same)
        PyErr_Format(fl_shape_error, "%s: the shapes of the arrays do not fit each other", function);
    return same;
}

enum { ROWS, GRADIENT, ARRAYS, ARGUMENTS = ARRAYS + FL_PARTS };

/* Whether any array that changes shares memory with another one, with the gradient or with the rows. */
static int any_overlap(const fl_arg *args)
{
    for (int i = ARRAYS; i < ARGUMENTS; i++)
        for (int j = 0; j < i; j++)
            if (fl_overlap(&args[i], &args[j]))
                return 1;
    return 0;
}

/* The parts of an update where each is an array: all of one shape and dtype, the gradient like them, beside the number of
 * rows where there are rows. */
static int parts_of_arrays(const char *function, const fl_arg *arrays, const fl_arg *gradient, fl_update *u)
{
    const Py_ssize_t rows = arrays[0].view.ndim ? arrays[0].view.shape[0] : 1;
    for (int j = 0; j < u->parts; j++) {
        u->part[j] = arrays[j].data;
        if (!same_shape(function, &arrays[0].view, &arrays[j].view, 0))
            return -1;
    }
    if (!same_shape(function, &arrays[0].view, &gradient->view, u->rows ? 1 : 0))
        return -1;
    u->stride = u->width = u->rows && rows ? arrays[0].rows / rows : arrays[0].rows;
    return 0;
}

/* The parts of an update where each is a span of the records of one matrix: as wide as the gradient, apart. */
static int parts_of_records(const char *function, PyObject *starts, const fl_arg *matrix, const fl_arg *gradient,
                            fl_update *u)
{
    Py_ssize_t at[FL_PARTS];
    if (matrix->view.ndim != 2 || gradient->view.ndim != 2) {
        PyErr_Format(fl_shape_error, "%s: records and gradient must be matrices", function);
        return -1;
    }
    u->width = gradient->view.shape[1];
    u->stride = matrix->view.shape[1];
    for (int j = 0; j < u->parts; j++) {
        at[j] = PyLong_AsSsize_t(PyTuple_GetItem(starts, j));
        if (at[j] == -1 && PyErr_Occurred())
            return -1;
        int fits = at[j] >= 0 && at[j] <= u->stride - u->width;
        for (int i = 0; fits && i < j; i++)
            fits = at[i] + u->width <= at[j] || at[j] + u->width <= at[i];
        if (!fits) {
            PyErr_Format(fl_shape_error, "%s: part %d, %zd wide from %zd on, does not fit into records of %zd",
                         function, j, u->width, at[j], u->stride);
            return -1;
        }
        u->part[j] = (char *)matrix->data + at[j] * matrix->item;
    }
    return 0;
}

/* Check the arguments in `args` and complete `u`: 1 to go on, 0 when there is nothing that can be done here, -1 for an
 * error. */
static int prepare(const char *function, const fl_arg *args, Py_ssize_t arrays, PyObject *starts, fl_update *u)
{
    const fl_arg *gradient = &args[GRADIENT], *first = &args[ARRAYS];
    for (Py_ssize_t i = 0; i < arrays; i++)
        if (first[i].type != gradient->type) {
            PyErr_Format(fl_dtype_error, "%s: the dtypes of the arrays differ", function);
            return -1;
        }
    u->rows = args[ROWS].data;
    u->gradient = gradient->data;
    if (starts && !u->rows) {
        PyErr_Format(fl_shape_error, "%s: records need rows", function);
        return -1;
    }
    if ((starts ? parts_of_records(function, starts, first, gradient, u)
                : parts_of_arrays(function, first, gradient, u)) < 0)
        return -1;
    for (int j = u->parts; j < FL_PARTS; j++)
        u->part[j] = u->part[0];
    u->n = u->rows ? args[ROWS].rows : 1;
    if (u->rows && !fl_same_length(function, "rows and those of the gradient", u->n,
                                   gradient->view.ndim ? gradient->view.shape[0] : -1))
        return -1;
    u->height = u->rows ? first->view.shape[0] : 1;
    if (u->rows && !fl_all_below(u->rows, u->n, u->height)) {
        fl_outside(function, "rows", u->height);
        return -1;
    }
    return !any_overlap(args);
}

/* update(rule, scalars, rows or None, gradient, arrays, starts or None): whether it was done; not where arrays share memory.
 * With starts there is one array, a matrix of records whose parts begin there. */
static PyObject *update(PyObject *Py_UNUSED(self), PyObject *const *objects, Py_ssize_t count)
{
    static const char *function = "update";
    static const fl_want rows_want = {"rows", FL_I64 | FL_NONE, 1}, gradient_want = {"gradient", FL_FLOATS, 0},
                         array_want = {"an array to change", FL_FLOATS | FL_WRITE, 0};
    fl_arg args[ARGUMENTS];
    fl_update u = {0};
    if (count != 6 || !PyTuple_Check(objects[4]) || (objects[5] != Py_None && !PyTuple_Check(objects[5])))
        return PyErr_Format(PyExc_TypeError, "%s takes rule, scalars, rows, gradient, arrays and starts", function);
    PyObject *starts = objects[5] == Py_None ? NULL : objects[5];
    const Py_ssize_t arrays = PyTuple_Size(objects[4]);
    const fl_rule *rule = find_rule(function, objects[0], starts ? PyTuple_Size(starts) : arrays);
    if (!rule || take_scalars(function, objects[1], rule, u.scalars) < 0)
        return NULL;
    if (starts && !fl_same_length(function, "matrices of records and 1", arrays, 1))
        return NULL;
    u.parts = rule->parts;
    memset(args, 0, sizeof args);
    int go = fl_take(function, objects[2], &rows_want, &args[ROWS]);
    if (go == 0)
        go = fl_take(function, objects[3], &gradient_want, &args[GRADIENT]);
    for (Py_ssize_t i = 0; go == 0 && i < arrays; i++)
        go = fl_take(function, PyTuple_GetItem(objects[4], i), &array_want, &args[ARRAYS + i]);
    if (go == 0)
        go = prepare(function, args, arrays, starts, &u);
    if (go < 0)
        return fl_failed(args, ARGUMENTS);
    if (go) {
        Py_BEGIN_ALLOW_THREADS
        (args[GRADIENT].type == FL_F32 ? rule->f32 : rule->f64)(&u);
        Py_END_ALLOW_THREADS
    }
    fl_release(args, ARGUMENTS);
    return PyBool_FromLong(go);
}

PyMethodDef fl_updates_methods[] = {
    {"update", FL_FUNCTION(update), METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};
