/* plan_trace.c: `memfit plan TRACE`: the answer for a recorded step, as text and JSON. The work is memfit_plan_trace's. */
#include "cli/plan_trace.h"

#include "base/os.h"
#include "base/visible.h"
#include "memfit/trace.h"

#include <stdio.h>
#include <string.h>

bool cli_is_trace(const char *path)
{
    mf_mapping file;
    memfit_error err; /* a file that cannot be read is told by who reads it as a model */
    if (mf_os_map_file(path, &file, &err) != MEMFIT_OK)
        return false;
    bool is = memfit_trace_begins(file.data, file.bytes);
    mf_os_unmap_file(&file);
    return is;
}

static const char *fits_word(memfit_framework_fits fits)
{
    static const char *const words[] = {"unknown", "no", "tight", "yes"};
    return words[fits];
}

/* What PyTorch's allocator holds beside the tensors is padding; with the fixed cost it sums to the peak. */
static uint64_t part(const memfit_trace_plan *p, memfit_kind kind)
{
    return kind == MEMFIT_KIND_FIXED     ? p->fixed_bytes
           : kind == MEMFIT_KIND_PADDING ? p->by_kind[kind] + p->pool_bytes - p->live_bytes
                                         : p->by_kind[kind];
}

static void put_in_framework(mf_json_writer *w, const memfit_trace_plan *p)
{
    mf_json_open(w, "in_framework", '{');
    mf_json_put_string(w, "runtime", "torch");
    mf_json_put_string(w, "version", p->version);
    mf_json_put_string(w, "fits", fits_word(p->fits));
    mf_json_put_u64(w, "peak_bytes", p->peak_bytes);
    mf_json_put_u64(w, "low_bytes", p->low_bytes);
    mf_json_put_u64(w, "high_bytes", p->high_bytes);
    mf_json_put_u64(w, "live_bytes", p->live_bytes);
    mf_json_put_u64(w, "pool_bytes", p->pool_bytes);
    mf_json_put_u64(w, "fixed_bytes", p->fixed_bytes);
    mf_json_put_u64(w, "workspace_bytes", p->workspace_bytes);
    mf_json_put_string(w, "basis", p->basis);
    mf_json_open(w, "suggestions", '[');
    if (p->expandable_bytes) {
        mf_json_open(w, NULL, '{');
        mf_json_put_string(w, "line", "PYTORCH_ALLOC_CONF=expandable_segments:True");
        mf_json_put_u64(w, "peak_bytes", p->expandable_bytes);
        mf_json_close(w, '}');
    }
    mf_json_close(w, ']');
    mf_json_close(w, '}');
}

/* The recording has no layers but those that own its largest tensors. */
static void put_layers(mf_json_writer *w, const memfit_trace_plan *p)
{
    mf_json_open(w, "layers", '[');
    for (size_t i = 0; i < p->owner_count; i++) {
        uint64_t parameters = 0, saved = 0;
        bool seen = false;
        for (size_t k = 0; k < p->owner_count; k++) {
            const bool same = strcmp(p->owners[k].name, p->owners[i].name) == 0;
            seen |= same && k < i;
            parameters += same && p->owners[k].kind == MEMFIT_KIND_PARAMETERS ? p->owners[k].bytes : 0;
            saved += same && p->owners[k].kind == MEMFIT_KIND_ACTIVATIONS ? p->owners[k].bytes : 0;
        }
        if (seen)
            continue;
        mf_json_open(w, NULL, '{');
        mf_json_put_string(w, "name", p->owners[i].name);
        mf_json_put_null(w, "class");
        mf_json_put_null(w, "output_shape");
        mf_json_put_u64(w, "parameter_bytes", parameters);
        mf_json_put_u64(w, "saved_bytes", saved);
        mf_json_close(w, '}');
    }
    mf_json_close(w, ']');
}

/* The keys that every plan has: null where a recording does not tell. It is planned as it is: whole, nothing computed twice. */
static void put_contract(mf_json_writer *w, const char *path, const memfit_trace_plan *p)
{
    const bool fits = p->fits == MEMFIT_FRAMEWORK_YES || p->fits == MEMFIT_FRAMEWORK_TIGHT;
    const char *name = strrchr(path, '/');
    mf_json_open(w, "model", '{');
    mf_json_put_string(w, "name", name ? name + 1 : path);
    mf_json_put_null(w, "layers");
    mf_json_put_null(w, "parameters");
    mf_json_close(w, '}');
    mf_json_put_null(w, "batch");
    mf_json_put_u64(w, "arena_bytes", p->pool_bytes);
    mf_json_put_u64(w, "lower_bound_bytes", p->fixed_bytes + p->live_bytes);
    mf_json_open(w, "as_asked", '{');
    mf_json_put_bool(w, "fits", fits);
    mf_json_put_u64(w, "peak_bytes", p->peak_bytes);
    mf_json_close(w, '}');
    mf_json_put_null(w, "peak_at");
    put_layers(w, p);
    mf_json_put_null(w, "max_batch");
    mf_json_put_u64(w, "pieces", 1);
    mf_json_put_u64(w, "recomputed_ops", 0);
    mf_json_put_double(w, "slowdown", 1);
    mf_json_put_string(w, "numerics", "bitwise");
    mf_json_open(w, "suggestions", '[');
    if (p->expandable_bytes) {
        mf_json_open(w, NULL, '{');
        mf_json_put_string(w, "change", "PYTORCH_ALLOC_CONF=expandable_segments:True");
        mf_json_put_u64(w, "peak_bytes", p->expandable_bytes);
        mf_json_put_null(w, "slowdown");
        mf_json_put_string(w, "numerics", "bitwise");
        mf_json_put_bool(w, "fits", p->expandable_bytes <= p->memory_bytes);
        mf_json_close(w, '}');
    }
    mf_json_close(w, ']');
}

