/*
 * oom_programs.c: see oom_programs.h. Three kinds of words:
 *
 *   memfit's      its pool, its plan and its limit say what was asked and why it was refused
 *   a request     CuPy, RMM, ONNX Runtime, TensorRT, ggml, Metal and XLA for TPUs say how much was asked; vLLM says
 *                 what it wanted at its start
 *   no more than "out of memory": CUDA in somebody's C++. These count only when the whole text has nothing better,
 *                 since frameworks print some of them on the way to an error of their own
 */
#include "diagnose/oom_programs.h"

#include "base/text.h"
#include "diagnose/oom_words.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- memfit's own ------------------------------------------------------------------------------------------ */

/* The story of memfit run and memfit.limit: "memfit: refused 64.00 MiB of card 0 to process 23149 (python3): of 4.00 GiB,
 * 4.00 GiB were in use". The framework's own figures are then those of a card of that size. */
static void read_governed(const char *line, mf_oom_facts *f)
{
    uint64_t bytes;
    if (strstr(line, "memfit: refused ") && strstr(line, " of card ") && strstr(line, " were in use") &&
        mf_oom_size_after(line, ": of ", &bytes))
        f->governed = bytes;
}

/* memfit's own: 'pool NAME: no 768.00 KiB for activations "conv1": over-the-limit (limit 10.00 MiB, in use 7.28 MiB)'
 * and "memfit: batch 1024 does not fit: the smallest plan found needs 1.05 GiB, the limit is 700.00 MiB". */
static void read_own(const char *line, mf_oom_facts *f)
{
    const char *limit = strstr(line, " (limit "), *asked = strstr(line, ": no ");
    uint64_t bytes;
    for (int c = MEMFIT_CAUSE_NONE + 1; limit && asked && c < MEMFIT_CAUSE_COUNT; c++) {
        const char *name = memfit_cause_name((memfit_cause)c);
        size_t n = strlen(name);
        if ((size_t)(limit - line) < n || strncmp(limit - n, name, n) != 0 || !mf_oom_size(asked + 5, &bytes))
            continue;
        const char *by = strstr(asked, " for ");
        f->framework = "memfit";
        f->failed = true;
        f->own = (memfit_cause)c;
        f->request = bytes;
        mf_oom_size_after(line, " (limit ", &f->limit);
        mf_oom_size_after(line, ", in use ", &f->in_use);
        if (by && by < limit - n)
            snprintf(f->operation, sizeof f->operation, "%.*s", (int)(limit - n - by - 7 > 0 ? limit - n - by - 7 : 0),
                     by + 5);
    }
    const char *batch = strstr(line, "memfit: batch ");
    if (batch && mf_oom_size_after(line, "plan found needs ", &bytes) &&
        mf_oom_size_after(line, "the limit is ", &f->limit)) {
        f->framework = "memfit";
        f->failed = f->plan_failed = true;
        f->request = bytes;
        f->leading = strtoull(batch + 14, NULL, 10);
    }
}

/* ---- requests ---------------------------------------------------------------------------------------------- */

static void read_requests(const char *line, mf_oom_facts *f)
{
    static const struct {
        const char *says, *before; /* a line that says this has the size behind that */
        const char *framework;
    } forms[] = {
        {"(allocated so far: ", "Out of memory allocating ", NULL},    /* CuPy */
        {"out_of_memory: CUDA error", "failed to allocate ", NULL},    /* RMM: cuDF, cuML */
        {"bfc_arena", "requested buffer of size ", NULL},              /* ONNX Runtime */
        {"OutOfMemory (", "Requested size was ", NULL},                /* TensorRT */
        {"cudaMalloc failed: out of memory", "allocating ", NULL},     /* ggml */
        {"Invalid buffer size: ", "Invalid buffer size: ", "pytorch"}, /* Metal: more than one buffer may have */
    };
    uint64_t bytes;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        if (strstr(line, forms[i].says) && mf_oom_size_after(line, forms[i].before, &bytes)) {
            f->failed = f->program = true;
            f->request = bytes;
            f->framework = forms[i].framework ? forms[i].framework : f->framework;
        }
    /* "Ran out of memory in memory space hbm. Used 18.21G of 15.75G hbm." */
    if (strstr(line, "Ran out of memory in memory space") && mf_oom_size_after(line, "Used ", &bytes)) {
        f->failed = f->program = true;
        f->request = bytes;
        mf_oom_size_after(strstr(line, "Used "), " of ", &f->card);
        f->framework = "jax";
    }
}

static void found_server(mf_oom_facts *f)
{
    f->serves = f->failed = true;
    f->framework = "pytorch";
}

/* vLLM looks before it takes: "Free memory on device cuda:0 (10.21/23.52 GiB) on startup is less than desired GPU memory
 * utilization (0.9, 21.17 GiB)", "(4.0 GiB KV cache is needed, which is larger than the available KV cache memory (2.31
 * GiB)", "No available memory for the cache blocks". */
