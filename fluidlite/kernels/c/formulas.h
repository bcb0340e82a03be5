/* The formulas of optimizers, element by element, for one type: included by updates.c once for float, once for double.
 *
 * T is the type, SQRT and ABS its functions, NAME(x) makes names of it. Each operation is one of numpy's in
 * kernels/in_numpy/formulas.py, in the same order and rounded to T; what is computed from scalars alone is computed in
 * double and rounded then. (No include guard: it is meant to be included twice.)
 */

#define ELEMENTS for (Py_ssize_t i = 0; i < n; i++)
#define ARGUMENTS const double *s, Py_ssize_t n, const T *restrict g, T *restrict p, T *restrict a, T *restrict b, \
                  T *restrict c

FL_INLINE void NAME(sgd)(ARGUMENTS)
{
    const T rate = (T)s[0];
    (void)a, (void)b, (void)c;
    ELEMENTS p[i] -= rate * g[i];
}

FL_INLINE void NAME(momentum)(ARGUMENTS)
{
    const T rate = (T)s[0], mu = (T)s[1];
    (void)b, (void)c;
    ELEMENTS {
        const T velocity = a[i] * mu + g[i];
        a[i] = velocity;
        p[i] -= rate * velocity;
    }
}

FL_INLINE void NAME(nesterov)(ARGUMENTS)
{
    const T rate = (T)s[0], mu = (T)s[1];
    (void)b, (void)c;
    ELEMENTS {
        const T velocity = a[i] * mu + g[i];
        a[i] = velocity;
        p[i] -= (mu * velocity + g[i]) * rate;
    }
}

FL_INLINE void NAME(adagrad)(ARGUMENTS)
{
    const T rate = (T)s[0], epsilon = (T)s[1];
    (void)b, (void)c;
    ELEMENTS {
        const T moment = a[i] + g[i] * g[i];
        a[i] = moment;
        p[i] -= rate * g[i] / (SQRT(moment) + epsilon);
    }
}

FL_INLINE void NAME(decayed_adagrad)(ARGUMENTS)
{
    const T rate = (T)s[0], decay = (T)s[1], rest = (T)(1.0 - s[1]), epsilon = (T)s[2];
    (void)b, (void)c;
    ELEMENTS {
        const T moment = a[i] * decay + rest * g[i] * g[i];
        a[i] = moment;
        p[i] -= rate * g[i] / (SQRT(moment) + epsilon);
    }
}

FL_INLINE void NAME(rmsprop)(ARGUMENTS)
{
    const T rate = (T)s[0], decay = (T)s[1], rest = (T)(1.0 - s[1]), epsilon = (T)s[2], momentum = (T)s[3];
    (void)c;
    ELEMENTS {
        const T mean_square = a[i] * decay + rest * g[i] * g[i];
        const T moment = b[i] * momentum + rate * g[i] / SQRT(mean_square + epsilon);
        a[i] = mean_square;
        b[i] = moment;
        p[i] -= moment;
    }
}

FL_INLINE void NAME(centered_rmsprop)(ARGUMENTS)
{
    const T rate = (T)s[0], decay = (T)s[1], rest = (T)(1.0 - s[1]), epsilon = (T)s[2], momentum = (T)s[3];
    ELEMENTS {
        const T mean_square = a[i] * decay + rest * g[i] * g[i];
        const T mean = c[i] * decay + rest * g[i];
        const T moment = b[i] * momentum + rate * g[i] / SQRT(mean_square - mean * mean + epsilon);
        a[i] = mean_square;
        b[i] = moment;
        c[i] = mean;
        p[i] -= moment;
    }
}

FL_INLINE void NAME(adadelta)(ARGUMENTS)
{
    const T rho = (T)s[0], rest = (T)(1.0 - s[0]), epsilon = (T)s[1];
    (void)c;
    ELEMENTS {
        const T squared_grad = a[i] * rho + rest * g[i] * g[i];
        const T move = -SQRT((b[i] + epsilon) / (squared_grad + epsilon)) * g[i];
        a[i] = squared_grad;
        b[i] = b[i] * rho + rest * move * move;
        p[i] += move;
    }
}

FL_INLINE void NAME(adam)(ARGUMENTS)
{
    const T rate = (T)s[0], beta1 = (T)s[1], rest1 = (T)(1.0 - s[1]);
    const T beta2 = (T)s[2], rest2 = (T)(1.0 - s[2]), epsilon = (T)s[3];
    (void)c;
    ELEMENTS {
        const T moment1 = a[i] * beta1 + rest1 * g[i];
        const T moment2 = b[i] * beta2 + rest2 * g[i] * g[i];
        a[i] = moment1;
        b[i] = moment2;
        p[i] -= rate * moment1 / (SQRT(moment2) + epsilon);
    }
}

FL_INLINE void NAME(adamax)(ARGUMENTS)
{
    const T rate = (T)s[0], beta1 = (T)s[1], rest1 = (T)(1.0 - s[1]), beta2 = (T)s[2], epsilon = (T)s[3];
    (void)c;
    ELEMENTS {
        const T moment = a[i] * beta1 + rest1 * g[i];
        const T before = b[i] * beta2 + epsilon, size = ABS(g[i]);
        /* NaN on either side stays, as by numpy's maximum */
        const T norm = before > size || before != before ? before : size;
        a[i] = moment;
        b[i] = norm;
        p[i] -= rate * moment / norm;
    }
}

FL_INLINE void NAME(ftrl)(ARGUMENTS)
{
    const T rate = (T)s[0], l1 = (T)s[1], ridge = (T)(2.0 * s[2]);
    (void)c;
    if (s[0] == 0.0)
        return;
    ELEMENTS {
        const T squared = a[i] + g[i] * g[i], root = SQRT(squared);
        const T linear = b[i] + (g[i] - (root - SQRT(a[i])) / rate * p[i]);
        const T sign = (T)(linear > 0) - (T)(linear < 0);
        const T shrunk = (l1 * sign - linear) / (root / rate + ridge);
        a[i] = squared;
        b[i] = linear;
        p[i] = ABS(linear) > l1 ? shrunk : (T)0;
    }
}

/* A formula on every row of an update. */
#define ROWS(formula)                                                                                          \
    FL_CLONES static void NAME(formula##_rows)(const fl_update *u)                                             \
    {                                                                                                          \
        const Py_ssize_t width = u->width;                                                                     \
        for (Py_ssize_t k = 0; k < u->n; k++) {                                                                \
            const size_t row = u->rows ? fl_position(u->rows, k, u->height) : 0;                               \
            T *part[FL_PARTS]      ;                                                                           \
            fl_prefetch_row(u, k + FL_AHEAD, sizeof(T));                                                       \
            for (int j = 0; j < FL_PARTS; j++)                                                                 \
                part[j] = (T *)u->part[j] + row * (size_t)u->stride;                                           \
            NAME(formula)                                                                                      \
            (u->scalars, width, (const T *)u->gradient + k * width, part[0], part[1], part[2], part[3]);       \
        }                                                                                                      \
    }

ROWS(sgd)
ROWS(momentum)
ROWS(nesterov)
ROWS(adagrad)
ROWS(decayed_adagrad)
ROWS(rmsprop)
ROWS(centered_rmsprop)
ROWS(adadelta)
ROWS(adam)
ROWS(adamax)
ROWS(ftrl)

#undef ROWS
#undef ARGUMENTS
#undef ELEMENTS
