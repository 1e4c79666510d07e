/* cpu_fixed.h: what a process on the CPU takes beside its arena, estimated from graphs before there is one to measure. */
#ifndef MF_OPS_CPU_FIXED_H
#define MF_OPS_CPU_FIXED_H

#include "plan/plan.h"

enum { MF_CPU_FIXED_MARGIN_PERCENT = 30 };

/* Shapes whose code has been counted: phases of one batch size share it. All zero to begin with. */
enum { MF_CPU_SEEN_SLOTS = 2048 };
typedef struct mf_cpu_seen {
    uint32_t tag[MF_CPU_SEEN_SLOTS];
} mf_cpu_seen;

/* Private memory that a process keeps for running a graph, beside its arena: the plan's and the executor's records, and
 * what the backend compiles for shapes that are not in `seen` yet (NULL: all are new). From above. */
uint64_t mf_cpu_graph_bytes(const mf_graph *graph, mf_cpu_seen *seen);

/* The part of it that one operation's record and code have. */
uint64_t mf_cpu_op_bytes(const mf_graph *graph, const mf_op *op, mf_cpu_seen *seen);
/* What making one operation's kernel may take, with what the library tries and drops on the way. */
uint64_t mf_cpu_making_bytes(const mf_graph *graph, const mf_op *op);
/* Of checkpoints and the trained model. */
uint64_t mf_cpu_writer_bytes(uint32_t variables);

typedef struct mf_cpu_fixed {
    uint64_t base_bytes;   /* the process and its threads, without a model */
    uint64_t writer_bytes; /* of checkpoints and the trained model */
    uint64_t graph_bytes;  /* of one graph of the mode: the batch's, a last partial batch's, a rest's of pieces */
    uint64_t validation_bytes, shared_validation_bytes; /* of one graph of validation: alone; of the training's batch */
    uint64_t making_bytes;                              /* of the kernel that takes most while it is made */
} mf_cpu_fixed;
memfit_status mf_cpu_fixed_bytes(const mf_graph_source *source, const memfit_host *host, mf_mode mode, int64_t batch,
                                 unsigned threads, mf_cpu_fixed *fixed, memfit_error *err);

#endif
