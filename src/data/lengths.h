/*
 * lengths.h: sequences of different lengths, and the few lengths they are padded to.
 *
 *   where they come from                                     how a sample is read
 *   TFRecord: a list of numbers that is not always as long   parsed, the rest 0
 *   .npz, .h5: x and x_row_splits, as tf.RaggedTensor has    x[splits[i] : splits[i + 1]], the rest 0
 *   any array, with --bucket: steps at the end that are 0    as it is: it has been padded already
 *
 * The rest of a sample is 0, at its end, as tf.data's padded_batch and keras.utils.pad_sequences(padding="post") leave it:
 * Embedding(mask_zero=True) and Masking layers know it by that.
 */
#ifndef MF_DATA_LENGTHS_H
#define MF_DATA_LENGTHS_H

#include "data/source.h"
#include "graph/graph_source.h"

/* A table of the source's lengths, one a sample, in a temporary file; freed with the source. */
memfit_status mf_lengths_make(mf_source *source, int64_t samples, memfit_error *err);
/* Arrays A with an A_row_splits become arrays of sequences. DAMAGED names what does not fit together. */
memfit_status mf_lengths_by_splits(mf_source *source, const mf_log *log, memfit_error *err);
/* Finds the lengths of samples that were padded: behind the last step of the array that is not 0. Reads all of it. */
memfit_status mf_lengths_measure(mf_source *source, const mf_array *array, memfit_error *err);
/* Up to `most` lengths, the longest first, such that padding each of these samples to the next one adds least. How many
 * there are; *padding is the share of the padded steps that are padding. */
uint32_t mf_lengths_choose(const uint32_t *lengths, int64_t samples, uint32_t most, int64_t *bounds, double *padding);
/* The first `bytes` of a sample of a ragged array that is not made, the rest 0. */
void mf_lengths_read(const mf_array *array, int64_t index, void *out, uint64_t bytes);

#endif
