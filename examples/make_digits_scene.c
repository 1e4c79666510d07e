/*
 * make_digits_scene.c: writes what `make run` trains: make_digits_scene DIGITS.npz FOLDER
 *
 *   FOLDER/train.npz, test.npz   the digits scaled up to 32x32 (bilinear, uint8 0..255): four fifths and one fifth
 *   FOLDER/digits.keras          convolutions 64-64-pool-128-128, pooling, dense; Adam, sparse categorical
 * cross-entropy FOLDER/s7.keras              the large-image network, 1024x1024
 *
 * It uses memfit's own parts, so that the scene needs neither Python nor Keras.
 */
#include "data/source.h"
#include "example.h"
#include "file/zip.h"

enum { SIDE = 32, FROM = 8 };

static memfit_error err;

static int failed(void)
{
    fprintf(stderr, "%s\n", err.message);
    return 1;
}

static void scale_up(const unsigned char *from, unsigned char *to)
{
    for (int y = 0; y < SIDE; y++)
        for (int x = 0; x < SIDE; x++) {
            double fy = (y + 0.5) * FROM / SIDE - 0.5, fx = (x + 0.5) * FROM / SIDE - 0.5;
            int y0 = fy < 0 ? 0 : (int)fy, x0 = fx < 0 ? 0 : (int)fx;
            int y1 = y0 + 1 < FROM ? y0 + 1 : y0, x1 = x0 + 1 < FROM ? x0 + 1 : x0;
            double b = fy < 0 ? 0 : fy - y0, a = fx < 0 ? 0 : fx - x0;
            double v = (1 - b) * ((1 - a) * from[y0 * FROM + x0] + a * from[y0 * FROM + x1]) +
                       b * ((1 - a) * from[y1 * FROM + x0] + a * from[y1 * FROM + x1]);
            to[y * SIDE + x] = (unsigned char)(v * 255 / 16 + 0.5);
        }
}

/* One array as a .npy; returns its bytes. */
static size_t npy(unsigned char *out, const char *shape, const unsigned char *data, size_t bytes)
{
    char head[118];
    int n = snprintf(head, sizeof head, "{'descr': '|u1', 'fortran_order': False, 'shape': (%s), }", shape);
    memset(head + n, ' ', sizeof head - (size_t)n);
    head[sizeof head - 1] = '\n';
    memcpy(out, "\x93NUMPY\x01\x00\x76\x00", 10);
    memcpy(out + 10, head, sizeof head);
    memcpy(out + 128, data, bytes);
    return 128 + bytes;
}

static int write_npz(const char *path, const unsigned char *x, const unsigned char *y, size_t n)
{
    size_t x_bytes = n * SIDE * SIDE;
    unsigned char *mx = malloc(x_bytes + 128), *my = malloc(n + 128), head[512];
    char shape[64];
    FILE *f = fopen(path, "wb");
    if (!mx || !my || !f)
        return 1;
    snprintf(shape, sizeof shape, "%zu, %d, %d", n, SIDE, SIDE);
    size_t a = npy(mx, shape, x, x_bytes);
    snprintf(shape, sizeof shape, "%zu,", n);
    size_t b = npy(my, shape, y, n);
    mf_zip_entry e[2] = {{.name = "x.npy", .bytes = a, .packed_bytes = a, .crc = mf_crc32(0, mx, a)},
                         {.name = "y.npy", .bytes = b, .packed_bytes = b, .crc = mf_crc32(0, my, b)}};
    uint64_t directory, all = mf_zip_layout(e, 2, 64, &directory);
    for (int i = 0; i < 2; i++) {
        mf_zip_local_header(&e[i], head);
        fwrite(head, 1, e[i].data_at - e[i].header_at, f);
        fwrite(i ? my : mx, 1, e[i].bytes, f);
    }
    mf_zip_directory(e, 2, directory, head);
    fwrite(head, 1, all - directory, f);
    free(mx);
    free(my);
    return fclose(f);
}

static int write_model(memfit_model *m, const char *path)
{
    memfit_status status = memfit_model_save(m, path, &err);
    memfit_model_destroy(m);
    return status == MEMFIT_OK ? 0 : failed();
}

static int digits_model(const char *path)
{
    memfit_model *m = example_model("digits");
    memfit_model_add_input(m, 3, (const int64_t[]){SIDE, SIDE, 1});
    memfit_model_add_layer(m, "Rescaling", "{\"scale\": 0.00392156862745098}");
    memfit_model_add_conv2d(m, 64, 3, "same", "relu");
    memfit_model_add_conv2d(m, 64, 3, "same", "relu");
    memfit_model_add_max_pool2d(m, 2);
    memfit_model_add_conv2d(m, 128, 3, "same", "relu");
    memfit_model_add_conv2d(m, 128, 3, "same", "relu");
    memfit_model_add_max_pool2d(m, 4);
    memfit_model_add_flatten(m);
    memfit_model_add_dense(m, 10, "softmax");
    memfit_model_compile(m, "adam", 0, "sparse_categorical_crossentropy", "accuracy");
    return write_model(m, path);
}

int main(int argc, char **argv)
{
    mf_source *source;
    if (argc != 3) {
        fprintf(stderr, "usage: make_digits_scene DIGITS.npz FOLDER\n");
        return 2;
    }
    if (mf_source_open(NULL, argv[1], NULL, &source, &err) != MEMFIT_OK)
        return failed();
    const mf_array *x = mf_source_find(source, "x"), *y = mf_source_find(source, "y");
    size_t n = (size_t)source->samples, train = n * 4 / 5;
    unsigned char *big = malloc(n * SIDE * SIDE);
    if (!x || !y || !big)
        return 1;
    for (size_t i = 0; i < n; i++)
        scale_up(x->data + i * FROM * FROM, big + i * SIDE * SIDE);
    char path[4096];
    snprintf(path, sizeof path, "%s/train.npz", argv[2]);
    int bad = write_npz(path, big, y->data, train);
    snprintf(path, sizeof path, "%s/test.npz", argv[2]);
    bad |= write_npz(path, big + train * SIDE * SIDE, y->data + train, n - train);
    snprintf(path, sizeof path, "%s/digits.keras", argv[2]);
    bad |= digits_model(path);
    snprintf(path, sizeof path, "%s/s7.keras", argv[2]);
    bad |= write_model(example_large_images(1024), path);
    free(big);
    mf_source_close(source);
    return bad;
}
