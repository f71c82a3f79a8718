/* A step of vLLM's V1 runner: read the newest token of every output list of the batch, and launch the kernels that penalise.
 * A step in which nothing else changes is one call. engines/vllm/_c_step.py calls these functions.
 *
 * A list may end with -1, a placeholder for a token that is on the device only. The kernels then read the token there, and
 * `lz_repair` replaces the placeholder a step later. engines/vllm/_late_repair.py calls it.
 *
 * The caller holds the interpreter's lock (ctypes.PyDLL). The functions of CPython used here are part of its stable ABI, so
 * its headers are not needed. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct _object PyObject;
ptrdiff_t PyList_Size(PyObject *);
PyObject *PyList_GetItem(PyObject *, ptrdiff_t); /* borrowed */
int PyList_SetItem(PyObject *, ptrdiff_t, PyObject *); /* takes the reference */
long PyLong_AsLong(PyObject *);
PyObject *PyLong_FromLong(long);
void PyErr_SetString(PyObject *, const char *);
extern PyObject *PyExc_RuntimeError;

enum { SLOT, LENGTH, NEWEST, FIELDS }; /* the fields of each row, and their number */

struct lz_batch {
    PyObject *const *lists; /* [count] */
    const int32_t *rows;    /* [count], the row of each list */
    int32_t *seen;          /* by row: items that were taken in earlier steps */
    int32_t *buffers;       /* [depth, FIELDS, width], the fields of the last steps; each step uses the next buffer */
    int32_t *turn;          /* [0]: the number of the current buffer; [1]: set to 1 when C goes to the next one */
    size_t count, width, depth;
    int32_t capacity; /* of a history */
};

static int32_t *fields_in(const struct lz_batch *batch, size_t buffer) { return batch->buffers + buffer * FIELDS * batch->width; }

static size_t following(const struct lz_batch *batch) { return (batch->turn[0] + 1) % batch->depth; }

/* If every list has one new item and every history has room for it, write the fields of the following buffer, with that item
 * and with the length plus one, and return 1. Otherwise return 0, or -1 if an item is negative or no integer. Then that buffer
 * may be half written, and nothing else has changed.
 *
 * If `sampled` is 1, the tokens of the previous step are on the device in the order of the rows. A new item of -1 then gives
 * -2 - row, with which the kernels find the token. The item before it must not be a placeholder too. */
static int write_fields(const struct lz_batch *batch, int sampled) {
    const int32_t *rows = batch->rows, *before = fields_in(batch, batch->turn[0]);
    int32_t *after = fields_in(batch, following(batch));
    size_t count = batch->count, width = batch->width;
    for (size_t i = 0; i < count; i++)
        if (PyList_Size(batch->lists[i]) != (ptrdiff_t)batch->seen[rows[i]] + 1 ||
            before[LENGTH * width + rows[i]] >= batch->capacity)
            return 0;
    memcpy(after, before, FIELDS * width * sizeof *after);
    for (size_t i = 0; i < count; i++) {
        int32_t at = batch->seen[rows[i]];
        long token = PyLong_AsLong(PyList_GetItem(batch->lists[i], at));
        if (token == -1 && sampled && (at == 0 || PyLong_AsLong(PyList_GetItem(batch->lists[i], at - 1)) >= 0))
            token = -2 - rows[i];
        else if (token < 0 || token > INT32_MAX)
            return -1;
        after[NEWEST * width + rows[i]] = (int32_t)token;
        after[LENGTH * width + rows[i]]++;
    }
    return 1;
}

static void move_on(const struct lz_batch *batch) {
    for (size_t i = 0; i < batch->count; i++) batch->seen[batch->rows[i]]++;
    batch->turn[0] = (int32_t)following(batch);
    batch->turn[1] = 1;
}

/* Write the following buffer as `write_fields` does. If that returns 1, it becomes the current buffer. */
int lz_take_newest(const struct lz_batch *batch, int sampled) {
    int written = write_fields(batch, sampled);
    if (written == 1) move_on(batch);
    return written;
}

/* Placeholders that `lz_note` has found, for `lz_repair`. */
struct lz_repairs {
    PyObject *const *lists; /* [count], of all rows of vLLM's batch */
    const int32_t *sources; /* [count], the row of each list in the previous step; -1: it was not there, or got no token */
    int32_t *places;        /* [count], the index of the placeholder in each list; -1: there is none */
    int32_t *noted;         /* [count], `sources` at that time */
    size_t count;
};

/* Note the placeholder at the end of each list. */
void lz_note(const struct lz_repairs *repairs) {
    for (size_t i = 0; i < repairs->count; i++) {
        ptrdiff_t last = PyList_Size(repairs->lists[i]) - 1;
        int32_t source = repairs->sources[i];
        int found = source >= 0 && last >= 0 && PyLong_AsLong(PyList_GetItem(repairs->lists[i], last)) == -1;
        repairs->places[i] = found ? (int32_t)last : -1;
        repairs->noted[i] = source;
    }
}

