/*
 * trainer.h: one training from the model file to the arena: what memfit_train, memfit_evaluate and memfit_predict
 * share.
 *
 *   load -> lower -> plan(limit - fixed) -> reserve -> make kernels -> run all once on scratch -> measure fixed
 *                     ^------------- again, when fixed turned out larger ----------------------'
 *        -> pattern the arena -> first values -> steps
 */
#ifndef MF_TRAIN_TRAINER_H
#define MF_TRAIN_TRAINER_H

#include "base/log.h"
#include "data/feed.h"
#include "memfit/train.h"
#include "model/keras/keras_save.h"
#include "ops/method_times.h"
#include "ops/team.h"
#include "model/lower/model_graphs.h"
#include "train/execute.h"
#include "train/footprint.h"
#include "train/reserve.h"
#include "train/schedule.h"
#include "train/shelf.h"

typedef struct mf_metric_view {
    const char *name;
    uint32_t variable;
    mf_metric_attr attr;
} mf_metric_view;

/* What a checkpoint says about its run. Options that are not given again stay as they were. */
typedef struct mf_resumed {
    bool known;            /* it is a checkpoint */
    int64_t pieces;        /* of a batch; 0: free */
    uint32_t chunks;       /* of the last layer and its loss; 0: free */
    double rate;           /* the learning rate it began with, before any plateau; 0: not known */
    bool rate_given;       /* by an option: not the file's schedule */
    int64_t batch;         /* 0: not known */
    bool computed_order;   /* of the samples, not a list */
    int64_t block, window; /* of a block shuffle; 0: the whole was shuffled */
    bool bucket;           /* batches were of similar length */
    const char *precision; /* given by an option, or NULL */
    uint64_t made_by;      /* like the trainer's; 0: not known */
    uint64_t epoch;        /* the one it is in */
    uint64_t position;     /* in it: samples done */
} mf_resumed;

/* How the host reads what steps left (results.h). */
typedef struct mf_results {
    bool at_once;        /* the host reads each step before the next begins */
    unsigned char *slot; /* else: what arrives, in host memory that the device writes; behind it, what is put */
    uint64_t bytes;
    mf_event arrived;
    bool asked;   /* a copy is on its way */
    bool current; /* the slot is what the device has: nothing has run since */
    bool putting; /* what was put may still be read */
} mf_results;

enum { MF_TRAINER_KNOWN = MF_MOST_KNOWN };
enum { MF_KERNEL_BYTES = 704 << 10 }; /* making one kernel, at most */

