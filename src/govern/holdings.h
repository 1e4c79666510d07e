/*
 * holdings.h: who held what when a job held most of a card.
 *
 * A process that ends gives everything back first, so we look while it runs (watch.h), ten times a second. This is the
 * story of a failure without a refusal by the limit: a framework's own pool inside the limit was full.
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
