/*
 * memfit/train.h: training, evaluating and predicting inside a byte budget.
 *
 *     memfit_train_options o = MEMFIT_TRAIN_OPTIONS;
 *     o.model = "digits.keras";  o.data = "digits.npz";  o.epochs = 5;  o.memory_bytes = 300ull << 20;
 *     o.out = "trained.keras";
 *     memfit_train_result r = MEMFIT_TRAIN_RESULT;
 *     memfit_error err;
 *     if (memfit_train(&o, &r, &err) != MEMFIT_OK) ...
 *
 * memfit_train reads the model, plans the whole step for the limit, reserves one arena, runs every operation once on
 * scratch, and only then touches data. From there on a step takes no memory: the process stays within
 * planned_peak_bytes to the end, validation, the last partial batch and checkpoints included. When the limit is too
 * small, the call fails with MEMFIT_DOES_NOT_FIT before it reserves anything, and err says what stands in the way.
 *
 * One call at a time in a process, because a limit bounds the whole process and its memory is measured as a whole. A
 * call while another runs, from another thread or from a callback, fails with MEMFIT_CONFLICT and disturbs nothing. The
 * thread that called memfit_train calls the callbacks.
 *
 * A run that passed its limit fails at its end with MEMFIT_INTERNAL and the figures; it writes its files.
 */
#ifndef MEMFIT_TRAIN_H
#define MEMFIT_TRAIN_H

#include "memfit/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Progress of a run: the progress callback gets it after every step and every epoch. The pointers are valid during the
 * call only. */
typedef struct memfit_train_event {
    size_t size;           /* how far this version's struct reaches */
    int64_t epoch, epochs; /* from 0; of so many */
    int64_t step, steps;   /* of this epoch: done so far; of so many (0: not known) */
    uint64_t iteration;    /* updates made in all */
    bool epoch_end;
    double seconds;      /* since the epoch began */
    double step_seconds; /* of this step */
    double loss;         /* running mean over the epoch */
    uint32_t metric_count;
    const char *const *metric_names; /* sorted as Keras sorts them */
    const double *metrics;
    bool validated; /* at an epoch's end: the next are set */
    double val_loss;
    const double *val_metrics;
    double learning_rate;
    uint64_t memory_bytes, limit_bytes; /* the process now (0 between samples), the limit */
    uint64_t planned_bytes;             /* fixed + arena of the plan in force. Since 0.2 */
} memfit_train_event;

#define MEMFIT_MOST_METRICS 16

