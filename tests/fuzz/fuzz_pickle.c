/*
 * fuzz_pickle.c: any bytes into the pickle reader: no crash, bounded memory, and a tree that passes its check.
 */
#include "trace/pickle.h"

#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    mf_arena arena;
    mf_arena_init(&arena, NULL);
    arena.limit_bytes = 192 * (uint64_t)bytes + (1 << 16); /* the arena may take twice what is asked of it */
    mf_pickle_tree tree;
    memfit_error err;
    memfit_status status = mf_pickle_read(&arena, data, bytes, &tree, &err);
    if (status == MEMFIT_OK && mf_pickle_check(&tree, &err) != MEMFIT_OK)
        abort();
    if (status != MEMFIT_OK && status != MEMFIT_DAMAGED && status != MEMFIT_UNSUPPORTED) /* the bound must suffice */
        abort();
    mf_arena_destroy(&arena);
    return 0;
}
