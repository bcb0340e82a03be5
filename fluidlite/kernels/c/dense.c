/* Bias, relu and their gradients, each in one pass. */

#include "buffers.h"

/* The larger of x and 0: NaN stays, and -0.0 becomes 0.0. */
#define RELU(x) ((x) > 0 || (x) != (x) ? (x) : 0)

#define LOOPS(T, type)                                                                                         \
    FL_CLONES static void relu_##type(const T *x, T *out, Py_ssize_t n)                      \
    {                                                                                                          \
        for (Py_ssize_t i = 0; i < n; i++)                                                                     \
            out[i] = RELU(x[i]);                                                                               \
    }                                                                                                          \
    FL_CLONES static void bias_relu_##type(T *x, const T *bias, Py_ssize_t rows, Py_ssize_t width)             \
    {                                                                                                          \
        for (Py_ssize_t k = 0; k < rows; k++, x += width)                                                      \
            for (Py_ssize_t i = 0; i < width; i++) {                                                           \
                const T sum = x[i] + bias[i];                                                                  \
                x[i] = RELU(sum);                                                                              \
            }                                                                                                  \
    }                                                                                                          \
    FL_CLONES static void bias_##type(T *x, const T *bias, Py_ssize_t rows, Py_ssize_t width)                  \
    {                                                                                                          \
        for (Py_ssize_t k = 0; k < rows; k++, x += width)                                                      \
            for (Py_ssize_t i = 0; i < width; i++)                                                             \
                x[i] += bias[i];                                                                               \
    }                                                                                                          \
    FL_CLONES static void relu_grad_##type(const T *out, const T *d_out, T *d_x, Py_ssize_t n)                 \
    {                                                                                                          \
        for (Py_ssize_t i = 0; i < n; i++)                                                                     \
            d_x[i] = d_out[i] * (T)(out[i] > 0);                                                               \
    }                                                                                                          \
    FL_CLONES static void relu_grad_over_##type(const T *out, T *d_out, Py_ssize_t n)                          \
    {                                                                                                          \
        for (Py_ssize_t i = 0; i < n; i++)                                                                     \
            d_out[i] *= (T)(out[i] > 0);                                                                       \
    }

LOOPS(float, f32)
LOOPS(double, f64)

static int same_type(const char *function, const fl_arg *args, Py_ssize_t count)
{
    for (Py_ssize_t i = 1; i < count; i++)
        if (args[i].type != args[0].type) {
            PyErr_Format(fl_dtype_error, "%s: the dtypes of the arrays differ", function);
            return 0;
        }
    return 1;
}

/* relu(x, out): the larger of x and 0. */
static PyObject *relu(PyObject *Py_UNUSED(self), PyObject *const *objects, Py_ssize_t count)
{
    static const fl_want wants[] = {{"x", FL_FLOATS, 0}, {"out", FL_FLOATS | FL_WRITE, 0}};
    fl_arg args[2];
    if (fl_parse("relu", objects, count, wants, 2, args) < 0)
        return NULL;
    if (!same_type("relu", args, 2) || !fl_same_length("relu", "elements of x and out", args[0].rows, args[1].rows))
        return fl_failed(args, 2);
    Py_BEGIN_ALLOW_THREADS
    if (args[0].type == FL_F32)
        relu_f32(args[0].data, args[1].data, args[0].rows);
    else
        relu_f64(args[0].data, args[1].data, args[0].rows);
    Py_END_ALLOW_THREADS
    return fl_done(args, 2);
}

/* bias_act(x, bias, relu): x + bias in x, or, where relu is not 0, the larger of that and 0. */
static PyObject *bias_act(PyObject *Py_UNUSED(self), PyObject *const *objects, Py_ssize_t count)
{
    static const fl_want wants[] = {{"x", FL_FLOATS | FL_WRITE, 2}, {"bias", FL_FLOATS, 0}, {"relu", FL_SIZE, 0}};
    fl_arg args[3];
    if (fl_parse("bias_act", objects, count, wants, 3, args) < 0)
        return NULL;
    if (!same_type("bias_act", args, 2) ||
        !fl_same_length("bias_act", "columns of x and the bias", args[0].width, args[1].rows))
        return fl_failed(args, 3);
    Py_BEGIN_ALLOW_THREADS
    if (args[0].type == FL_F32)
        (args[2].size ? bias_relu_f32 : bias_f32)(args[0].data, args[1].data, args[0].rows, args[0].width);
    else
        (args[2].size ? bias_relu_f64 : bias_f64)(args[0].data, args[1].data, args[0].rows, args[0].width);
    Py_END_ALLOW_THREADS
    return fl_done(args, 3);
}

/* relu_grad(out, d_out, d_x): d_out times 1 where out is above 0, times 0 elsewhere. */
static PyObject *relu_grad(PyObject *Py_UNUSED(self), PyObject *const *objects, Py_ssize_t count)
{
    static const fl_want wants[] = {
        {"out", FL_FLOATS, 0}, {"d_out", FL_FLOATS, 0}, {"d_x", FL_FLOATS | FL_WRITE, 0}};
    fl_arg args[3];
    if (fl_parse("relu_grad", objects, count, wants, 3, args) < 0)
        return NULL;
    if (!same_type("relu_grad", args, 3) ||
        !fl_same_length("relu_grad", "elements of out and d_out", args[0].rows, args[1].rows) ||
        !fl_same_length("relu_grad", "elements of out and d_x", args[0].rows, args[2].rows))
        return fl_failed(args, 3);
    Py_BEGIN_ALLOW_THREADS
    if (args[0].type == FL_F32)
        relu_grad_f32(args[0].data, args[1].data, args[2].data, args[0].rows);
    else
        relu_grad_f64(args[0].data, args[1].data, args[2].data, args[0].rows);
    Py_END_ALLOW_THREADS
    return fl_done(args, 3);
}

/* relu_grad_over(out, d_out): as relu_grad, in d_out. */
static PyObject *relu_grad_over(PyObject *Py_UNUSED(self), PyObject *const *objects, Py_ssize_t count)
{
    static const fl_want wants[] = {{"out", FL_FLOATS, 0}, {"d_out", FL_FLOATS | FL_WRITE, 0}};
    fl_arg args[2];
    if (fl_parse("relu_grad_over", objects, count, wants, 2, args) < 0)
        return NULL;
    if (!same_type("relu_grad_over", args, 2) ||
        !fl_same_length("relu_grad_over", "elements of out and d_out", args[0].rows, args[1].rows))
        return fl_failed(args, 2);
    Py_BEGIN_ALLOW_THREADS
    if (args[0].type == FL_F32)
        relu_grad_over_f32(args[0].data, args[1].data, args[0].rows);
    else
        relu_grad_over_f64(args[0].data, args[1].data, args[0].rows);
    Py_END_ALLOW_THREADS
    return fl_done(args, 2);
}

PyMethodDef fl_dense_methods[] = {
    {"relu", FL_FUNCTION(relu), METH_FASTCALL, NULL},
    {"bias_act", FL_FUNCTION(bias_act), METH_FASTCALL, NULL},
    {"relu_grad", FL_FUNCTION(relu_grad), METH_FASTCALL, NULL},
    {"relu_grad_over", FL_FUNCTION(relu_grad_over), METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};