typedef struct memfit_train_options {
    size_t size; /* sizeof(memfit_train_options): MEMFIT_TRAIN_OPTIONS */
    const char *model;
    const char *data;            /* file, folder of images, pattern of TFRecord files, or "synthetic[:N]" */
    const char *validation_data; /* NULL: none */
    double validation_split;     /* the last fraction of the data, before shuffling */
    int64_t batch;               /* 32 */
    int64_t validation_batch;    /* 0: as batch */
    int64_t epochs;              /* 1 */
    int64_t steps;               /* at most so many in all; 0: no limit */
    uint64_t memory_bytes;       /* limit of the whole process; 0: what is available */
    unsigned threads;            /* 0: all processors */
    int64_t pieces;              /* 0: as many as needed, 1: never split, K: exactly K */
    bool no_recompute;
    bool allow_changed_numerics;
    const char *optimizer, *loss, *precision; /* NULL: as the file says */
    int64_t input_shape[8];                   /* without the batch; input_rank 0: as the file says */
    uint32_t input_rank;
    double learning_rate; /* 0: as the file says */
    uint64_t seed;
    bool no_shuffle;
    const char *class_weight;  /* JSON file {"0": 1.0, "1": 2.5}, or NULL */
    int64_t early_stopping;    /* epochs without improvement; 0: off */
    int64_t reduce_on_plateau; /* epochs without improvement before the rate is cut to a tenth; 0: off */
    bool keep_best;            /* --out gets the best weights by validation loss */
    const char *out;           /* where the trained model goes, or NULL; named as Keras reads it: .keras, .h5 */
    const char *checkpoint;    /* written every save_freq steps */
    int64_t save_freq;         /* 0: at the end of each epoch */
    const char *resume;        /* a checkpoint to go on from */
    const char *log_csv, *tensorboard, *trace;
    bool debug_poison; /* fill released memory with NaN */
    void (*progress)(void *ctx, const memfit_train_event *event);
    void (*note)(void *ctx, const char *text); /* gets each note once: assumptions, wasteful types */
    void *ctx;
    /* Counts calls of the malloc family and mmap by all threads of the process, if the program can (see docs/train.md);
     * NULL: allocations_in_steps is not measured (-1). */
    uint64_t (*allocation_count)(void *ctx);
    const memfit_host *host; /* NULL: libc */
    /* Returns the limit while the training runs: called between steps, and between batches of validation. After a lower
     * value than before the training goes on with a plan that fits it. NULL: memory_bytes for ever. */
    uint64_t (*limit)(void *ctx);
    bool verbose;     /* note() also gets details: which operations run on the slow reference kernels */
    int64_t prefetch; /* batches read ahead while a step runs: 1. From large files by the kernel, at no cost (0: none);
                         samples that must be made (images, records) by workers into a ring of so many batches */
    const char *const *dim_names; /* open dimensions of the inputs, by name (as plan's --dim); may be NULL */
    const int64_t *dim_values;
    size_t dim_count;
    /* Should the training stop? Called after every step, and before every batch of validation, by the calling thread.
     * On true the training writes its checkpoint, if it has one, writes nothing to `out`, and ends with
     * MEMFIT_INTERRUPTED. Until the first step is done it is called before every operation, and the training ends
     * without a checkpoint: there is nothing to keep. memfit_evaluate and memfit_predict call it before every operation
     * too. NULL: never. */
    bool (*stop)(void *ctx);
    unsigned loss_chunks; /* of the last layer and its loss: 0: as many as needed; 1: whole; K: K, where it can be */
    /* Called when steps begin to run and when they pause, for another plan or at the end. What is allocated while they
     * run is dropped again, so a program may take it from a reserve. NULL: not called. */
    void (*in_steps)(void *ctx, bool running);
    /* Images, in a folder of classes or in TFRecord files. Since 0.1. */
    int64_t image_height, image_width; /* images are resized to this; 0: the model's input, else 256 */
    bool image_bytes;                  /* rounded to uint8, a quarter of the memory, instead of Keras's float32 */
    uint64_t decode_bytes;             /* memory of each worker's decoders; 0: by the headers of the images */
    unsigned workers;                  /* threads that make samples; 0: one for each processor */
    int64_t skip_bad;                  /* leave out up to so many unreadable samples; 0: the first ends the run */
    const char *features;              /* "x=image/encoded,y=label": features of TFRecord files; NULL: inferred */
    /* Where the tensors lie and the operations run: "cpu", "cuda", "cuda:I"; NULL: cpu. On a card memory_bytes bounds
     * what the process holds there. */
    const char *device;
    /* Where to keep samples that were made (images, records) or unpacked (tables, packed arrays): a file, for later
     * runs too; "memory": what the limit leaves; NULL or "off": nowhere. */
    const char *cache;
    /* Gets labels that are texts, or names of folders, once at the start, in the order of their numbers. NULL: not
     * called. `classes` "a,b,c": texts are numbered in this order, not sorted. */
    void (*class_name)(void *ctx, int64_t number, const char *name);
    const char *classes;
    /* Shuffle samples within windows of so many, read in blocks of neighbours; 0: shuffle the whole, except data larger
     * than memory on a slow disk or of tiny samples; -1: always the whole. A resumed run keeps what it had. */
    int64_t shuffle_window;
    /* On a card, float32 products and convolutions may round their factors to TF32's 10 bits: faster, and other
     * mathematics. Since 0.2. */
    bool tf32;
    bool quiet; /* note() gets warnings only: the result is not as asked, or is lost. Since 0.2 */
    /* Decode JPEGs that are at least twice as large as needed 2, 4 or 8 times smaller before resizing: faster, and
     * other values than Keras's. Since 0.2. */
    bool image_scaled;
    /* On a card: "optimizer" keeps the optimizer's state in (pinned) host memory and streams it through the card while
     * steps run: the same numbers in less of the card's memory. "auto" does so where that is faster than what the limit
     * would need otherwise; NULL or "off": not at all. Since 0.2. */
    const char *offload;
    bool bucket; /* batches of sequences of similar length, each padded to one of a few lengths. Since 0.2 */
    /* Where the random layers at a model's front (Random*) run: "graph", in the step; "workers", by the threads that
     * make samples; NULL or "auto": by workers where `threads` leaves processors idle. The same numbers either way. cpu
     * only. Since 0.2. */
    const char *augment;
    /* On a card, libraries' methods that add in no fixed order may be taken where they are faster: the same run again
     * gives other bits. On cpu every sum has one order. Since 0.2. */
    bool allow_nondeterministic;
} memfit_train_options;

#define MEMFIT_TRAIN_OPTIONS MEMFIT_INIT_3(memfit_train_options, batch, 32, epochs, 1, prefetch, 1)

