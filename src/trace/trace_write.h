/*
 * trace_write.h: a trace in the formats of other viewers. Each file is written whole or not at all.
 *
 * Of a trace with several devices, memory_viz gets all of them; Perfetto and TensorBoard get the one that is asked for.
 */
#ifndef MF_TRACE_TRACE_WRITE_H
#define MF_TRACE_TRACE_WRITE_H

#include "memfit/trace.h"

#include <stdio.h>

typedef struct mf_trace_view {
    const memfit_trace *trace;
    const char *title;
    unsigned device;
    /* The begins of steps, events of the trace; NULL: none. */
    const uint64_t *steps;
    uint32_t step_count;
    uint64_t reserved_before;                                                /* mapped before the recording began */
    const char *(*name)(void *ctx, uint32_t name, char *text, size_t bytes); /* a name as it is shown; NULL: as it is */
    void *ctx;
} mf_trace_view;

/* A pickle of protocol 2 as PyTorch's memory_viz takes it. Times are whole microseconds. */
memfit_status mf_trace_write_viz(const mf_trace_view *view, const char *path, memfit_error *err);
/* Track events: counters of live bytes in all and by kind, of reserved bytes and the limit; steps and refusals. */
memfit_status mf_trace_write_perfetto(const mf_trace_view *view, const char *path, memfit_error *err);
/* An XSpace for TensorBoard's memory profile: FOLDER/plugins/profile/memfit/memfit.xplane.pb. */
memfit_status mf_trace_write_tensorboard(const mf_trace_view *view, const char *folder, memfit_error *err);

const char *mf_trace_view_name(const mf_trace_view *view, uint32_t name, char *text, size_t bytes);

#endif
