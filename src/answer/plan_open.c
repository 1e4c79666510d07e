/*
 * plan_open.c: the public planner (memfit/plan.h): options as text become a question, devices become limits and cost
 * sources. It lives here, above plan/ and ops/, because the CPU's costs come from a backend.
 */
#include "memfit/plan.h"

#include "base/abi.h"
#include "base/error.h"
#include "base/guard.h"
#include "base/os.h"
#include "base/words.h"
#include "plan/cards.h"
#include "memfit/device.h"
#include "ops/cpu/dnn/onednn.h"
#include "ops/ops.h"
#include "answer/plan_dump.h"
#include "answer/plan_html.h"
#include "answer/plan_text.h"
#include "answer/trace_plan.h"
#include "plan/roofline.h"
#include "ops/cpu/cpu_fixed.h"
#include "train/card_costs.h"

#include <stdlib.h>
#include <string.h>

struct memfit_plan {
    mf_arena arena;
    mf_model *model;
    mf_question question;
    mf_roofline roofline;
    mf_backend *backend;      /* whose costs are asked, on cpu */
    mf_card_costs card_costs; /* and on this machine's card */
    mf_answer_context context;
    mf_answer *answer;
    char device[160];
    mf_card card; /* of a size, where none was named */
};

bool memfit_card_at(size_t index, memfit_card *card)
{
    const mf_card *c = index < mf_card_count() ? mf_card_at((uint32_t)index) : NULL;
    if (!c || mf_abi_check(card, "MEMFIT_CARD", NULL) != MEMFIT_OK)
        return false;
    memfit_card out = {sizeof out,       c->name,        c->title,      mf_card_memory_bytes(c), mf_card_fixed_bytes(c),
                       c->bandwidth_gbs, c->fp32_tflops, c->fp16_tflops};
    mf_abi_write(card, &out, sizeof out);
    return true;
}

/* ---- options as text -------------------------------------------------------------------------------------- */

static memfit_status read_dims(memfit_plan *plan, const memfit_plan_options *o, memfit_error *err)
{
    const char **names = MF_NEW_ARRAY(&plan->arena, const char *, o->dim_count + 1);
    int64_t *values = MF_NEW_ARRAY(&plan->arena, int64_t, o->dim_count + 1);
    if (!names || !values)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for the options");
    for (size_t i = 0; i < o->dim_count; i++) {
        size_t length;
        memfit_status status = mf_words_dim(o->dims[i], &length, &values[i], err);
        if (status != MEMFIT_OK)
            return status;
        names[i] = mf_arena_strndup(&plan->arena, o->dims[i], length);
        if (!names[i])
            return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for the options");
    }
    plan->question.lower.dim_names = names;
    plan->question.lower.dim_values = values;
    plan->question.lower.dim_count = (uint32_t)o->dim_count;
    return MEMFIT_OK;
}

static memfit_status read_assumptions(memfit_plan *plan, const memfit_plan_options *o, memfit_error *err)
{
    mf_assumption *list = MF_NEW_ARRAY(&plan->arena, mf_assumption, o->assume_count + 1);
    if (!list)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for the options");
    for (size_t i = 0; i < o->assume_count; i++) {
        const char *text = o->assume[i], *equals = strchr(text, '=');
        const char *colon = equals ? strchr(equals, ':') : NULL;
        size_t length = colon ? (size_t)(colon - equals - 1) : equals ? strlen(equals + 1) : 0;
        if (!equals || equals == text || !mf_words_shape(equals + 1, length, &list[i].shape))
            return mf_fail(err, MEMFIT_INVALID,
                           "--assume %s: must be LAYER=SHAPE[:BYTES], as in lambda_1=56,56,64:2MiB", text);
        if (colon) {
            memfit_status status = memfit_size_parse(colon + 1, 0, &list[i].bytes, err);
            if (status != MEMFIT_OK)
                return status;
        }
        list[i].layer = mf_arena_strndup(&plan->arena, text, (size_t)(equals - text));
        if (!list[i].layer)
            return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for the options");
    }
    plan->question.lower.assumptions = list;
    plan->question.lower.assumption_count = (uint32_t)o->assume_count;
    return MEMFIT_OK;
}

