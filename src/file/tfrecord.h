/*
 * tfrecord.h: TFRecord files and the tf.train.Example in their records.
 *
 *   record:  length 8 | crc of the length 4 | data | crc of the data 4        all little-endian, crc32c, masked
 *   Example: features { feature { key: name, value: bytes_list | float_list | int64_list } ... }      (protocol buffers)
 *
 * Files come from strangers: every length is checked against what is there before it is followed. Nothing is allocated;
 * a feature is a part of the record's own bytes.
 */
#ifndef MF_FILE_TFRECORD_H
#define MF_FILE_TFRECORD_H

#include "memfit/base.h"

typedef struct mf_tfrecord {
    const unsigned char *data;
    uint64_t bytes;
    uint64_t next; /* where the next one begins */
} mf_tfrecord;

/* The record at `at` of a file's bytes; its length's check sum is verified, the data's with `check`. DAMAGED names the
 * place. `at` must be below `bytes`. */
memfit_status mf_tfrecord_at(const unsigned char *file, uint64_t bytes, uint64_t at, bool check, const char *name,
                             mf_tfrecord *record, memfit_error *err);
/* Could these be the first bytes of a TFRecord file? */
bool mf_tfrecord_sniff(const unsigned char *data, uint64_t bytes);
uint32_t mf_crc32c(const unsigned char *data, uint64_t bytes);

typedef enum { MF_FEATURE_NONE, MF_FEATURE_BYTES, MF_FEATURE_FLOAT, MF_FEATURE_INT } mf_feature_kind;

/* One feature of an Example: a list. */
typedef struct mf_feature {
    const char *name; /* not ended by 0 */
    uint64_t name_bytes;
    mf_feature_kind kind;
    const unsigned char *list; /* the encoded list */
    uint64_t list_bytes;
} mf_feature;

/* Calls `each` for every feature until it returns false. False when the bytes are no Example. */
bool mf_example_walk(const unsigned char *data, uint64_t bytes, bool (*each)(void *ctx, const mf_feature *feature),
                     void *ctx);
/* Is it a tf.train.SequenceExample, with lists of features in its second field? */
bool mf_example_is_sequence(const unsigned char *data, uint64_t bytes);
/* The feature of that name; false when there is none, *damaged when the bytes are no Example. */
bool mf_example_find(const unsigned char *data, uint64_t bytes, const char *name, mf_feature *feature, bool *damaged);
/* How many values it has; -1 when it is damaged. */
int64_t mf_feature_count(const mf_feature *feature);
/* The only text of a bytes list; false when there is not exactly one. */
bool mf_feature_bytes(const mf_feature *feature, const unsigned char **data, uint64_t *bytes);
/* All `count` values; false when there are not exactly so many. */
bool mf_feature_floats(const mf_feature *feature, float *out, uint64_t count);
bool mf_feature_ints(const mf_feature *feature, int64_t *out, uint64_t count);

#endif
