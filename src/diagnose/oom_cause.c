/*
 * oom_cause.c: from facts to a cause.
 *
 * The rules are tried in order; the first that holds decides. What a library could not get comes before what the
 * allocator says of itself (it is another failure), what happened over time before what the last moment looks like, and
 * a shortage before an explanation by sheer size. Every rule states its evidence in words and how sure it is. What to
 * change follows from the cause: oom_suggest.c.
 */
#include "diagnose/oom_log.h"

#include "base/abi.h"
#include "base/error.h"
#include "base/text.h"
#include "diagnose/oom_host.h"
#include "diagnose/oom_programs.h"
#include "diagnose/oom_text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define MIB (UINT64_C(1) << 20)
#define GIB (UINT64_C(1) << 30)

static const struct {
    const char *name, *words;
} causes[] = {
#define X(name, text, words) {text, words},
    MEMFIT_DIAGNOSIS_LIST(X)
#undef X
};

const char *memfit_diagnosis_cause_name(memfit_diagnosis_cause cause)
{
    return (unsigned)cause < MEMFIT_DIAGNOSIS_COUNT ? causes[cause].name : "?";
}

const char *memfit_diagnosis_cause_words(memfit_diagnosis_cause cause)
{
    return (unsigned)cause < MEMFIT_DIAGNOSIS_COUNT ? causes[cause].words : "?";
}

static char *size(uint64_t bytes, char *text)
{
    return memfit_size_format(bytes, text, 24);
}

static bool is(const mf_oom_facts *f, const char *framework)
{
    return strcmp(f->framework, framework) == 0;
}

void mf_oom_decide(memfit_diagnosis *d, memfit_diagnosis_cause cause, double certainty, const char *settle,
                   const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(d->evidence, sizeof d->evidence, format, args);
    va_end(args);
    d->cause = cause;
    d->certainty = certainty;
    snprintf(d->settle, sizeof d->settle, "%s", settle);
}

/* ---- the rules -------------------------------------------------------------------------------------------- */

static bool growing(const mf_oom_facts *f)
{
    if (f->series_count >= 3 && f->series_rises == f->series_count - 1 && f->series_last >= 2 * f->series_first)
        return true;
    return f->series_count >= 5 && f->series_rises * 10 >= (f->series_count - 1) * 9 &&
           f->series_last > f->series_first + f->series_first / 4 && f->series_last - f->series_first > 64 * MIB;
}

static bool by_time(const mf_oom_facts *f, memfit_diagnosis *d)
{
    char a[24], b[24];
    if (growing(f)) {
        mf_oom_decide(d, MEMFIT_DIAGNOSIS_GROWING, 0.9, "", "memory rose at %u of %u %ss printed, from %s to %s",
                      f->series_rises, f->series_count - 1, f->series_word, size(f->series_first, a),
                      size(f->series_last, b));
        return true;
    }
    if (f->evaluation_word) {
        mf_oom_decide(d, MEMFIT_DIAGNOSIS_EVALUATION, 0.75, "the batch size and whether gradients are off in that call",
                      "training had run; %s", f->evaluation_text);
        return true;
    }
    return false;
}

/* Metal's limit is 1.7 times what the machine recommends: more than its memory, unless it was set. */
static void mps_cause(const mf_oom_facts *f, memfit_diagnosis *d)
{
    char a[24], b[24], c[24];
    if (f->watermark_set)
        mf_oom_decide(d, MEMFIT_DIAGNOSIS_LIMIT, 0.9, "",
                      "%s was asked with %s in use, and PYTORCH_MPS_HIGH_WATERMARK_RATIO allows %s",
                      size(f->request, a), size(f->in_use, b), size(f->limit, c));
    else
        mf_oom_decide(d, MEMFIT_DIAGNOSIS_TOO_LARGE, 0.7, "PYTORCH_MPS_HIGH_WATERMARK_RATIO as the program had it",
                      "%s was asked with %s in use, of %s that Metal gives at most", size(f->request, a),
                      size(f->in_use, b), size(f->limit, c));
}

/* What a framework says of the card is then about the part of it; other processes that it lists are beside that. */
static void governed_cause(const mf_oom_facts *f, memfit_diagnosis *d)
{
    char a[24], b[24];
    d->limit_bytes = f->governed;
    mf_oom_decide(d, MEMFIT_DIAGNOSIS_LIMIT, 0.95, "",
                  "%s was asked, and memfit holds this process to %s of the card (memfit.limit, memfit run --memory)",
                  size(f->request, a), size(f->governed, b));
}