/* Replace each noted placeholder that is still there by its token. `ids` are the tokens by row. */
void lz_repair(const struct lz_repairs *repairs, const int32_t *ids) {
    for (size_t i = 0; i < repairs->count; i++) {
        PyObject *list = repairs->lists[i];
        ptrdiff_t place = repairs->places[i];
        if (place >= 0 && place < PyList_Size(list) && PyLong_AsLong(PyList_GetItem(list, place)) == -1)
            PyList_SetItem(list, place, PyLong_FromLong(ids[repairs->noted[i]]));
        repairs->places[i] = -1;
    }
}

/* CUlaunchAttribute and CUlaunchConfig. */
struct cu_attribute {
    int id;
    union {
        int flag;
        uint64_t all[8];
    } value;
};

struct cu_config {
    unsigned grid[3], block[3], shared;
    void *stream;
    const struct cu_attribute *attributes;
    unsigned count;
};

enum { CU_PROGRAMMATIC_STREAM_SERIALIZATION = 6 };

typedef int cu_launch_kernel_ex(const struct cu_config *, void *function, void **parameters, void **extra);
typedef int cu_stream_wait_event(void *stream, void *event, unsigned flags);
typedef int cu_event_record(void *event, void *stream);
typedef int cu_event_query(void *event);

struct lz_kernel {
    void *function;
    void **parameters; /* where the values are */
    unsigned grid[3], threads, shared;
    unsigned early; /* 1: it may start before the previous kernel on the stream has ended, and waits for that itself */
    uint64_t *logits, *sampled, *fields[FIELDS]; /* where the addresses of these arrays are; NULL: it has no such parameter */
};

struct lz_launch {
    cu_launch_kernel_ex *launch;
    cu_stream_wait_event *wait;
    cu_event_record *record;
    cu_event_query *query;
    void *side, *found; /* a stream and an event */
    struct lz_kernel find, lower, whole;
};

/* The addresses of the arrays of one step. */
struct addresses {
    uint64_t logits, sampled;
    const int32_t *fields;
    size_t width;
};

static int launched(const struct lz_launch *how, const struct lz_kernel *kernel, const struct addresses *to, void *stream) {
    const struct cu_attribute early = {.id = CU_PROGRAMMATIC_STREAM_SERIALIZATION, .value.flag = 1};
    const struct cu_config config = {
        .grid = {kernel->grid[0], kernel->grid[1], kernel->grid[2]},
        .block = {kernel->threads, 1, 1},
        .shared = kernel->shared,
        .stream = stream,
        .attributes = &early,
        .count = kernel->early,
    };
    if (kernel->logits) *kernel->logits = to->logits;
    if (kernel->sampled) *kernel->sampled = to->sampled;
    for (int field = 0; field < FIELDS; field++)
        if (kernel->fields[field]) *kernel->fields[field] = (uint64_t)(uintptr_t)(to->fields + field * to->width);
    return !how->launch(&config, kernel->function, kernel->parameters, NULL);
}

/* Take the newest tokens as `lz_take_newest` does, and launch the kernels with these fields. Return 0 also if the driver
 * refuses the first call. A refusal of a later call is an error: the first launch reads the fields, so they must not be
 * written again.
 *
 * sampled  NULL: the host has the newest tokens. All launches of the previous step have ended then, and `find` waits for
 *          nothing. Else the address of the tokens on the device.
 * arrived  an event after all launches of the previous step, unless `sampled` is NULL. If it has happened, one launch does
 *          the whole step. Else `find` waits for it. */
int lz_take_and_launch(const struct lz_batch *batch, const struct lz_launch *how, uint64_t logits, void *stream,
                       uint64_t sampled, void *arrived) {
    int written = write_fields(batch, sampled != 0);
    if (written != 1) return written;
    const struct addresses to = {logits, sampled, fields_in(batch, following(batch)), batch->width};
    if (sampled && !how->query(arrived)) {
        if (!launched(how, &how->whole, &to, stream)) return 0;
    } else {
        if (sampled && how->wait(how->side, arrived, 0)) return 0;
        if (!launched(how, &how->find, &to, how->side)) return 0;
        if (how->record(how->found, how->side) || how->wait(stream, how->found, 0) || !launched(how, &how->lower, &to, stream)) {
            PyErr_SetString(PyExc_RuntimeError, "the CUDA driver refused the second launch of the LZ penalty: after an earlier "
                                                "CUDA error, or because the stream is being captured, which it must not be.");
            return -1;
        }
    }
    move_on(batch);
    return 1;
}
