/*
 * oom_log.c: reads the facts out of what a program printed. One pass over the lines, fixed memory: of a line only its
 * first 16 KiB are looked at, of a series of numbers only its ends.
 *
 * Nothing is concluded here except what a line states. Phrases are matched, not whole lines: versions change the words
 * around them more often than the phrases.
 *
 * Most lines of a long log say nothing, and oom_filter.c says which readers are worth calling. mf_oom_read_all calls
 * them all: tests and the fuzz target hold both against each other.
 */
#include "diagnose/oom_log.h"

#include "base/error.h"
#include "base/text.h"
#include "diagnose/oom_filter.h"
#include "diagnose/oom_host.h"
#include "diagnose/oom_programs.h"
#include "diagnose/oom_series.h"
#include "diagnose/oom_words.h"
#include "plan/cards.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MOST_LINE = 16384 };

/* ---- PyTorch ---------------------------------------------------------------------------------------------- */

/* Another process on the card: the largest come first, and stay when there are more than there is room for. */
static void keep_process(mf_oom_facts *f, unsigned pid, uint64_t bytes)
{
    enum { MOST = sizeof f->processes / sizeof *f->processes };
    size_t at = f->process_count;
    while (at > 0 && f->processes[at - 1].bytes < bytes)
        at--;
    if (at == MOST)
        return;
    if (f->process_count < MOST)
        f->process_count++;
    for (size_t i = f->process_count - 1; i > at; i--)
        f->processes[i] = f->processes[i - 1];
    f->processes[at].pid = pid;
    f->processes[at].bytes = bytes;
}

/* "MPS backend out of memory (MPS allocated: 17.44 GB, other allocations: 402.11 MB, max allowed: 18.13 GB). Tried to
 * allocate 1.50 GB on private pool." */
static bool read_mps(const char *line, mf_oom_facts *f)
{
    if (!strstr(line, "MPS backend out of memory") || !mf_oom_size_after(line, "Tried to allocate ", &f->request))
        return false;
    f->failed = f->torch_message = f->mps = true;
    f->framework = "pytorch";
    mf_oom_size_after(line, "MPS allocated: ", &f->in_use);
    mf_oom_size_after(line, "max allowed: ", &f->limit);
    f->reserved = f->in_use;
    return true;
}

static bool card_out_of_memory(const char *line)
{
    return strstr(line, "CUDA out of memory") || strstr(line, "HIP out of memory") || strstr(line, "XPU out of memory");
}

static void read_torch(const char *line, mf_oom_facts *f)
{
    if (read_mps(line, f))
        return;
    /* "[enforce fail at alloc_cpu.cpp:127] ... DefaultCPUAllocator: can't allocate memory: you tried to allocate N
     * bytes" */
    if (strstr(line, "DefaultCPUAllocator: ") && mf_oom_size_after(line, "tried to allocate ", &f->request)) {
        f->failed = f->host = true;
        f->framework = "pytorch";
        return;
    }
    /* Its report asks NVML, and an assertion there hides the failure that was to be reported. */
    if (strstr(line, "CUDACachingAllocator") && strstr(line, "nvmlDevice") && strstr(line, "INTERNAL ASSERT FAILED")) {
        f->failed = f->died_reporting = true;
        f->framework = "pytorch";
        return;
    }
    if (!card_out_of_memory(line) || !mf_oom_size_after(line, "Tried to allocate ", &f->request))
        return;
    f->failed = f->torch_message = true;
    f->framework = "pytorch";
    /* "GPU 0 has a total capacity of X of which Y is free", before 2.1: "X total capacity; Z already allocated; Y free"
     */
    if (!mf_oom_size_after(line, "total capacity of ", &f->card) &&
        !mf_oom_size_after(line, "total capacty of ", &f->card))
        mf_oom_size_before(line, " total capacity", &f->card);
    if (!mf_oom_size_after(line, "of which ", &f->card_free))
        mf_oom_size_before(line, " free;", &f->card_free);
    mf_oom_size_after(line, "this process has ", &f->process);
    if (!mf_oom_size_before(line, " allowed;", &f->limit))
        f->limit = 0;
    if (!mf_oom_size_after(line, "Of the allocated memory ", &f->in_use))
        mf_oom_size_before(line, " already allocated", &f->in_use);
    uint64_t total;
    if (mf_oom_size_before(line, " reserved in total", &total))
        f->reserved_free = total > f->in_use ? total - f->in_use : 0;
    mf_oom_size_before(line, " is reserved by PyTorch but unallocated", &f->reserved_free);
    mf_oom_size_before(line, " allocated in private pools", &f->private_pools);
    f->reserved = f->in_use + f->reserved_free;
    f->others = 0;
    f->process_count = 0;
    for (const char *p = line; (p = strstr(p, "Process ")); p += 8) {
        unsigned pid = (unsigned)strtoul(p + 8, NULL, 10);
        uint64_t bytes;
        const char *has = strstr(p, " has ");
        if (!pid || !has || has - p > 24 || !mf_oom_size(has + 5, &bytes))
            continue;
        f->others += bytes;
        keep_process(f, pid, bytes);
    }
}

