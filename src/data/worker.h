/*
 * worker.h: what one thread needs to make samples: a room of fixed size for decoders, a buffer for the bytes of a file,
 * the decoders themselves. Everything is taken when the worker is made, and touched, so that it is measured with the
 * process's fixed cost; making a sample allocates nothing.
 */
#ifndef MF_DATA_WORKER_H
#define MF_DATA_WORKER_H

#include "data/front_work.h"
#include "file/picture.h"

typedef struct mf_worker {
    const memfit_host *host;
    mf_room room;
    unsigned char *buffer; /* MF_PICTURE_BUFFER_BYTES */
    mf_picture_decoder *decoder;
    unsigned char *spare; /* a sample that is converted behind its making; NULL: none is */
    uint64_t spare_bytes;
    mf_front_hand *front; /* for layers that workers do; NULL: there are none */
} mf_worker;

/* Bytes that a worker takes from the host, but for the decoders' own few KiB. */
uint64_t mf_worker_bytes(uint64_t room_bytes, uint64_t spare_bytes);
memfit_status mf_worker_create(const memfit_host *host, uint64_t room_bytes, uint64_t spare_bytes, mf_worker **worker,
                               memfit_error *err);
void mf_worker_destroy(mf_worker *worker);

#endif
