/* Lines of MultiSlot and Criteo text as arrays. What is malformed ends the parsing; who called says why. */

#include "buffers.h"
#include "numbers.h"

#define MALFORMED -1
#define NO_ROOM -2

/* ---- MultiSlot */

typedef struct {
    const uint8_t *floats; /* per slot: whether its values are floats */
    Py_ssize_t slots;
    int64_t *values; /* of all lines and slots in order of the text; a float is its bits */
    Py_ssize_t room, used;
    int64_t *lengths; /* [line, slot] */
    Py_ssize_t most_lines;
} fl_slots;

FL_INLINE int take_value(fl_text *text, int is_float, int64_t *out)
{
    float value;
    uint32_t bits;
    if (!is_float)
        return take_integer(text, out);
    if (!take_float(text, &value))
        return 0;
    memcpy(&bits, &value, sizeof bits);
    *out = bits;
    return 1;
}

FL_INLINE int take_slot(fl_text *text, fl_slots *into, int is_float, int64_t *length)
{
    int64_t count;
    skip_blanks(text);
    if (!take_integer(text, &count) || !token_ends(text))
        return MALFORMED;
    /* a value is a blank and a character at least */
    if (count < 0 || count > (text->end - text->at) / 2)
        return MALFORMED;
    if (count > into->room - into->used)
        return NO_ROOM;
    *length = count;
    for (int64_t i = 0; i < count; i++) {
        skip_blanks(text);
        if (!take_value(text, is_float, &into->values[into->used]) || !token_ends(text))
            return MALFORMED;
        into->used++;
    }
    return 0;
}

/* The number of lines, blank ones left out, or what is wrong. */
static Py_ssize_t take_slots(fl_text text, fl_slots *into)
{
    Py_ssize_t lines = 0;
    for (;; text.at++) {
        skip_blanks(&text);
        if (text.at == text.end)
            return lines;
        if (*text.at == '\n')
            continue;
        if (lines == into->most_lines)
            return NO_ROOM;
        for (Py_ssize_t slot = 0; slot < into->slots; slot++) {
            const int wrong = take_slot(&text, into, into->floats[slot], &into->lengths[lines * into->slots + slot]);
            if (wrong)
                return wrong;
        }
        lines++;
        skip_blanks(&text);
        if (text.at == text.end)
            return lines;
        if (*text.at != '\n')
            return MALFORMED;
    }
}

/* parse_slots(text, floats, values, lengths) -> (lines, values used), or None for text that is malformed */
static PyObject *parse_slots(PyObject *self, PyObject *const *objects, Py_ssize_t count)
{
    static const fl_want wants[] = {
        {"text", FL_U8, 1}, {"floats", FL_U8, 1}, {"values", FL_I64 | FL_WRITE, 1}, {"lengths", FL_I64 | FL_WRITE, 2}};
    fl_arg args[4];
    (void)self;
    if (fl_parse("parse_slots", objects, count, wants, 4, args) < 0)
        return NULL;
    if (!args[1].rows || !fl_same_length("parse_slots", "slots", args[1].rows, args[3].width)) {
        if (!PyErr_Occurred())
            PyErr_SetString(fl_shape_error, "parse_slots: there are no slots");
        return fl_failed(args, 4);
    }
    fl_text text = {args[0].data, (const uint8_t *)args[0].data + args[0].rows, NULL};
    fl_slots into = {args[1].data, args[1].rows, args[2].data, args[2].rows, 0, args[3].data, args[3].rows};
    PyThreadState *released = PyEval_SaveThread();
    text.released = &released;
    const Py_ssize_t lines = take_slots(text, &into);
    PyEval_RestoreThread(released);
    fl_release(args, 4);
    if (lines == NO_ROOM)
        return PyErr_Format(fl_shape_error, "parse_slots: values or lengths are too short for the text");
    if (lines == MALFORMED)
        Py_RETURN_NONE;
    return Py_BuildValue("nn", lines, into.used);
}

