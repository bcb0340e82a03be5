/* Lists of ids: sorted without duplicates, found in another list, grouped by server. */

#include "buffers.h"
#include "scratch.h"

#define DIGIT 11
#define MOST_DIGITS 6 /* of 64 bits */
#define FEW 32        /* so many are sorted by insertion at once */
#define MOVES 4       /* insertions that may move so many places per id are worth a try */

typedef struct {
    uint64_t key; /* distance from the least id */
    int64_t at;   /* place in the list */
} fl_item;

static int bit_length(uint64_t number)
{
    int bits = 0;
    for (; number; number >>= 1)
        bits++;
    return bits;
}

static int is_ascending(const int64_t *ids, Py_ssize_t n)
{
    for (Py_ssize_t i = 1; i < n; i++)
        if (ids[i] <= ids[i - 1])
            return 0;
    return 1;
}

/* Stable radix sort of the bits from `low` to `high` of the keys, least digit first; digits that all keys share are left
 * out. The sorted one of the two arrays. */
static fl_item *sort_by_bits(fl_item *items, fl_item *other, Py_ssize_t n, int low, int high)
{
    static const uint64_t most = (1 << DIGIT) - 1;
    for (; low < high; low += DIGIT) {
        Py_ssize_t starts[1 << DIGIT] = {0}, total = 0;
        for (Py_ssize_t i = 0; i < n; i++)
            starts[(items[i].key >> low) & most]++;
        if (starts[(items[0].key >> low) & most] == n)
            continue;
        for (int digit = 0; digit <= (int)most; digit++) {
            const Py_ssize_t count = starts[digit];
            starts[digit] = total;
            total += count;
        }
        for (Py_ssize_t i = 0; i < n; i++)
            other[starts[(items[i].key >> low) & most]++] = items[i];
        fl_item *const sorted = other;
        other = items;
        items = sorted;
    }
    return items;
}

/* Stable insertion sort, unless it takes more than `budget` moves: then 0, and the items are in an order between. */
static int sort_by_insertion(fl_item *items, Py_ssize_t n, Py_ssize_t budget)
{
    for (Py_ssize_t i = 1; i < n; i++) {
        const fl_item item = items[i];
        Py_ssize_t to = i;
        for (; to > 0 && items[to - 1].key > item.key; to--)
            items[to] = items[to - 1];
        items[to] = item;
        budget -= i - to;
        if (budget < 0)
            return 0;
    }
    return 1;
}

static void list_items(const int64_t *ids, Py_ssize_t n, int64_t least, fl_item *items)
{
    for (Py_ssize_t i = 0; i < n; i++)
        items[i] = (fl_item){(uint64_t)ids[i] - (uint64_t)least, i};
}

/* The ids as items in stable ascending order, n > 0, in one of two halves of `room` (2 n). Ids that are spread evenly are
 * in order after a sort by their highest bits, but for a few. */
static fl_item *sorted_items(const int64_t *ids, Py_ssize_t n, fl_item *room)
{
    int64_t least = ids[0], greatest = ids[0];
    for (Py_ssize_t i = 1; i < n; i++) {
        least = ids[i] < least ? ids[i] : least;
        greatest = ids[i] > greatest ? ids[i] : greatest;
    }
    const int bits = bit_length((uint64_t)greatest - (uint64_t)least);
    const int enough = n <= FEW ? 0 : 2 * bit_length((uint64_t)n) - 6;
    list_items(ids, n, least, room);
    if (bits > enough + DIGIT || n <= FEW) {
        fl_item *items = n <= FEW ? room : sort_by_bits(room, room + n, n, bits - enough, bits);
        if (sort_by_insertion(items, n, n <= FEW ? FEW * FEW : MOVES * n))
            return items;
        list_items(ids, n, least, room);
    }
    return sort_by_bits(room, room + n, n, 0, bits);
}

static Py_ssize_t unique_of(const fl_item *items, const int64_t *ids, Py_ssize_t n, int64_t *unique, int64_t *first,
                            int64_t *inverse)
{
    Py_ssize_t count = 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        const int64_t at = items[i].at;
        if (i == 0 || items[i].key != items[i - 1].key) {
            unique[count] = ids[at];
            first[count++] = at;
        }
        inverse[at] = count - 1;
    }
    return count;
}

/* How many ids are distinct, or -1 without memory. */
static Py_ssize_t find_unique(const int64_t *ids, Py_ssize_t n, int64_t *unique, int64_t *first, int64_t *inverse)
{
    if (is_ascending(ids, n)) {
        for (Py_ssize_t i = 0; i < n; i++) {
            unique[i] = ids[i];
            first[i] = inverse[i] = i;
        }
        return n;
    }
    fl_item *room = malloc((size_t)n * 2 * sizeof *room);
    if (!room)
        return -1;
    const Py_ssize_t count = unique_of(sorted_items(ids, n, room), ids, n, unique, first, inverse);
    free(room);
    return count;
}

static PyObject *unique_ids(PyObject *Py_UNUSED(self), PyObject *const *objects, Py_ssize_t count)
{
    static const fl_want wants[] = {{"ids", FL_I64, 1},
                                    {"unique", FL_I64 | FL_WRITE, 1},
                                    {"first", FL_I64 | FL_WRITE, 1},
                                    {"inverse", FL_I64 | FL_WRITE, 1}};
    fl_arg args[4];
    if (fl_parse("unique_ids", objects, count, wants, 4, args) < 0)
        return NULL;
    for (int i = 1; i < 4; i++)
        if (!fl_same_length("unique_ids", "lengths of ids and an output", args[0].rows, args[i].rows))
            return fl_failed(args, 4);
    Py_ssize_t distinct;
    Py_BEGIN_ALLOW_THREADS
    distinct = find_unique(args[0].data, args[0].rows, args[1].data, args[2].data, args[3].data);
    Py_END_ALLOW_THREADS
    fl_release(args, 4);
    return distinct < 0 ? PyErr_NoMemory() : PyLong_FromSsize_t(distinct);
}

