/* cudnn_inner.h: for the files that ask cuDNN (cudnn.c, cudnn_attention.c): the library's functions, and a question: the
 * descriptors of one graph of operations, destroyed together. */
#ifndef MF_DEVICE_CUDNN_INNER_H
#define MF_DEVICE_CUDNN_INNER_H

#include "device/cudnn.h"

typedef void *dnn_descriptor;
enum { MOST_BAG = 400, MOST_CONFIGS = 96, MOST_KNOBS = 44, MOST_NOTES = 32, ALIGNMENT = 16 };

struct mf_cudnn {
    const memfit_host *host;
    struct answer *answers;                     /* to convolutions, asked before */
    struct built *plans;                        /* of convolutions, that are in use */
    struct mf_cudnn_attention_plan *attentions; /* cudnn_attention.c */
    mf_library library;
    void *handle;             /* on a card */
    dnn_descriptor described; /* without one */
    size_t (*version)(void);
    int (*create)(void **handle);
    int (*destroy)(void *handle);
    int (*set_stream)(void *handle, void *stream);
    const char *(*error_text)(int status);
    void (*last_error)(char *text, size_t bytes);
    int (*make)(int type, dnn_descriptor *descriptor);
    int (*end)(dnn_descriptor descriptor);
    int (*set)(dnn_descriptor descriptor, int name, int type, int64_t count, const void *values);
    int (*get)(dnn_descriptor descriptor, int name, int type, int64_t most, int64_t *count, void *values);
    int (*finalize)(dnn_descriptor descriptor);
    int (*execute)(void *handle, dnn_descriptor plan, dnn_descriptor pack);
};

/* Descriptors of one question; the first failure is kept, and everything after it does nothing. */
typedef struct question {
    mf_cudnn *dnn;
    int status;
    dnn_descriptor bag[MOST_BAG];
    uint32_t bagged;
    dnn_descriptor graph, configs[MOST_CONFIGS], engine, knobs[MOST_KNOBS];
    uint32_t config_count;
} question;

/* After a failure these do nothing. */
dnn_descriptor mf_dnn_make(question *q, int type);
void mf_dnn_set(question *q, dnn_descriptor d, int name, int type, int64_t count, const void *values);
void mf_dnn_set_descriptor(question *q, dnn_descriptor d, int name, dnn_descriptor value);
void mf_dnn_finalize(question *q, dnn_descriptor d);
void mf_dnn_graph(question *q, const dnn_descriptor *ops, int64_t count);
/* The library's lists of configurations for the graph. */
void mf_dnn_lists(question *q);
bool mf_dnn_read_way(question *q, bool f32, dnn_descriptor config, mf_cudnn_way *way);
bool mf_dnn_same(const mf_cudnn_convolution *a, const mf_cudnn_convolution *b);
/* What was asked, wide or not, goes on to the plan; a second plan of the same convolution asks anew. NULL without
 * memory. */
question *mf_dnn_take_question(mf_cudnn *dnn, const mf_cudnn_convolution *conv);
bool mf_dnn_build(question *q, dnn_descriptor config, dnn_descriptor *plan, uint64_t *workspace_bytes);
void mf_dnn_end(question *q);
memfit_status mf_dnn_say(mf_cudnn *dnn, int status, const char *what, memfit_error *err);
/* cudnn_attention.c */
void mf_dnn_forget_attentions(mf_cudnn *dnn);

#endif
