/*
 * s7_large_images.c: Conv2D(32,3,relu)-MaxPool-Flatten-Dense(10, softmax) with large images in one large batch.
 *
 * At 1024x1024 and batch 256 this asks other systems for more than 100 GB. This program takes the form at 128x128, so
 * that it runs in seconds: the failing form may neither split nor recompute and is refused; the fixed form trains the
 * same batch in pieces inside a sixth of the memory.
 */
#include "example.h"

int main(void)
{
    memfit_train_options o = MEMFIT_TRAIN_OPTIONS;
    memfit_train_result r = MEMFIT_TRAIN_RESULT;
    memfit_error err;
    o.model = example_save(example_large_images(128));
    o.data = "synthetic:64";
    o.batch = 64;
    o.memory_bytes = 64 << 20;

    o.pieces = 1;
    o.no_recompute = true;
    CLAIM(memfit_train(&o, &r, &err) == MEMFIT_DOES_NOT_FIT);
    printf("unsplit: %s\n", err.message);

    o.pieces = 0;
    o.no_recompute = false;
    CLAIM(memfit_train(&o, &r, &err) == MEMFIT_OK);
    example_show("in pieces", &r);
    CLAIM(r.batch == 64 && r.pieces > 1);
    CLAIM(r.planned_peak_bytes <= o.memory_bytes && r.measured_peak_bytes <= o.memory_bytes);
    CLAIM(strcmp(r.numerics, "reordered") == 0);
    unlink(o.model);
    return 0;
}
