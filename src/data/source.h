/*
 * source.h: where samples come from. A source is a set of named arrays whose first axis counts samples; any sample of any
 * array can be had at any time, in any order:
 *
 *   .npy, .npz (stored), .h5 (contiguous)   mapped:    the file itself; nothing is copied, nothing held
 *   .npz (deflated), .h5 (chunks), .csv     mapped:    unpacked once into an unlinked temporary file
 *   - (arrays on standard input)            mapped:    written once into unlinked temporary files
 *   synthetic[:N], labels of classes        generated: computed on demand, never stored
 *   a folder of images                      made:      a worker reads, decodes and resizes the file (worker.h)
 *   TFRecord                                made:      a worker parses the record, and decodes the image in it
 *
 * The way of a sample:
 *
 *   source --order[position]--> sample --convert--> tensor in the arena                  mapped, generated: in the step
 *   source --order[position]--> worker --> slot of the ring --copy--> tensor in the arena    made: before it (ring.h)
 *
 * So a data set larger than memory trains in constant memory. Mapped pages are the kernel's, shared and reclaimable, and
 * not part of the process's own. What workers take (a room for decoders each, a stack, the ring's slots) is taken and
 * touched when the feeder is bound to a plan, before the process's fixed cost is measured: so it is in planned_peak_bytes
 * and under the limit, as kernels are; a step takes nothing. A limit that the workers leave too little of makes the
 * next plan smaller; one that they alone exceed refuses the run and says what they need.
 */
#ifndef MF_DATA_SOURCE_H
#define MF_DATA_SOURCE_H

#include "base/log.h"
#include "base/memory.h"
#include "base/os.h"
#include "base/tensor.h"

typedef struct mf_array {
    const char *name; /* "x", "y", or as the file names it */
    mf_dtype dtype;
    mf_shape shape;            /* dim[0] = samples */
    uint64_t sample_bytes;     /* of one sample */
    const unsigned char *data; /* NULL: generated or made */
    bool made;                 /* by the source's maker, with a worker */
    /* Samples are sequences of different lengths (lengths.h): shape.dim[1] is the longest's, the rest of the others is 0.
     * One that is not made is a part of `values`, between two of `splits`. */
    bool ragged;
    const unsigned char *values, *splits;
    mf_dtype split_dtype;
    uint64_t step_bytes, step_count;
    bool picture;       /* made of pictures: its values are finite, whatever the file holds */
    uint32_t column;    /* the maker's own number of it */
    uint64_t cached_at; /* made: where in a cache file its first sample is */
    uint32_t kept_as;   /* made: its number among the arrays kept in memory, from 1; 0: it is not kept */
    uint64_t kept_at;   /* where in a sample that is kept in memory */
    uint32_t generator; /* synthetic: 0 uniform in [0,1), 1 whole numbers below `classes`, 2 one-hot; 3: the class whose
                           range of samples it is in, as a number, or one-hot where the array has `classes` */
    int64_t classes;
    const char *const *names; /* of labels that were texts, or of the folders of classes; NULL: there are none */
    uint32_t name_count;
    const int32_t *codes; /* generator 3: the labels themselves, not the class whose range it is */
    /* Not NULL: what is wrong with it, told with this status when somebody wants to use it. A file may hold more than a
     * model needs: names of classes, a second set of another length. */
    const char *unusable, *hint;
    memfit_status why;
} mf_array;

typedef struct mf_source mf_source;
typedef struct mf_worker mf_worker;
typedef struct mf_cache mf_cache;
typedef struct mf_stamp mf_stamp;

/* How the samples of made arrays come to be. Several workers call at once. */
typedef struct mf_maker {
    /* Sample `index` of `array` into out, in the array's type. DAMAGED, OUT_OF_MEMORY name file and place. */
    memfit_status (*make)(const mf_source *source, const mf_array *array, int64_t index, mf_worker *worker, void *out,
                          memfit_error *err);
    /* Names a sample for messages: its file, its record. */
    void (*name)(const mf_source *source, int64_t index, char *text, size_t room);
    void (*close)(mf_source *source);
    /* What the samples are made of, for a cache that is used another time: names, sizes, times, how they are made. */
    void (*stamp)(const mf_source *source, mf_stamp *stamp);
} mf_maker;

