/*
 * s12_validation.c: training at batch 32, validation at batch 1024. Elsewhere training runs for an hour and then fails
 * in validation. Here both are planned together before the first step: a limit that holds training but not a validation
 * batch of 1024 gets validation in smaller batches (same loss), and a run without limit shows what 1024 would take.
 */
#include "example.h"

int main(void)
{
    memfit_model *m = example_model("s12");
    memfit_model_add_input(m, 3, (const int64_t[]){16, 16, 3});
    memfit_model_add_conv2d(m, 32, 3, "same", "relu");
    memfit_model_add_conv2d(m, 32, 3, "same", "relu");
    memfit_model_add_global_average_pool2d(m);
    memfit_model_add_dense(m, 4, "softmax");
    memfit_model_compile(m, "adam", 0, "categorical_crossentropy", "accuracy");

    memfit_train_options o = MEMFIT_TRAIN_OPTIONS;
    memfit_train_result whole = MEMFIT_TRAIN_RESULT, alone = MEMFIT_TRAIN_RESULT, r = MEMFIT_TRAIN_RESULT;
    memfit_error err;
    o.model = example_save(m);
    o.data = "synthetic:96";
    CLAIM(memfit_train(&o, &alone, &err) == MEMFIT_OK);
    example_show("training alone", &alone);

    o.validation_data = "synthetic:1024";
    o.validation_batch = 1024;
    CLAIM(memfit_train(&o, &whole, &err) == MEMFIT_OK);
    example_show("with validation at 1024", &whole);
    CLAIM(whole.arena_bytes > 2 * alone.arena_bytes);

    o.memory_bytes = alone.planned_peak_bytes + (8 << 20);
    CLAIM(memfit_train(&o, &r, &err) == MEMFIT_OK);
    example_show("inside the limit of training", &r);
    CLAIM(r.measured_peak_bytes <= o.memory_bytes);
    CLAIM(r.val_loss - whole.val_loss < 1e-5 && whole.val_loss - r.val_loss < 1e-5);
    unlink(o.model);
    return 0;
}