/* Whether the values of every slot, from where it starts, are inside its array, and all lengths add up to `used`. */
static int slots_fit(const fl_arg *lengths, const fl_arg *floats, const fl_arg *starts, Py_ssize_t used,
                     const Py_ssize_t *room)
{
    const int64_t *const length = lengths->data, *const start = starts->data;
    Py_ssize_t sum = 0;
    for (Py_ssize_t slot = 0; slot < floats->rows; slot++) {
        const Py_ssize_t most = room[((const uint8_t *)floats->data)[slot] != 0];
        if (start[slot] < 0 || start[slot] > most)
            return 0;
        Py_ssize_t left = most - (Py_ssize_t)start[slot];
        for (Py_ssize_t line = 0; line < lengths->rows; line++) {
            const int64_t n = length[line * floats->rows + slot];
            if (n < 0 || n > left || n > used - sum)
                return 0;
            left -= (Py_ssize_t)n;
            sum += (Py_ssize_t)n;
        }
    }
    return sum == used;
}

static void deal_out(const fl_arg *args)
{
    const int64_t *value = args[0].data, *length = args[1].data;
    const uint8_t *const floats = args[2].data;
    int64_t *const starts = args[3].data, *const integers = args[4].data;
    uint32_t *const bits = args[5].data;
    for (Py_ssize_t line = 0; line < args[1].rows; line++)
        for (Py_ssize_t slot = 0; slot < args[2].rows; slot++, length++) {
            int64_t at = starts[slot];
            starts[slot] += *length;
            if (floats[slot])
                for (; at < starts[slot]; at++)
                    bits[at] = (uint32_t)*value++;
            else
                for (; at < starts[slot]; at++)
                    integers[at] = *value++;
        }
}

/* split_slots(values, lengths, floats, starts, integers, floating): the values of each slot together. `starts` says where
 * in the array of its kind a slot's values go, and where they end afterwards. */
static PyObject *split_slots(PyObject *self, PyObject *const *objects, Py_ssize_t count)
{
    static const fl_want wants[] = {{"values", FL_I64, 1},
                                    {"lengths", FL_I64, 2},
                                    {"floats", FL_U8, 1},
                                    {"starts", FL_I64 | FL_WRITE, 1},
                                    {"integers", FL_I64 | FL_WRITE, 1},
                                    {"floating", FL_F32 | FL_WRITE, 1}};
    fl_arg args[6];
    (void)self;
    if (fl_parse("split_slots", objects, count, wants, 6, args) < 0)
        return NULL;
    if (!fl_same_length("split_slots", "slots", args[2].rows, args[1].width) ||
        !fl_same_length("split_slots", "slots", args[2].rows, args[3].rows))
        return fl_failed(args, 6);
    const Py_ssize_t room[] = {args[4].rows, args[5].rows};
    int fits;
    Py_BEGIN_ALLOW_THREADS
    fits = slots_fit(&args[1], &args[2], &args[3], args[0].rows, room);
    if (fits)
        deal_out(args);
    Py_END_ALLOW_THREADS
    if (fits)
        return fl_done(args, 6);
    PyErr_SetString(fl_shape_error, "split_slots: lengths, starts and arrays do not fit each other");
    return fl_failed(args, 6);
}

/* ---- Criteo */

typedef struct {
    uint8_t separator;
    float missing;
    float *labels; /* NULL: lines have none */
    float *numbers;
    Py_ssize_t number_count;
    int64_t *ids;
    Py_ssize_t id_count, most_lines;
} fl_criteo;

/* A bijection of 64 bits that leaves 0 alone: the finaliser of splitmix64, variant 13. */
FL_INLINE uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

FL_INLINE int line_ends(const fl_text *text)
{
    return text->at == text->end || *text->at == '\n' ||
           (*text->at == '\r' && (text->at + 1 == text->end || text->at[1] == '\n'));
}

FL_INLINE int field_ends(const fl_text *text, uint8_t separator)
{
    return line_ends(text) || *text->at == separator;
}

/* 1 to 8 hexadecimal digits of a slot as an id, 0 for none */
FL_INLINE int take_id(fl_text *text, uint8_t separator, Py_ssize_t slot, int64_t *out)
{
    uint64_t bits = 0;
    int digits = 0;
    for (; !field_ends(text, separator); text->at++, digits++) {
        const uint8_t c = *text->at, letter = (uint8_t)((c | 32) - 'a');
        if (digits == 8 || !(is_digit(c) || letter < 6))
            return 0;
        bits = bits << 4 | (uint64_t)(is_digit(c) ? c - '0' : letter + 10);
    }
    bits = digits ? mix((uint64_t)(slot + 1) << 32 | bits) : 0;
    memcpy(out, &bits, sizeof bits);
    return 1;
}