static void read_server(const char *line, mf_oom_facts *f)
{
    const char *free_memory = strstr(line, "Free memory on device "), *wants = strstr(line, "GPU memory utilization (");
    const char *of = free_memory ? strchr(free_memory, '/') : NULL,
               *open = free_memory ? strchr(free_memory, '(') : NULL;
    const char *comma = wants ? strchr(wants, ',') : NULL;
    uint64_t request = 0, card = 0;
    if (open && of && open < of && comma && strstr(line, " on startup") && mf_oom_size(of + 1, &card) &&
        mf_oom_size(comma + 1, &request)) {
        double part = mf_text_to_double(open + 1, NULL), whole = mf_text_to_double(of + 1, NULL);
        found_server(f);
        f->request = request;
        f->card = card;
        f->card_free = whole > 0 && part > 0 && part < whole ? (uint64_t)((double)card * part / whole) : 0;
    }
    if (mf_oom_size_before(line, " KV cache is needed", &request)) {
        found_server(f);
        f->request = request;
        mf_oom_size_after(line, "available KV cache memory (", &f->limit);
    }
    if (strstr(line, "No available memory for the cache blocks"))
        found_server(f);
}

/* ---- no more than that ------------------------------------------------------------------------------------- */

static void read_bare(const char *line, mf_oom_facts *f)
{
    static const char *const phrases[] = {"CUDA driver error: out of memory",
                                          "CUDA_ERROR_OUT_OF_MEMORY",
                                          "GPUassert: out of memory",
                                          "CUDA error 2:",
                                          "CUDA error: 2 ",
                                          "CUDA error: 2:",
                                          "cudaMalloc failed: out of memory",
                                          "cudaMalloc retry failed: out of memory",
                                          "Error out of memory at line",
                                          "UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY",
                                          "UR_RESULT_ERROR_OUT_OF_RESOURCES",
                                          "CallbackErrorOutOfMemory",
                                          "Error Code 2: OutOfMemory",
                                          "CUDA out of memory",
                                          "HIP out of memory"};
    if (f->bare_text[0] || strstr(line, "ailed to allocate "))
        return; /* the driver's answer to a pool that then asks for less */
    for (size_t i = 0; i < sizeof phrases / sizeof *phrases; i++)
        if (strstr(line, phrases[i])) {
            size_t n = strlen(phrases[i]);
            while (phrases[i][n - 1] == ' ' || phrases[i][n - 1] == ':')
                n--;
            snprintf(f->bare_text, sizeof f->bare_text, "%.*s", (int)n, phrases[i]);
            return;
        }
}

void mf_oom_read_programs(const char *line, mf_oom_facts *f)
{
    read_own(line, f);
    read_governed(line, f);
    read_requests(line, f);
    read_server(line, f);
    read_bare(line, f);
}

void mf_oom_end_programs(mf_oom_facts *f)
{
    if (f->failed || !f->bare_text[0])
        f->bare_text[0] = 0;
    else
        f->failed = true;
}

/* ---- what it means ----------------------------------------------------------------------------------------- */

static const char *size(uint64_t bytes, char text[24])
{
    return memfit_size_format(bytes, text, 24);
}

static void server_cause(const mf_oom_facts *f, memfit_diagnosis *d)
{
    char a[24], b[24], c[24];
    if (f->card_free)
        mf_oom_decide(d, MEMFIT_DIAGNOSIS_OTHER_PROCESS, 0.85, "who holds the card (memfit ps)",
                      "vLLM wants %s of a card of %s, and %s was free when it began: something else holds the rest",
                      size(f->request, a), size(f->card, b), size(f->card_free, c));
    else if (f->request)
        mf_oom_decide(d, MEMFIT_DIAGNOSIS_LIMIT, 0.9, "",
                      "the cache of one request needs %s, and gpu_memory_utilization leaves %s beside the model: raise "
                      "that, or lower max_model_len",
                      size(f->request, a), size(f->limit, b));
    else
        mf_oom_decide(d, MEMFIT_DIAGNOSIS_LIMIT, 0.8, "the card's size, and what other processes hold (memfit ps)",
                      "gpu_memory_utilization leaves nothing for vLLM's cache beside the model: raise it, or take a "
                      "smaller model");
}

bool mf_oom_program_cause(const mf_oom_facts *f, memfit_diagnosis *d)
{
    char a[24], b[24];
    if (f->serves)
        server_cause(f, d);
    else if (f->program && f->card)
        mf_oom_decide(d, MEMFIT_DIAGNOSIS_TOO_LARGE, 0.95, "", "the program needs %s, and there are %s",
                      size(f->request, a), size(f->card, b));
    else if (f->program)
        mf_oom_decide(d, MEMFIT_DIAGNOSIS_TOO_LARGE, 0.6, "the card's size, and what was free (memfit ps)",
                      "%s in one piece was refused", size(f->request, a));
    else if (strcmp(f->bare_text, "CUDA out of memory") == 0 || strcmp(f->bare_text, "HIP out of memory") == 0)
        mf_oom_decide(d, MEMFIT_DIAGNOSIS_TOO_LARGE, 0.4, "the whole message: how much was asked, and what was free",
                      "%s: a framework's words, and the figures that follow them are not in the text", f->bare_text);
    else if (f->bare_text[0])
        mf_oom_decide(d, MEMFIT_DIAGNOSIS_LIBRARY, 0.5, "how much was asked, and what was free then (memfit ps)",
                      "%s: the card had no room, and the text does not say for how much", f->bare_text);
    else
        return false;
    return true;
}
