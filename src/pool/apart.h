/* apart.h: apart.c: blocks that are not to lie among the main stream's. */
#ifndef MF_POOL_APART_H
#define MF_POOL_APART_H

#include "pool/state.h"

unsigned mf_apart_main(const memfit_pool *pool); /* the lane of the main stream; 0: there is but one */
bool mf_apart_is_aside(memfit_pool *pool, uint64_t bytes, unsigned lane); /* a request: of another stream? */
void mf_apart_begin(memfit_pool *pool);                                   /* the second stream comes */
/* A place from `from` on, mostly pool->apart; NULL: there is none. */
mf_block *mf_apart(memfit_pool *pool, uint64_t from, uint64_t bytes, uint64_t alignment, unsigned lane,
                   uint64_t *start);

#endif
