/*
 * s5_streaming.c: a folder of 1024x1024 images that do not fit into memory, batch 32.
 *
 * Collected in one array, 100,000 such images are 1.2 TB of floats, with or without prefetching. This program makes a
 * folder of 600 (hard links to two files, so that it takes no room): the failing form wants them all in memory at once
 * and is refused; the fixed form streams them as bytes, decoded ahead by workers, in a memory that does not depend on
 * their number.
 */
#include "example.h"

#include <fcntl.h>
#include <sys/stat.h>

enum { SIDE = 1024, IMAGES = 600, CLASSES = 2 };

/* A BMP of one colour: a header and a hole. */
static int write_picture(const char *path)
{
    unsigned char h[54] = {'B', 'M'};
    const unsigned numbers[][2] = {{10, 54}, {14, 40}, {18, SIDE}, {22, SIDE}, {26, 1 + (24 << 16)}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        for (int b = 0; b < 4; b++)
            h[numbers[i][0] + (unsigned)b] = (unsigned char)(numbers[i][1] >> 8 * b);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    int good = fd >= 0 && write(fd, h, sizeof h) == sizeof h && ftruncate(fd, 54 + SIDE * SIDE * 3) == 0;
    return fd >= 0 && close(fd) == 0 && good;
}

static int make_folder(const char *root, int images)
{
    char path[320], first[320];
    mkdir(root, 0777);
    for (int c = 0; c < CLASSES; c++) {
        snprintf(path, sizeof path, "%s/class%d", root, c);
        mkdir(path, 0777);
        snprintf(first, sizeof first, "%s/class%d/0000.bmp", root, c);
        if (!write_picture(first))
            return 0;
        for (int i = 1; i < images / CLASSES; i++) {
            snprintf(path, sizeof path, "%s/class%d/%04d.bmp", root, c, i);
            if (link(first, path) != 0 && access(path, F_OK) != 0)
                return 0;
        }
    }
    return 1;
}

static memfit_model *small_model(void)
{
    memfit_model *m = example_model("s5");
    memfit_model_add_input(m, 3, (const int64_t[]){SIDE, SIDE, 3});
    memfit_model_add_max_pool2d(m, 32);
    memfit_model_add_conv2d(m, 8, 3, NULL, "relu");
    memfit_model_add_flatten(m);
    memfit_model_add_dense(m, CLASSES, "softmax");
    memfit_model_compile(m, "adam", 0, "sparse_categorical_crossentropy", NULL);
    return m;
}

static int run(const char *root)
{
    memfit_train_options o = MEMFIT_TRAIN_OPTIONS;
    memfit_train_result r = MEMFIT_TRAIN_RESULT;
    memfit_error err;
    o.model = example_save(small_model());
    o.data = root;
    o.memory_bytes = 1 << 30;

    o.batch = IMAGES; /* all of them in memory */
    o.pieces = 1;
    o.no_recompute = true;
    memfit_status status = memfit_train(&o, &r, &err);
    CLAIM(status == MEMFIT_DOES_NOT_FIT || status == MEMFIT_OUT_OF_MEMORY);
    printf("all at once: %s\n", err.message);

    o.batch = 32;
    o.image_bytes = true;
    o.steps = 6;
    status = memfit_train(&o, &r, &err);
    if (status != MEMFIT_OK)
        fprintf(stderr, "%s\n", err.message);
    CLAIM(status == MEMFIT_OK);
    example_show("streamed", &r);
    char input[24];
    printf("%u workers and the ring take %s, in the plan; first step after %.2f s\n", r.workers,
           memfit_size_format(r.input_bytes, input, sizeof input), r.first_step_seconds);
    CLAIM(r.measured_peak_bytes <= r.planned_peak_bytes && r.planned_peak_bytes <= o.memory_bytes);
    CLAIM(r.workers > 0 && r.input_bytes < r.fixed_bytes);
    unlink(o.model);
    return 0;
}

int main(void)
{
    char root[200], command[256];
    const char *folder = getenv("TMPDIR");
    snprintf(root, sizeof root, "%s/memfit-s5-%d", folder ? folder : "/tmp", (int)getpid());
    int failed = make_folder(root, IMAGES) ? run(root) : 1;
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    return system(command) == 0 ? failed : 1;
}
