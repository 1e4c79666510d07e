/*
 * fuzz_model.c: any bytes as a model file of any kind; what loads is laid out for saving as well.
 * sources: src/model/zip_read.c src/model/zip_write.c src/model/hdf5_header.c src/model/hdf5_group.c
 * sources: src/model/hdf5_dataset.c src/model/hdf5_chunks.c src/model/hdf5_write.c src/model/keras_config.c
 * sources: src/model/keras_weights.c src/model/keras_legacy.c src/model/keras_compile.c src/model/model_load.c
 * sources: src/model/save.c src/graph/tensor.c src/base/json_read.c src/base/json_write.c src/base/text.c
 * sources: src/base/os_linux.c src/base/memory.c src/base/error.c
 */
#include "model/save.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    mf_model *model;
    mf_saver *saver;
    memfit_error err;
    if (mf_model_load_bytes(NULL, data, bytes, 0, &model, &err))
        return 0;
    if (mf_saver_create(NULL, model, NULL, &saver, &err) == MEMFIT_OK)
        mf_saver_destroy(saver);
    mf_model_destroy(model);
    return 0;
}
