/* run_files.c: the files of a run do not destroy each other, whoever calls. See run.h and base/guard.h. */
#include "train/run.h"

#include "base/guard.h"

#include <string.h>

enum { INPUTS = 5 };

static size_t name_inputs(const memfit_train_options *o, mf_named_file *files)
{
    const mf_named_file inputs[INPUTS] = {{.name = "the model", .path = o->model},
                                          {.name = "--data", .path = o->data},
                                          {.name = "--validation-data", .path = o->validation_data},
                                          {.name = "--resume", .path = o->resume},
                                          {.name = "--class-weight", .path = o->class_weight}};
    memcpy(files, inputs, sizeof inputs);
    return INPUTS;
}

memfit_status mf_run_guard(const memfit_train_options *o, mf_mode mode, memfit_error *err)
{
    mf_named_file files[INPUTS + 5];
    const mf_named_file outputs[] = {{"--out", o->out, true, MF_FILE_MODEL, NULL},
                                     {"--checkpoint", o->checkpoint, true, MF_FILE_MODEL, "--resume"},
                                     {"--log-csv", o->log_csv, true, MF_FILE_LOG, NULL},
                                     {"--trace", o->trace, true, MF_FILE_TRACE, NULL},
                                     {"--tensorboard", o->tensorboard, true, MF_FILE_FOLDER, NULL}};
    size_t count = name_inputs(o, files), more = mode == MF_MODE_TRAIN ? sizeof outputs / sizeof *outputs : 1;
    memcpy(files + count, outputs, more * sizeof *outputs);
    return mf_guard_files(files, count + more, true, err); /* a file of another kind is the caller's own to replace */
}

memfit_status mf_run_guard_array(const memfit_train_options *o, const char *path, memfit_error *err)
{
    mf_named_file files[INPUTS + 1];
    size_t count = name_inputs(o, files);
    files[count] = (mf_named_file){"an output,", path, true, MF_FILE_ARRAY, NULL};
    return mf_guard_files(files, count + 1, false, err);
}