/* ---- the BFC allocator: TensorFlow, XLA, JAX -------------------------------------------------------------- */

static void read_bar(const char *line, mf_oom_facts *f)
{
    const char *p = strstr(line, "] ");
    if (!p || !strstr(line, "bfc_allocator"))
        return;
    p += 2;
    size_t n = strspn(p, "*_x");
    if (n < 50 || (p[n] && p[n] != '\n' && p[n] != '\r'))
        return;
    f->bar_cells = (unsigned)n;
    f->bar_used = f->bar_holes = f->bar_longest_hole = 0;
    unsigned hole = 0;
    for (size_t i = 0; i < n; i++) {
        if (p[i] != '_') {
            f->bar_used++;
            hole = 0;
            continue;
        }
        f->bar_holes += hole == 0;
        hole++;
        if (hole > f->bar_longest_hole)
            f->bar_longest_hole = hole;
    }
}

/* "12 Chunks of size 1048576 totalling 12.00MiB": the histogram of a dump; keeps the largest totals. */
static void read_histogram(const char *line, mf_oom_facts *f)
{
    const char *p = strstr(line, " Chunks of size ");
    if (!p)
        return;
    const char *start = p;
    while (start > line && isdigit((unsigned char)start[-1]))
        start--;
    uint64_t count = strtoull(start, NULL, 10), size = strtoull(p + 16, NULL, 10);
    size_t most = sizeof f->bfc_sizes / sizeof *f->bfc_sizes, at = f->bfc_size_count;
    if (at == most) {
        at = 0;
        for (size_t i = 1; i < most; i++)
            if (f->bfc_sizes[i].size * f->bfc_sizes[i].count < f->bfc_sizes[at].size * f->bfc_sizes[at].count)
                at = i;
        if (f->bfc_sizes[at].size * f->bfc_sizes[at].count >= size * count)
            return;
    } else {
        f->bfc_size_count++;
    }
    f->bfc_sizes[at].size = size;
    f->bfc_sizes[at].count = count;
}

static void copy_until(char *out, size_t bytes, const char *from, const char *stop)
{
    size_t n = strcspn(from, stop);
    snprintf(out, bytes, "%.*s", (int)(n < bytes ? n : bytes - 1), from);
}

/* "Created device /job:localhost/... with 5964 MB memory:  -> device: 0, name: NVIDIA GeForce RTX 2060, pci bus id: ..." */
static void read_created(const char *line, mf_oom_facts *f)
{
    const char *with = strstr(line, " MB memory"), *name = strstr(line, ", name: ");
    uint64_t megabytes;
    if (!with || !strstr(line, "Created device ") || !mf_oom_size_before(line, " MB memory", &megabytes))
        return;
    char card[64];
    copy_until(card, sizeof card, name ? name + 8 : "", ",\r\n");
    const mf_card *found = card[0] ? mf_card_find(card) : NULL;
    f->created = megabytes / 1000000 << 20; /* it says MB and means MiB */
    f->created_of = found ? mf_card_memory_bytes(found) : 0;
}