/* What whoever opens a source knows of its use; zero is "whatever the file has". */
typedef struct mf_source_wish {
    int64_t inputs;                  /* tables: how many of the columns are inputs, the rest being targets */
    int64_t height, width, channels; /* of images; 0: 256, 256, 3, as in Keras */
    bool bytes;                      /* images rounded to uint8, not float32 */
    bool scaled;                     /* large JPEGs are decoded smaller, as long as they stay larger than asked for */
    bool split; /* a part will be held out: classes must be mixed before, as Keras mixes them under this seed */
    uint32_t seed;
    bool unlabelled;       /* all images of a folder, whatever sub-folder they are in */
    uint64_t decode_bytes; /* room of a worker; 0: by the headers of images */
    const char *features;  /* "x=image/encoded,y=label": arrays and the features they are; NULL: inferred */
    const char *classes;   /* "a,b,c": texts as labels are numbered in this order; NULL: sorted */
    bool lengths;          /* how long each sample is must be known */
    const char *cache;     /* a file that keeps what was made or unpacked (sample_cache.h); NULL: none */
} mf_source_wish;

enum { MF_SOURCE_MOST_MAPPINGS = 64 };

struct mf_source {
    mf_arena arena;
    const char *path;
    mf_array *arrays;
    uint32_t count;
    size_t capacity;
    int64_t samples;
    uint64_t seed; /* synthetic */
    mf_mapping mappings[MF_SOURCE_MOST_MAPPINGS];
    uint32_t mapping_count;
    uint64_t spooled_bytes; /* in temporary files */
    uint64_t stored_bytes;  /* of files that are read in place, sample by sample; 0: of none */
    const char *stored_in;  /* one of them */
    int descriptor;         /* of the first mapping's file, which may become shorter while it is read; -1: none */
    const mf_maker *maker;  /* of made arrays; NULL: there are none */
    void *made_of;          /* the maker's own */
    mf_cache *cache;        /* of made samples; NULL: none */
    uint32_t *lengths;      /* of samples, where they differ; in a temporary file; NULL: they do not, or nobody asked */
    uint64_t length_bytes;  /* of it */
    uint64_t room_bytes;    /* that making a sample takes of a worker's room, at most */
    const char *classes_given, *features_given; /* of the wish */
    bool flat;                  /* samples have no shape but a length: any shape of as many elements will do */
    const uint32_t *mixed;      /* which file of the folder a sample is; NULL: the one of its number */
    const int64_t *class_first; /* folders of classes: the first file of each, and the number of files */
    uint32_t class_count;
};

/* `log` (may be NULL) is told once what was unpacked and which types waste memory. NOT_FOUND, DAMAGED and UNSUPPORTED
 * name the file, the array and the place. `inputs` is for tables: how many of the columns are inputs, the rest being
 * targets (0: all but one). "synthetic" sources are made by mf_source_synthetic. */
memfit_status mf_source_open_as(const memfit_host *host, const char *path, const mf_source_wish *wish,
                                const mf_log *log, mf_source **source, memfit_error *err);
memfit_status mf_source_open_table(const memfit_host *host, const char *path, int64_t inputs, const mf_log *log,
                                   mf_source **source, memfit_error *err);
memfit_status mf_source_open(const memfit_host *host, const char *path, const mf_log *log, mf_source **source,
                             memfit_error *err); /* inputs 0 */
bool mf_source_is_table(const char *path);
void mf_source_close(mf_source *source);
/* An empty synthetic source of `samples`; arrays are added with mf_source_add_generated. */
memfit_status mf_source_synthetic(const memfit_host *host, int64_t samples, uint64_t seed, mf_source **source,
                                  memfit_error *err);
memfit_status mf_source_add_generated(mf_source *source, const char *name, mf_dtype dtype, const mf_shape *shape,
                                      uint32_t generator, int64_t classes, memfit_error *err);
/* NULL when there is none; what it returns may be unusable. */
const mf_array *mf_source_find(const mf_source *source, const char *name);
/* Why an array cannot be used; returns its status. */
memfit_status mf_source_refuse(const mf_array *array, memfit_error *err);
/* Labels of classes become one-hot rows of `classes`, as a loss wants them. */
void mf_source_one_hot(mf_source *source, int64_t classes);
/* Sample `index` of a made array, from the cache or by its maker. */
memfit_status mf_source_make(const mf_source *source, const mf_array *array, int64_t index, mf_worker *worker,
                             void *out, memfit_error *err);
