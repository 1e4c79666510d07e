/* convolution.h: convolutions by cuDNN, what runs them, and the parts. */
#ifndef CUDA_PROBE_CONVOLUTION_H
#define CUDA_PROBE_CONVOLUTION_H

#include "probe.h"

typedef cudnnBackendDescriptor_t desc;

struct conv {
    int n, h, w, c, k, r, stride, pad; /* NHWC input, k filters of r x r */
};
enum { FORWARD, DATA_GRADIENT, WEIGHT_GRADIENT };
enum { BF16, F32 };
enum { PLAIN, BIAS_RELU, BIAS_F32_RELU, DRELU, STATS };
enum { T_X, T_W, T_Y, T_BIAS, T_OUT, T_SUM, T_SQUARES, T_ACT, TENSORS };
extern const char *const direction_names[];
extern const char *const type_names[];

struct tensor {
    bool used, virtual, output;
    cudnnDataType_t type;
    int64_t dims[4], strides[4]; /* cuDNN's order: N C H W, or K C R S */
    size_t bytes;
    desc d;
};

struct config {
    desc config, plan;
    int64_t id, workspace, plan_workspace;
    bool nondeterministic, tf32, compiled; /* compiled: at run time */
    int rank_a, rank_b;                    /* place in the list of mode A and of mode B, -1: not there */
    char knobs[200];
    bool built, repeats; /* repeats: a second run gave the same bits */
    double build_s, us, error;
    char note[200];
};

enum { MAX_CONFIGS = 160, MAX_PLANS = 16 };
struct job {
    struct conv conv;
    int direction, type, hwio, fuse, times; /* times: how often the network has it */
    const char *net;
    int plans_a, plans_b; /* how many plans of each list to build */
    int extra;            /* 1: also the first that are deterministic and precompiled, or float32 throughout; 2: and
                             everything else that is precompiled */
    struct tensor t[TENSORS];
    cudnnHandle_t handle; /* whose plans these are, and who runs them; NULL for a described device */
    desc graph, knob[CUDNN_KNOB_TYPE_COUNTS]; /* knob: reused for every configuration that is read */
    struct config *config;
    int configs;
    desc *bag; /* every descriptor, to be destroyed together */
    int bagged, bag_room;
    bool ok;
    double prepare_s;
    char error[300];
};

struct asker { /* who is asked: the card through a handle, or a described device */
    cudnnHandle_t handle;
    desc prop;
};

int make(struct job *j, cudnnBackendDescriptorType_t type, desc *d);
void job_free(struct job *j);
int set_many(desc d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t n, const void *v);
int output_side(const struct conv *c, int size);
double conv_flops(const struct conv *c);
int job_graph(struct job *j, const struct asker *a);
int job_ask(struct job *j, const struct asker *a, cudnnBackendHeurMode_t mode);
int config_build(struct job *j, struct config *c, const struct asker *a);
void build_first(struct job *j, const struct asker *a, int most, int by_b, bool (*fits)(const struct config *c));
bool fits_safe(const struct config *c);
bool fits_strict(const struct config *c);
bool fits_precompiled(const struct config *c);
int job_prepare(struct job *j, const struct asker *a);
int prepare_all(struct job *jobs, int count, const struct asker *described, double seconds);
int described_device(desc *prop, const char **source, int *multiprocessors);

/* ---- run.c ---- */

struct runner {
    cudnnHandle_t handle;
    desc plan, pack[8];
    CUdeviceptr at[8][TENSORS];
    int sets;
};

struct gemm { /* square, bfloat16 with float32 sums: C = A * B in column order */
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t layout;
    cublasLtMatmulAlgo_t algorithm;
    size_t workspace_bytes;
    CUdeviceptr a, b, c;
};

int runner_open(struct job *j, struct runner *r, int most_sets);
int runner_go(void *context, int i);
bool runnable(struct config *c);
struct config *fastest(struct job *j, bool (*fits)(const struct config *c), int most_a);
int job_time(struct job *j, struct runner *r, int most, double deadline);
const char *job_name(const struct job *j, char *name, size_t size);
int gemm_open(struct gemm *g, cublasLtHandle_t handle, int n);
int gemm_go(void *context, int i);
int tiny_go(void *context, int i);
int capture(launcher f, void *context, int steps, CUgraph *graph, size_t *nodes);

/* ---- parts ---- */

extern uint64_t random_state;
uint64_t random_next(void);
double element(const void *p, size_t i, int type);
int part_prop(void);
int part_kernels(void);
int part_bandwidth(void);
int part_hwio(void);
int part_engines(void);
int part_fused(void);
int nvml_child(void);
int part_nvml(void);
int part_graphs(void);
int ask_described(void);
int part_workspaces(void);
int part_workspaces_offline(void);

#endif