static void print_json(const char *path, const memfit_trace_plan *p, double seconds)
{
    mf_json_writer w;
    mf_json_begin(&w, stdout);
    mf_json_open(&w, NULL, '{');
    mf_json_put_string(&w, "trace", path);
    mf_json_put_u64(&w, "events", p->events);
    mf_json_put_string(&w, "device", p->device);
    mf_json_put_u64(&w, "memory_bytes", p->memory_bytes);
    mf_json_put_string(&w, "basis", p->basis);
    mf_json_put_bool(&w, "fits", p->fits == MEMFIT_FRAMEWORK_YES || p->fits == MEMFIT_FRAMEWORK_TIGHT);
    mf_json_put_u64(&w, "peak_bytes", p->peak_bytes);
    mf_json_put_u64(&w, "fixed_bytes", p->fixed_bytes);
    mf_json_open(&w, "breakdown", '{');
    for (int k = 0; k < MEMFIT_KIND_COUNT; k++)
        mf_json_put_u64(&w, memfit_kind_name((memfit_kind)k), part(p, (memfit_kind)k));
    mf_json_close(&w, '}');
    mf_json_open(&w, "owners", '[');
    for (size_t i = 0; i < p->owner_count; i++) {
        mf_json_open(&w, NULL, '{');
        mf_json_put_string(&w, "layer", p->owners[i].name);
        mf_json_put_string(&w, "kind", memfit_kind_name(p->owners[i].kind));
        mf_json_put_u64(&w, "bytes", p->owners[i].bytes);
        mf_json_close(&w, '}');
    }
    mf_json_close(&w, ']');
    mf_json_put_string(&w, "runtime", "torch");
    put_in_framework(&w, p);
    put_contract(&w, path, p);
    mf_json_put_double(&w, "plan_seconds", seconds);
    mf_json_close(&w, '}');
    mf_json_end(&w);
}

static void print_text(const memfit_trace_plan *p, bool quiet)
{
    static const char *const words[] = {"NOT KNOWN", "DOES NOT FIT", "TIGHT", "FITS"};
    char a[24], b[24], c[24], d[24];
    mf_print(stdout, "%s in PyTorch: the recorded step takes about %s (%s to %s, %s) of %s", words[p->fits],
             memfit_size_format(p->peak_bytes, a, sizeof a), memfit_size_format(p->low_bytes, b, sizeof b),
             memfit_size_format(p->high_bytes, c, sizeof c), p->basis,
             memfit_size_format(p->memory_bytes, d, sizeof d));
    if (p->fits == MEMFIT_FRAMEWORK_TIGHT)
        mf_print(stdout, ", which lies inside that estimate");
    else if (p->fits == MEMFIT_FRAMEWORK_NO)
        mf_print(stdout, ", %s too much", memfit_size_format(p->peak_bytes - p->memory_bytes, a, sizeof a));
    mf_print(stdout, ".\n");
    if (quiet)
        return;
    mf_print(stdout, "\n  in PyTorch (%s), on %s\n", p->version, p->device);
    mf_print(stdout, "  memory    %s of tensors at the peak, %s held for them, %s fixed cost\n",
             memfit_size_format(p->live_bytes, a, sizeof a), memfit_size_format(p->pool_bytes, b, sizeof b),
             memfit_size_format(p->fixed_bytes, c, sizeof c));
    if (p->expandable_bytes)
        mf_print(stdout, "  instead   %s with PYTORCH_ALLOC_CONF=expandable_segments:True\n",
                 memfit_size_format(p->expandable_bytes, a, sizeof a));
    mf_print(stdout, "\n  largest tensors at the peak, by layer\n");
    for (size_t i = 0; i < p->owner_count; i++)
        mf_print(stdout, "  %12s  %-12s %s\n", memfit_size_format(p->owners[i].bytes, a, sizeof a),
                 memfit_kind_name(p->owners[i].kind), p->owners[i].name);
}

int cli_plan_trace(const cli_common *common, const char *path, const memfit_plan_options *options)
{
    memfit_error err = {0};
    memfit_trace_plan plan = MEMFIT_TRACE_PLAN;
    uint64_t begin = mf_os_now_us();
    if (memfit_plan_trace(path, options, &plan, &err) != MEMFIT_OK)
        return cli_report(common, &err);
    if (common->json)
        print_json(path, &plan, (double)(mf_os_now_us() - begin) / 1e6);
    else
        print_text(&plan, common->quiet);
    return plan.fits == MEMFIT_FRAMEWORK_NO ? CLI_NO_FIT : CLI_DONE;
}