/* Sample `index` of a mapped or generated array into out (sample_bytes), in the array's own type. */
void mf_source_read(const mf_source *source, const mf_array *array, int64_t index, void *out);
/* `count` elements from `first`, a multiple of 4, of a sample of generated numbers (generators 0 and 1). */
void mf_source_read_part(const mf_source *source, const mf_array *array, int64_t index, uint64_t first, uint64_t count,
                         void *out);
/* DAMAGED when the file has become shorter than it was when it was opened: its arrays must not be read any more. One
 * system call, to be made before each piece is read. */
memfit_status mf_source_still_whole(const mf_source *source, memfit_error *err);
/* Every invariant: counts agree, bytes inside the mappings. */
memfit_status mf_source_check(const mf_source *source, memfit_error *err);

/* ---- inside src/data ---- */
/* Adds an array over bytes already mapped. */
memfit_status mf_source_add(mf_source *source, const char *name, mf_dtype dtype, const mf_shape *shape,
                            const unsigned char *data, uint64_t bytes, memfit_error *err);
/* An unlinked temporary file of `bytes`, mapped for writing; becomes one of the source's mappings. */
memfit_status mf_source_spool(mf_source *source, uint64_t bytes, unsigned char **data, memfit_error *err);
/* Adds the name of an array that cannot be used, with the reason. */
memfit_status mf_source_add_unusable(mf_source *source, const char *name, const memfit_error *why, memfit_error *err);
memfit_status mf_source_npy(mf_source *source, const char *name, const unsigned char *data, uint64_t bytes,
                            const mf_log *log, memfit_error *err);
memfit_status mf_source_npz(mf_source *source, const unsigned char *data, uint64_t bytes, const mf_log *log,
                            memfit_error *err);
memfit_status mf_source_h5(mf_source *source, const unsigned char *data, uint64_t bytes, const mf_log *log,
                           memfit_error *err);
/* A folder of images; the path is the source's. */
memfit_status mf_source_pictures(mf_source *source, const mf_source_wish *wish, const mf_log *log, memfit_error *err);
/* Arrays from standard input: inputs and targets in turns, or inputs alone. */
memfit_status mf_source_stream(mf_source *source, bool inputs_alone, const mf_log *log, memfit_error *err);
/* An array of NumPy's texts becomes labels (labels.h); false in *texts when it holds none. */
memfit_status mf_source_npy_texts(mf_source *source, const char *name, const unsigned char *data, uint64_t bytes,
                                  bool *texts, memfit_error *err);
/* Which of its arrays are meant by shorter names: those of --features, and those that lie in groups (source_names.c). */
memfit_status mf_source_settle_names(mf_source *source, memfit_error *err);
/* Several files of arrays or tables, which the source's path matches as a pattern, one behind the other. */
memfit_status mf_source_parts(mf_source *source, const mf_source_wish *wish, const mf_log *log, memfit_error *err);
/* TFRecord files: the source's path, or those it matches as a pattern. */
memfit_status mf_source_tfrecord(mf_source *source, const mf_source_wish *wish, bool pattern, const mf_log *log,
                                 memfit_error *err);
/* The model uses this array of TFRecord files; a list of numbers is a sequence whose steps have this shape (rank 0: one
 * number), as tf.io.FixedLenSequenceFeature(shape) reads it. A record whose numbers are not whole steps is named when it is
 * used. Other arrays stay as they are. Afterwards lengths are settled: those of what is used count, in steps. */
void mf_tfrecord_use(mf_source *source, const mf_array *array, const mf_shape *step);
void mf_tfrecord_settle_lengths(mf_source *source);
/* Adds an array that the source's maker makes, or one of generator 3. */
memfit_status mf_source_add_made(mf_source *source, const char *name, mf_dtype dtype, const mf_shape *shape,
                                 uint32_t column, memfit_error *err);
/* `inputs`: how many of the columns are inputs; 0: all but one. */
memfit_status mf_source_csv(mf_source *source, const unsigned char *data, uint64_t bytes, int64_t inputs,
                            const mf_log *log, memfit_error *err);

#endif
