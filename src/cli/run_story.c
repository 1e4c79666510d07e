/* run_story.c: see run_story.h. */
#include "cli/run_story.h"

#include "base/text.h"
#include "base/visible.h"
#include "memfit/base.h"

#include <stdio.h>
#include <string.h>

/* Whose allocator it is, by the library's name. */
static const char *known_as(const char *library)
{
    static const struct {
        const char *begin, *words;
    } list[] = {
        {"libc10_cuda", "PyTorch's allocator"},
        {"libtorch", "PyTorch, outside of its allocator"},
        {"xla_cuda_plugin", "JAX's allocator (XLA)"},
        {"libtensorflow", "TensorFlow's allocator"},
        {"_pywrap_tensorflow", "TensorFlow's allocator"},
        {"libcublas", "cuBLAS"},
        {"libcudnn", "cuDNN"},
        {"libcufft", "cuFFT"},
        {"libcusolver", "cuSOLVER"},
        {"libcusparse", "cuSPARSE"},
        {"libnccl", "NCCL"},
        {"_util.cpython", "CuPy"},
        {"runtime.cpython", "CuPy"},
        {"libcudart", "small requests through CUDA's runtime"},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        if (strncmp(library, list[i].begin, strlen(list[i].begin)) == 0)
            return list[i].words;
    return NULL;
}

static const char *name_of(const memfit_run_result *r, unsigned pid)
{
    for (size_t i = 0; i < r->process_count; i++)
        if (r->processes[i].pid == pid)
            return r->processes[i].name;
    return "";
}

static void tell_owner(const memfit_run_owner *o, unsigned pid, const memfit_run_result *r)
{
    char a[24];
    const char *words = known_as(o->library);
    mf_print(stderr, "  %10s  ", memfit_size_format(o->bytes, a, sizeof a));
    if (strcmp(o->memory_class, "process") == 0 && !o->pid)
        mf_print(stderr, "smaller ones");
    else if (strcmp(o->memory_class, "process") == 0)
        mf_print(stderr, "process %u (%s), of another job", o->pid, o->library);
    else if (o->library[0])
        mf_print(stderr, "%s%s%s%s: %s, %llu block%s", words ? words : "", words ? " (" : "", o->library,
                 words ? ")" : "", o->words, (unsigned long long)o->count, o->count == 1 ? "" : "s");
    else
        mf_print(stderr, "%s", o->words);
    if (o->pid && o->pid != pid && strcmp(o->memory_class, "process") != 0)
        mf_print(stderr, ", in process %u (%s)", o->pid, name_of(r, o->pid));
    fputc('\n', stderr);
}

static void tell(const memfit_run_denial *d, const memfit_run_result *r)
{
    char a[24], b[24], c[24];
    const char *process = name_of(r, d->pid);
    mf_print(stderr, "memfit: refused %s of card %u to process %u%s%s%s: of %s, %s were in use\n",
             memfit_size_format(d->request_bytes, a, sizeof a), d->card, d->pid, *process ? " (" : "", process,
             *process ? ")" : "", memfit_size_format(d->limit_bytes, b, sizeof b),
             memfit_size_format(d->in_use_bytes, c, sizeof c));
    for (size_t i = 0; i < d->owner_count; i++)
        tell_owner(&d->owners[i], d->pid, r);
    if (d->unused_bytes)
        mf_print(stderr, "  of the driver's pools %s were reserved and not handed out\n",
                 memfit_size_format(d->unused_bytes, a, sizeof a));
    if (d->tries > 1)
        mf_print(stderr, "  it was tried %u times; %s were freed in between\n", d->tries,
                 memfit_size_format(d->freed_bytes, a, sizeof a));
    if (d->waited)
        mf_print(stderr, "  other processes were asking for the same bytes all the time: one of them may be stopped\n");
    uint64_t needed = (d->in_use_bytes > d->freed_bytes ? d->in_use_bytes - d->freed_bytes : 0) + d->request_bytes;
    if (needed > d->limit_bytes && d->limit_bytes)
        mf_print(stderr, "  the limit is %s too small for this request\n",
                 memfit_size_format(needed - d->limit_bytes, a, sizeof a));
}

/* A failure for lack of memory that no limit of ours refused: a framework's own pool was full. */
void cli_tell_held(const memfit_run_result *result)
{
    char a[24], b[24];
    if (!result->held_bytes)
        return;
    mf_print(stderr, "memfit: the limit of %s refused nothing; %s of card %u were held\n",
             memfit_size_format(result->limit_bytes, a, sizeof a), memfit_size_format(result->held_bytes, b, sizeof b),
             result->held_card);
    for (size_t i = 0; i < result->held_count; i++)
        tell_owner(&result->held[i], result->held[0].pid, result);
}

void cli_tell_denials(const memfit_run *run, const memfit_run_result *result)
{
    memfit_run_denial d = MEMFIT_RUN_DENIAL, last = MEMFIT_RUN_DENIAL;
    bool refused = false;
    char a[24], b[24];
    for (size_t i = 0; i < result->denial_count; i++) {
        if (memfit_run_denial_get(run, i, &d, NULL))
            continue;
        if (d.granted_later) {
            mf_print(stderr, "memfit: refused %s to process %u; it freed %s, tried again and got it\n",
                     memfit_size_format(d.request_bytes, a, sizeof a), d.pid,
                     memfit_size_format(d.freed_bytes, b, sizeof b));
        } else {
            last = d;
            refused = true;
        }
    }
    if (refused && result->status != 0)
        tell(&last, result);
}

static void put_owner(mf_json_writer *w, const memfit_run_owner *o)
{
    mf_json_open(w, NULL, '{');
    mf_json_put_u64(w, "pid", o->pid);
    mf_json_put_string(w, "class", o->memory_class);
    mf_json_put_string(w, "library", o->library[0] ? o->library : NULL);
    mf_json_put_string(w, "name", known_as(o->library));
    mf_json_put_u64(w, "bytes", o->bytes);
    mf_json_put_u64(w, "blocks", o->count);
    mf_json_close(w, '}');
}

void cli_put_held(mf_json_writer *w, const memfit_run_result *result)
{
    mf_json_put_u64(w, "held_bytes", result->held_bytes);
    mf_json_open(w, "held", '[');
    for (size_t i = 0; i < result->held_count; i++)
        put_owner(w, &result->held[i]);
    mf_json_close(w, ']');
}

void cli_put_denials(mf_json_writer *w, const memfit_run *run, const memfit_run_result *result)
{
    mf_json_open(w, "denied", '[');
    for (size_t i = 0; i < result->denial_count; i++) {
        memfit_run_denial d = MEMFIT_RUN_DENIAL;
        if (memfit_run_denial_get(run, i, &d, NULL))
            continue;
        mf_json_open(w, NULL, '{');
        mf_json_put_string(w, "outcome", d.granted_later ? "granted-later" : "refused");
        mf_json_put_u64(w, "pid", d.pid);
        mf_json_put_u64(w, "card", d.card);
        mf_json_put_string(w, "class", d.memory_class);
        mf_json_put_string(w, "library", d.library);
        mf_json_put_u64(w, "request_bytes", d.request_bytes);
        mf_json_put_u64(w, "limit_bytes", d.limit_bytes);
        mf_json_put_u64(w, "in_use_bytes", d.in_use_bytes);
        mf_json_put_u64(w, "pool_unused_bytes", d.unused_bytes);
        mf_json_put_u64(w, "tries", d.tries);
        mf_json_put_u64(w, "freed_bytes", d.freed_bytes);
        mf_json_put_bool(w, "waited", d.waited);
        mf_json_put_u64(w, "unix_us", d.unix_us);
        mf_json_put_u64(w, "noted_in_ns", d.took_ns);
        mf_json_open(w, "owners", '[');
        for (size_t k = 0; k < d.owner_count; k++)
            put_owner(w, &d.owners[k]);
        mf_json_close(w, ']');
        mf_json_close(w, '}');
    }
    mf_json_close(w, ']');
}
