/*
 * fuzz_json.c: any bytes as JSON. What is read is printed, read again and printed again: the two texts are equal.
 */
#include "base/json.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    mf_arena arena;
    mf_json *root;
    memfit_error err;
    mf_arena_init(&arena, NULL);
    arena.limit_bytes = 256u << 20;
    if (mf_json_parse(&arena, (const char *)data, bytes, &root, &err) == MEMFIT_OK) {
        size_t n, m;
        char *first = mf_json_print(&arena, root, &n), *second = NULL;
        if (first && mf_json_parse(&arena, first, n, &root, &err) == MEMFIT_OK)
            second = mf_json_print(&arena, root, &m);
        if (first && (!second || n != m || memcmp(first, second, n) != 0))
            abort();
    }
    mf_arena_destroy(&arena);
    return 0;
}