static void read_bfc(const char *line, mf_oom_facts *f)
{
    uint64_t bytes;
    if (strstr(line, "ran out of memory trying to allocate ") && !strstr(line, "not a failure") &&
        mf_oom_size_after(line, "trying to allocate ", &f->request)) {
        f->failed = f->bfc_failure = true;
        if (!f->framework && strstr(line, "from the lower end")) /* XLA's own copy of the allocator says so */
            f->framework = "jax";
        if (mf_oom_size_after(line, "rounded to ", &bytes) && !f->request)
            f->request = bytes;
        const char *op = strstr(line, "requested by op ");
        if (op && op[16] > ' ')
            copy_until(f->operation, sizeof f->operation, op + 16, "\r\n");
    }
    if (strstr(line, "RESOURCE_EXHAUSTED") && mf_oom_size_after(line, "while trying to allocate ", &bytes)) {
        f->failed = true;
        f->request = bytes > f->request ? bytes : f->request;
        if (!f->framework)
            f->framework = "jax";
        const char *name = strstr(line, "executable_name='");
        if (name)
            copy_until(f->operation, sizeof f->operation, name + 17, "'");
    }
    if (strstr(line, "Out of memory allocating ") && !strstr(line, "allocated so far") &&
        mf_oom_size_after(line, "allocating ", &bytes)) { /* XLA, on a CPU; CuPy says how much it has */
        f->failed = f->host = true;
        f->request = bytes;
        f->framework = "jax";
    }
    if (strstr(line, "OOM when allocating tensor with shape")) {
        f->failed = true;
        f->framework = "tensorflow";
        f->host = strstr(line, "by allocator cpu") || strstr(line, "by allocator mklcpu");
        const char *shape = strstr(line, "shape[");
        uint64_t elements = 1, width = strstr(line, "type double") || strstr(line, "type int64")    ? 8
                                       : strstr(line, "type half") || strstr(line, "type bfloat16") ? 2
                                                                                                    : 4;
        for (const char *p = shape ? shape + 6 : ""; *p && *p != ']';) {
            char *end;
            uint64_t n = strtoull(p, &end, 10);
            if (end == p || __builtin_mul_overflow(elements, n, &elements))
                break;
            if (p == shape + 6)
                f->leading = n;
            p = end + (*end == ',');
        }
        if (shape && !__builtin_mul_overflow(elements, width, &elements))
            f->request = elements;
        const char *op = strstr(line, "[Op:");
        if (op)
            copy_until(f->operation, sizeof f->operation, op + 4, "]");
    }
    const char *node = strstr(line, "[[{{node ");
    if (node && f->failed && (!f->operation[0] || strncmp(f->operation, "__inference", 11) == 0))
        copy_until(f->operation, sizeof f->operation, node + 9, "}");
    if (strstr(line, "Failed to allocate device memory of ") || strstr(line, "failed to allocate ") ||
        strstr(line, "Failed to allocate ")) {
        if ((strstr(line, "CUDA_ERROR_OUT_OF_MEMORY") || strstr(line, "out of memory")) &&
            (mf_oom_size_after(line, "memory of ", &bytes) || mf_oom_size_after(line, "llocate ", &bytes))) {
            f->driver_refused = true;
            f->refused_last = bytes;
            if (!f->refused_first)
                f->refused_first = bytes;
            if (bytes > f->refused_largest)
                f->refused_largest = bytes;
        }
    }
    if (mf_oom_size_after(line, "exceeds the base limit (", &bytes))
        f->base_limit = bytes;
    if (strstr(line, "Limit:") && !strstr(line, "limit ("))
        mf_oom_size_after(line, "Limit:", &f->limit);
    if (strstr(line, "InUse:") && !strstr(line, "MaxInUse:"))
        mf_oom_size_after(line, "InUse:", &f->in_use);
    read_created(line, f);
    read_bar(line, f);
    read_histogram(line, f);
}

