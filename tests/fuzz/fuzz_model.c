/*
 * fuzz_model.c: any bytes as a model file of any kind; what loads is laid out for saving as well.
 * sources: src/file/zip_read.c src/file/zip_write.c src/file/hdf5_header.c src/file/hdf5_group.c
 * sources: src/file/hdf5_dataset.c src/file/hdf5_chunks.c src/file/hdf5_write.c src/model/keras/keras_config.c
 * sources: src/model/keras/keras_weights.c src/model/keras/keras_legacy.c src/model/keras/keras_compile.c src/model/keras/keras_load.c
 * sources: src/model/keras/keras_save.c src/base/tensor.c src/base/json_read.c src/base/json_write.c src/base/text.c
 * sources: src/base/os_linux.c src/base/os_write_linux.c src/base/memory.c src/base/error.c
 */
#include "model/keras/keras_save.h"

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
