/* cmd_explain.c: memfit explain: an out-of-memory failure that has already happened. */
#include "cli/diagnosis_text.h"

#include "base/error.h"
#include "base/os.h"
#include "base/text.h"
#include "base/visible.h"
#include "memfit/diagnosis.h"
#include "memfit/plan.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_STREAM = 256 << 20 };

/* The log joined with the model that was trained. */
typedef struct joined {
    const char *path;
    uint64_t memory_bytes; /* what the step had: the limit, or the card */
    bool batch_from_log;
    memfit_plan_summary plan;
} joined;

static void put_joined(mf_json_writer *w, const joined *j)
{
    mf_json_open(w, "plan", '{');
    mf_json_put_string(w, "model", j->path);
    mf_json_put_i64(w, "batch", j->plan.batch);
    mf_json_put_u64(w, "memory_bytes", j->plan.memory_bytes);
    mf_json_put_u64(w, "as_asked_peak_bytes", j->plan.as_asked_peak_bytes);
    mf_json_put_bool(w, "as_asked_fits", j->plan.as_asked_fits);
    mf_json_put_bool(w, "fits", j->plan.fits);
    mf_json_put_u64(w, "peak_bytes", j->plan.peak_bytes);
    mf_json_put_i64(w, "pieces", j->plan.pieces);
    mf_json_put_u64(w, "recomputed_ops", j->plan.recomputed_ops);
    mf_json_put_i64(w, "max_batch", j->plan.max_batch);
    mf_json_put_string(w, "runtime", j->plan.runtime);
    if (j->plan.in_framework_fits != MEMFIT_FRAMEWORK_UNKNOWN) {
        static const char *const words[] = {"", "no", "tight", "yes"};
        mf_json_open(w, "in_framework", '{');
        mf_json_put_string(w, "runtime", j->plan.runtime);
        mf_json_put_string(w, "fits", words[j->plan.in_framework_fits]);
        mf_json_put_u64(w, "peak_bytes", j->plan.in_framework_peak_bytes);
        mf_json_put_u64(w, "low_bytes", j->plan.in_framework_low_bytes);
        mf_json_put_u64(w, "high_bytes", j->plan.in_framework_high_bytes);
        mf_json_put_i64(w, "max_batch", j->plan.in_framework_max_batch);
        mf_json_close(w, '}');
    }
    mf_json_close(w, '}');
}

/* What the step is made of, largest first: "activations 8.50 GiB, inputs 384.00 MiB, ...". */
static void print_breakdown(const memfit_plan_summary *p)
{
    bool done[MEMFIT_KIND_COUNT] = {0};
    for (int k = 0; k < 3; k++) {
        int best = -1;
        for (int i = 0; i < MEMFIT_KIND_COUNT; i++)
            if (!done[i] && p->breakdown[i] && (best < 0 || p->breakdown[i] > p->breakdown[best]))
                best = i;
        if (best < 0)
            return;
        char a[24];
        mf_print(stdout, "%s%s %s",
                 k                  ? ", "
                 : p->as_asked_fits ? "  most of it: "
                                    : "      most of it: ",
                 memfit_kind_name((memfit_kind)best), memfit_size_format(p->breakdown[best], a, sizeof a));
        done[best] = true;
    }
    mf_print(stdout, "\n");
}

/* What the step takes in the program that failed: only that decides whether its size was the cause. */
static void print_in_framework(const memfit_plan_summary *p, const char *there, const char *memory)
{
    char a[24], b[24], c[24];
    const char *verdict = p->in_framework_fits == MEMFIT_FRAMEWORK_YES  ? "fits"
                          : p->in_framework_fits == MEMFIT_FRAMEWORK_NO ? "does not fit"
                                                                        : "is tight";
    if (p->in_framework_fits == MEMFIT_FRAMEWORK_UNKNOWN) {
        mf_print(stdout, "  what a step takes in %s on a cpu is not known; see the cause above\n", p->runtime);
        return;
    }
    mf_print(stdout, "  a step as written takes about %s in %s (%s to %s); %s %s: it %s\n",
             memfit_size_format(p->in_framework_peak_bytes, a, sizeof a), p->runtime,
             memfit_size_format(p->in_framework_low_bytes, b, sizeof b),
             memfit_size_format(p->in_framework_high_bytes, c, sizeof c), there, memory, verdict);
    if (p->in_framework_fits == MEMFIT_FRAMEWORK_YES)
        mf_print(stdout, "  so it was not the step's size: see the cause above\n");
    else if (p->in_framework_max_batch > 0)
        mf_print(stdout, "  largest batch that fits in %s: %lld; memfit plan --runtime %s shows more ways\n",
                 p->runtime, (long long)p->in_framework_max_batch, p->runtime);
}

