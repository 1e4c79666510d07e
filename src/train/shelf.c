/* shelf.c: see shelf.h. */
#include "train/shelf.h"

#include "base/bytes.h"
#include "base/error.h"
#include "plan/fit/fit_inputs.h"

enum { PLACE = 256 };

static uint64_t places(mf_shelf *s, const uint64_t *each, uint32_t feeds, int64_t samples)
{
    uint64_t bytes = 0, sample = 0;
    if (feeds == 0 || feeds > MF_SHELF_FEEDS || samples <= 0)
        return 0;
    for (uint32_t i = 0; i < feeds; i++) {
        s->each[i] = each[i];
        s->at[i] = bytes;
        sample += each[i];
        bytes += mf_round_up((uint64_t)samples * each[i], PLACE);
    }
    return sample < MF_LEAST_KEPT_BYTES ? 0 : bytes;
}

uint64_t mf_shelf_bytes(const mf_device *device, const uint64_t *each, uint32_t feeds, int64_t samples)
{
    mf_shelf s;
    return mf_round_up(places(&s, each, feeds, samples), device->granularity);
}

void mf_shelf_give(mf_shelf *s)
{
    if (s->memory) {
        s->device->table->unmap(s->device, s->base, s->bytes, NULL);
        s->device->table->release(s->device, s->memory, s->bytes, NULL);
    }
    if (s->base)
        s->device->table->unreserve(s->device, s->base, s->bytes, NULL);
    if (s->there)
        mf_host_free(s->host, s->there, (size_t)s->samples);
    *s = (mf_shelf){0};
}

memfit_status mf_shelf_take(mf_shelf *s, const memfit_host *host, mf_device *d, const uint64_t *each, uint32_t feeds,
                            int64_t samples, memfit_error *err)
{
    mf_physical memory = 0;
    *s = (mf_shelf){.host = host, .device = d, .feeds = feeds, .samples = samples};
    s->bytes = mf_round_up(places(s, each, feeds, samples), d->granularity);
    if (!s->bytes) {
        *s = (mf_shelf){0};
        return MEMFIT_OK;
    }
    s->there = mf_host_zalloc(host, (size_t)samples);
    memfit_status status =
        s->there ? MEMFIT_OK : mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no host memory to note which samples are kept");
    if (status == MEMFIT_OK)
        status = d->table->reserve(d, s->bytes, d->granularity, &s->base, err);
    if (status == MEMFIT_OK)
        status = d->table->create(d, s->bytes, &memory, err);
    if (status == MEMFIT_OK) {
        status = d->table->map(d, s->base, s->bytes, memory, err);
        if (status == MEMFIT_OK)
            s->memory = memory;
        else
            d->table->release(d, memory, s->bytes, NULL);
    }
    if (status == MEMFIT_OK)
        status = d->table->access(d, s->base, s->bytes, err);
    if (status != MEMFIT_OK)
        mf_shelf_give(s);
    return status == MEMFIT_OUT_OF_MEMORY ? MEMFIT_OK : status; /* others were quicker: it is done without */
}
