/* data_files.h: small data files for tests. */
#ifndef MF_TESTS_DATA_FILES_H
#define MF_TESTS_DATA_FILES_H

#include "test.h"

static inline void write_file(const char *name, const void *data, size_t bytes)
{
    FILE *f = fopen(test_path(name), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, bytes, f), bytes);
    fclose(f);
}

static inline size_t npy_ordered(unsigned char *out, const char *descr, const char *shape, bool fortran,
                                 const void *data, size_t bytes)
{
    char head[118];
    int n = snprintf(head, sizeof head, "{'descr': '%s', 'fortran_order': %s, 'shape': (%s), }", descr,
                     fortran ? "True" : "False", shape);
    memset(head + n, ' ', sizeof head - (size_t)n);
    head[117] = '\n';
    memcpy(out, "\x93NUMPY\x01\x00\x76\x00", 10);
    memcpy(out + 10, head, sizeof head);
    memcpy(out + 128, data, bytes);
    return 128 + bytes;
}

static inline size_t npy(unsigned char *out, const char *descr, const char *shape, const void *data, size_t bytes)
{
    return npy_ordered(out, descr, shape, false, data, bytes);
}

#endif
