#include "base/sort.h"

static void swap(unsigned char *a, unsigned char *b, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        unsigned char t = a[i];
        a[i] = b[i];
        b[i] = t;
    }
}

static void sift(unsigned char *items, size_t root, size_t count, size_t bytes,
                 bool (*below)(const void *a, const void *b))
{
    for (size_t child; (child = 2 * root + 1) < count; root = child) {
        if (child + 1 < count && below(items + child * bytes, items + (child + 1) * bytes))
            child++;
        if (!below(items + root * bytes, items + child * bytes))
            return;
        swap(items + root * bytes, items + child * bytes, bytes);
    }
}

void mf_sort_in_place(void *items, size_t count, size_t item_bytes, bool (*below)(const void *a, const void *b))
{
    unsigned char *e = items;
    for (size_t i = count / 2; i-- > 0;)
        sift(e, i, count, item_bytes, below);
    for (size_t i = count; i-- > 1;) {
        swap(e, e + i * item_bytes, item_bytes);
        sift(e, 0, i, item_bytes, below);
    }
}