static void print_joined(const memfit_diagnosis *d, const joined *j)
{
    const memfit_plan_summary *p = &j->plan;
    char a[24], b[24];
    bool other = strcmp(p->runtime, "memfit") != 0;
    const char *there = !j->memory_bytes             ? "this machine has"
                        : d->limit_bytes && !d->host ? "the limit was"
                                                     : "there were";
    mf_print(stdout, "\nwith %s at batch %lld%s\n", j->path, (long long)p->batch,
             j->batch_from_log ? " (as the tensor that was refused has it; else -b N)" : "");
    memfit_size_format(p->memory_bytes, b, sizeof b);
    if (other)
        print_in_framework(p, there, b);
    mf_print(stdout, "  a step as written needs %s in memfit; %s %s: it %s\n",
             memfit_size_format(p->as_asked_peak_bytes, a, sizeof a), there, b,
             p->as_asked_fits ? "fits" : "does not fit");
    if (p->as_asked_fits) {
        print_breakdown(p);
        if (!other)
            mf_print(stdout, "  so it was not the step's size: see the cause above\n");
        return;
    }
    if (!p->fits) {
        mf_print(stdout, "  neither micro-batches nor recomputation make it fit: the least is %s\n",
                 memfit_size_format(p->lower_bound_bytes, a, sizeof a));
        return;
    }
    mf_print(stdout, "  what would fit\n");
    if (p->max_batch > 0)
        mf_print(stdout, "    batch %lld, as written\n", (long long)p->max_batch);
    mf_print(stdout,
             "    batch %lld in %lld micro-batch%s with %u operation%s recomputed: %s, about %.2f times as long\n",
             (long long)p->batch, (long long)p->pieces, p->pieces == 1 ? "" : "es", p->recomputed_ops,
             p->recomputed_ops == 1 ? "" : "s", memfit_size_format(p->peak_bytes, a, sizeof a), p->slowdown);
    print_breakdown(p);
    mf_print(stdout, "    memfit train %s --data SOURCE --batch-size %lld --memory %lluMiB\n", j->path,
             (long long)p->batch, (unsigned long long)(p->memory_bytes >> 20));
}

/* The smallest card of the table that has this much, else the largest there is. */
static void choose_card(uint64_t bytes, memfit_card *card)
{
    memfit_card c = MEMFIT_CARD;
    *card = (memfit_card){0};
    for (size_t i = 0; memfit_card_at(i, &c); i++)
        if (!card->memory_bytes ||
            (c.memory_bytes >= bytes && (card->memory_bytes < bytes || c.memory_bytes < card->memory_bytes)) ||
            (c.memory_bytes < bytes && c.memory_bytes > card->memory_bytes && card->memory_bytes < bytes))
            *card = c;
}

/* Plans for what the program had: its limit, else the card, else this machine. */
static memfit_status join(const memfit_diagnosis *d, const char *model, int64_t batch, joined *j, memfit_error *err)
{
    memfit_plan_options o = MEMFIT_PLAN_OPTIONS;
    memfit_plan *plan = NULL;
    char memory[32];
    *j = (joined){.path = model, .memory_bytes = d->limit_bytes ? d->limit_bytes : d->card_bytes};
    j->batch_from_log = !batch && d->leading > 0 && d->leading < INT32_MAX;
    o.batch = batch ? batch : j->batch_from_log ? (int64_t)d->leading : 32;
    memfit_card card = MEMFIT_CARD;
    bool host = d->host;
    choose_card(j->memory_bytes, &card);
    if (!host && j->memory_bytes > card.memory_bytes)
        j->memory_bytes = card.memory_bytes;
    if (host && j->memory_bytes > mf_os_total_memory() - (mf_os_total_memory() >> 6))
        j->memory_bytes = 0; /* as large as this machine, or larger: then what is available here */
    snprintf(memory, sizeof memory, "%llu", (unsigned long long)j->memory_bytes);
    o.memory = j->memory_bytes ? memory : NULL;
    o.card = j->memory_bytes && !host ? card.name : NULL;
    o.runtime = strcmp(d->framework, "pytorch") == 0                                          ? "torch"
                : strcmp(d->framework, "tensorflow") == 0 || strcmp(d->framework, "jax") == 0 ? d->framework
                                                                                              : "memfit";
    memfit_status status = memfit_plan_create(model, &o, &plan, err);
    j->plan = (memfit_plan_summary)MEMFIT_PLAN_SUMMARY;
    if (!status)
        status = memfit_plan_get_summary(plan, &j->plan, err);
    memfit_plan_destroy(plan);
    return status;
}