static void torch_cause(const mf_oom_facts *f, memfit_diagnosis *d)
{
    char a[24], b[24], c[24];
    uint64_t unexplained = f->process > f->reserved ? f->process - f->reserved : 0;
    if (f->card && f->process + 64 * MIB >= f->card && f->request <= 64 * MIB &&
        f->in_use + f->in_use / 50 >= f->process)
        mf_oom_decide(d, MEMFIT_DIAGNOSIS_LIBRARY, 0.55,
                      "what was being called; a library's first use needs room beside the tensors",
                      "only %s was asked and the process holds the whole card: the room libraries need was not left",
                      size(f->request, a));
    else if (f->reserved_free >= f->request && f->reserved_free * 10 >= f->reserved)
        mf_oom_decide(d, MEMFIT_DIAGNOSIS_FRAGMENTATION, 0.95, "",
                      "%s was asked while %s of PyTorch's own memory was free, scattered", size(f->request, a),
                      size(f->reserved_free, b));
    else if (f->governed)
        governed_cause(f, d);
    else if (f->limit && f->card_free >= f->request)
        mf_oom_decide(d, MEMFIT_DIAGNOSIS_LIMIT, 0.95, "",
                      "%s was asked and %s is free on the card, but only %s is allowed to this process",
                      size(f->request, a), size(f->card_free, b), size(f->limit, c));
    else if (f->card && f->others > f->card)
        mf_oom_decide(
            d, MEMFIT_DIAGNOSIS_LIMIT, 0.8, "the limit as it was set: memfit.limit, memfit run --memory",
            "%s was asked of %s, and other processes hold %s: more than all of it, so this process is shown a "
            "part of the card",
            size(f->request, a), size(f->card, b), size(f->others, c));
    else if (f->others > 512 * MIB && f->request > f->card_free && f->request <= f->card_free + f->others)
        mf_oom_decide(d, MEMFIT_DIAGNOSIS_OTHER_PROCESS, 0.95, "", "%s was asked, %s is free; other processes hold %s",
                      size(f->request, a), size(f->card_free, b), size(f->others, c));
    else if (unexplained > 3 * GIB && f->request > f->card_free && f->request <= f->card_free + unexplained)
        mf_oom_decide(d, MEMFIT_DIAGNOSIS_OTHER_FRAMEWORK, 0.9, "",
                      "this process holds %s, of which PyTorch knows %s: something else in it has the rest",
                      size(f->process, a), size(f->reserved, b));
    else if (f->request && !f->in_use && f->card && f->card_free) /* a text that is cut: what it held is not in it */
        mf_oom_decide(d, MEMFIT_DIAGNOSIS_TOO_LARGE, 0.9, "", "%s was asked, %s is free on a card of %s",
                      size(f->request, a), size(f->card_free, b), size(f->card, c));
    else if (f->request)
        mf_oom_decide(d, MEMFIT_DIAGNOSIS_TOO_LARGE, f->card ? 0.9 : 0.6,
                      f->card ? "" : "the card's size and what other processes hold (memfit ps)",
                      "%s was asked with %s in use%s%s", size(f->request, a), size(f->in_use, b),
                      f->card ? " on a card of " : "", f->card ? size(f->card, c) : "");
}

/* TensorFlow's pool as TensorFlow made it: what was free at its start, and so no round number; a limit that somebody
 * typed is one. */
static bool default_pool(const mf_oom_facts *f)
{
    uint64_t mib = f->created / MIB;
    return f->created && !f->host && is(f, "tensorflow") && mib % 256 && mib % 500;
}

static void default_pool_cause(const mf_oom_facts *f, memfit_diagnosis *d)
{
    char a[24], b[24], c[24];
    if (f->created_of && f->created < f->created_of / 2)
        mf_oom_decide(d, MEMFIT_DIAGNOSIS_OTHER_PROCESS, 0.8, "who holds the card (memfit ps)",
                      "TensorFlow found %s free when it began, on a card of %s: something else holds the rest",
                      size(f->created, a), size(f->created_of, b));
    else
        mf_oom_decide(d, MEMFIT_DIAGNOSIS_TOO_LARGE, f->created_of ? 0.85 : 0.7,
                      f->created_of ? "" : "the card's size, and what other processes hold (memfit ps)",
                      "%s was asked with %s in use; TensorFlow's pool of %s is what was free on the card",
                      size(f->request, a), size(f->in_use, b), size(f->created, c));
}

