/* Reads the newest token of every output list of a batch; for the engines that hand out lists which grow.
 *
 * Called with the interpreter's lock (ctypes.PyDLL). What it uses of CPython is part of the stable ABI, so no headers are
 * needed to compile it. */
#include <stddef.h>
#include <stdint.h>

typedef struct _object PyObject;
ptrdiff_t PyList_Size(PyObject *);
PyObject *PyList_GetItem(PyObject *, ptrdiff_t); /* borrowed */
long PyLong_AsLong(PyObject *);

/* If every list has one item more than seen and every history has room for it: note that and the item, and return 1.
 * Otherwise return 0, or -1 if an item is negative or no integer; then only `newest` may have been written.
 *
 * lists, rows [count]; seen, length, newest: by row. */
int lz_take_newest(PyObject *const *lists, const int32_t *rows, size_t count, int32_t *seen, int32_t *length,
                   int32_t *newest, int32_t capacity) {
    for (size_t i = 0; i < count; i++)
        if (PyList_Size(lists[i]) != (ptrdiff_t)seen[rows[i]] + 1 || length[rows[i]] >= capacity) return 0;
    for (size_t i = 0; i < count; i++) {
        long token = PyLong_AsLong(PyList_GetItem(lists[i], seen[rows[i]]));
        if (token < 0 || token > INT32_MAX) return -1;
        newest[rows[i]] = (int32_t)token;
    }
    for (size_t i = 0; i < count; i++) {
        seen[rows[i]]++;
        length[rows[i]]++;
    }
    return 1;
}
