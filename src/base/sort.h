/* sort.h: a sort that takes no memory; libc's qsort may take some. Heap sort: in place, n log n at the worst, not
 * stable. */
#ifndef MF_BASE_SORT_H
#define MF_BASE_SORT_H

#include <stdbool.h>
#include <stddef.h>

/* below(a, b): does a come before b? */
void mf_sort_in_place(void *items, size_t count, size_t item_bytes, bool (*below)(const void *a, const void *b));

#endif
