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
static mf_array arrays[2]; /* x, and y if there is one */

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
    (void)err;
    uint64_t count = 1;
    for (int i = 0; i < shape->rank; i++)
        count *= (uint64_t)shape->dim[i];
    bool labels = dtype == MF_I32 && source->count == 1; /* targets that are texts */
    if (!name || (dtype != MF_F32 && !labels) || source->count == 2 || count * 4 != bytes || data < spool ||
        data + bytes > spool + spool_bytes)
        abort();
    added_bytes += bytes;
    arrays[source->count++] = (mf_array){.data = data, .dtype = dtype};
    return MEMFIT_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static mf_source source;
    memfit_error err = {0};
    int64_t inputs = bytes ? data[0] % 6 - 1 : 0;    /* the byte stays: most tables begin with a digit or a letter */
    unsigned char *copy = malloc(bytes ? bytes : 1); /* a block of its own: reading past its end is seen */
    source = (mf_source){.path = "table.csv", .arrays = arrays};
    spool = NULL;
    spool_bytes = added_bytes = 0;
    if (bytes)
        memcpy(copy, data, bytes);
    memfit_status status = mf_source_csv(&source, copy, bytes, inputs, NULL, &err);
    if ((status == MEMFIT_OK && added_bytes != spool_bytes) || (status != MEMFIT_OK && !err.message[0]))
        abort();
    if (status == MEMFIT_OK && source.count == 2 && arrays[1].dtype == MF_I32)
        for (uint64_t i = 0; i < (uint64_t)(spool + spool_bytes - arrays[1].data) / 4; i++) {
            int32_t code = ((const int32_t *)(const void *)arrays[1].data)[i];
            if (code < 0 || (uint32_t)code >= arrays[1].name_count || !arrays[1].names[code])
                abort();
        }
    mf_arena_destroy(&source.arena);
    free(spool);
    free(copy);
    return 0;
}
