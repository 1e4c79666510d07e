/*
 * execute.h: runs a plan. The executor has a backend's table, a device's table, a base address and the plan's step
 * lists, and follows no address: what goes in and out is copied by the device. Creating it prepares every kernel and
 * works out every address; running allocates nothing.
 */
#ifndef MF_TRAIN_EXECUTE_H
#define MF_TRAIN_EXECUTE_H

#include "ops/ops.h"
#include "plan/plan.h"

typedef struct mf_executor mf_executor;

/* Called when an INPUT operation is reached: write this feed's tensor to `to`, in host memory. */
typedef memfit_status (*mf_fill_feed)(void *ctx, uint32_t feed, void *to, memfit_error *err);
/* Called before and after each step when set: for tracing. */
typedef void (*mf_step_hook)(void *ctx, uint32_t phase, uint32_t step, bool begins);
/* Asked before each step when set; true: the run ends there with INTERRUPTED, its tensors and variables half done. */
typedef bool (*mf_stop_hook)(void *ctx);
typedef bool (*mf_room_hook)(void *ctx, const mf_graph *graph, const mf_op *op);

typedef struct mf_executor_options {
    bool poison;       /* fill what a step releases with NaN: finds readers of dead bytes */
    mf_device *device; /* NULL: the process's own memory */
    mf_stream stream;  /* of the device: all work goes there */
    mf_address
        scalars; /* of the device, room for mf_run_scalars; 0: the executor has its own, which the host reaches */
    mf_step_hook step;
    void *step_ctx;
    mf_stop_hook stop;
    void *stop_ctx;
    mf_stop_hook full; /* asked before each kernel is made; true: creating ends with DOES_NOT_FIT */
    mf_room_hook room; /* asked before one is made again with its follower in it; false: both stay as they are */
    void *full_ctx;    /* of both */
} mf_executor_options;

memfit_status mf_executor_create(const memfit_host *host, mf_backend *backend, const mf_plan *plan, void *base,
                                 const mf_executor_options *options, mf_executor **executor, memfit_error *err);
void mf_executor_destroy(mf_executor *executor);

/* Which operations of a phase have their turn: what is the piece in its step, the step in its group? */
typedef struct mf_piece {
    bool first, last; /* of the step's pieces */
    bool continues;   /* Keras's own accumulation, not the first step of a group: gradients are not cleared */
    bool holds;       /* not the last step of a group: no update */
} mf_piece;

/* The scalars as a whole; a run writes the host's part only. Reading waits for the device. */
memfit_status mf_executor_write_scalars(mf_executor *executor, const mf_run_scalars *scalars, memfit_error *err);
memfit_status mf_executor_read_scalars(mf_executor *executor, mf_run_scalars *scalars, memfit_error *err);
/* Writing and reading that do not wait: `scalars` is read and `to` is written when the stream has come so far. */
memfit_status mf_executor_queue_scalars(mf_executor *executor, const void *scalars, memfit_error *err);
memfit_status mf_executor_copy_scalars(mf_executor *executor, mf_run_scalars *to, memfit_error *err);

/* One run of a phase. Of the scalars the host's part is taken; the last piece of a graph with a loss ends the step, which
 * changes the device's part. */
memfit_status mf_executor_run(mf_executor *executor, uint32_t phase, const mf_run_scalars *scalars, mf_piece piece,
                              mf_fill_feed fill, void *ctx, memfit_error *err);

/* Records a run of a phase for such pieces, where the device can: mf_executor_run then launches the record instead of
 * queueing every operation again. Every operation must have run once before. */
memfit_status mf_executor_record(mf_executor *executor, uint32_t phase, mf_piece piece, memfit_error *err);
/* Launches all records in turn, one behind the other as steps do, and waits: a driver takes memory of the device for large
 * graphs when they are launched, and for several on their way at once (seen: 2 to 6 MiB); so it does before what is taken is
 * measured. What the steps leave in the arena means nothing yet. */
memfit_status mf_executor_rehearse(mf_executor *executor, memfit_error *err);
/* Device memory through which inputs come while the piece before is at work, where records are made and it takes no more
 * than `most` (stage.h). *bytes: what was taken, 0 where none was. Before anything is recorded. */
memfit_status mf_executor_take_slot(mf_executor *executor, uint64_t most, uint64_t *bytes, memfit_error *err);
/* The samples that the next runs take: equal keys have equal bytes, which need not be handed over twice. 0: not known. */
void mf_executor_set_key(mf_executor *executor, uint64_t key);
/* Keeps every sample of the training set on the device once it has come (shelf.h), where there is a slot and it takes no
 * more than `most`: `each` has the bytes of a sample of each feed. *bytes: what was taken. */
memfit_status mf_executor_take_shelf(mf_executor *executor, const uint64_t *each, uint32_t feeds, int64_t samples,
                                     uint64_t most, uint64_t *bytes, memfit_error *err);
/* The samples of the next run one by one, for the shelf; NULL: they are none of the training set's. Kept by address. */
typedef struct mf_sample_feed {
    void *ctx;
    int64_t count;
    int64_t (*sample)(void *ctx, int64_t index); /* which of the training set, from 0 */
    memfit_status (*fill)(void *ctx, uint32_t feed, int64_t index, int64_t count, void *to, memfit_error *err);
} mf_sample_feed;
void mf_executor_set_samples(mf_executor *executor, const mf_sample_feed *samples);
/* Can it? Not where a hook wants to see each step, nor under the poison. */
bool mf_executor_records(const mf_executor *executor);

/* Runs each different operation of a phase once: of several with the same kind, settings and shapes one is enough,
 * since they share their compiled code. What the tensors hold afterwards means nothing. */
memfit_status mf_executor_warm_up(mf_executor *executor, uint32_t phase, mf_fill_feed fill, void *ctx,
                                  memfit_error *err);

/* Addresses of the device. */
void *mf_executor_variable(const mf_executor *executor, uint32_t variable); /* NULL when the plan has none */
/* Is it an address of host memory that variables live in (offload.h)? The host may use it between steps. */
bool mf_executor_offloads(const mf_executor *executor, mf_address address);
/* A tensor at the end of its phase (an output of a prediction). */
void *mf_executor_tensor(const mf_executor *executor, uint32_t phase, uint32_t tensor);
uint32_t mf_executor_reference_ops(const mf_executor *executor); /* operations on the slow path */
const char *mf_executor_reference_name(const mf_executor *executor);

#endif