/* The separator, except behind the last field. */
FL_INLINE int take_separator(fl_text *text, uint8_t separator, int is_last)
{
    if (is_last)
        return line_ends(text);
    if (text->at == text->end || *text->at != separator)
        return 0;
    text->at++;
    return 1;
}

FL_INLINE int take_criteo_line(fl_text *text, const fl_criteo *into, Py_ssize_t line)
{
    Py_ssize_t left = (into->labels != NULL) + into->number_count + into->id_count;
    if (into->labels && !(take_float(text, &into->labels[line]) && take_separator(text, into->separator, !--left)))
        return 0;
    for (Py_ssize_t i = 0; i < into->number_count; i++) {
        float *const number = &into->numbers[line * into->number_count + i];
        *number = into->missing;
        if (!field_ends(text, into->separator) && !take_float(text, number))
            return 0;
        if (!take_separator(text, into->separator, !--left))
            return 0;
    }
    for (Py_ssize_t slot = 0; slot < into->id_count; slot++)
        if (!take_id(text, into->separator, slot, &into->ids[line * into->id_count + slot]) ||
            !take_separator(text, into->separator, !--left))
            return 0;
    return 1;
}

static Py_ssize_t take_criteo(fl_text text, const fl_criteo *into)
{
    Py_ssize_t lines = 0;
    while (text.at < text.end) {
        if (!line_ends(&text)) {
            if (lines == into->most_lines)
                return NO_ROOM;
            if (!take_criteo_line(&text, into, lines++))
                return MALFORMED;
        }
        text.at += text.at < text.end && *text.at == '\r';
        text.at += text.at < text.end;
    }
    return lines;
}

/* parse_criteo(text, separator, missing, labels, numbers, ids) -> lines, or None for text that is malformed.
 * `labels` is None where lines have none. */
static PyObject *parse_criteo(PyObject *self, PyObject *const *objects, Py_ssize_t count)
{
    static const fl_want wants[] = {
        {"text", FL_U8, 1},     {"separator", FL_SIZE, 0}, {"missing", FL_REAL, 0}, {"labels", FL_F32 | FL_WRITE | FL_NONE, 1},
        {"numbers", FL_F32 | FL_WRITE, 2}, {"ids", FL_I64 | FL_WRITE, 2}};
    fl_arg args[6];
    (void)self;
    if (fl_parse("parse_criteo", objects, count, wants, 6, args) < 0)
        return NULL;
    if (!fl_same_length("parse_criteo", "lines", args[4].rows, args[5].rows) ||
        (args[3].data && !fl_same_length("parse_criteo", "lines", args[3].rows, args[4].rows)))
        return fl_failed(args, 6);
    if (args[1].size != '\t' && args[1].size != ',') {
        PyErr_SetString(fl_shape_error, "parse_criteo: the separator is neither a tab nor a comma");
        return fl_failed(args, 6);
    }
    fl_text text = {args[0].data, (const uint8_t *)args[0].data + args[0].rows, NULL};
    const fl_criteo into = {(uint8_t)args[1].size, (float)args[2].real, args[3].data,  args[4].data,
                            args[4].width,         args[5].data,        args[5].width, args[4].rows};
    PyThreadState *released = PyEval_SaveThread();
    text.released = &released;
    const Py_ssize_t lines = take_criteo(text, &into);
    PyEval_RestoreThread(released);
    fl_release(args, 6);
    if (lines == NO_ROOM)
        return PyErr_Format(fl_shape_error, "parse_criteo: the arrays are too short for the text");
    if (lines == MALFORMED)
        Py_RETURN_NONE;
    return PyLong_FromSsize_t(lines);
}

PyMethodDef fl_parse_methods[] = {
    {"parse_slots", FL_FUNCTION(parse_slots), METH_FASTCALL, NULL},
    {"split_slots", FL_FUNCTION(split_slots), METH_FASTCALL, NULL},
    {"parse_criteo", FL_FUNCTION(parse_criteo), METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};
