/*
 * feed.h: from a source's arrays to the tensors a step graph wants filled. A feeder knows which array serves which
 * feed, in which order samples are taken, and converts each sample into the tensor's type as it is copied: there is no
 * buffer in between, but for samples that must be made (decoded, parsed), which come from a ring.
 *
 *   source.arrays --order[position]--> sample --convert--> tensor in the arena
 *                                      made samples: workers --> ring --copy--> tensor in the arena
 *
 * Order: samples `first .. first + count` of the source, shuffled anew each epoch by a counter-based generator, so that
 * an interrupted run finds the same order again. Up to MF_FEEDER_MOST_LISTED samples it is a list, drawn by Fisher and
 * Yates; beyond, where a list would be a part of the memory worth planning for, each position's sample is computed from
 * the epoch's keys (a Feistel network) and nothing is stored. Where samples are better read beside each other, blocks of
 * neighbours are shuffled, and samples within windows of blocks (feed_order.c).
 */
#ifndef MF_DATA_FEED_H
#define MF_DATA_FEED_H

#include "data/front_work.h"
#include "data/ring.h"
#include "data/source.h"
#include "graph/graph.h"
#include "graph/graph_source.h"

/* How many samples a block of neighbours and a window of blocks have, for a source of so many bytes read in place; false:
 * the whole is shuffled. `slow`: of its disk. */
bool mf_order_choose(uint64_t stored_bytes, int64_t samples, uint64_t memory_bytes, bool slow, int64_t *block,
                     int64_t *window);
/* Makes a window whole blocks; both 0 where one window would be all samples. A block of 0 is chosen. */
void mf_order_round(int64_t samples, int64_t *block, int64_t *window);

enum { MF_FEEDER_MOST_LISTED = 1 << 20, MF_FEEDER_ROUNDS = 8 };

/* Copies what it needs of the feed: a plan's graphs go with it, the feeder stays. */
typedef struct mf_feed_link {
    uint32_t role; /* as in mf_feed */
    char name[64];
    const mf_array *array;                 /* NULL: sample weights that are all 1 (or by class) */
    mf_dtype dtype;                        /* the tensor's */
    uint64_t elements;                     /* of one sample */
    uint64_t bytes;                        /* of one sample in the tensor */
    uint64_t elements_at[MF_MOST_LENGTHS]; /* sequences: of one sample, by the number of the length in use */
    int64_t classes;     /* values must be whole numbers from 0 to below this: labels, rows of a table; 0: any */
    bool made;           /* by workers: the source's array is, or something is done to its samples first */
    mf_front_kit *front; /* that; then dtype, elements and bytes are those of samples as they arrive */
    uint64_t slot_at, slot_bytes; /* made: where in a slot of the ring, and how much of it */
} mf_feed_link;

typedef struct mf_feeder {
    const memfit_host *host;
    const mf_source *source;
    mf_feed_link *links;
    uint32_t count;
    int64_t first, samples; /* the part of the source this feeder serves */
    bool shuffled;
    uint32_t *order;                 /* the list; NULL: computed, or as stored */
    uint32_t keys[MF_FEEDER_ROUNDS]; /* of this epoch's computed order */
    int64_t block, window;           /* samples: of a block shuffle; 0: the whole is shuffled */
    bool bucketed;                   /* batches are of samples of similar length */
    int64_t batch;                   /* of so many */
    uint32_t *arranged;              /* as many as `order`, for arranging it; NULL: batches are as they come */
    int64_t bounds[MF_MOST_LENGTHS]; /* sequences: the lengths they are padded to, the longest first */
    uint32_t bound_count, length;    /* 0: all have one; the one in use */
    const double *class_weights;
    int64_t class_count;
    const mf_array *weights, *labels; /* sample_weight; the first target */
    unsigned char *scratch;           /* one sample of the largest generated array */
    uint64_t scratch_bytes;
    bool check;                       /* look at every value: the first time through the data */
    mf_ring *ring;                    /* of made samples, not owned; NULL: none are made */
    uint32_t made_links;              /* links whose arrays are made */
    uint64_t slot_bytes, spare_bytes; /* for the ring: a sample; one that is converted behind its making */
    mf_front_kit *front;              /* of the one link that has it; NULL: none */
    uint64_t seed, first_step;        /* what random layers in workers draw by: see mf_feeder_begin_steps */
    int64_t first_position, step_samples;
    mf_worker *own; /* makes labels for weights; NULL: none need making */
    uint32_t taken; /* made links that have their part of the piece under way */
} mf_feeder;

