/* numpy_shuffle.h: the order that numpy.random.RandomState(seed).shuffle gives a list, by which
 * keras.utils.image_dataset_from_directory splits a folder into training and validation. */
#ifndef MF_DATA_NUMPY_SHUFFLE_H
#define MF_DATA_NUMPY_SHUFFLE_H

#include <stddef.h>
#include <stdint.h>

void mf_numpy_shuffle(uint32_t *list, size_t count, uint32_t seed);

#endif