typedef struct mf_trainer {
    const memfit_train_options *options;
    const memfit_host *host; /* for everything: `guard`'s */
    mf_limit_host guard;     /* keeps the process within its limit while it starts: see mf_trainer_guard */
    uint64_t guard_bytes;
    mf_limit_host loading; /* for model, data and class weights: see mf_trainer_set_room */
    mf_log log;
    mf_mode mode; /* TRAIN, EVALUATE or PREDICT */
    uint64_t limit_bytes;
    mf_model *model;
    mf_device *device; /* whose memory the arena is */
    mf_stream stream;  /* of the device: all steps' work */
    mf_backend *backend;
    mf_team team; /* of its operations, from opening to closing */
    mf_cost_source cost;
    mf_method_times *times; /* of memfit tune, instead of the backend's own; NULL: none */
    mf_timed_source timed;
    uint64_t made_by; /* a hash of what computes: device, libraries, times */
    mf_model_graphs graphs;
    mf_graph_source graph_source;
    mf_source *source, *validation_source;
    mf_feeder *feeder, *validation_feeder;
    mf_ring *ring;                          /* of both, where samples must be made; else NULL */
    uint32_t front_layers;                  /* random layers that workers run */
    mf_backend *front_backend;              /* with this; NULL: none */
    mf_known_shape known[MF_TRAINER_KNOWN]; /* the data's shapes, for models that leave them open */
    double *class_weights;
    int64_t class_count;
    int64_t train_samples, validation_samples;
    int64_t samples_left;                /* of the epoch a checkpoint is in the middle of; 0: none is */
    int64_t batch, validation_batch;     /* as asked, but never more than there are samples */
    mf_limit_host planning;              /* for plans and the search for them: what the limit leaves */
    uint64_t asking_bytes;               /* what the library takes to answer about the widest window; 0: little */
    uint64_t limit_asked, planning_need; /* the limit; the least that planning needs, where it was cut off */
    mf_plan *plan, *next_plan;           /* in force; made ahead, or NULL */
    mf_reservation arena;
    mf_executor *executor;
    mf_results results;
    uint64_t fixed_bytes; /* measured */
    uint64_t slot_bytes;  /* part of it: the memory that inputs pass through, where the limit leaves room */
    mf_resumed resumed;   /* its pieces and chunks count only while starting: for the same bits */
    uint64_t start_peak;  /* the most seen while starting, before the arena was populated */
    uint64_t opened_us, planned_us, ready_us, recording_us; /* when starting had come so far, the last time */
    uint64_t least_need;   /* of the plans tried while starting, the least that was measured; 0: none was */
    bool least_recomputes; /* that plan recomputes: it needs room to be searched for again */
    /* While kernels are made: how many so far; what the process held before the first; the limit that would have
     * sufficed, where this one stopped it (0: it did not); the most that was held, with room for the next one. */
    uint64_t kernels_made, kernels_base, kernels_need, kernels_peak;
    uint64_t search_need;           /* what a search with recomputation that was cut off would have taken */
    uint64_t beside_need;           /* the most that a limit must hold beside the arena */
    uint64_t refused_us, answer_us; /* when the refusal came that waits (0: none); the longest answer */
    mf_metric_view metrics[MEMFIT_MOST_METRICS];
    uint32_t metric_count, metrics_left_out; /* more than there is room for */
    /* During validation the metrics' states are validation's; these are training's, for a checkpoint. */
    unsigned char *kept_metrics;
    uint64_t kept_bytes;
    bool validating;
    uint32_t flag_variable; /* float16: set when a gradient was not finite; MF_NONE */
    mf_schedule schedule;
    bool rate_given, rate_stored; /* given by an option, now or before; taken from the optimizer's variables */
    /* What a checkpoint stores beside the variables. */
    struct mf_train_state {
        uint64_t iteration;       /* optimizer's, in updates (or micro-steps with Keras's own accumulation) */
        uint64_t epoch, position; /* next sample of the epoch */
        uint64_t step_in_epoch;
        uint64_t seed;
        double loss_scale;
        uint64_t good_steps; /* since the last overflow */
        double loss_sum, loss_weight;
        double seen_sum, seen_weight; /* of batches that train nothing */
        double best, plateau_best, rate_factor;
        uint64_t waited, plateau_waited;
        uint64_t steps; /* in all */
        /* --keep-best: how good the weights in --out are (INFINITY: none of this training are there), and which file
         * that is */
        double kept;
        uint64_t kept_file;
    } state;
    bool stepped;        /* a step of this run is done */
    uint64_t rest_bytes; /* estimated: what the kernels of a smaller last piece take beside the arena */
    const mf_footprint *footprint;
    uint64_t measured_peak;
    /* Called before and after each step of the executor, when set: for tracing. */
    mf_step_hook step;
    void *step_ctx;
    /* Called after each piece, when set: predictions are written there. */
    memfit_status (*after_piece)(void *ctx, uint32_t phase, memfit_error *err);
    void *after_ctx;
} mf_trainer;

memfit_status mf_trainer_open(mf_trainer *t, const memfit_train_options *options, mf_mode mode, memfit_error *err);
void mf_trainer_close(mf_trainer *t);
/* Device, backend and how memory is measured, as the options name the device (run_device.c). */
memfit_status mf_trainer_open_device(mf_trainer *t, memfit_error *err);
void mf_trainer_close_device(mf_trainer *t);
/* Where memfit tune keeps its times for this backend, and training looks for them; false: nowhere. */
bool mf_trainer_times_path(const mf_trainer *t, char *path, size_t room);
/* The two parts that concern data (trainer_data.c): before there is a plan, and once there is one. */
memfit_status mf_trainer_open_data(mf_trainer *t, memfit_error *err);
/* The array that is input `index` of the model, if it is read or made; else NULL (trainer_lengths.c, like the next). */
const mf_array *mf_trainer_input(const mf_trainer *t, const mf_source *source, uint32_t index);
/* Do batches have sequences of similar length? As the options say, or as in the run that is resumed. */
bool mf_trainer_buckets(const mf_trainer *t);
/* Makes lists of numbers in records sequences of steps, as the model's inputs have them; targets too, once the shapes
 * of the data are known. */
void mf_trainer_shape_inputs(const mf_trainer *t, mf_source *source);
memfit_status mf_trainer_shape_targets(mf_trainer *t, memfit_error *err);
/* The lengths to plan for, when the shapes of the data are known. */
memfit_status mf_trainer_choose_lengths(mf_trainer *t, memfit_error *err);
/* While `on`, and if there is a limit, refuses whatever would take the process above it: the model, its graphs, plans,
 * records of kernels and writers. Off once the arena's pages are populated: nothing is taken after that. */