typedef struct mf_feeder_options {
    int64_t first, samples; /* samples 0: all from `first` */
    bool shuffle;
    int64_t block, window; /* see mf_feeder; window a multiple of block; 0: the whole */
    int64_t bucket;        /* batches of so many samples of similar length; 0: as they come */
    const int64_t *bounds; /* sequences are padded to one of these lengths, the longest first */
    uint32_t bound_count;  /* 0: all have one length */
    bool listed;           /* the order is a list however many samples there are: as a run that is resumed had it */
    const double *class_weights; /* by label, or NULL; must outlive the feeder */
    int64_t class_count;
    bool targets;              /* false when predicting: the source need not have any */
    mf_backend *front_backend; /* where the graph's feeds have a front: what workers do it with; outlives the feeder */
} mf_feeder_options;

/* Binds the feeds of `graph` to the source's arrays by name ("x", "y", or the layers' names) and checks types and
 * shapes: an error names the layer, the shape expected and the shape given. A last axis of size 1 may be missing. */
memfit_status mf_feeder_create(const memfit_host *host, const mf_source *source, const mf_graph *graph,
                               const mf_feeder_options *options, mf_feeder **feeder, memfit_error *err);
void mf_feeder_destroy(mf_feeder *feeder);
/* The array that would serve input `index` of `inputs`, named `name`; NULL when the source has none. */
const mf_array *mf_feeder_input(const mf_source *source, const char *name, uint32_t index, uint32_t inputs);
/* The array that would serve a feed of the graph. */
const mf_array *mf_feeder_array(const mf_source *source, const mf_graph *graph, uint32_t feed);
/* How many classes the graph's target has, where it is compared with one-hot rows; 0: it is not. */
int64_t mf_feeder_one_hot(const mf_graph *graph);
/* How many classes its targets may have, one-hot or whole numbers; 0: any. */
int64_t mf_feeder_classes(const mf_graph *graph);
/* A feeder with made links fills nothing before it has a ring; several feeders may share one, one at a time. */
void mf_feeder_use_ring(mf_feeder *feeder, mf_ring *ring);
/* Waits until these samples are made, where some are: what is wrong with one is told here, before a step begins. Samples
 * beyond the ring's slots are not waited for. */
memfit_status mf_feeder_wait(mf_feeder *feeder, int64_t first, int64_t count, memfit_error *err);
/* The order of epoch `epoch`. Allocates nothing. */
void mf_feeder_shuffle(mf_feeder *feeder, uint64_t seed, uint64_t epoch);
/* Step `step` takes the sample at `position`, and each step `samples` of them: by that, and the seed, random layers in
 * workers draw. Before the first mf_feeder_wait of an epoch. */
void mf_feeder_begin_steps(mf_feeder *feeder, uint64_t seed, uint64_t step, int64_t position, int64_t samples);
/* The first sample, from the feeder's first on, of block `number` in this epoch's order. */
int64_t mf_feeder_block(const mf_feeder *feeder, int64_t number);
/* Which sample of the source stands at `position`. */
int64_t mf_feeder_sample(const mf_feeder *feeder, int64_t position);
/* Notes how many elements a sample of each feed has in graphs of this length. */
void mf_feeder_note_length(mf_feeder *feeder, uint32_t number, const mf_graph *graph);
/* The number of the least length that suffices for these samples; it is in use from now on. */
uint32_t mf_feeder_choose_length(mf_feeder *feeder, int64_t first, int64_t count);
/* Fills feed `index` with samples at positions first .. first + count. With `check`, DAMAGED names a value that is not
 * finite, or no class. */
memfit_status mf_feeder_fill(mf_feeder *feeder, uint32_t index, int64_t first, int64_t count, void *out,
                             memfit_error *err);
/* Lets the kernel read these samples' pages from the disk meanwhile; for arrays large enough not to be in its cache. */
void mf_feeder_read_ahead(const mf_feeder *feeder, int64_t first, int64_t count);
/* Sum of the weights of these samples (their number when there are none). */
double mf_feeder_weight_sum(mf_feeder *feeder, int64_t first, int64_t count);

/* Adds to a synthetic source one array for each feed of the graph. */
memfit_status mf_synthetic_for(mf_source *source, const mf_graph *graph, memfit_error *err);

#endif