/* TensorFlow, XLA, JAX: the pool's own text says little; the bar and the driver's refusals say more. */
static void bfc_cause(const mf_oom_facts *f, memfit_diagnosis *d)
{
    char a[24], b[24], c[24];
    uint64_t pool = f->limit ? f->limit : f->base_limit;
    if (f->host && pool && f->request <= pool && f->in_use <= pool - f->request) {
        mf_oom_decide(
            d, MEMFIT_DIAGNOSIS_LIMIT, 0.6, "ulimit -v, and the container's limit (memfit doctor)",
            "%s was refused with %s in use, and the machine has %s: a limit of this process, or other programs",
            size(f->request, a), size(f->in_use, b), size(pool, c));
        return;
    }
    if (f->host && !pool &&
        f->request < 2 * GIB) { /* the kernel overcommits: without a limit it refuses only the absurd */
        mf_oom_decide(d, MEMFIT_DIAGNOSIS_LIMIT, 0.7, "ulimit -v, and vm.overcommit_memory (memfit doctor)",
                      "the system refused no more than %s: it does that to a process with a limit",
                      size(f->request, a));
        return;
    }
    if (f->host) {
        mf_oom_decide(d, MEMFIT_DIAGNOSIS_TOO_LARGE, pool ? 0.85 : 0.6,
                      pool ? "the machine's memory (memfit doctor)"
                           : "the machine's memory, ulimit -v and the container's limit (memfit doctor)",
                      "one tensor of %s was refused by the host's memory", size(f->request, a));
        return;
    }
    bool other_named = is(f, "jax") ? f->names_torch || f->names_tensorflow : f->names_torch || f->names_jax;
    unsigned free_cells = f->bar_cells - f->bar_used;
    if (f->driver_refused && f->request <= f->refused_largest && other_named)
        mf_oom_decide(d, MEMFIT_DIAGNOSIS_OTHER_FRAMEWORK, 0.7,
                      "whether it is this process that holds the card (memfit ps while it runs)",
                      "the driver refused parts down to %s, and another framework is named in the same output",
                      size(f->refused_last, a));
    else if (f->driver_refused && f->request <= f->refused_largest)
        mf_oom_decide(
            d, MEMFIT_DIAGNOSIS_OTHER_PROCESS, 0.8, "who holds the card (memfit ps)",
            "the driver refused the pool parts of %s down to %s before the program had used them: something else "
            "holds the card",
            size(f->refused_largest, a), size(f->refused_last, b));
    else if (pool && f->in_use && f->in_use <= pool && pool - f->in_use >= f->request &&
             pool - f->in_use - f->request >= pool / 256) /* the allocator prints hundredths of a GiB */
        mf_oom_decide(d, MEMFIT_DIAGNOSIS_FRAGMENTATION, 0.9, "", "%s was asked and %s of the pool was free, scattered",
                      size(f->request, a), size(pool - f->in_use, b));
    else if (default_pool(f))
        default_pool_cause(f, d);
    else if (f->created && is(f, "tensorflow") && f->request <= f->created)
        mf_oom_decide(d, MEMFIT_DIAGNOSIS_LIMIT, 0.7, "memory_limit as the program had it, and the card's size",
                      "%s was asked with %s in use of a pool of %s, a round number: a limit that was set",
                      size(f->request, a), size(f->in_use, b), size(f->created, c));
    else if (f->bar_holes >= 5 && f->bar_longest_hole * 3 <= free_cells)
        mf_oom_decide(d, MEMFIT_DIAGNOSIS_FRAGMENTATION, 0.75,
                      "the allocator's full dump (TF_CPP_VMODULE=bfc_allocator=1)",
                      "the pool's free cells lie in %u separate holes", f->bar_holes);
    else if (pool ? f->request > pool * 4 / 3 : f->request > 64 * GIB)
        mf_oom_decide(d, MEMFIT_DIAGNOSIS_TOO_LARGE, pool ? 0.9 : 0.6, pool ? "" : "the card's size (memfit doctor)",
                      "one request of %s%s%s", size(f->request, a), pool ? " against a pool of " : "",
                      pool ? size(pool, b) : "");
    else if (f->bar_cells)
        mf_oom_decide(d, MEMFIT_DIAGNOSIS_LIMIT, 0.6,
                      "XLA_PYTHON_CLIENT_MEM_FRACTION or memory_limit as the program had it, and the card's size",
                      "%s was asked of a pool %u %% full; the pool is a part of the card", size(f->request, a),
                      f->bar_used * 100 / f->bar_cells);
    else if (is(f, "jax") && !f->driver_refused && !pool)
        mf_oom_decide(d, MEMFIT_DIAGNOSIS_LIMIT, 0.5, "XLA_PYTHON_CLIENT_MEM_FRACTION as the program had it",
                      "%s was asked and XLA's pool refused without asking the driver for more: its size was fixed "
                      "when the program began",
                      size(f->request, a));
    else
        mf_oom_decide(d, MEMFIT_DIAGNOSIS_TOO_LARGE, 0.5,
                      "the lines before the error, where the allocator prints what held the rest", "%s was asked",
                      size(f->request, a));
}

