/*
 * s4_accumulation.c: gradients of four pieces under BatchNormalization.
 *
 * Accumulated by hand, each piece is normalized by its own statistics: that is not the full batch, and nobody says so.
 * memfit labels it: four pieces are "changed" mathematics and need to be asked for. Under a limit it first takes the
 * exact way, recomputation, whose result is the unlimited one bit for bit.
 */
#include "example.h"

static memfit_status train(const char *model, uint64_t limit, int64_t pieces, bool changed, memfit_train_result *r,
                           memfit_error *err)
{
    memfit_train_options o = MEMFIT_TRAIN_OPTIONS;
    o.model = model;
    o.data = "synthetic:64";
    o.batch = 32;
    o.epochs = 2;
    o.memory_bytes = limit;
    o.pieces = pieces;
    o.allow_changed_numerics = changed;
    return memfit_train(&o, r, err);
}

int main(void)
{
    memfit_model *m = example_model("s4");
    memfit_model_add_input(m, 3, (const int64_t[]){32, 32, 3});
    for (int i = 0; i < 4; i++) {
        memfit_model_add_conv2d(m, 16, 3, "same", NULL);
        memfit_model_add_batch_norm(m);
        memfit_model_add_activation(m, "relu");
    }
    memfit_model_add_global_average_pool2d(m);
    memfit_model_add_dense(m, 10, "softmax");
    memfit_model_compile(m, "adam", 0, "categorical_crossentropy", "accuracy");
    const char *model = example_save(m);

    memfit_train_result whole = MEMFIT_TRAIN_RESULT, pieces = MEMFIT_TRAIN_RESULT, tight = MEMFIT_TRAIN_RESULT;
    memfit_error err;
    CLAIM(train(model, 0, 1, false, &whole, &err) == MEMFIT_OK);
    example_show("the whole batch", &whole);

    CLAIM(train(model, 0, 4, true, &pieces, &err) == MEMFIT_OK);
    example_show("four pieces", &pieces);
    CLAIM(strcmp(pieces.numerics, "changed") == 0);

    uint64_t limit = whole.fixed_bytes + whole.arena_bytes * 7 / 10 + (2 << 20);
    CLAIM(train(model, limit, 0, false, &tight, &err) == MEMFIT_OK);
    example_show("exact, below its need", &tight);
    CLAIM(tight.planned_peak_bytes <= limit && tight.measured_peak_bytes <= limit);
    CLAIM(tight.recomputed_ops > 0 && tight.pieces == 1);
    CLAIM(tight.loss == whole.loss);
    unlink(model);
    return 0;
}
