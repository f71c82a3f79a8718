/* Reads the newest token of every output list of a batch; for engines that hand out lists which grow.
 *
 * Called with the interpreter's lock (ctypes.PyDLL). What it uses of CPython is part of the stable ABI, so no headers are
 * needed to compile it. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct _object PyObject;
ptrdiff_t PyList_Size(PyObject *);
PyObject *PyList_GetItem(PyObject *, ptrdiff_t); /* borrowed */
long PyLong_AsLong(PyObject *);

enum { SLOT, LENGTH, NEWEST, FIELDS }; /* of columns [FIELDS, width] */

/* If every list has one item more than seen and every history has room for it: write the columns that follow, with that
 * item and the length one larger, and return 1. Otherwise return 0, or -1 if an item is negative or no integer; then
 * nothing has changed but `after`.
 *
 * lists, rows [count]; seen by row. */
int lz_take_newest(PyObject *const *lists, const int32_t *rows, size_t count, int32_t *seen, int32_t capacity,
                   size_t width, const int32_t *before, int32_t *after) {
    for (size_t i = 0; i < count; i++)
        if (PyList_Size(lists[i]) != (ptrdiff_t)seen[rows[i]] + 1 || before[LENGTH * width + rows[i]] >= capacity) return 0;
    memcpy(after, before, FIELDS * width * sizeof *after);
    for (size_t i = 0; i < count; i++) {
        long token = PyLong_AsLong(PyList_GetItem(lists[i], seen[rows[i]]));
        if (token < 0 || token > INT32_MAX) return -1;
        after[NEWEST * width + rows[i]] = (int32_t)token;
        after[LENGTH * width + rows[i]]++;
    }
    for (size_t i = 0; i < count; i++) seen[rows[i]]++;
    return 1;
}
