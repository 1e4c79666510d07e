/* handles.h: physical handles, spare or mapped; for pages.c and handles.c. */
#ifndef MF_POOL_HANDLES_H
#define MF_POOL_HANDLES_H

#include "pool/state.h"

memfit_status mf_pages_refuse(memfit_pool *pool, mf_refusal why, uint64_t pages); /* OUT_OF_MEMORY, and why */
void mf_handles_init(mf_pages *p, uint64_t bulk_pages);
void mf_handle_put_spare(memfit_pool *pool, mf_handle *h);
/* Makes up to `count` pages, spare, in handles that fit what is not mapped of [first, past). Returns how many it made;
 * fewer: it was refused, and pool->refusal says by whom. */
uint64_t mf_handles_make(memfit_pool *pool, uint64_t count, uint64_t first, uint64_t past);
/* Gives one spare handle back. False: the device would not take it, or there is none that could go. */
bool mf_handle_release(memfit_pool *pool);
bool mf_handles_clean(memfit_pool *pool); /* tries again to unmap what could not be unmapped after a fault */
void mf_handle_forget_mapping(memfit_pool *pool, uint64_t first, uint64_t past); /* of whole handles */
void mf_handle_note_mapped(memfit_pool *pool, mf_handle *h, uint64_t page);
/* Maps spare handles at [first, past), where nothing is mapped, and makes them accessible; all or nothing. */
memfit_status mf_handles_map(memfit_pool *pool, uint64_t first, uint64_t past, memfit_error *err);

void mf_handles_abandon(mf_pages *p); /* they are lost: work that still runs may use them */

#endif
