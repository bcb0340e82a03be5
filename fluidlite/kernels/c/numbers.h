/* Numbers out of text, token by token.
 *
 * A float is the double that is nearest to the text, rounded to float. Most texts take a short way: a double that is off
 * by a few units of its last place, which gives the same float from both ends of its error. The others take Python's.
 */

#ifndef FLUIDLITE_NUMBERS_H
#define FLUIDLITE_NUMBERS_H

#include "kernels.h"
#include <string.h>

#define MOST_DIGITS 1000000000000000000u /* a mantissa below it takes one more digit */
#define FAR_EXPONENT 1000000000000000    /* further away than any text is long */

typedef struct {
    const uint8_t *at, *end;
    PyThreadState **released; /* while the GIL is */
} fl_text;

/* mantissa * 10^scale; digits beyond the 19th are left out */
typedef struct {
    uint64_t mantissa;
    int64_t scale;
    int negative;
} fl_decimal;

FL_INLINE int is_digit(uint8_t c)
{
    return (uint8_t)(c - '0') <= 9;
}

/* Whether c separates tokens of a line. */
FL_INLINE int is_blank(uint8_t c)
{
    return c == ' ' || (c != '\n' && (uint8_t)(c - '\t') <= 4);
}

FL_INLINE void skip_blanks(fl_text *text)
{
    while (text->at < text->end && is_blank(*text->at))
        text->at++;
}

FL_INLINE int token_ends(const fl_text *text)
{
    return text->at == text->end || *text->at == '\n' || is_blank(*text->at);
}

FL_INLINE int take_sign(fl_text *text)
{
    const int negative = text->at < text->end && *text->at == '-';
    text->at += negative || (text->at < text->end && *text->at == '+');
    return negative;
}

/* An integer of -2^63 .. 2^64 - 1, those from 2^63 on as the negative number of the same bits. */
FL_INLINE int take_integer(fl_text *text, int64_t *out)
{
    const int negative = take_sign(text);
    const uint8_t *const first = text->at;
    uint64_t value = 0;
    for (; text->at < text->end && is_digit(*text->at); text->at++) {
        const uint64_t digit = (uint64_t)(*text->at - '0');
        if (value >= UINT64_MAX / 10 && (value > UINT64_MAX / 10 || digit > UINT64_MAX % 10))
            return 0;
        value = value * 10 + digit;
    }
    if (text->at == first || (negative && value > (uint64_t)1 << 63))
        return 0;
    value = negative ? 0 - value : value;
    memcpy(out, &value, sizeof value);
    return 1;
}

/* Digits into the mantissa; how many there are. `places` is what a digit that is taken adds to the scale. */
FL_INLINE Py_ssize_t take_digits(fl_text *text, fl_decimal *decimal, int places)
{
    const uint8_t *const first = text->at;
    for (; text->at < text->end && is_digit(*text->at); text->at++) {
        if (decimal->mantissa < MOST_DIGITS) {
            decimal->mantissa = decimal->mantissa * 10 + (uint64_t)(*text->at - '0');
            decimal->scale += places;
        } else {
            decimal->scale += places + 1;
        }
    }
    return text->at - first;
}

FL_INLINE int take_exponent(fl_text *text, fl_decimal *decimal)
{
    const int negative = take_sign(text);
    const uint8_t *const first = text->at;
    int64_t exponent = 0;
    for (; text->at < text->end && is_digit(*text->at); text->at++)
        if (exponent < FAR_EXPONENT)
            exponent = exponent * 10 + (*text->at - '0');
    decimal->scale += negative ? -exponent : exponent;
    return text->at > first;
}

FL_INLINE int take_decimal(fl_text *text, fl_decimal *decimal)
{
    *decimal = (fl_decimal){0, 0, take_sign(text)};
    Py_ssize_t digits = take_digits(text, decimal, 0);
    if (text->at < text->end && *text->at == '.') {
        text->at++;
        digits += take_digits(text, decimal, -1);
    }
    if (digits && text->at < text->end && (*text->at | 32) == 'e') {
        text->at++;
        return take_exponent(text, decimal);
    }
    return digits > 0;
}

/* The float of a decimal, unless the double between is too inexact to tell. */
FL_INLINE int to_float(const fl_decimal *decimal, float *out)
{
    static const double powers[] = {
        1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14,
        1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22, 1e23, 1e24, 1e25, 1e26, 1e27, 1e28, 1e29,
        1e30, 1e31, 1e32, 1e33, 1e34, 1e35, 1e36, 1e37, 1e38, 1e39, 1e40, 1e41, 1e42, 1e43, 1e44,
    };
    static const double error = 1.0 / (1LL << 50);
    const int64_t places = decimal->scale < 0 ? -decimal->scale : decimal->scale;
    double value = (double)decimal->mantissa;
    if (decimal->mantissa) {
        if (places >= (int64_t)(sizeof powers / sizeof *powers))
            return 0;
        value = decimal->scale < 0 ? value / powers[places] : value * powers[places];
    }
    const float least = (float)(value * (1 - error)), most = (float)(value * (1 + error));
    *out = decimal->negative ? -least : least;
    return least == most;
}

/* The float of the token that begins here by Python, which knows "nan" and "inf" too. The end of the token, or NULL. */
static const uint8_t *take_float_slowly(fl_text text, float *out)
{
    double value = 0;
    int found = 0;
    const uint8_t *const first = text.at;
    while (!token_ends(&text) && *text.at != ',')
        text.at++;
    const size_t length = (size_t)(text.at - first);
    PyEval_RestoreThread(*text.released);
    char *const token = PyMem_Malloc(length + 1);
    if (token) {
        memcpy(token, first, length);
        token[length] = 0;
        value = PyOS_string_to_double(token, NULL, NULL);
        found = !PyErr_Occurred() && strlen(token) == length;
        PyErr_Clear();
        PyMem_Free(token);
    }
    *text.released = PyEval_SaveThread();
    *out = (float)value;
    return found ? text.at : NULL;
}

/* A float up to the end of the token, or to a comma. */
FL_INLINE int take_float(fl_text *text, float *out)
{
    const fl_text before = *text;
    fl_decimal decimal;
    if (take_decimal(text, &decimal) && to_float(&decimal, out))
        return 1;
    text->at = take_float_slowly(before, out);
    return text->at != NULL;
}

#endif
