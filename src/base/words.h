/* words.h: the words that options take, read in one place for every command and for the library. */
#ifndef MF_BASE_WORDS_H
#define MF_BASE_WORDS_H

#include "base/tensor.h"
#include "memfit/base.h"

/* "float32", "fp32", "mixed_float16", "float16", "fp16", "mixed_bfloat16", "bfloat16", "bf16": Keras's name of the
 * policy. INVALID for any other word, with those that are understood. */
memfit_status mf_words_precision(const char *text, const char **policy, memfit_error *err);
/* "224,224,3", "(224, 224, 3)", "224x224x3", "[28 28]": the first `length` characters of text, without the batch. False
 * when it is no shape. */
bool mf_words_shape(const char *text, size_t length, mf_shape *shape);
/* "NAME=N", N at least 1: NAME is the first *name_length characters. */
memfit_status mf_words_dim(const char *text, size_t *name_length, int64_t *value, memfit_error *err);
/* "cuda", "cuda:1", "gpu", "gpu:1": is it the name of a card? */
bool mf_words_card(const char *device);
/* "cpu" or "host": the machine's own processors? */
bool mf_words_cpu(const char *device);

#endif
