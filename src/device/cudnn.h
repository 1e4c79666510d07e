/*
 * cudnn.h: convolutions asked of cuDNN's graph interface, found at run time. Asking needs no card: a device described by
 * cuDNN's own JSON (saved once on a card of that kind) answers with the card's list of engines, in its order, and their
 * workspaces. On a card a configuration becomes a plan that runs.
 *
 *     mf_cudnn_open(finder, host, &dnn, err)
 *     mf_cudnn_describe(dnn, json, bytes, err)          or mf_cudnn_take(dnn, err) with a card's context current
 *     mf_cudnn_ask(dnn, &convolution, list, most, &count, err)
 *     mf_cudnn_plan(dnn, &convolution, &list[i], &plan, err); mf_cudnn_run(plan, x, w, y, NULL, workspace, stream, err)
 *
 * Filters are KRSC: output channel, then the kernel's positions, then the input channel of its group. Given in another
 * order by their strides, every engine accepts them and computes wrong numbers.
 */
#ifndef MF_DEVICE_CUDNN_H
#define MF_DEVICE_CUDNN_H

#include "device/finder.h"

typedef struct mf_cudnn mf_cudnn;
typedef struct mf_cudnn_plan_made mf_cudnn_plan_made;

typedef enum { MF_CUDNN_FORWARD, MF_CUDNN_DATA, MF_CUDNN_WEIGHTS } mf_cudnn_direction;
typedef enum { MF_CUDNN_F32, MF_CUDNN_F16, MF_CUDNN_BF16 } mf_cudnn_type;

/* Channels last; dims is 2 or 3 (a convolution of one dimension is one of two with a height of 1). */
typedef struct mf_cudnn_convolution {
    mf_cudnn_direction direction;
    mf_cudnn_type type; /* of all three tensors; sums are float32 */
    bool bias;          /* forward: one number of that type for each output channel is added */
    bool wide;          /* asked for what only a clock can rank, too: every setting of an engine */
    uint32_t dims;
    int64_t batch, in_channels, out_channels, groups;
    int64_t in[3], out[3], kernel[3], stride[3], dilation[3], before[3], after[3];
} mf_cudnn_convolution;

/* One engine with its settings. */
typedef struct mf_cudnn_way {
    int64_t engine;
    uint64_t settings; /* hash of its knobs */
    uint64_t workspace_bytes;
    bool deterministic;
    bool tf32;     /* float32 inputs are rounded to TF32 */
    bool compiled; /* at run time: takes seconds */
    /* A kernel whose blocks make whole tiles of the result, or share the sums of tiles so that all end together (stream-K):
     * bytes of a tile in float32, 0: not such a kernel. */
    uint32_t tile_bytes;
    bool shares;
} mf_cudnn_way;

/* NOT_FOUND when the library, or NVRTC and cuBLASLt which it opens itself, are not there; CONFLICT when the process has
 * parts of another version too, which may be what would run. */
memfit_status mf_cudnn_open(const mf_finder *finder, const memfit_host *host, mf_cudnn **dnn, memfit_error *err);
void mf_cudnn_close(mf_cudnn *dnn);
size_t mf_cudnn_version(const mf_cudnn *dnn); /* of the parts that run: 91900 is 9.19.0 */
const char *mf_cudnn_path(const mf_cudnn *dnn);

memfit_status mf_cudnn_describe(mf_cudnn *dnn, const char *json, size_t bytes, memfit_error *err);
memfit_status mf_cudnn_take(mf_cudnn *dnn, memfit_error *err);

/* The library's list, its preference first; *count 0: it takes no such convolution. */
memfit_status mf_cudnn_ask(mf_cudnn *dnn, const mf_cudnn_convolution *conv, mf_cudnn_way *list, uint32_t most,
                           uint32_t *count, memfit_error *err);
/* NOT_FOUND when the list, wide or not, has no such way, or it cannot be built here. */
memfit_status mf_cudnn_plan(mf_cudnn *dnn, const mf_cudnn_convolution *conv, const mf_cudnn_way *way,
                            mf_cudnn_plan_made **plan, memfit_error *err);
uint64_t mf_cudnn_plan_workspace(const mf_cudnn_plan_made *plan);
/* x, w, y: input, filters, output, or their gradients; `bias` where the convolution has one. The card's context must be
 * current. */
memfit_status mf_cudnn_run(mf_cudnn_plan_made *plan, void *x, void *w, void *y, void *bias, void *workspace,
                           void *stream, memfit_error *err);
void mf_cudnn_plan_end(mf_cudnn_plan_made *plan);
/* How many the library has built: plans of the same convolution by the same way share one. */
uint32_t mf_cudnn_built_plans(const mf_cudnn *dnn);

/* ---- attention (cudnn_attention.c), in 16 bits, results the same every time ---- */

typedef struct mf_cudnn_attention {
    bool backward;
    mf_cudnn_type type; /* float32 is not taken */
    bool causal;        /* query t sees keys 0 to t */
    bool steps_first;   /* (batch, steps, heads, depth), else (batch, heads, steps, depth) */
    int64_t batch, heads, queries, keys, depth;
    double scale;
} mf_cudnn_attention;

/* `stats` (batch, heads, queries): the logarithm of a row's sum, float32; `sums`, as many, is scratch of the gradient. */
typedef struct mf_cudnn_attention_at {
    void *q, *k, *v, *o, *stats, *slopes, *dq, *dk, *dv, *sums;
} mf_cudnn_attention_at;

typedef struct mf_cudnn_attention_plan mf_cudnn_attention_plan;

/* As for convolutions. Engines are compiled at run time, which cuDNN offers only where a driver's library can be opened. */
memfit_status mf_cudnn_ask_attention(mf_cudnn *dnn, const mf_cudnn_attention *attention, mf_cudnn_way *list,
                                     uint32_t most, uint32_t *count, memfit_error *err);
/* One plan serves all operations of this form; it ends with the library. */
memfit_status mf_cudnn_plan_attention(mf_cudnn *dnn, const mf_cudnn_attention *attention, const mf_cudnn_way *way,
                                      mf_cudnn_attention_plan **plan, memfit_error *err);
uint64_t mf_cudnn_attention_workspace(const mf_cudnn_attention_plan *plan);
memfit_status mf_cudnn_run_attention(mf_cudnn_attention_plan *plan, const mf_cudnn_attention_at *at, void *workspace,
                                     void *stream, memfit_error *err);

#endif