/* ---- together --------------------------------------------------------------------------------------------- */

void mf_oom_own(memfit_diagnosis *d, uint64_t bytes, const char *format, ...)
{
    if (!bytes || d->owner_count == MEMFIT_DIAGNOSIS_OWNERS)
        return;
    char name[sizeof d->owners[0].name];
    va_list args;
    va_start(args, format);
    vsnprintf(name, sizeof name, format, args);
    va_end(args);
    size_t at = d->owner_count++;
    for (; at > 0 && d->owners[at - 1].bytes < bytes; at--)
        d->owners[at] = d->owners[at - 1];
    snprintf(d->owners[at].name, sizeof d->owners[at].name, "%s", name);
    d->owners[at].bytes = bytes;
}

static void list_owners(const mf_oom_facts *f, memfit_diagnosis *d)
{
    char a[24];
    if (is(f, "pytorch")) {
        mf_oom_own(d, f->in_use - (f->private_pools < f->in_use ? f->private_pools : 0),
                   "this process: tensors PyTorch holds");
        mf_oom_own(d, f->private_pools, "this process: private pools (CUDA graphs)");
        mf_oom_own(d, f->reserved_free, "this process: free inside PyTorch's allocator");
        if (f->process > f->reserved)
            mf_oom_own(d, f->process - f->reserved, "this process: context, libraries, other frameworks");
    } else if (f->host_end == MF_HOST_GROUP || f->host_end == MF_HOST_MACHINE) {
        mf_oom_own(d, f->in_use,
                   f->host_end == MF_HOST_GROUP ? "in use in its container, job or unit" : "in use there");
    } else {
        mf_oom_own(d, f->in_use, "this process: in use in the pool");
    }
    if (f->task_pid && !f->process_count)
        mf_oom_own(d, f->task_bytes, "process %u (%s)", f->task_pid, f->task_name);
    if (f->victim_pid && f->victim_pid != f->task_pid)
        mf_oom_own(d, f->victim_bytes, "process %u, which was killed", f->victim_pid);
    for (size_t i = 0; i < f->process_count; i++)
        mf_oom_own(d, f->processes[i].bytes, "process %u", f->processes[i].pid);
    for (size_t i = 0; i < f->bfc_size_count; i++)
        mf_oom_own(d, f->bfc_sizes[i].size * f->bfc_sizes[i].count, "%s%llu block%s of %s",
                   f->in_use ? "of that, " : "", (unsigned long long)f->bfc_sizes[i].count,
                   f->bfc_sizes[i].count == 1 ? "" : "s", size(f->bfc_sizes[i].size, a));
}

/* memfit's pool has said why; a plan that does not fit is over its limit. */
static void own_cause(const mf_oom_facts *f, memfit_diagnosis *d)
{
    static const memfit_diagnosis_cause causes_of[MEMFIT_CAUSE_COUNT] = {
        [MEMFIT_CAUSE_NONE] = MEMFIT_DIAGNOSIS_LIMIT,
        [MEMFIT_CAUSE_LIMIT] = MEMFIT_DIAGNOSIS_LIMIT,
        [MEMFIT_CAUSE_OTHER_LOGICAL_DEVICE] = MEMFIT_DIAGNOSIS_LIMIT,
        [MEMFIT_CAUSE_PENDING_STREAM] = MEMFIT_DIAGNOSIS_LIMIT,
        [MEMFIT_CAUSE_PINNED_BY_SMALL] = MEMFIT_DIAGNOSIS_FRAGMENTATION,
        [MEMFIT_CAUSE_TAKEN_BY_OTHERS] = MEMFIT_DIAGNOSIS_OTHER_PROCESS,
        [MEMFIT_CAUSE_GRANULARITY] = MEMFIT_DIAGNOSIS_LIMIT,
        [MEMFIT_CAUSE_LARGER_THAN_DEVICE] = MEMFIT_DIAGNOSIS_TOO_LARGE,
    };
    char a[24], b[24], c[24];
    if (f->plan_failed)
        mf_oom_decide(d, MEMFIT_DIAGNOSIS_LIMIT, 0.97, "", "the step needs %s, the limit is %s", size(f->request, a),
                      size(f->limit, b));
    else
        mf_oom_decide(d, causes_of[f->own], 0.97, "", "the pool says %s: %s was asked with %s in use, of a limit of %s",
                      memfit_cause_name(f->own), size(f->request, a), size(f->in_use, b), size(f->limit, c));
}

