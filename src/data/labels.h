/*
 * labels.h: texts as labels. Each text that occurs gets a number: its place among all of them, sorted by bytes (which is
 * by code point, as numpy.unique and scikit-learn's LabelEncoder sort), or its place in a list that is given. While texts
 * are read they are numbered as they come; the numbers are settled when all are known.
 */
#ifndef MF_DATA_LABELS_H
#define MF_DATA_LABELS_H

#include "data/source.h"

enum { MF_LABELS_MOST = 1 << 16, MF_LABELS_MOST_BYTES = 1024 };

typedef struct mf_labels {
    mf_source *source; /* whose arena holds the texts */
    const char **names;
    uint32_t count;
    size_t room;
    uint32_t *slots; /* a hash table of numbers + 1 */
    uint32_t slot_count;
} mf_labels;

void mf_labels_begin(mf_labels *labels, mf_source *source);
/* The number of a text for now. UNSUPPORTED when there are more than labels can be, or one is too long. */
memfit_status mf_labels_number(mf_labels *labels, const char *text, uint64_t bytes, int32_t *number, memfit_error *err);
/* Settles the numbers: `codes` (count of them) become final, and the source gets the array `name`, of one number for each.
 * `given`: "a,b,c", the order asked for; a text that is not among them is DAMAGED. The codes lie in one of the source's
 * mappings. Drops the labels, also on failure. */
memfit_status mf_labels_end(mf_labels *labels, const char *name, int32_t *codes, int64_t count, const char *given,
                            memfit_error *err);
void mf_labels_drop(mf_labels *labels);

#endif
