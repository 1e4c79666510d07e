/*
 * sim_flight.c: a plain list; tests have a handful of entries.
 */
#include "device/sim_flight.h"

bool mf_flights_add(mf_flights *f, const memfit_host *host, const mf_flight *part)
{
    if (!mf_grow(host, &f->list, &f->capacity, f->count, sizeof *f->list))
        return false;
    f->list[f->count++] = *part;
    return true;
}

void mf_flights_land(mf_flights *f, uint32_t stream, uint64_t done)
{
    size_t kept = 0;
    for (size_t i = 0; i < f->count; i++)
        if (f->list[i].stream != stream || f->list[i].at > done)
            f->list[kept++] = f->list[i];
    f->count = kept;
}

const mf_flight *mf_flights_over(const mf_flights *f, uint64_t address, uint64_t bytes)
{
    for (size_t i = 0; i < f->count; i++) {
        const mf_flight *p = &f->list[i];
        if (p->address + p->from < address + bytes && p->address + p->to > address)
            return p;
    }
    return NULL;
}

const mf_flight *mf_flights_against(const mf_flights *f, const mf_flight *part)
{
    for (size_t i = 0; i < f->count; i++) {
        const mf_flight *p = &f->list[i];
        if (p->stream != part->stream && p->physical == part->physical && p->from < part->to && p->to > part->from)
            return p;
    }
    return NULL;
}

void mf_flights_end(mf_flights *f, const memfit_host *host)
{
    mf_host_free(host, f->list, f->capacity * sizeof *f->list);
    *f = (mf_flights){0};
}