static memfit_status read_options(memfit_plan *plan, const memfit_plan_options *o, memfit_error *err)
{
    mf_question *q = &plan->question;
    if (o->batch < 1 || o->batch > 1 << 24)
        return mf_fail(err, MEMFIT_INVALID, "batch size %lld: must be 1 to %d", (long long)o->batch, 1 << 24);
    if (o->pieces < 0 || o->validation_batch < 0 || o->samples < 0)
        return mf_fail(err, MEMFIT_INVALID, "micro-batches and validation batch must not be negative");
    if (o->pieces > o->batch)
        return mf_fail(err, MEMFIT_INVALID, "%lld micro-batches: a batch of %lld has at most %lld",
                       (long long)o->pieces, (long long)o->batch, (long long)o->batch);
    mf_plan_options_default(&q->plan);
    q->plan.batch = o->batch;
    q->plan.pieces = o->pieces;
    q->plan.recompute = o->no_recompute ? MF_RECOMPUTE_OFF : MF_RECOMPUTE_AUTO;
    q->plan.chunks = o->loss_chunks;
    q->plan.allow_changed = o->allow_changed_numerics;
    q->plan.validation_batch = o->validation_batch;
    q->lower.input_dtype = MF_DTYPE_COUNT;
    q->lower.optimizer = o->optimizer ? mf_arena_strdup(&plan->arena, o->optimizer) : NULL;
    q->lower.loss = o->loss ? mf_arena_strdup(&plan->arena, o->loss) : NULL;
    q->want_max_batch = q->want_suggestions = !o->quick;
    q->curve_points = o->curve_points;
    if (o->input_shape && !mf_words_shape(o->input_shape, strlen(o->input_shape), &q->lower.input_shape))
        return mf_fail(err, MEMFIT_INVALID, "input shape \"%s\": must be H,W,C, as in 224,224,3", o->input_shape);
    memfit_status status = o->precision ? mf_words_precision(o->precision, &q->lower.precision, err) : MEMFIT_OK;
    if (status == MEMFIT_OK)
        status = read_dims(plan, o, err);
    if (status == MEMFIT_OK)
        status = read_assumptions(plan, o, err);
    return status;
}

/* ---- what a process takes beside its arena ---------------------------------------------------------------- */

/* What training takes at most, so that what fits here is not refused there. */
static memfit_status estimate_fixed(memfit_plan *plan, unsigned threads, memfit_error *err)
{
    enum {
        CHUNK_BYTES = 72 << 10,   /* eight operations in each of the three graphs */
        LITTLE_BYTES = 704 << 10, /* is in the margin of all this */
    };
    mf_plan_options *o = &plan->question.plan;
    mf_model_graphs graphs = {.model = plan->model, .options = plan->question.lower};
    mf_graph_source source;
    mf_model_graph_source(&graphs, &source);
    mf_cpu_fixed fixed;
    memfit_status status = mf_cpu_fixed_bytes(&source, plan->arena.host, MF_MODE_TRAIN, o->batch, threads, &fixed, err);
    if (status != MEMFIT_OK)
        return status;
    o->fixed_bytes = fixed.base_bytes + plan->model->arena.bytes + fixed.writer_bytes + fixed.graph_bytes +
                     fixed.shared_validation_bytes;
    if (o->batch > 1) /* data seldom divides by the batch: a partial one of each kind */
        o->fixed_bytes += fixed.graph_bytes + fixed.validation_bytes;
    o->start_bytes = fixed.making_bytes > LITTLE_BYTES ? o->fixed_bytes + fixed.making_bytes : 0;
    o->rest_bytes = o->batch > 1 ? fixed.graph_bytes : 0;
    o->chunk_bytes = CHUNK_BYTES;
    return MEMFIT_OK;
}

/* ---- devices ---------------------------------------------------------------------------------------------- */

static memfit_status set_limit(memfit_plan *plan, const char *memory, uint64_t whole, uint64_t available,
                               memfit_error *err)
{
    uint64_t limit = available;
    char asked[24], there[24];
    if (memory) {
        memfit_status status = memfit_size_parse(memory, whole, &limit, err);
        if (status != MEMFIT_OK)
            return status;
        if (limit > whole)
            return mf_fail(err, MEMFIT_INVALID,
                           "a limit of %s is more than %s has: %s\nleave --memory out to use what is there, or name "
                           "another device",
                           memfit_size_format(limit, asked, sizeof asked), plan->device,
                           memfit_size_format(whole, there, sizeof there));
        if (!limit)
            return mf_fail(err, MEMFIT_INVALID, "a limit of 0 bytes: nothing fits into that");
    }
    plan->question.plan.limit_bytes = limit;
    return MEMFIT_OK;
}

