/*
 * report_bands.h: a report cut into columns of time and rows of owners, for pictures.
 *
 *            column 0      1        2     ...       a column begins with an event and ends where the next begins
 *     row 0    at      at       at                  `at`: bytes of the row when all live bytes of the column were highest,
 *     row 1    ...                                  so a column's rows add up to its `total` exactly
 *     rest     ...                                  `mean`: its mean over the column's time
 *
 * No maximum is lost: the highest total is the trace's peak. Traces of few events have a column for each. Rows are the
 * owners that matter most at the peak, over time or by growth; the others share one row for each kind.
 */
#ifndef MF_ANSWER_REPORT_BANDS_H
#define MF_ANSWER_REPORT_BANDS_H

#include "answer/report.h"

enum { MF_BANDS_COLUMNS = 4096, MF_BANDS_ROWS = 400 };

typedef struct mf_bands_row {
    const char *name;
    memfit_kind kind;
    uint32_t owners; /* of the rest: how many; else 1 */
    bool rest;
} mf_bands_row;

typedef struct mf_report_bands {
    mf_arena arena;
    uint32_t columns, rows;
    uint64_t *events;   /* columns + 1: the first event of each, and how many there are */
    uint64_t *times;    /* columns + 1, ns */
    uint64_t *total;    /* the highest */
    uint64_t *when;     /* ns: the moment of that */
    uint64_t *reserved; /* the highest; NULL: not recorded */
    uint32_t peak;      /* the column of the trace's peak */
    mf_bands_row *row;
    uint64_t *at, *mean; /* rows times columns, row by row */
} mf_report_bands;

memfit_status mf_report_cut(const mf_report *r, uint32_t columns, uint32_t rows, mf_report_bands *bands,
                            memfit_error *err);
void mf_report_bands_free(mf_report_bands *bands);

/* The numbers of the bands as packed bytes in the arena, and of the pool when its columns are known: series of zigzag
 * varints. `events`, `times`, `total`, `when` less `times`, `reserved` and `pool` if there are any, then of each row `at` and `mean` less `at`.
 * All but those less another are differences from the number before. A 0 is followed by how many more zeros come. */
memfit_status mf_report_pack(mf_report_bands *bands, const uint64_t *pool, unsigned char **data, size_t *bytes,
                             memfit_error *err);

#endif