static PyObject *ids_ascend(PyObject *Py_UNUSED(self), PyObject *const *objects, Py_ssize_t count)
{
    static const fl_want wants[] = {{"ids", FL_I64, 1}};
    fl_arg args[1];
    if (fl_parse("ids_ascend", objects, count, wants, 1, args) < 0)
        return NULL;
    const int ascend = is_ascending(args[0].data, args[0].rows);
    fl_release(args, 1);
    return PyBool_FromLong(ascend);
}

/* Position of each of `wanted` in `known`, the first of equal ones, or -1; 0 without memory. */
static int find_among(const int64_t *known, Py_ssize_t m, const int64_t *wanted, Py_ssize_t n, int64_t *positions)
{
    fl_scratch scratch;
    if (!fl_scratch_open(&scratch, m))
        return 0;
    for (Py_ssize_t i = 0; i < m; i++) {
        uint32_t *cell = fl_scratch_cell(&scratch, known, known[i]);
        if (!*cell)
            *cell = (uint32_t)(i + 1);
    }
    for (Py_ssize_t i = 0; i < n; i++)
        positions[i] = (int64_t)*fl_scratch_cell(&scratch, known, wanted[i]) - 1;
    free(scratch.cells);
    return 1;
}

static PyObject *find_ids(PyObject *Py_UNUSED(self), PyObject *const *objects, Py_ssize_t count)
{
    static const fl_want wants[] = {{"known", FL_I64, 1}, {"wanted", FL_I64, 1}, {"positions", FL_I64 | FL_WRITE, 1}};
    fl_arg args[3];
    if (fl_parse("find_ids", objects, count, wants, 3, args) < 0)
        return NULL;
    if (!fl_same_length("find_ids", "lengths of wanted and positions", args[1].rows, args[2].rows))
        return fl_failed(args, 3);
    int done;
    Py_BEGIN_ALLOW_THREADS
    done = find_among(args[0].data, args[0].rows, args[1].data, args[1].rows, args[2].data);
    Py_END_ALLOW_THREADS
    fl_release(args, 3);
    if (!done)
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

FL_INLINE uint64_t shard_of(int64_t id, uint64_t shards)
{
    const uint64_t bits = (uint64_t)id;
    if ((shards & (shards - 1)) == 0)
        return bits & (shards - 1);
    return bits <= UINT32_MAX && shards <= UINT32_MAX ? (uint32_t)bits % (uint32_t)shards : bits % shards;
}

static PyObject *group_ids(PyObject *Py_UNUSED(self), PyObject *const *objects, Py_ssize_t count)
{
    static const fl_want wants[] = {
        {"ids", FL_I64, 1}, {"order", FL_I64 | FL_WRITE, 1}, {"place", FL_I64 | FL_WRITE, 1}, {"counts", FL_I64 | FL_WRITE, 1}};
    fl_arg args[4];
    if (fl_parse("group_ids", objects, count, wants, 4, args) < 0)
        return NULL;
    const Py_ssize_t n = args[0].rows, shards = args[3].rows;
    if (!fl_same_length("group_ids", "lengths of ids and order", n, args[1].rows) ||
        !fl_same_length("group_ids", "lengths of ids and place", n, args[2].rows))
        return fl_failed(args, 4);
    const int64_t *ids = args[0].data;
    int64_t *order = args[1].data, *place = args[2].data, *counts = args[3].data;
    if (shards < 1) {
        PyErr_Format(fl_shape_error, "group_ids: no shards");
        return fl_failed(args, 4);
    }
    int64_t *next = calloc((size_t)shards, sizeof *next);
    if (!next) {
        fl_release(args, 4);
        return PyErr_NoMemory();
    }
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < n; i++) {
        const uint64_t shard = shard_of(ids[i], (uint64_t)shards);
        place[i] = (int64_t)shard;
        next[shard]++;
    }
    int64_t start = 0;
    for (Py_ssize_t shard = 0; shard < shards; shard++) {
        counts[shard] = next[shard];
        next[shard] = start;
        start += counts[shard];
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        place[i] = next[place[i]]++;
        order[place[i]] = i;
    }
    Py_END_ALLOW_THREADS
    free(next);
    return fl_done(args, 4);
}

PyMethodDef fl_ids_methods[] = {
    {"unique_ids", FL_FUNCTION(unique_ids), METH_FASTCALL,
     "unique_ids(ids, unique, first, inverse): the distinct ids ascending, where each stands first, and the place of each\n"
     "of ids among them; how many are distinct."},
    {"ids_ascend", FL_FUNCTION(ids_ascend), METH_FASTCALL,
     "ids_ascend(ids): whether each is greater than the one before it."},
    {"find_ids", FL_FUNCTION(find_ids), METH_FASTCALL,
     "find_ids(known, wanted, positions): where each id wanted stands first in known, or -1."},
    {"group_ids", FL_FUNCTION(group_ids), METH_FASTCALL,
     "group_ids(ids, order, place, counts): ids by unsigned remainder by len(counts): their positions group after group,\n"
     "the place of each there, and how many are in each group."},
    {NULL, NULL, 0, NULL},
};
