/*
 * text_keys.h: what a kernel's text is compiled from: itself and the texts that it includes, and they include. Its key
 * changes when one of these does, not when another kernel's text does, so that compiled kernels outlive most changes.
 */
#ifndef MF_OPS_CUDA_TEXT_KEYS_H
#define MF_OPS_CUDA_TEXT_KEYS_H

#include "ops/cuda/cubin_cache.h"
#include "ops/cuda/cuda_texts.h"

enum { MF_MOST_TEXTS = 256, MF_TEXT_WORDS = MF_MOST_TEXTS / 64 };

typedef struct mf_text_set {
    uint64_t bits[MF_TEXT_WORDS];
} mf_text_set;

typedef struct mf_text_keys {
    const cuda_text *texts;
    unsigned count;
    mf_cubin_key own[MF_MOST_TEXTS];
    mf_text_set needs[MF_MOST_TEXTS]; /* all that the text includes, itself among them */
} mf_text_keys;

/* Texts behind the first MF_MOST_TEXTS are taken for part of every text. */
void mf_text_keys_make(mf_text_keys *keys, const cuda_text *texts, unsigned count);
/* `key` with `text` and everything it is compiled from added. */
mf_cubin_key mf_text_keys_add(const mf_text_keys *keys, mf_cubin_key key, const char *text);

#endif
