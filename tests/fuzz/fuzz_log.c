/*
 * fuzz_log.c: any bytes into the log reader: no crash, and a diagnosis within its bounds.
 */
#include "diagnose/oom_log.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    memfit_diagnosis d = MEMFIT_DIAGNOSIS;
    memfit_error err;
    memfit_status status = memfit_explain_log((const char *)data, bytes, &d, &err);
    if (status == MEMFIT_DAMAGED)
        return 0;
    if (status != MEMFIT_OK || (unsigned)d.cause >= MEMFIT_DIAGNOSIS_COUNT || !(d.certainty >= 0 && d.certainty <= 1))
        abort();
    if (!d.suggestion_count || d.suggestion_count > MEMFIT_DIAGNOSIS_SUGGESTIONS ||
        d.owner_count > MEMFIT_DIAGNOSIS_OWNERS || !d.evidence[0])
        abort();
    for (size_t i = 1; i < d.owner_count; i++)
        if (d.owners[i - 1].bytes < d.owners[i].bytes)
            abort();
    mf_oom_facts quick, all; /* skipping lines must lose nothing */
    mf_oom_read((const char *)data, bytes, &quick);
    mf_oom_read_all((const char *)data, bytes, &all);
    if (memcmp(&quick, &all, sizeof all) != 0)
        abort();
    return 0;
}