/* ---- libraries, settings, frames -------------------------------------------------------------------------- */

static void read_library(const char *line, mf_oom_facts *f)
{
    static const char *const phrases[] = {"CUBLAS_STATUS_ALLOC_FAILED",
                                          "CUBLAS_STATUS_NOT_INITIALIZED",
                                          "CUDNN_STATUS_NOT_INITIALIZED",
                                          "CUDNN_STATUS_ALLOC_FAILED",
                                          "CUDNN_STATUS_INTERNAL_ERROR",
                                          "CUDNN_STATUS_EXECUTION_FAILED",
                                          "CUSOLVER_STATUS_ALLOC_FAILED",
                                          "CUSPARSE_STATUS_ALLOC_FAILED",
                                          "CUSPARSE_STATUS_INSUFFICIENT_RESOURCES",
                                          "CURAND_STATUS_ALLOCATION_FAILED",
                                          "CUFFT_ALLOC_FAILED",
                                          "Could not create cudnn handle",
                                          "could not create cudnn handle",
                                          "Failed to create cuBLAS handle",
                                          "failed to create cublas handle",
                                          "Failed to get convolution algorithm",
                                          "cuDNN launch failure",
                                          "cudaErrorMemoryAllocation",
                                          "hipErrorOutOfMemory",
                                          "HIP error: out of memory"};
    for (size_t i = 0; i < sizeof phrases / sizeof *phrases; i++)
        if (strstr(line, phrases[i])) {
            f->failed = f->library_error = true;
            snprintf(f->library_text, sizeof f->library_text, "%s", phrases[i]);
        }
    /* A library that cannot make its handle: "CUSOLVER_STATUS_INTERNAL_ERROR, when calling `cusolverDnCreate(handle)`"
     */
    const char *call = strstr(line, "when calling `cu"), *status = strstr(line, "_STATUS_");
    if (call && strstr(call, "Create(") && status && status < call && !f->library_error) {
        while (status > line && isupper((unsigned char)status[-1]))
            status--;
        f->failed = f->library_error = true;
        copy_until(f->library_text, sizeof f->library_text, status, " ,`\r\n");
    }
    if ((strstr(line, "NCCL") && strstr(line, "out of memory")) || strstr(line, "Failed to CUDA calloc") ||
        strstr(line, "Failed to CUDA malloc")) {
        f->failed = f->library_error = true;
        snprintf(f->library_text, sizeof f->library_text, "NCCL: out of memory");
    }
    if (strstr(line, "CUDA error: out of memory") && !f->library_text[0]) {
        f->failed = f->library_error = true;
        snprintf(f->library_text, sizeof f->library_text, "CUDA error: out of memory");
    }
    if (strstr(line, "torch.AcceleratorError") || strstr(line, "torch.OutOfMemoryError") ||
        strstr(line, "RuntimeError: CUDA error") || strstr(line, "RuntimeError: HIP error") ||
        strstr(line, "RuntimeError: CUDA driver error") || strstr(line, "torch.distributed.DistBackendError") ||
        (f->library_error && strstr(line, "torch.backends")))
        f->framework = "pytorch";
}

/* "NAME=VALUE", "NAME: VALUE" or "'NAME': 'VALUE'" of the variables a suggestion may set: kept as NAME=VALUE, so that
 * what is in force is not suggested again. */
