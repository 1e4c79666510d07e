/* fuzz_model.c: any bytes as a model file of any kind; what loads is laid out for saving and written as well. The first byte
 * chooses whether check sums are made right first, so that what stands behind them is reached. */
#include "file/zip.h"
#include "model/keras/keras_save.h"

#include <stdlib.h>
#include <string.h>

static void put_crc(unsigned char *at, uint32_t crc)
{
    for (int i = 0; i < 4; i++)
        at[i] = (unsigned char)(crc >> 8 * i);
}

static void mend_check_sums(unsigned char *data, uint64_t bytes)
{
    mf_arena arena;
    mf_zip zip;
    mf_arena_init(&arena, NULL);
    if (mf_zip_open(&zip, &arena, data, bytes, NULL) == MEMFIT_OK)
        for (size_t i = 0; i < zip.count; i++) {
            const mf_zip_member *m = &zip.members[i];
            uint32_t crc = m->method == 0 ? mf_crc32(0, data + m->data_at, m->bytes) : m->crc;
            put_crc(data + m->central_crc_at, crc);
            if (m->local_crc_at)
                put_crc(data + m->local_crc_at, crc);
        }
    mf_arena_destroy(&arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    mf_model *model;
    mf_saver *saver;
    memfit_error err;
    if (!bytes)
        return 0;
    bool mended = data[0] == '+';
    size_t n = bytes - mended;
    unsigned char *copy = malloc(n ? n : 1);
    if (n)
        memcpy(copy, data + mended, n);
    if (mended)
        mend_check_sums(copy, n);
    if (mf_model_load_bytes(NULL, copy, n, MF_LOAD_VERIFY, &model, &err) == MEMFIT_OK) {
        const mf_save_options extra = {.extra_name = "memfit.state", .extra = "state", .extra_bytes = 5};
        if (mf_saver_create(NULL, model, data[bytes - 1] & 1 ? &extra : NULL, &saver, &err) == MEMFIT_OK) {
            if (mf_saver_write(saver, "/dev/null", &err) != MEMFIT_OK)
                abort();
            mf_saver_destroy(saver);
        }
        const void *found;
        uint64_t found_bytes;
        mf_model_extra(model, "memfit.state", &found, &found_bytes, &err);
        mf_model_destroy(model);
    }
    free(copy);
    return 0;
}
