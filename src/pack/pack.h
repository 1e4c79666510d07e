/*
 * pack.h: packing for the planner. The types and the contract are those of memfit/pack.h; this header adds what a
 * planner that packs hundreds of times needs: a bound without packing, and one order without a portfolio.
 *
 * Reading order: pack_problem.c (what a problem is), pack_greedy.c, pack_improve.c, pack_search.c, pack.c (who calls
 * whom), pack_check.c (the validator, which shares no code with the rest).
 */
#ifndef MF_PACK_PACK_H
#define MF_PACK_PACK_H

#include "base/memory.h"
#include "memfit/pack.h"

#include <stdio.h>

typedef memfit_pack_buffer mf_pack_buffer;
typedef memfit_pack_options mf_pack_options;
typedef memfit_pack_result mf_pack_result;

/* memfit_pack with the host given apart. */
memfit_status mf_pack(const memfit_host *host, mf_pack_buffer *buffers, size_t count, const mf_pack_options *options,
                      mf_pack_result *result, memfit_error *err);

/* The largest sum of sizes live at one time: O(n log n), no packing. */
memfit_status mf_pack_max_load(const memfit_host *host, const mf_pack_buffer *buffers, size_t count, uint64_t *load,
                               memfit_error *err);

typedef enum mf_pack_order {
    MF_PACK_BY_SIZE,  /* largest first: what inference runtimes do */
    MF_PACK_BY_LIFE,  /* longest first */
    MF_PACK_BY_AREA,  /* size times life */
    MF_PACK_BY_BIRTH, /* as a caching allocator would meet them */
    MF_PACK_BY_DEATH, /* last to die first: birth with time reversed */
    MF_PACK_BY_LOAD,  /* crossing the most loaded moment first, then by life */
    MF_PACK_BY_LOAD_SIZE,
    MF_PACK_BY_LOAD_AREA,
    MF_PACK_ORDER_COUNT
} mf_pack_order;

/* One pass of one order with best or first fit: the cheapest packing there is. */
memfit_status mf_pack_one(const memfit_host *host, mf_pack_buffer *buffers, size_t count, mf_pack_order order,
                          bool best_fit, uint64_t *height, memfit_error *err);

/* The validator; memfit_pack_validate with a host. */
memfit_status mf_pack_check(const memfit_host *host, const mf_pack_buffer *buffers, size_t count, uint64_t capacity,
                            uint64_t *height, memfit_error *err);

/* ---- tables (pack_csv.c) ---- */

/* memfit_pack_file_open on a text in memory, which must outlive the file. */
memfit_status mf_pack_file_parse(memfit_pack_file **file, const char *text, size_t bytes, unsigned flags,
                                 const memfit_host *host, memfit_error *err);
/* The body of memfit_pack_file_write, to an open stream. */
memfit_status mf_pack_file_print(const memfit_pack_file *file, FILE *out, memfit_error *err);

#endif
