/* execute_inner.h: the executor as its own files see it: what a plan becomes when it is made ready. */
#ifndef MF_TRAIN_EXECUTE_INNER_H
#define MF_TRAIN_EXECUTE_INNER_H

#include "train/execute.h"
#include "train/offload.h"
#include "train/profile.h"
#include "train/shelf.h"
#include "train/stage.h"
#include "train/together.h"

typedef struct ready_step {
    mf_kernel *kernel; /* NULL: nothing to run (INPUT, VIEW in place) */
    mf_operands operands;
    const mf_op *op;
    uint32_t feed;       /* INPUT: which; else MF_NONE */
    uint64_t feed_bytes; /* and how many */
} ready_step;

enum { PIECE_KINDS = 16 }; /* of pieces: four bits */

typedef struct ready_phase {
    mf_kernel **kernels; /* by operation */
    ready_step *steps;
    uint32_t *released_at; /* by step, poison only: index into `released` */
    uint32_t *released;
    mf_step_end end; /* loss NULL: the graph has none */
    mf_together together;
    mf_kernel **batch_kernels; /* room for one part of it */
    const mf_operands **batch_operands;
    mf_recording records[PIECE_KINDS][MF_STAGE_SETS];
} ready_phase;

struct mf_executor {
    mf_arena arena;
    mf_backend *backend;
    const mf_plan *plan;
    unsigned char *base;
    mf_executor_options options;
    mf_device *device;
    mf_stage stage;      /* where the host cannot write the device's memory */
    mf_offload offload;  /* where the plan has the optimizer's slots in host memory */
    mf_profile *profile; /* NULL: none is asked for */
    uint64_t feed_key;   /* which samples the next run takes; 0: not known */
    mf_shelf shelf;      /* the training set, where it stays on the device */
    const mf_sample_feed *samples;
    bool recording; /* what is queued now is only recorded */
    ready_phase *phases;
    mf_run_scalars own, *scalars; /* the second is the device's */
    uint32_t reference_ops;
    bool is_reference[MF_OP_COUNT];
    char reference_names[256]; /* kinds, each with the first layer that has it */
};

/* execute.c: */
bool mf_executor_is_due(const mf_op *op, mf_piece piece);
memfit_status mf_executor_asked_to_stop(const mf_executor *x, memfit_error *err);
memfit_status mf_executor_send_scalars(mf_executor *x, const mf_run_scalars *scalars, memfit_error *err);
/* Queues every operation that is due, and the end of the step. */
memfit_status mf_executor_run_steps(mf_executor *x, uint32_t phase, mf_piece piece, mf_fill_feed fill, void *ctx,
                                    memfit_error *err);

/* execute_record.c: */
bool mf_executor_is_recorded(const mf_executor *x, uint32_t phase, mf_piece piece);
memfit_status mf_executor_launch(mf_executor *x, uint32_t phase, const mf_run_scalars *scalars, mf_piece piece,
                                 mf_fill_feed fill, void *ctx, memfit_error *err);
void mf_executor_forget_records(mf_executor *x);

#endif
