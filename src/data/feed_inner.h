/* feed_inner.h: what the files of the feeder share. */
#ifndef MF_DATA_FEED_INNER_H
#define MF_DATA_FEED_INNER_H

#include "data/feed.h"
#include "data/worker.h"

/* Finds the array for feed `i` of the graph and fills the feeder's link of that number (feed_bind.c). */
memfit_status mf_feed_link_bind(mf_feeder *f, const mf_graph *graph, uint32_t i, const mf_feeder_options *options,
                                memfit_error *err);
/* Every made link of one sample, which is the one of `position` or comes in its place, as its tensor has it, into a slot of the ring. Called by workers (feed.c). */
memfit_status mf_feeder_make(const mf_feeder *f, int64_t position, int64_t sample, mf_worker *worker,
                             unsigned char *slot, memfit_error *err);

#endif
