/* fuzz_npy.c: any bytes as a NumPy array: what is accepted lies inside the bytes, or in a temporary file, and agrees with
 * its shape. The first byte stays: every array begins with the same. */
#include "data/source.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    mf_source *s;
    memfit_error err = {0};
    if (mf_source_synthetic(NULL, 1, 0, &s, NULL) != MEMFIT_OK)
        return 0;
    unsigned char *copy = malloc(bytes ? bytes : 1); /* a block of its own: reading past its end is seen */
    if (bytes)
        memcpy(copy, data, bytes);
    s->mappings[s->mapping_count++] = (mf_mapping){copy, bytes};
    memfit_status status = mf_source_npy(s, "x", copy, bytes, NULL, &err);
    if (status != MEMFIT_OK && !err.message[0])
        abort();
    if (status == MEMFIT_OK && !s->arrays[0].unusable && s->arrays[0].shape.dim[0] > 0) {
        s->samples = s->arrays[0].shape.dim[0];
        if (mf_source_check(s, &err) != MEMFIT_OK)
            abort();
        unsigned char *sample = malloc(s->arrays[0].sample_bytes + 1);
        mf_source_read(s, &s->arrays[0], s->samples - 1, sample);
        free(sample);
    }
    s->mappings[0] = (mf_mapping){0};
    mf_source_close(s);
    free(copy);
    return 0;
}