static void keep_setting(const char *line, const char *name, mf_oom_facts *f)
{
    const char *p = strstr(line, name);
    size_t n = strlen(name);
    if (!p || f->setting_count == sizeof f->settings / sizeof *f->settings)
        return;
    p += n;
    p += strspn(p, "'\"]");
    if (*p != '=' && *p != ':')
        return;
    p++;
    p += strspn(p, " '\"=");
    size_t value = strcspn(p, strstr(name, "ALLOC_CONF") ? " '\";)}]\t\r" : " '\",;)}]\t\r");
    while (value && p[value - 1] == ',') /* of a list around it, not of the setting */
        value--;
    if (!value || n + value + 2 > sizeof f->settings[0])
        return;
    snprintf(f->settings[f->setting_count++], sizeof f->settings[0], "%s=%.*s", name, (int)value, p);
}

static void keep_settings(const char *line, mf_oom_facts *f)
{
    static const char *const names[] = {"PYTORCH_CUDA_ALLOC_CONF",       "PYTORCH_ALLOC_CONF",
                                        "TF_FORCE_GPU_ALLOW_GROWTH",     "TF_GPU_ALLOCATOR",
                                        "XLA_PYTHON_CLIENT_PREALLOCATE", "XLA_PYTHON_CLIENT_MEM_FRACTION",
                                        "XLA_PYTHON_CLIENT_ALLOCATOR",   "JAX_PLATFORMS",
                                        "CUDA_VISIBLE_DEVICES",          "PYTORCH_MPS_HIGH_WATERMARK_RATIO"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        keep_setting(line, names[i], f);
    for (size_t i = 0; i < f->setting_count; i++) {
        const char *s = f->settings[i];
        f->expandable_on |= strstr(s, "ALLOC_CONF=") && strstr(s, "expandable_segments:True");
        f->growth_on |= strcmp(s, "TF_FORCE_GPU_ALLOW_GROWTH=true") == 0;
        f->watermark_set |= strncmp(s, "PYTORCH_MPS_HIGH_WATERMARK_RATIO=", 33) == 0;
        f->preallocate_off |= strcmp(s, "XLA_PYTHON_CLIENT_PREALLOCATE=false") == 0;
        f->async_on |= strcmp(s, "TF_GPU_ALLOCATOR=cuda_malloc_async") == 0 || strstr(s, "backend:cudaMallocAsync") ||
                       strcmp(s, "XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async") == 0;
    }
}

/* A setting counts only where the user stated it, not in the advice frameworks print with every failure. */
static void read_settings(const char *line, mf_oom_facts *f)
{
    if (strstr(line, "try setting") || strstr(line, "improve the situation") || strstr(line, "to disable upper limit"))
        return;
    keep_settings(line, f);
    size_t count;
    const mf_oom_class *classes = mf_oom_classes(&count);
    for (size_t i = 0; i < count; i++)
        if (classes[i].seen && strstr(line, classes[i].seen))
            f->seen[i / 64] |= UINT64_C(1) << i % 64;
    f->expandable_on |= strstr(line, "expandable_segments=True") != NULL;
    f->growth_on |= strstr(line, "set_memory_growth(") && strstr(line, "True");
    /* torch.no_grad and inference_mode as decorators leave this frame in a traceback. */
    f->no_grad_on |= strstr(line, "in decorate_context") || strstr(line, "with torch.no_grad()") ||
                     strstr(line, "with torch.inference_mode()");
    const char *p = strstr(line, "MEM_FRACTION=");
    if (p) {
        f->fraction_set = true;
        f->fraction = mf_text_to_double(p + 13, NULL);
    }
}

static void read_frame(const char *line, mf_oom_facts *f)
{
    const char *file = strstr(line, "File \"");
    if (!file)
        return;
    const char *end = strchr(file + 6, '"'), *number = strstr(line, "\", line ");
    if (!end || !number)
        return;
    const char *in = strstr(number, ", in ");
    static const char *const functions[] = {"validate",   "validation_step", "evaluate",      "evaluation_step",
                                            "predict",    "predict_step",    "test_step",     "run_validation",
                                            "eval_epoch", "evaluate_model",  "test_function", "predict_function"};
    for (size_t i = 0; in && i < sizeof functions / sizeof *functions; i++) {
        size_t n = strlen(functions[i]);
        if (strncmp(in + 5, functions[i], n) == 0 && !isalnum((unsigned char)in[5 + n]) && in[5 + n] != '_') {
            f->evaluation_word = true;
            snprintf(f->evaluation_text, sizeof f->evaluation_text, "the call came through %s()", functions[i]);
        }
    }
    f->optimizer |= strstr(file, "/torch/optim/") && in && strncmp(in + 5, "step", 4) == 0;
    f->attention |= in && strstr(in, "attention") != NULL;
    if (strstr(file, "site-packages") || strstr(file, "dist-packages") || strstr(file, "<frozen"))
        return;
    snprintf(f->line, sizeof f->line, "%.*s:%lu", (int)(end - file - 6 < 200 ? end - file - 6 : 200), file + 6,
             strtoul(number + 8, NULL, 10));
}

/* Words the program itself printed before it failed; `evaluates`: some of them may be in the line. */
static void read_words(const char *line, mf_oom_facts *f, bool failed_before, bool evaluates)
{
    if (failed_before || strstr(line, "File \"") || strstr(line, "bfc_allocator") || strstr(line, "site-packages"))
        return;
    static const char *const words[] = {"validating", "validation",   "evaluating", "evaluation",
                                        "predicting", "running test", "val_step",   "inference"};
    for (size_t i = 0; evaluates && i < sizeof words / sizeof *words; i++)
        if (mf_oom_has_word(line, words[i])) {
            f->evaluation_word = true;
            snprintf(f->evaluation_text, sizeof f->evaluation_text, "the last thing printed was about %s", words[i]);
            return;
        }
    /* Training went on after a validation: then the validation is not what failed. */
    if (f->evaluation_word && (mf_oom_has_word(line, "step") || mf_oom_has_word(line, "train")) &&
        !strstr(f->evaluation_text, "call came"))
        f->evaluation_word = false;
}

static void read_names(const char *line, mf_oom_facts *f)
{
    if (!strstr(line, "File \"")) {
        f->names_torch |= mf_oom_has_word(line, "torch") || mf_oom_has_word(line, "pytorch");
        f->names_jax |= mf_oom_has_word(line, "jax");
        f->names_tensorflow |= mf_oom_has_word(line, "tensorflow");
    }
    if (strstr(line, "jax.errors") || strstr(line, "jaxlib"))
        f->framework = "jax";
    if (strstr(line, "tensorflow.python") || strstr(line, "tf.errors") || strstr(line, "ResourceExhaustedError"))
        f->framework = "tensorflow";
    if (strncmp(line, "memfit: ", 8) == 0 && strstr(line, "out of memory")) {
        f->framework = "memfit";
        f->failed = true;
    }
}

/* ---- line by line ------------------------------------------------------------------------------------------ */

static void read_line(const char *line, unsigned groups, mf_oom_facts *f)
{
    bool failed_before = f->failed;
    if (groups & MF_LINE_FAILURE) {
        read_torch(line, f);
        read_bfc(line, f);
        read_library(line, f);
        mf_oom_read_programs(line, f);
    }
    if (groups & MF_LINE_HOST)
        mf_oom_read_host(line, f);
    if (groups & MF_LINE_SETTINGS)
        read_settings(line, f);
    if (groups & MF_LINE_FRAME)
        read_frame(line, f);
    if (groups & MF_LINE_SERIES)
        mf_oom_read_series(line, f);
    if (groups & (MF_LINE_WORDS | MF_LINE_GOES_ON))
        read_words(line, f, failed_before, groups & MF_LINE_WORDS);
    if (groups & MF_LINE_NAMES)
        read_names(line, f);
}

/* PyTorch's message is one line of 600 letters. What draws tracebacks in boxes, and terminals that were copied from, break
 * it into lines of their width; it is read again when its end has come. */
typedef struct wrapped {
    char text[2048];
    size_t length;
    unsigned lines; /* how many more may follow; 0: nothing is being joined */
} wrapped;

static bool ends_message(const char *text)
{
    return strstr(text, "unallocated") || strstr(text, "reserved in total") || strstr(text, "on private pool");
}

static void join_wrapped(const char *line, wrapped *w, mf_oom_facts *f)
{
    const char *begin = card_out_of_memory(line) ? strstr(line, "out of memory. Tried to allocate") : NULL;
    if (begin) {
        const char *word = begin > line + 5 ? begin - 5 : line; /* with "CUDA " before it */
        w->length = 0;
        w->lines = ends_message(line) ? 0 : 8;
        line = word;
    }
    if (!w->lines)
        return;
    w->lines--;
    line += strspn(line, " ");
    size_t n = strcspn(line, "\r\n");
    if (n + 2 > sizeof w->text - w->length) {
        w->lines = 0;
        return;
    }
    memcpy(w->text + w->length, line, n);
    w->length += n;
    if (n && line[n - 1] != ' ')
        w->text[w->length++] = ' ';
    w->text[w->length] = 0;
    if (begin || !ends_message(w->text))
        return;
    w->lines = 0;
    read_torch(w->text, f);
}

/* One line, or one state of a progress bar, which overwrites itself: bars end in a carriage return. */
static void read_part(const char *text, size_t length, bool ended, const mf_line_filter *filter, wrapped *w,
                      mf_oom_facts *facts)
{
    char line[MOST_LINE];
    size_t n = length < MOST_LINE - 1 ? length : MOST_LINE - 1;
    bool coloured = memchr(text, 27, n) != NULL;
    /* With the line's end, so that letters at the very end have something behind them; a last line without one is
     * read in any case, and so is one whose words colours may tear. */
    unsigned groups = filter && ended && !coloured ? mf_line_filter_groups(filter, text, n + 1) : MF_LINE_ALL;
    if (!facts->evaluation_word && groups == MF_LINE_GOES_ON)
        groups = 0;
    if (facts->in_kernel_table || facts->in_limits) /* rows of numbers and names */
        groups |= MF_LINE_HOST;
    if (!groups && !w->lines)
        return;
    mf_oom_clean(text, n, line);
    if (groups)
        read_line(line, groups, facts);
    if (w->lines || (groups & MF_LINE_FAILURE))
        join_wrapped(line, w, facts);
}

static void read_text(const char *text, size_t bytes, const mf_line_filter *filter, mf_oom_facts *facts)
{
    wrapped w = {.lines = 0};
    memset(facts, 0, sizeof *facts);
    for (size_t at = 0; at < bytes;) {
        const char *end = memchr(text + at, '\n', bytes - at);
        size_t length = end ? (size_t)(end - (text + at)) : bytes - at;
        for (size_t from = at; from < at + length;) {
            const char *back = memchr(text + from, '\r', at + length - from);
            size_t part = back ? (size_t)(back - (text + from)) : at + length - from;
            if (part)
                read_part(text + from, part, back || end, filter, &w, facts);
            from += part + 1;
        }
        at += length + 1;
    }
    mf_oom_end_programs(facts);
    bool only_torch = facts->names_torch && !facts->names_jax && !facts->names_tensorflow;
    if (!facts->framework && facts->library_error && only_torch) /* "cuFFT error: ..." of a line that calls torch */
        facts->framework = "pytorch";
    if (!facts->framework)
        facts->framework = facts->bfc_failure ? "tensorflow" : "unknown";
}

void mf_oom_read(const char *text, size_t bytes, mf_oom_facts *facts)
{
    mf_line_filter filter;
    mf_line_filter_make(&filter);
    read_text(text, bytes, &filter, facts);
}

void mf_oom_read_all(const char *text, size_t bytes, mf_oom_facts *facts)
{
    read_text(text, bytes, NULL, facts);
}
