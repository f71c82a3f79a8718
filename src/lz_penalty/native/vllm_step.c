/* A step of vLLM's V1 runner: read the newest token of every output list of the batch, and launch the kernels that penalise.
 * A step in which nothing else changes is one call. engines/vllm/_c_step.py calls these functions.
 *
 * The caller holds the interpreter's lock (ctypes.PyDLL). The functions of CPython used here are part of its stable ABI, so
 * its headers are not needed. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct _object PyObject;
ptrdiff_t PyList_Size(PyObject *);
PyObject *PyList_GetItem(PyObject *, ptrdiff_t); /* borrowed */
long PyLong_AsLong(PyObject *);
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
 * may be half written, and nothing else has changed. */
static int write_fields(const struct lz_batch *batch) {
    const int32_t *rows = batch->rows, *before = fields_in(batch, batch->turn[0]);
    int32_t *after = fields_in(batch, following(batch));
    size_t count = batch->count, width = batch->width;
    for (size_t i = 0; i < count; i++)
        if (PyList_Size(batch->lists[i]) != (ptrdiff_t)batch->seen[rows[i]] + 1 ||
            before[LENGTH * width + rows[i]] >= batch->capacity)
            return 0;
    memcpy(after, before, FIELDS * width * sizeof *after);
    for (size_t i = 0; i < count; i++) {
        long token = PyLong_AsLong(PyList_GetItem(batch->lists[i], batch->seen[rows[i]]));
        if (token < 0 || token > INT32_MAX) return -1;
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
int lz_take_newest(const struct lz_batch *batch) {
    int written = write_fields(batch);
    if (written == 1) move_on(batch);
    return written;
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

struct lz_kernel {
    void *function;
    void **parameters; /* where the values are */
    unsigned grid[3], threads, shared;
    unsigned early; /* 1: it may start before the previous kernel on the stream has ended, and waits for that itself */
};

struct lz_launch {
    cu_launch_kernel_ex *launch;
    cu_stream_wait_event *wait;
    cu_event_record *record;
    void *side, *found; /* a stream and an event */
    struct lz_kernel find, lower;
    uint64_t *logits;         /* where `lower` has its parameter for the address of the logits */
    uint64_t *fields[FIELDS]; /* where `find` has its parameters for the addresses of the fields */
};

static int launched(const struct lz_launch *how, const struct lz_kernel *kernel, void *stream) {
    const struct cu_attribute early = {.id = CU_PROGRAMMATIC_STREAM_SERIALIZATION, .value.flag = 1};
    const struct cu_config config = {
        .grid = {kernel->grid[0], kernel->grid[1], kernel->grid[2]},
        .block = {kernel->threads, 1, 1},
        .shared = kernel->shared,
        .stream = stream,
        .attributes = &early,
        .count = kernel->early,
    };
    return !how->launch(&config, kernel->function, kernel->parameters, NULL);
}

/* Take the newest tokens as `lz_take_newest` does, and launch the kernels with these fields. Return 0 also if the driver
 * refuses the first launch. That launch goes to the side stream and waits for nothing: all launches of the step before have
 * ended, or there would be no new tokens. A refusal of the second launch is an error: the first one reads the fields, so
 * they must not be written again. */
int lz_take_and_launch(const struct lz_batch *batch, const struct lz_launch *how, uint64_t logits, void *stream) {
    int written = write_fields(batch);
    if (written != 1) return written;
    int32_t *fields = fields_in(batch, following(batch));
    *how->logits = logits;
    for (int field = 0; field < FIELDS; field++)
        *how->fields[field] = (uint64_t)(uintptr_t)(fields + field * batch->width);
    if (!launched(how, &how->find, how->side)) return 0;
    if (how->record(how->found, how->side) || how->wait(stream, how->found, 0) || !launched(how, &how->lower, stream)) {
        PyErr_SetString(PyExc_RuntimeError, "the CUDA driver refused the second launch of the LZ penalty: after an earlier "
                                            "CUDA error, or because the stream is being captured, which it must not be.");
        return -1;
    }
    move_on(batch);
    return 1;
}
