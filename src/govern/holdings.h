/*
 * holdings.h: who held what when a job held most of a card.
 *
 * A process that ends gives everything back first, so this is looked at while it runs (watch.h), ten times a second. It is the
 * story of a failure that the limit has not refused: a framework that keeps to a pool of its own inside the limit.
 */
#ifndef MF_GOVERN_HOLDINGS_H
#define MF_GOVERN_HOLDINGS_H

#include "govern/facts.h"
#include "govern/share.h"

typedef struct mf_holdings {
    uint64_t bytes;
    unsigned card; /* the share's number */
    size_t count;
    mf_facts_owner owners[MF_FACTS_NAMED]; /* largest first; the last may be what remains */
} mf_holdings;

/* Keeps what the processes of `facts` hold now, if it is more of one card than ever before. */
void mf_holdings_look(mf_holdings *most, const mf_facts *facts, const mf_share *share);
/* Puts an owner in its place by size; when the list is full the smallest become one row without a process. */
void mf_holdings_add(mf_facts_owner list[MF_FACTS_NAMED], size_t *count, const mf_facts_owner *owner);

#endif