/* A card that cannot be asked: times by its rates, groups and own kernels as training has them on any card. What
 * libraries take is not known; methods of theirs that need no workspace exist. */
static void use_table(memfit_plan *plan, const mf_card *card)
{
    mf_roofline_for_card(&plan->roofline, card);
    plan->roofline.workspace = mf_cuda_own_workspace;
    mf_roofline_cost_source(&plan->roofline, &plan->question.cost);
    plan->question.cost.groups = mf_cuda_groups;
}

static memfit_status use_card(memfit_plan *plan, const memfit_plan_options *o, memfit_error *err)
{
    const mf_card *card = mf_card_find(o->card);
    uint64_t size;
    if (!card && memfit_size_parse(o->card, 0, &size, NULL) == MEMFIT_OK && size >> 20) {
        char *title = mf_arena_printf(&plan->arena, "any card of %s", o->card);
        if (!title)
            return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for a card");
        mf_card_of_size(size, title, &plan->card);
        card = &plan->card;
    }
    if (!card) {
        const char *near = mf_card_nearest(o->card);
        return mf_fail(err, MEMFIT_INVALID, "no card \"%s\" in the table%s%s%s\nmemfit plan --for list shows them all",
                       o->card, near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
    }
    snprintf(plan->device, sizeof plan->device, "%s", card->title);
    use_table(plan, card);
    plan->question.plan.fixed_bytes = mf_card_fixed_bytes(card);
    plan->question.plan.inputs_beside = o->memory && o->samples;
    plan->question.plan.kept_samples = o->samples;
    plan->context.basis = "table";
    plan->context.margin_percent = MF_CARD_FIXED_MARGIN_PERCENT;
    return set_limit(plan, o->memory, mf_card_memory_bytes(card), mf_card_memory_bytes(card), err);
}

/* As training would: by its backend's menus, in its groups. */
static memfit_status use_card_costs(memfit_plan *plan, const memfit_plan_options *o, memfit_error *err)
{
    mf_plan_options *p = &plan->question.plan;
    mf_model_graphs graphs = {.model = plan->model, .options = plan->question.lower};
    mf_graph_source source;
    mf_model_graph_source(&graphs, &source);
    plan->question.cost = plan->card_costs.cost;
    plan->question.cost.rules.allow_changed = o->allow_changed_numerics;
    plan->question.cost.rules.allow_nondeterministic = o->allow_nondeterministic;
    plan->card_costs.backend->loose_menus = o->allow_nondeterministic;
    return mf_card_costs_fixed(&plan->card_costs, o->host, &source, p->batch,
                               o->samples == 0 || o->samples % p->batch != 0, p->with_validation, &p->fixed_bytes, err);
}

/* A model is planned as training would; where there is only a card to be told of (mf_plan_find_place), or nothing can be trained
 * on it for want of NVRTC, the table's figures serve. */
static memfit_status use_cuda(memfit_plan *plan, const memfit_plan_options *o, memfit_error *err)
{
    memfit_device_info info = MEMFIT_DEVICE_INFO;
    memfit_status status = plan->model ? mf_card_costs_open(o->host, o->device, &plan->card_costs, err)
                                       : memfit_device_open(o->device, NULL, &plan->card_costs.device, err);
    bool asked = plan->model && status == MEMFIT_OK;
    if (plan->card_costs.device && (status == MEMFIT_NOT_FOUND || status == MEMFIT_UNSUPPORTED))
        status = MEMFIT_OK;
    if (status == MEMFIT_OK)
        status = memfit_device_get_info(plan->card_costs.device, &info, err);
    if (status == MEMFIT_NOT_FOUND && err) /* of the machine, not of a file that was named */
        err->code = MEMFIT_DEVICE;
    if (status != MEMFIT_OK)
        return status == MEMFIT_NOT_FOUND ? MEMFIT_DEVICE : status;
    const mf_card *card = mf_card_find(info.model);
    uint64_t most = info.free_bytes + info.fixed_bytes;
    snprintf(plan->device, sizeof plan->device, "%s", info.model);
    plan->question.plan.inputs_beside =
        o->memory != NULL; /* as in training: without a limit free memory is left alone */
    plan->question.plan.kept_samples = o->samples;
    plan->context.basis = asked ? "queried" : "table";
    if (asked) {
        most = mf_card_costs_most(&plan->card_costs);
        status = use_card_costs(plan, o, err);
    } else {
        use_table(plan, card ? card : mf_card_find("t4"));
        plan->question.plan.fixed_bytes = info.fixed_bytes;
        mf_card_costs_close(&plan->card_costs);
    }
    return status == MEMFIT_OK ? set_limit(plan, o->memory, info.total_bytes, most, err) : status;
}

static memfit_status use_cpu(memfit_plan *plan, const memfit_plan_options *o, memfit_error *err)
{
    snprintf(plan->device, sizeof plan->device, "cpu");
    memfit_status status = mf_cpu_create(plan->arena.host, o->threads, &plan->backend, err);
    if (status != MEMFIT_OK)
        return status;
    mf_backend_cost_source(plan->backend, &plan->question.cost);
    status = estimate_fixed(plan, o->threads ? o->threads : mf_os_cpu_count(), err);
    if (status != MEMFIT_OK)
        return status;
    plan->context.basis = "queried";
    plan->context.margin_percent = MF_CPU_FIXED_MARGIN_PERCENT;
    return set_limit(plan, o->memory, mf_os_total_memory(), mf_os_available_memory(), err);
}

static memfit_status use_device(memfit_plan *plan, const memfit_plan_options *o, memfit_error *err)
{
    const char *device = o->device ? o->device : "cpu";
    if (o->card)
        return use_card(plan, o, err);
    if (mf_words_cpu(device))
        return use_cpu(plan, o, err);
    if (mf_words_card(device))
        return use_cuda(plan, o, err);
    return mf_fail(err, MEMFIT_INVALID, "device \"%s\": must be cpu, cuda or cuda:I", device);
}

/* ---- the runtime that is asked about beside memfit ---- */

static memfit_status read_runtime(memfit_plan *plan, const memfit_plan_options *o, memfit_error *err)
{
    mf_framework_question *f = &plan->question.framework;
    f->given = o->runtime != NULL;
    f->runtime = o->card || (o->device && mf_words_card(o->device)) ? MF_RUNTIME_TENSORFLOW : MF_RUNTIME_MEMFIT;
    if (o->runtime && !mf_runtime_parse(o->runtime, &f->runtime))
        return mf_fail(err, MEMFIT_INVALID,
                       "runtime \"%s\": must be memfit, tensorflow, torch or jax\n"
                       "the answer names the version that it is about; no other can be asked for",
                       o->runtime);
    return MEMFIT_OK;
}

/* A card as other programs find it. */
static void set_place(memfit_plan *plan, const mf_card *card)
{
    enum { MEASURED_MARGIN_PERCENT = 2 }; /* of the card that the frameworks were measured on */
    const mf_plan_options *o = &plan->question.plan;
    bool measured = card && strcmp(card->name, "h200") == 0;
    plan->question.framework.card = true;
    plan->question.framework.place =
        (mf_framework_place){.limit_bytes = o->limit_bytes,
                             .fixed_bytes = o->fixed_bytes,
                             .fixed_margin_percent = measured ? MEASURED_MARGIN_PERCENT : plan->context.margin_percent,
                             .capability = card ? card->capability : 0,
                             .measured = measured};
}

memfit_status mf_plan_find_place(const memfit_plan_options *o, mf_framework_place *place, char *title, size_t bytes,
                                 memfit_error *err)
{
    bool card = o->device && mf_words_card(o->device);
    if (!o->card && !card)
        return mf_fail(err, MEMFIT_INVALID,
                       "a recorded step is planned for a card: --for CARD, or --device cuda\nmemfit plan --for list "
                       "shows them all");
    memfit_plan *plan = mf_host_zalloc(o->host, sizeof *plan);
    if (!plan)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for a plan");
    mf_arena_init(&plan->arena, o->host);
    memfit_status status = use_device(plan, o, err);
    if (status == MEMFIT_OK) {
        set_place(plan, o->card ? plan->card.name ? &plan->card : mf_card_find(o->card) : mf_card_find(plan->device));
        *place = plan->question.framework.place;
        snprintf(title, bytes, "%s", plan->device);
    }
    memfit_plan_destroy(plan);
    return status;
}

/* ---- the object ------------------------------------------------------------------------------------------- */

memfit_status memfit_plan_create(const char *model_path, const memfit_plan_options *given, memfit_plan **out,
                                 memfit_error *err)
{
    memfit_plan_options o = MEMFIT_PLAN_OPTIONS;
    memfit_status status = mf_abi_read(&o, given, "MEMFIT_PLAN_OPTIONS", err);
    if (status != MEMFIT_OK)
        return status;
    memfit_plan *plan = mf_host_zalloc(o.host, sizeof *plan);
    if (!plan)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for a plan");
    mf_arena_init(&plan->arena, o.host);
    status = read_options(plan, &o, err);
    if (status == MEMFIT_OK)
        status = read_runtime(plan, &o, err);
    uint64_t begin = mf_os_now_us();
    if (status == MEMFIT_OK && o.card)
        status = use_device(plan, &o, err); /* a slip in its name is found before the file is read */
    if (status == MEMFIT_OK)
        status = mf_model_load_flags(o.host, model_path, MF_LOAD_VERIFY_QUICK, &plan->model, err);
    if (status == MEMFIT_OK && !o.card)
        status = use_device(plan, &o, err);
    if (status == MEMFIT_OK) {
        plan->question.model = plan->model;
        plan->context.path = mf_arena_strdup(&plan->arena, model_path);
        plan->context.device = plan->device;
        plan->context.memory_bytes = plan->question.plan.limit_bytes;
        plan->context.model = plan->model;
        if (!o.card && o.device && mf_words_card(o.device))
            set_place(plan, mf_card_find(plan->device));
        else if (o.card)
            set_place(plan, plan->card.name ? &plan->card : mf_card_find(o.card));
        else
            plan->question.framework.place =
                (mf_framework_place){.limit_bytes = plan->question.plan.limit_bytes, .cpu = true};
        status = mf_answer_make(o.host, &plan->question, &plan->answer, err);
    }
    if (status != MEMFIT_OK) {
        memfit_plan_destroy(plan);
        return status;
    }
    plan->answer->seconds = (double)(mf_os_now_us() - begin) / 1e6;
    *out = plan;
    return MEMFIT_OK;
}

void memfit_plan_destroy(memfit_plan *plan)
{
    if (!plan)
        return;
    const memfit_host *host = plan->arena.host;
    mf_answer_destroy(plan->answer);
    if (plan->backend)
        plan->backend->table->destroy(plan->backend);
    mf_card_costs_close(&plan->card_costs);
    mf_model_destroy(plan->model);
    mf_arena_destroy(&plan->arena);
    mf_host_free(host, plan, sizeof *plan);
}

memfit_status memfit_plan_get_summary(const memfit_plan *plan, memfit_plan_summary *summary, memfit_error *err)
{
    const mf_answer *a = plan->answer;
    memfit_status status = mf_abi_check(summary, "MEMFIT_PLAN_SUMMARY", err);
    if (status != MEMFIT_OK)
        return status;
    memfit_plan_summary out = {.fits = a->fits,
                               .as_asked_fits = a->as_asked_fits,
                               .as_asked_peak_bytes = a->as_asked_peak_bytes,
                               .memory_bytes = plan->context.memory_bytes,
                               .peak_bytes = a->plan->peak_bytes,
                               .arena_bytes = a->plan->arena_bytes,
                               .fixed_bytes = a->plan->fixed_bytes,
                               .lower_bound_bytes = a->lower_bound_bytes,
                               .parameter_count = a->parameter_count,
                               .batch = a->plan->batch,
                               .pieces = a->plan->pieces,
                               .max_batch = a->max_batch,
                               .recomputed_ops = a->plan->recomputed_ops,
                               .numerics = (memfit_numerics)a->plan->numerics,
                               .slowdown = a->slowdown,
                               .plan_seconds = a->seconds,
                               .loss_chunks = a->plan->chunks};
    memcpy(out.breakdown, a->breakdown, sizeof a->breakdown);
    const mf_in_framework *in = &a->framework;
    out.runtime = mf_runtime_name(in->runtime);
    out.runtime_given = in->given;
    if (in->known) {
        out.in_framework_fits = (memfit_framework_fits)((int)in->estimate.fits + 1);
        out.in_framework_peak_bytes = in->estimate.peak_bytes;
        out.in_framework_low_bytes = in->estimate.low_bytes;
        out.in_framework_high_bytes = in->estimate.high_bytes;
        out.in_framework_max_batch = in->max_batch;
    }
    mf_abi_write(summary, &out, sizeof out);
    return MEMFIT_OK;
}

void memfit_plan_print(const memfit_plan *plan, FILE *file, bool detail)
{
    mf_answer_print(file, plan->answer, &plan->context, detail);
}

void memfit_plan_print_json(const memfit_plan *plan, FILE *file)
{
    mf_answer_print_json(file, plan->answer, &plan->context);
}

/* A FILE whose bytes go to a callback. */
typedef struct callback_file {
    memfit_write_fn write;
    void *ctx;
} callback_file;

static ssize_t give_on(void *cookie, const char *text, size_t bytes)
{
    const callback_file *f = cookie;
    return f->write(f->ctx, text, bytes) ? (ssize_t)bytes : 0;
}

memfit_status memfit_plan_write(const memfit_plan *plan, memfit_plan_form form, memfit_write_fn write, void *ctx,
                                memfit_error *err)
{
    if (!plan || !write || (unsigned)form > MEMFIT_PLAN_VERDICT)
        return mf_fail(err, MEMFIT_INVALID, "plan write: a plan, one of the forms and a callback are needed");
    callback_file target = {write, ctx};
    FILE *file = fopencookie(&target, "w", (cookie_io_functions_t){.write = give_on});
    if (!file)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to write a plan");
    if (form == MEMFIT_PLAN_JSON)
        mf_answer_print_json(file, plan->answer, &plan->context);
    else if (form == MEMFIT_PLAN_VERDICT)
        mf_answer_print_verdict(file, plan->answer, &plan->context);
    else
        mf_answer_print(file, plan->answer, &plan->context, form == MEMFIT_PLAN_DETAIL);
    bool failed = fflush(file) != 0 || ferror(file);
    fclose(file);
    return failed ? mf_fail(err, MEMFIT_IO, "plan write: the callback refused to take more") : MEMFIT_OK;
}

enum { MOST_SIDE_BY_SIDE = 16 };

static uint32_t take_answers(const memfit_plan *const *plans, size_t count, mf_answer **answers,
                             mf_answer_context *contexts)
{
    uint32_t n = 0;
    for (; n < count && n < MOST_SIDE_BY_SIDE; n++) {
        answers[n] = plans[n]->answer;
        contexts[n] = plans[n]->context;
    }
    return n;
}

void memfit_plan_compare(const memfit_plan *const *plans, size_t count, FILE *file, bool json)
{
    mf_answer *answers[MOST_SIDE_BY_SIDE];
    mf_answer_context contexts[MOST_SIDE_BY_SIDE];
    uint32_t n = take_answers(plans, count, answers, contexts);
    if (!n)
        return;
    if (json)
        mf_answers_print_json(file, n, answers, contexts);
    else
        mf_answers_compare(file, n, answers, contexts);
}

/* Opens a file to write about plans; never the model of one of them. */
static memfit_status open_output(mf_outfile *out, const memfit_plan *const *plans, size_t count, const char *path,
                                 mf_file_kind kind, memfit_error *err)
{
    for (size_t i = 0; i < count; i++) {
        const mf_named_file files[] = {{.name = "the model", .path = plans[i]->context.path},
                                       {"the plan's file", path, true, kind, NULL}};
        memfit_status status = mf_guard_files(files, 2, true, err);
        if (status != MEMFIT_OK)
            return status;
    }
    return mf_os_out_open(out, path, err);
}

memfit_status memfit_plan_dump_graph(const memfit_plan *plan, const char *path, memfit_error *err)
{
    mf_outfile out;
    memfit_status status = open_output(&out, &plan, 1, path, MF_FILE_GRAPH, err);
    if (status != MEMFIT_OK)
        return status;
    size_t length = strlen(path);
    bool dot = length > 4 && strcmp(path + length - 4, ".dot") == 0;
    mf_plan_dump(out.file, plan->answer->plan, dot);
    return mf_os_out_commit(&out, err);
}

memfit_status memfit_plan_write_html(const memfit_plan *const *plans, size_t count, const char *path, memfit_error *err)
{
    mf_answer *answers[MOST_SIDE_BY_SIDE];
    mf_answer_context contexts[MOST_SIDE_BY_SIDE];
    uint32_t n = take_answers(plans, count, answers, contexts);
    if (!n)
        return mf_fail(err, MEMFIT_INVALID, "a page of no plan");
    mf_outfile out;
    memfit_status status = open_output(&out, plans, n, path, MF_FILE_PAGE, err);
    if (status != MEMFIT_OK)
        return status;
    status = mf_answers_print_html(out.file, answers[0]->arena.host, n, answers, contexts, err);
    if (status == MEMFIT_OK)
        return mf_os_out_commit(&out, err);
    mf_os_out_abandon(&out);
    return status;
}