void mf_oom_conclude(const mf_oom_facts *f, memfit_diagnosis *d)
{
    memset(d, 0, sizeof *d);
    snprintf(d->framework, sizeof d->framework, "%s", f->framework);
    snprintf(d->source, sizeof d->source, "log");
    snprintf(d->operation, sizeof d->operation, "%s", f->operation);
    snprintf(d->line, sizeof d->line, "%s", f->line);
    d->request_bytes = f->request;
    d->host = f->host;
    d->leading = f->leading;
    d->limit_bytes = f->limit ? f->limit : f->host_end == MF_HOST_GROUP ? f->group_limit : f->base_limit;
    d->reserved_bytes = f->reserved;
    d->card_bytes = f->card;
    if (default_pool(f)) { /* a pool that nobody limited */
        d->limit_bytes = 0;
        d->reserved_bytes = f->created;
        d->card_bytes = f->created_of;
    }
    d->in_use_bytes = f->in_use;
    d->card_free_bytes = f->card_free;
    d->process_bytes = f->process;
    mf_oom_decide(d, MEMFIT_DIAGNOSIS_UNKNOWN, 0, "the lines around the failure, from the first word of the error on",
                  "no out-of-memory failure was found in the text");
    if (f->failed) {
        if (f->own || f->plan_failed)
            own_cause(f, d);
        else if ((f->serves || (f->program && f->request)) && !f->torch_message && !f->bfc_failure)
            mf_oom_program_cause(f, d);
        else if (f->library_error && !f->torch_message && !f->bfc_failure)
            mf_oom_decide(d, MEMFIT_DIAGNOSIS_LIBRARY, 0.85, "what was free at that moment (memfit ps)",
                          "%s: that call needs memory of its own, and there was none", f->library_text);
        else if (f->host_end == MF_HOST_SHARED)
            mf_oom_host_cause(f, d);
        else if (!by_time(f, d)) {
            if (f->mps)
                mps_cause(f, d);
            else if (f->torch_message)
                torch_cause(f, d);
            else if (f->governed && f->request && !f->host)
                governed_cause(f, d);
            else if (mf_oom_host_cause(f, d) || mf_oom_program_cause(f, d))
                ;
            else if (f->request)
                bfc_cause(f, d);
            else if (f->died_reporting && (f->names_tensorflow || f->names_jax))
                mf_oom_decide(d, MEMFIT_DIAGNOSIS_OTHER_FRAMEWORK, 0.6,
                              "whether it is this process that holds the card (memfit ps while it runs)",
                              "PyTorch ran out of memory and failed while it wrote its report; another framework is "
                              "named in the same output");
            else
                mf_oom_decide(d, MEMFIT_DIAGNOSIS_UNKNOWN, 0.2, "the line that says how much was asked",
                              "memory ran out, but the text does not say what was asked");
        }
    }
    list_owners(f, d);
    mf_oom_suggest(f, d);
}

memfit_status mf_explain_log(const char *text, size_t bytes, memfit_diagnosis *diagnosis, memfit_error *err)
{
    if (!bytes)
        return mf_fail(err, MEMFIT_DAMAGED, "the log is empty");
    size_t look = bytes < 65536 ? bytes : 65536, strange = 0;
    for (size_t i = 0; i < look; i++) {
        unsigned char c = (unsigned char)text[i];
        strange += c < 9 || (c > 13 && c < 27) || (c > 27 && c < 32);
    }
    if (strange * 10 > look)
        return mf_fail(err, MEMFIT_DAMAGED,
                       "this is not text: %zu of its first %zu bytes are control characters\ngive a log, a memfit "
                       "trace, or a PyTorch memory snapshot (.pickle)",
                       strange, look);
    mf_oom_facts facts;
    mf_oom_read(text, bytes, &facts);
    mf_oom_conclude(&facts, diagnosis);
    return MEMFIT_OK;
}

memfit_status memfit_explain_log(const char *text, size_t bytes, memfit_diagnosis *diagnosis, memfit_error *err)
{
    memfit_diagnosis found = MEMFIT_DIAGNOSIS;
    memfit_status status = mf_abi_check(diagnosis, "MEMFIT_DIAGNOSIS", err);
    mf_oom_text plain = {0};
    if (!status)
        status = mf_oom_text_open(NULL, text, bytes, &plain, err);
    if (!status)
        status = mf_explain_log(plain.data, plain.bytes, &found, err);
    mf_oom_text_close(&plain);
    if (!status)
        mf_abi_write(diagnosis, &found, sizeof found);
    return status;
}