void mf_trainer_guard(mf_trainer *t, bool on);
/* Was this a refusal for that reason, or for the room of `loading` or `planning`? */
bool mf_trainer_was_refused(const mf_trainer *t, memfit_status status);
/* Called before each kernel is made: would the next one pass the limit? */
bool mf_trainer_is_full(void *trainer);
/* May this operation's kernel be made a second time, beside the first? */
bool mf_trainer_has_room(void *trainer, const mf_graph *graph, const mf_op *op);
/* From now on the host `loading` gives no more than the limit leaves beside what the process holds. */
void mf_trainer_set_room(mf_trainer *t);
/* Completes a refusal for that reason: what was loaded, how many bytes it needs, how many are allowed. Leaves other
 * failures alone. Returns the status. */
memfit_status mf_trainer_explain_room(const mf_trainer *t, memfit_status status, memfit_error *err);
/* Decides whether workers run the random layers at the model's front (trainer_front.c). After the data is open. */
memfit_status mf_trainer_choose_front(mf_trainer *t, memfit_error *err);
memfit_status mf_trainer_bind_data(mf_trainer *t, memfit_error *err);
/* --cache memory: takes what the admitted plan leaves of the limit for samples, part of fixed_bytes from then on; and
 * gives it back before another plan is made. */
memfit_status mf_trainer_take_cache(mf_trainer *t, memfit_error *err);
void mf_trainer_drop_cache(mf_trainer *t);
/* Makes a plan for `limit_bytes`, reserves, makes kernels, warms up and measures. `ready` (may be NULL) is called when
 * the executor exists and before the fixed cost is measured: what needs host memory for the whole run takes it then.
 * If the machine cannot give what the plan needs, tries a plan for what it can give: the trainer's limit_bytes is then
 * lower than asked. */
memfit_status mf_trainer_admit(mf_trainer *t, uint64_t limit_bytes,
                               memfit_status (*ready)(void *ctx, mf_trainer *t, memfit_error *err), void *ctx,
                               memfit_error *err);
/* plan_for.c: a plan for a limit of the whole process, of which `fixed` bytes are not the arena's. */
memfit_status mf_trainer_plan(mf_trainer *t, uint64_t limit, uint64_t fixed, mf_plan **plan, memfit_error *err);
void mf_trainer_planning_room(mf_trainer *t, uint64_t limit);               /* what planning may take from now on */
memfit_status mf_trainer_refuse_planning(mf_trainer *t, memfit_error *err); /* it was cut off: why, and what it needs */
/* plan_for.c: bytes of a sample of each feed, if the training set may stay on the device (shelf.h); 0: it may not. */
uint32_t mf_trainer_sample_bytes(const mf_trainer *trainer, const mf_plan *plan, uint64_t *each);
bool mf_trainer_is_squeezed(const mf_plan *plan); /* does it do anything that more memory would make needless? */
/* Makes the next plan while the one in force runs: OK, or the explanation. The next admission takes it. */
memfit_status mf_trainer_prepare(mf_trainer *t, uint64_t limit_bytes, memfit_error *err);
void mf_trainer_withdraw(mf_trainer *t); /* destroys executor, arena and plan; model and data stay */
/* Notes what mixed precision saves against float32, where it is in use. Before the admission. */
memfit_status mf_trainer_say_precision(mf_trainer *t, memfit_error *err);
/* Notes what starting takes; called just before something is given back, where it takes most. */
void mf_trainer_note_start(mf_trainer *t);
/* Samples the process's memory; remembers the largest. */
uint64_t mf_trainer_sample(mf_trainer *t);
/* End of the highest tensor range whose bytes changed. */
uint64_t mf_trainer_used(const mf_trainer *t);
void mf_trainer_find_metrics(mf_trainer *t); /* of the plan in force */
void mf_trainer_clear_metrics(mf_trainer *t);
const mf_graph *mf_trainer_graph(const mf_trainer *t); /* the main phase's */

/* Records every kind of batch that the run can have, where the device can; every operation must have run once. */
memfit_status mf_trainer_record(mf_trainer *t, memfit_error *err);
/* Runs one batch of `count` samples at `position` of the feeder: pieces, rest, all phases of that kind. results.h says
 * what it leaves. */
memfit_status mf_trainer_batch(mf_trainer *t, bool validate, int64_t position, int64_t count, memfit_error *err);

#endif
