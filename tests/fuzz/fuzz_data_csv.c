/*
 * fuzz_data_csv.c: any bytes into the reader of tables of numbers: no crash, every number lands inside its array, and
 * what was promised of the arrays' sizes holds. The spool file is a block of exactly the size asked for.
 */
#include "base/error.h"
#include "data/source.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static unsigned char *spool;
static uint64_t spool_bytes, added_bytes;

memfit_status mf_source_spool(mf_source *source, uint64_t bytes, unsigned char **space, memfit_error *err)
{
    (void)source;
    if (bytes > (uint64_t)64 << 20) /* a table has no more numbers than bytes, of four bytes each */
        abort();
    spool = malloc(bytes ? bytes : 1);
    spool_bytes = bytes;
    *space = spool;
    return spool ? MEMFIT_OK : mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory");
}

memfit_status mf_source_add(mf_source *source, const char *name, mf_dtype dtype, const mf_shape *shape,
                            const unsigned char *data, uint64_t bytes, memfit_error *err)
{
    (void)source, (void)err;
    uint64_t count = 1;
    for (int i = 0; i < shape->rank; i++)
        count *= (uint64_t)shape->dim[i];
    if (!name || dtype != MF_F32 || count * 4 != bytes || data < spool || data + bytes > spool + spool_bytes)
        abort();
    added_bytes += bytes;
    return MEMFIT_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static mf_source source;
    memfit_error err = {0};
    int64_t inputs = bytes ? data[0] % 6 - 1 : 0;    /* the byte stays: most tables begin with a digit or a letter */
    unsigned char *copy = malloc(bytes ? bytes : 1); /* a block of its own: reading past its end is seen */
    source.path = "table.csv";
    spool = NULL;
    spool_bytes = added_bytes = 0;
    if (bytes)
        memcpy(copy, data, bytes);
    memfit_status status = mf_source_csv(&source, copy, bytes, inputs, NULL, &err);
    if ((status == MEMFIT_OK && added_bytes != spool_bytes) || (status != MEMFIT_OK && !err.message[0]))
        abort();
    free(spool);
    free(copy);
    return 0;
}
