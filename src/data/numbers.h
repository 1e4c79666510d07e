/* numbers.h: numbers of any type, one at a time or many. Files align nothing: neither need the data here. */
#ifndef MF_DATA_NUMBERS_H
#define MF_DATA_NUMBERS_H

#include "base/tensor.h"

double mf_number_load(mf_dtype dtype, const void *data, uint64_t i);
/* `data` is aligned. */
void mf_number_store(mf_dtype dtype, void *data, uint64_t i, double v);
/* `n` numbers of type `from` at x become numbers of type `to` at y. */
void mf_number_convert(mf_dtype from, const void *x, mf_dtype to, void *y, uint64_t n);

#endif
