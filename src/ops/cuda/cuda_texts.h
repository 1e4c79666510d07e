/* cuda_texts.h: the texts that kernels include, made into a table by the build (tools/embed_texts.py). */
#ifndef MF_OPS_CUDA_TEXTS_H
#define MF_OPS_CUDA_TEXTS_H

typedef struct cuda_text {
    const char *name, *text;
} cuda_text;

extern const cuda_text mf_cuda_texts[];
extern const unsigned mf_cuda_text_count;

#endif
