/*
 * sample_cache.h: samples that were made once (decoded, resized, parsed) are not made again.
 *
 * In a file (--cache FILE), for this run and later ones:
 *
 *   head 64 bytes | array 0: a record for each sample | array 1: ... |        records that were never written are holes
 *   record: index + 1 (8) | crc32c of the data (4) | number of the array + 1 (4) | the sample, as its maker made it
 *
 * The head holds a stamp of everything the samples follow from: names, sizes and times of the files, the size, type and
 * channels of images, the version. Another stamp: the file is made anew. A record says itself whether it is whole, so that
 * nothing is held in memory, a killed run leaves a cache that can be used, and one that is damaged costs only the time to
 * make that sample again. Samples are counted as the source lists them, before a split mixes them. Reading and writing
 * are plain reads and writes: no page of it is ever the process's. A file that is no cache is refused.
 *
 * In memory (--cache memory): what the limit leaves beside the plan, taken and touched before the first step, part of
 * fixed_bytes; the first samples of the source that fit. A limit that is lowered takes it back first.
 *
 * What was unpacked or converted whole (a table, packed arrays) goes to the file as arrays (array_cache.c), which are
 * mapped the next time.
 */
#ifndef MF_DATA_SAMPLE_CACHE_H
#define MF_DATA_SAMPLE_CACHE_H

#include "data/source.h"

#define MF_CACHE_MAGIC "MEMFITCH"
enum { MF_CACHE_VERSION = 1, MF_CACHE_HEAD_BYTES = 64, MF_CACHE_OF_SAMPLES = 1, MF_CACHE_OF_ARRAYS = 2 };

struct mf_stamp {
    uint64_t value;
};
void mf_stamp_add(mf_stamp *stamp, const void *data, uint64_t bytes);
void mf_stamp_number(mf_stamp *stamp, uint64_t number);
/* Size and time of a file, and its name; a folder of -1 is the working one. */
void mf_stamp_file(mf_stamp *stamp, int folder, const char *path, const char *name);

/* What it did since it was opened. */
typedef struct mf_cache_counts {
    int64_t found, kept, refused; /* samples taken from it; put into it; that the disk had no room for */
    uint64_t memory_bytes;        /* it holds in memory */
    int64_t memory_samples;
} mf_cache_counts;

/* The source's made samples go to this file and come from it; one that is no cache is INVALID. `log` is told whether it is
 * used, or made anew and why. */
memfit_status mf_cache_open_file(mf_source *source, const char *path, const mf_log *log, memfit_error *err);
/* Up to `most_bytes` of memory for made samples of the arrays marked by mf_cache_mark; none is no failure. */
memfit_status mf_cache_take_memory(mf_source *source, uint64_t most_bytes, memfit_error *err);
/* No sample may be being made. How many bytes that gave back. */
uint64_t mf_cache_drop_memory(mf_source *source);
/* This array is used: its samples are worth memory. Before mf_cache_take_memory. */
void mf_cache_mark(mf_source *source, const mf_array *array);
mf_cache_counts mf_cache_read_counts(const mf_source *source);
void mf_cache_close(mf_source *source);

/* Arrays of a file that was unpacked (array_cache.c). *found: they are in the source, mapped; else the cache file is not
 * there, or is one of other data. */
memfit_status mf_cache_open_arrays(mf_source *source, const mf_source_wish *wish, const mf_log *log, bool *found,
                                   memfit_error *err);
/* Writes them, whole or not at all. What fails is told to the log: the run needs none of it. */
memfit_status mf_cache_write_arrays(const mf_source *source, const mf_source_wish *wish, const mf_log *log,
                                    memfit_error *err);

/* ---- of both ---- */
typedef struct mf_cache_head {
    char magic[8];
    uint32_t version, kind;
    uint64_t stamp;
    uint64_t samples;     /* or bytes of the list of arrays */
    uint64_t whole_bytes; /* of the file when all is there */
    uint64_t list_crc;    /* arrays: of the list */
    uint64_t unused;
    uint32_t zero, crc; /* of what is before it */
} mf_cache_head;
_Static_assert(sizeof(mf_cache_head) == MF_CACHE_HEAD_BYTES, "the head has its size in the file");
void mf_cache_fill_head(mf_cache_head *head, uint32_t kind, uint64_t stamp, uint64_t samples, uint64_t whole_bytes,
                        uint64_t list_crc);
/* INVALID when there is something of another kind, or something that is no plain file. */
memfit_status mf_cache_may_replace(const char *path, memfit_error *err);

#endif
