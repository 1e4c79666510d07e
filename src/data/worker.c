/* worker.c: see worker.h. */
#include "data/worker.h"

#include "base/error.h"
#include "base/memory.h"

#include <string.h>

uint64_t mf_worker_bytes(uint64_t room_bytes, uint64_t spare_bytes)
{
    return sizeof(mf_worker) + room_bytes + spare_bytes + MF_PICTURE_BUFFER_BYTES;
}

memfit_status mf_worker_create(const memfit_host *host, uint64_t room_bytes, uint64_t spare_bytes, mf_worker **worker,
                               memfit_error *err)
{
    mf_worker *w = mf_host_zalloc(host, sizeof *w);
    if (!w)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for a worker that makes samples");
    w->host = host;
    w->room = (mf_room){mf_host_alloc(host, room_bytes + 64), room_bytes, 0, 0, 0};
    w->buffer = mf_host_alloc(host, MF_PICTURE_BUFFER_BYTES);
    w->spare_bytes = spare_bytes;
    w->spare = spare_bytes ? mf_host_alloc(host, spare_bytes) : NULL;
    memfit_status status = MEMFIT_OK;
    if (!w->room.base || !w->buffer || (spare_bytes && !w->spare))
        status = mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for a worker that makes samples");
    else
        status = mf_picture_decoder_create(host, &w->decoder, err);
    if (status != MEMFIT_OK) {
        mf_worker_destroy(w);
        return status;
    }
    memset(w->room.base, 0, room_bytes + 64);
    memset(w->buffer, 0, MF_PICTURE_BUFFER_BYTES);
    if (w->spare)
        memset(w->spare, 0, spare_bytes);
    *worker = w;
    return MEMFIT_OK;
}

void mf_worker_destroy(mf_worker *w)
{
    if (!w)
        return;
    mf_picture_decoder_destroy(w->decoder);
    mf_front_hand_destroy(w->front);
    mf_host_free(w->host, w->room.base, w->room.bytes + 64);
    mf_host_free(w->host, w->buffer, MF_PICTURE_BUFFER_BYTES);
    mf_host_free(w->host, w->spare, w->spare_bytes);
    mf_host_free(w->host, w, sizeof *w);
}
