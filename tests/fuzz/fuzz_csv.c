/*
 * fuzz_csv.c: any bytes into the CSV reader: no crash, every field a string inside its row's buffer.
 */
#include "base/csv.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static mf_csv csv;
    memfit_error err;
    mf_csv_open(&csv, (const char *)data, bytes);
    if (mf_csv_header(&csv, &err))
        return 0;
    unsigned column = 0;
    bool more = true;
    uint64_t line = 0;
    (void)mf_csv_column(&csv, "size", &column, &err);
    while (mf_csv_next(&csv, &more, &err) == MEMFIT_OK && more) {
        if (csv.line <= line || csv.fields != csv.columns)
            abort();
        line = csv.line;
        for (unsigned i = 0; i < csv.fields; i++) {
            const char *field = mf_csv_string(&csv, i);
            if (field < csv.row || field + strlen(field) >= csv.row + sizeof csv.row)
                abort();
            uint64_t u;
            int64_t s;
            bool is_u = mf_csv_u64(&csv, i, &u, &err) == MEMFIT_OK;
            bool is_s = mf_csv_i64(&csv, i, &s, &err) == MEMFIT_OK;
            if (((is_u && u <= INT64_MAX) || (is_s && field[0] != '-')) && (!is_u || !is_s || u != (uint64_t)s))
                abort();
        }
    }
    return 0;
}