typedef struct memfit_train_result {
    size_t size;                  /* sizeof(memfit_train_result): MEMFIT_TRAIN_RESULT */
    uint64_t planned_peak_bytes;  /* fixed + arena: the process stays within it */
    uint64_t measured_peak_bytes; /* largest RssAnon + RssShmem seen */
    uint64_t arena_bytes;         /* planned */
    uint64_t arena_used_bytes;    /* end of the highest tensor range whose bytes changed */
    uint64_t fixed_bytes;         /* the process without its arena, measured after every operation has run once */
    uint64_t limit_bytes;
    int64_t allocations_in_steps; /* -1: not measured */
    int64_t steps, epochs;
    double step_ms;     /* median */
    double step_cpu_ms; /* median processor time of a step, all threads together; 0: steps too short to ask */
    double samples_per_second;
    double first_step_seconds; /* from the call to the end of the first step */
    double loss, val_loss;
    bool has_validation;
    uint32_t metric_count;
    char metric_names[MEMFIT_MOST_METRICS][64];
    double metrics[MEMFIT_MOST_METRICS], val_metrics[MEMFIT_MOST_METRICS];
    int64_t batch, pieces;
    uint32_t recomputed_ops;
    uint32_t reference_ops; /* operations that ran on the slow reference kernels */
    const char *numerics;   /* "bitwise", "reordered", "changed" */
    double planned_step_ms;
    int64_t replans;  /* how often the limit forced another plan while running */
    double answer_ms; /* longest time from a refused reservation or a lowered limit to the next plan, or to why not */
    double replan_ms; /* longest time from a lowered limit to the next step */
    bool stopped_early;
    uint32_t loss_chunks; /* of the last layer and its loss; 1: whole */
    /* Samples made by workers (images, records). Since 0.1. */
    double input_wait_ms;          /* mean of a step: how long it waited for samples */
    double input_share;            /* the same as a part of the time of all steps, 0 to 1 */
    double decode_ms;              /* mean of a sample: how long one worker was busy with it */
    uint32_t workers;              /* 0: samples needed no making */
    uint64_t input_bytes;          /* of workers and the ring of batches; part of fixed_bytes */
    int64_t skipped;               /* samples left out, as skip_bad allows */
    int64_t cache_found;           /* samples that came from the cache */
    int64_t cache_refused;         /* samples that its disk had no room for */
    int64_t cache_samples;         /* samples that have room in memory */
    uint64_t cache_bytes;          /* of memory it holds; part of fixed_bytes */
    uint64_t offloaded_bytes;      /* of the optimizer's state, in host memory. Since 0.2 */
    uint32_t worker_layers;        /* random layers that workers did. Since 0.2 */
    uint32_t nondeterministic_ops; /* operations that add in no fixed order, as options allow. Since 0.2 */
    char made_by[200];             /* the card and the libraries that computed, with versions; "cpu". Since 0.2 */
} memfit_train_result;
#define MEMFIT_TRAIN_RESULT MEMFIT_INIT(memfit_train_result)

/* Since 0.1. */
MEMFIT_API memfit_status memfit_train(const memfit_train_options *options, memfit_train_result *result,
                                      memfit_error *err);

/* Loss and metrics of a model on data (options: model, data, batch, memory_bytes, threads, loss). Since 0.1. */
MEMFIT_API memfit_status memfit_evaluate(const memfit_train_options *options, memfit_train_result *result,
                                         memfit_error *err);

/* The model's outputs on data, written to options->out as a .npy array; of several outputs the first, the others beside
 * it: out.npy, out.NAME.npy. Since 0.1. */
MEMFIT_API memfit_status memfit_predict(const memfit_train_options *options, memfit_train_result *result,
                                        memfit_error *err);

/* What memfit_tune found. Since 0.2. */
typedef struct memfit_tune_result {
    size_t size;         /* sizeof(memfit_tune_result): MEMFIT_TUNE_RESULT */
    uint32_t operations; /* of the step */
    uint32_t menus;      /* different ones that can be run in more than one way */
    uint32_t methods;    /* of these, timed */
    uint32_t refused;    /* methods that could not be run: they are not in the file */
    double ranked_ms;    /* of the operations with a menu: by the library's own first choice */
    double tuned_ms;     /* by the fastest that the options allow */
    double seconds;
    char made_by[200]; /* the card and libraries that the times hold for */
    char path[1200];   /* where they are */
} memfit_tune_result;
#define MEMFIT_TUNE_RESULT MEMFIT_INIT(memfit_tune_result)

/* Times, on a card, every method that its libraries offer for the operations of this model's step, and writes the times
 * to options->out, or where later runs look for them (NULL; docs/cuda.md): from then on plans for this card and these
 * versions of its libraries use them. Options: model, device, batch, precision, out, tf32,
 * allow_nondeterministic; progress gets each operation (step of steps; iteration: methods timed so far), stop ends it
 * and keeps nothing. Since 0.2. */
MEMFIT_API memfit_status memfit_tune(const memfit_train_options *options, memfit_tune_result *result,
                                     memfit_error *err);

#ifdef __cplusplus
}
#endif
#endif