static void print_json(const memfit_diagnosis *d, const joined *j)
{
    mf_json_writer w;
    mf_json_begin(&w, stdout);
    mf_json_open(&w, NULL, '{');
    cli_put_diagnosis(&w, d);
    if (j->path)
        put_joined(&w, j);
    mf_json_close(&w, '}');
    mf_json_end(&w);
}

/* Standard input, a pipe or a terminal: what cannot be mapped, and whose length is known at its end only. */
static memfit_status read_stream(FILE *file, const char *name, char **text, size_t *bytes, size_t *room,
                                 memfit_error *err)
{
    size_t capacity = 0, count = 0, got;
    char *data = NULL;
    do {
        if (capacity - count < 1 << 16) {
            size_t wider = capacity ? capacity * 2 : 1 << 18;
            char *grown = mf_host_resize(NULL, data, capacity, wider);
            if (!grown) {
                mf_host_free(NULL, data, capacity);
                return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no host memory for the text on %s", name);
            }
            data = grown;
            capacity = wider;
        }
        got = fread(data + count, 1, capacity - count, file);
        count += got;
    } while (got && count <= MOST_STREAM);
    if (ferror(file)) {
        mf_host_free(NULL, data, capacity);
        return mf_fail(err, MEMFIT_IO, "%s: %s", name, strerror(errno));
    }
    if (count > MOST_STREAM) {
        mf_host_free(NULL, data, capacity);
        return mf_fail(err, MEMFIT_DAMAGED,
                       "%s is larger than 256 MiB\npass the last part of it: tail -c 100M LOG | memfit explain -",
                       name);
    }
    *text = data;
    *bytes = count;
    *room = capacity;
    return MEMFIT_OK;
}

static memfit_status read_pipe(const char *path, char **text, size_t *bytes, size_t *room, memfit_error *err)
{
    FILE *file = fopen(path, "rbe");
    if (!file)
        return mf_fail(err, MEMFIT_NOT_FOUND, "%s: %s", path, strerror(errno));
    memfit_status status = read_stream(file, path, text, bytes, room, err);
    fclose(file);
    return status;
}

int cli_explain(const cli_command *command, int argc, char **argv)
{
    const char *model = NULL;
    int64_t batch = 0;
    const cli_binding bindings[] = {CLI_BIND("--model", &model), CLI_BIND("--batch-size", &batch), {0}};
    cli_common common;
    int status = cli_parse(command, argc, argv, bindings, &common,
                           "The file is what the program printed (standard output and error), a PyTorch\n"
                           "memory snapshot or a memfit trace; - reads standard input.\n");
    if (status || common.help)
        return status;
    const char *operand = common.operands[0];
    memfit_error err;
    memfit_diagnosis d = MEMFIT_DIAGNOSIS;
    memfit_status st;
    mf_mapping map = {0};
    char *text = NULL;
    size_t bytes = 0, room = 0;
    if (strcmp(operand, "-") == 0)
        st = read_stream(stdin, "standard input", &text, &bytes, &room, &err);
    else if (mf_os_is_stream(operand))
        st = read_pipe(operand, &text, &bytes, &room, &err);
    else if ((st = mf_os_map_file(operand, &map, &err)) == MEMFIT_OK)
        bytes = map.bytes;
    if (!st)
        st = memfit_explain(text ? (const void *)text : map.data, bytes, &d, &err);
    if (st && map.data)
        mf_error_prefix(&err, st, "%s", operand);
    mf_os_unmap_file(&map);
    mf_host_free(NULL, text, room);
    if (st)
        return cli_report(&common, &err);
    joined j = {0};
    if (model && join(&d, model, batch, &j, &err))
        return cli_report(&common, &err);
    if (common.json)
        print_json(&d, &j);
    else
        cli_print_diagnosis(stdout, &d, common.quiet);
    if (!common.json && j.path)
        print_joined(&d, &j);
    return CLI_DONE;
}
