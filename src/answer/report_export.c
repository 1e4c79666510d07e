/* report_export.c: see report_export.h. Names go out as the report shows them: without folders, unless names were asked for. */
#include "answer/report_export.h"

#include "answer/report_parts.h"
#include "base/error.h"
#include "base/os.h"
#include "base/visible.h"
#include "trace/trace_write.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

static const char *shown_name(void *ctx, uint32_t name, char *text, size_t bytes)
{
    const mf_report *r = ctx;
    const char *whole = memfit_trace_name(r->trace, name);
    if (r->with_names || strlen(whole) >= bytes)
        return whole;
    mf_report_hide_folders(whole, text);
    return text;
}

static memfit_status view_of(const mf_report *r, mf_arena *arena, mf_trace_view *v, memfit_error *err)
{
    uint64_t *steps = MF_NEW_ARRAY(arena, uint64_t, r->step_count + 1);
    if (!steps)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to write a trace");
    for (uint32_t i = 0; i < r->step_count; i++)
        steps[i] = r->steps[i].event;
    *v = (mf_trace_view){.trace = r->trace,
                         .title = r->title,
                         .device = r->device,
                         .steps = steps,
                         .step_count = r->step_count,
                         .reserved_before = r->reserved_before,
                         .name = shown_name,
                         .ctx = (void *)(uintptr_t)r};
    return MEMFIT_OK;
}

static memfit_status write_with(const mf_report *r, const char *path,
                                memfit_status (*writes)(const mf_trace_view *view, const char *path, memfit_error *err),
                                memfit_error *err)
{
    mf_arena arena;
    mf_trace_view view;
    mf_arena_init(&arena, r->arena.host);
    memfit_status status = view_of(r, &arena, &view, err);
    if (!status)
        status = writes(&view, path, err);
    mf_arena_destroy(&arena);
    return status;
}

memfit_status mf_report_write_viz(const mf_report *r, const char *path, memfit_error *err)
{
    return write_with(r, path, mf_trace_write_viz, err);
}

memfit_status mf_report_write_perfetto(const mf_report *r, const char *path, memfit_error *err)
{
    return write_with(r, path, mf_trace_write_perfetto, err);
}

memfit_status mf_report_write_tensorboard(const mf_report *r, const char *folder, memfit_error *err)
{
    return write_with(r, folder, mf_trace_write_tensorboard, err);
}

/* ---- folded stacks ---------------------------------------------------------------------------------------- */

/* Callers first; what separates frames must not stand in one. */
static void put_stack(FILE *f, const char *name)
{
    char text[4096];
    mf_format(text, sizeof text, "%s", name);
    for (char *p = text; *p; p++)
        *p = *p == ';' ? ',' : *p;
    for (char *at = text + strlen(text); at > text;) {
        char *begin = at;
        while (begin > text && !(begin - text >= 3 && memcmp(begin - 3, " < ", 3) == 0))
            begin--;
        fprintf(f, ";%.*s", (int)(at - begin), begin);
        at = begin > text ? begin - 3 : text;
    }
}

memfit_status mf_report_write_flame(const mf_report *r, const char *path, memfit_error *err)
{
    mf_outfile out;
    memfit_status status = mf_os_out_open(&out, path, err);
    if (status)
        return status;
    for (uint32_t i = 0; i < r->owner_count && r->owners[i].peak_bytes; i++) {
        fprintf(out.file, "memfit;%s", memfit_kind_name(r->owners[i].kind));
        put_stack(out.file, r->owners[i].name);
        fprintf(out.file, " %" PRIu64 "\n", r->owners[i].peak_bytes);
    }
    if (!ferror(out.file))
        return mf_os_out_commit(&out, err);
    status = mf_fail(err, MEMFIT_IO, "%s: writing failed: %s", path, strerror(errno));
    mf_os_out_abandon(&out);
    return status;
}
