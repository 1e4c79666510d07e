/* Failures that have already happened: every provoked log with its known cause, settings that are in force, and what is
 * no log at all. It is long because the texts that public threads show stand in it. */
#include "test.h"

#include "base/json.h"
#include "base/os.h"
#include "diagnose/oom_log.h"
#include "memfit/diagnosis.h"
#include "memfit/trace.h"

#include <math.h>

#define LOGS "tests/fixtures/oom-logs/"
#define HOST "../oom-host/" /* beside LOGS: failures of the machine's memory and of other hardware */

static char *source_path(char *path, size_t bytes, const char *name, const char *ending)
{
    const char *root = getenv("MEMFIT_SOURCE");
    snprintf(path, bytes, "%s/" LOGS "%s%s", root ? root : ".", name, ending);
    return path;
}

static void explain(const char *text, memfit_diagnosis *d)
{
    memfit_error err;
    assert_ok(memfit_explain_log(text, strlen(text), d, &err), err);
}

static bool suggests(const memfit_diagnosis *d, const char *part)
{
    for (size_t i = 0; i < d->suggestion_count; i++)
        if (strstr(d->suggestions[i].change, part))
            return true;
    return false;
}

static void sane(const memfit_diagnosis *d)
{
    assert_true((unsigned)d->cause < MEMFIT_DIAGNOSIS_COUNT);
    assert_true(d->certainty >= 0 && d->certainty <= 1);
    assert_true(d->owner_count <= MEMFIT_DIAGNOSIS_OWNERS);
    assert_true(d->suggestion_count >= 1 && d->suggestion_count <= MEMFIT_DIAGNOSIS_SUGGESTIONS);
    for (size_t i = 0; i < d->suggestion_count; i++)
        assert_true(d->suggestions[i].change[0] && d->suggestions[i].why[0]);
    for (size_t i = 1; i < d->owner_count; i++)
        assert_true(d->owners[i - 1].bytes >= d->owners[i].bytes);
    assert_true(d->evidence[0]);
}

/* No suggestion sets a variable to the value the program ran with. */
static void not_in_force(const char *name, const mf_json *env, const memfit_diagnosis *d)
{
    for (const mf_json *e = env ? env->first : NULL; e; e = e->next) {
        char setting[256];
        snprintf(setting, sizeof setting, "%s=%s", e->key, mf_json_string(e, ""));
        if (suggests(d, setting)) {
            fprintf(stderr, "%s: %s is in force and suggested\n", name, setting);
            fail();
        }
    }
}

/* The text in front of the log says that the change was made: it is not suggested again. */
static void not_suggested_again(const char *name, const mf_mapping *log, const memfit_diagnosis *first)
{
    size_t count;
    const mf_oom_class *classes = mf_oom_classes(&count);
    for (size_t i = 0; i < first->suggestion_count; i++) {
        const char *change = first->suggestions[i].change;
        unsigned flags = 0;
        for (size_t k = 0; k < count; k++)
            if (strcmp(classes[k].id, first->suggestions[i].kind) == 0)
                flags |= classes[k].flags;
        if (flags)
            continue; /* looks only, or can be done once more */
        static const char *const fronts[] = {"", "+ export ", "    "};
        for (size_t k = 0; k < sizeof fronts / sizeof *fronts; k++) {
            char *text = malloc(log->bytes + 512);
            assert_non_null(text);
            const char *remark = strstr(change, "  #");
            int length = remark ? (int)(remark - change) : (int)strlen(change);
            size_t n = (size_t)snprintf(text, 512, "%s%.*s\n", fronts[k], length, change);
            memcpy(text + n, log->data, log->bytes);
            memfit_diagnosis d = MEMFIT_DIAGNOSIS;
            memfit_error err;
            assert_ok(memfit_explain_log(text, n + log->bytes, &d, &err), err);
            free(text);
            sane(&d);
            assert_int_equal(d.cause, first->cause);
            if (suggests(&d, change)) {
                fprintf(stderr, "%s: \"%s\" is in force and suggested again\n", name, change);
                fail();
            }
        }
    }
}

/* Reading only the lines that can say something loses nothing. */
static void same_facts(const mf_mapping *log)
{
    static mf_oom_facts quick, all;
    mf_oom_read((const char *)log->data, log->bytes, &quick);
    mf_oom_read_all((const char *)log->data, log->bytes, &all);
    assert_memory_equal(&quick, &all, sizeof all);
}

static const mf_json *cases_open(mf_arena *arena, mf_mapping *map, const char *name)
{
    char path[1024];
    memfit_error err;
    mf_json *cases = NULL;
    mf_arena_init(arena, NULL);
    assert_ok(mf_os_map_file(source_path(path, sizeof path, name, ".json"), map, &err), err);
    assert_ok(mf_json_parse(arena, (const char *)map->data, map->bytes, &cases, &err), err);
    return cases;
}

static void explain_case(const char *name, const mf_json *c, memfit_diagnosis *d)
{
    char path[1024];
    memfit_error err;
    mf_mapping log;
    assert_ok(mf_os_map_file(source_path(path, sizeof path, name, ".log"), &log, &err), err);
    assert_ok(memfit_explain_log((const char *)log.data, log.bytes, d, &err), err);
    sane(d);
    if (!mf_json_get_bool(c, "settings_not_in_log", false))
        not_in_force(name, mf_json_get(c, "env"), d);
    else
        assert_true(d->suggestion_count >
                    1); /* what the text does not show may be in force: there is a second answer */
    not_suggested_again(name, &log, d);
    same_facts(&log);
    mf_os_unmap_file(&log);
}

static void test_provoked(void **state)
{
    (void)state;
    mf_mapping map;
    mf_arena arena;
    const mf_json *cases = cases_open(&arena, &map, "cases");
    unsigned count = 0, right = 0;
    for (const mf_json *c = cases->first; c; c = c->next) {
        const char *name = mf_json_get_string(c, "name", "?"), *cause = mf_json_get_string(c, "cause", "?");
        memfit_diagnosis d = MEMFIT_DIAGNOSIS;
        explain_case(name, c, &d);
        assert_true(d.request_bytes > 0 || d.cause == MEMFIT_DIAGNOSIS_LIBRARY ||
                    mf_json_get_bool(c, "request_not_in_log", false));
        count++;
        if (strcmp(memfit_diagnosis_cause_name(d.cause), cause) == 0)
            right++;
        else
            fprintf(stderr, "%s: %s, wanted %s\n", name, memfit_diagnosis_cause_name(d.cause), cause);
    }
    fprintf(stderr, "%u of %u causes right\n", right, count);
    assert_true(count >= 35);
    assert_true(right * 10 >= count * 9);
    mf_arena_destroy(&arena);
    mf_os_unmap_file(&map);
}

/* The figures that a case says its text has: within what two decimals leave. */
static unsigned wrong_figures(const char *name, const mf_json *c, const memfit_diagnosis *d)
{
    const struct {
        const char *key;
        uint64_t bytes;
    } read[] = {{"request_bytes", d->request_bytes},
                {"card_bytes", d->card_bytes},
                {"limit_bytes", d->limit_bytes},
                {"in_use_bytes", d->in_use_bytes}};
    const mf_json *figures = mf_json_get(c, "figures");
    unsigned wrong = 0;
    for (size_t i = 0; figures && i < sizeof read / sizeof *read; i++) {
        double want = mf_json_get_number(figures, read[i].key, -1);
        if (want < 0 || fabs((double)read[i].bytes - want) <= want / 1000)
            continue;
        fprintf(stderr, "%s: %s is %llu, wanted %.0f\n", name, read[i].key, (unsigned long long)read[i].bytes, want);
        wrong++;
    }
    return wrong;
}

/* The machine's memory, other hardware, schedulers: provoked on a CPU, or (`worded`) written down. */
static void test_host(void **state)
{
    (void)state;
    mf_mapping map;
    mf_arena arena;
    const mf_json *cases = cases_open(&arena, &map, HOST "cases");
    unsigned count[2] = {0, 0}, right[2] = {0, 0}, wrong = 0;
    for (const mf_json *c = cases->first; c; c = c->next) {
        const char *cause = mf_json_get_string(c, "cause", "?");
        bool worded = mf_json_get_bool(c, "worded", false);
        char name[128];
        snprintf(name, sizeof name, HOST "%s", mf_json_get_string(c, "name", "?"));
        memfit_diagnosis d = MEMFIT_DIAGNOSIS;
        explain_case(name, c, &d);
        count[worded]++;
        if (strcmp(memfit_diagnosis_cause_name(d.cause), cause) == 0)
            right[worded]++;
        else
            fprintf(stderr, "%s: %s, wanted %s\n", name, memfit_diagnosis_cause_name(d.cause), cause);
        assert_true(worded || d.host); /* all that was provoked here */
        wrong += wrong_figures(name, c, &d);
    }
    fprintf(stderr, "%u of %u provoked and %u of %u worded causes right\n", right[0], count[0], right[1], count[1]);
    assert_true(count[0] >= 40);
    assert_true(right[0] * 10 >= count[0] * 9);
    assert_true(right[1] * 10 >= count[1] * 9);
    assert_int_equal(wrong, 0);
    mf_arena_destroy(&arena);
    mf_os_unmap_file(&map);
}

/* Words of a failure in texts where nothing failed. */
static void test_host_quiet(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "killed 3 stale workers\n",
        "exit code 0\n",
        "wrote 137 files before exit\n",
        "exit after 1370 steps\n",
        "\"OOMKilled\": false\n",
        "the worker Killed time waiting\n",
        "no space left on device: 0 times\n",
        "shared memory: 64 MB\n",
        "MemoryErrors seen: none\n",
        "memory: usage 40 %, limit none\n",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        memfit_diagnosis d = MEMFIT_DIAGNOSIS;
        explain(texts[i], &d);
        if (d.cause != MEMFIT_DIAGNOSIS_UNKNOWN)
            fail_msg("%s: %s", texts[i], memfit_diagnosis_cause_name(d.cause));
    }
}

/* ---- what is suggested has been tried ---- */

/* What concerns the host has no card to be tried on. */
static bool only_on_cpu(const char *id)
{
    static const char *const ids[] = {"limit-host", "pieces-memfit", "limit-container", "limit-shm", "workers",
                                      "narrow",     "map",           "bounded"};
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++)
        if (strcmp(id, ids[i]) == 0)
            return true;
    return false;
}

/* Is there a program that died, changed by this class's line alone, that survived? */
static bool was_tried(const mf_json *cases, const mf_oom_class *class)
{
    for (const mf_json *c = cases->first; c; c = c->next) {
        const mf_json *mended = mf_json_get(c, "mended");
        for (const mf_json *m = mended ? mended->first : NULL; m; m = m->next) {
            bool cpu = strcmp(mf_json_get_string(m, "on", "gpu"), "cpu") == 0;
            if (strcmp(mf_json_get_string(m, "class", ""), class->id) == 0 && mf_json_get_bool(m, "survived", false) &&
                (!cpu || only_on_cpu(class->id)))
                return true;
        }
    }
    return false;
}

/* The manual lists every class. */
static void test_classes_documented(void **state)
{
    (void)state;
    char path[1024];
    mf_mapping map;
    memfit_error err;
    const char *root = getenv("MEMFIT_SOURCE");
    snprintf(path, sizeof path, "%s/docs/explain.md", root ? root : ".");
    assert_ok(mf_os_map_file(path, &map, &err), err);
    size_t count;
    const mf_oom_class *classes = mf_oom_classes(&count);
    for (size_t i = 0; i < count; i++) {
        char cell[64];
        snprintf(cell, sizeof cell, "\n| `%s` | ", classes[i].id);
        if (!memmem(map.data, map.bytes, cell, strlen(cell)))
            fail_msg("docs/explain.md does not list %s", classes[i].id);
    }
    mf_os_unmap_file(&map);
}

/* Explain gives the line that mended a program for that program's log. */
static unsigned not_given(const mf_json *cases, const char *folder)
{
    size_t count;
    unsigned missing = 0;
    const mf_oom_class *classes = mf_oom_classes(&count);
    for (const mf_json *c = cases->first; c; c = c->next) {
        char name[128];
        snprintf(name, sizeof name, "%s%s", folder, mf_json_get_string(c, "name", "?"));
        const mf_json *mended = mf_json_get(c, "mended");
        for (const mf_json *m = mended ? mended->first : NULL; m; m = m->next) {
            const char *id = mf_json_get_string(m, "class", "");
            memfit_diagnosis d = MEMFIT_DIAGNOSIS;
            bool known = false, given = false;
            if (!id[0] || mf_json_get_bool(m, "not_printed", false))
                continue;
            for (size_t i = 0; i < count; i++)
                known |= strcmp(classes[i].id, id) == 0;
            explain_case(name, c, &d);
            for (size_t i = 0; i < d.suggestion_count; i++)
                given |= strcmp(d.suggestions[i].kind, id) == 0;
            if (!known || !given) {
                fprintf(stderr, "%s: \"%s\" mends it and is not suggested\n", name, id);
                missing++;
            }
        }
    }
    return missing;
}

static void test_classes_tried(void **state)
{
    (void)state;
    mf_mapping map, host_map;
    mf_arena arena, host_arena;
    const mf_json *cases = cases_open(&arena, &map, "cases");
    const mf_json *host = cases_open(&host_arena, &host_map, HOST "cases");
    size_t count;
    unsigned missing = 0;
    const mf_oom_class *classes = mf_oom_classes(&count);
    for (size_t i = 0; i < count; i++)
        if (!(classes[i].flags & MF_OOM_LOOKS) && !was_tried(cases, &classes[i]) && !was_tried(host, &classes[i])) {
            fprintf(stderr, "%s: no program that it mended\n", classes[i].id);
            missing++;
        }
    missing += not_given(cases, "") + not_given(host, HOST);
    assert_int_equal(missing, 0);
    mf_arena_destroy(&arena);
    mf_os_unmap_file(&map);
    mf_arena_destroy(&host_arena);
    mf_os_unmap_file(&host_map);
}

/* ---- texts as public threads show them, re-created ---- */

#define TORCH_PIECES                                                                                                   \
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of 7.79 GiB "  \
    "of which 812.00 MiB is free. Including non-PyTorch memory, this process has 6.90 GiB memory in use. Of the "      \
    "allocated memory 3.70 GiB is allocated by PyTorch, and 2.60 GiB is reserved by PyTorch but unallocated. If "      \
    "reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid "  \
    "fragmentation.\n"
#define TORCH_OLD                                                                                                      \
    "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 7.79 GiB total capacity; 6.10 GiB already "  \
    "allocated; 300.00 MiB free; 6.40 GiB reserved in total by PyTorch)\n"
#define JAX_REFUSED                                                                                                    \
    "E1115 03:04:25.610446    3690 cuda_executor.cc:1365] [0] Failed to allocate device memory of 5.63GiB "            \
    "(6045118054 "                                                                                                     \
    "bytes): RESOURCE_EXHAUSTED: : CUDA_ERROR_OUT_OF_MEMORY: out of memory\n"                                          \
    "jaxlib._jax.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4.00GiB.\n"
#define TF_BFC                                                                                                         \
    "W tensorflow/core/common_runtime/bfc_allocator.cc:497] Allocator (GPU_0_bfc) ran out of memory trying to "        \
    "allocate 512.00MiB (rounded to 536870912) requested by op model/conv2d_3/Conv2D\n"                                \
    "I tensorflow/core/common_runtime/bfc_allocator.cc:1101] 12 Chunks of size 67108864 totalling 768.00MiB\n"         \
    "I tensorflow/core/common_runtime/bfc_allocator.cc:1101] 3 Chunks of size 1073741824 totalling 3.00GiB\n"          \
    "I tensorflow/core/common_runtime/bfc_allocator.cc:1110] Stats:\n"                                                 \
    "Limit:                      4294967296\n"                                                                         \
    "InUse:                      4026531840\n"                                                                         \
    "MaxInUse:                   4026531840\n"

static void test_re_created(void **state)
{
    (void)state;
    memfit_diagnosis d = MEMFIT_DIAGNOSIS;
    explain(TORCH_PIECES, &d);
    assert_int_equal(d.cause, MEMFIT_DIAGNOSIS_FRAGMENTATION);
    assert_true(suggests(&d, "expandable_segments:True")); /* named by the message's own advice only */
    assert_int_equal(d.request_bytes, UINT64_C(3) << 29);
    explain(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 7.79 "
        "GiB of which 1.02 GiB is free.\n",
        &d); /* cut: it does not say what was held */
    assert_int_equal(d.cause, MEMFIT_DIAGNOSIS_TOO_LARGE);
    assert_string_equal(d.evidence, "2.00 GiB was asked, 1.02 GiB is free on a card of 7.79 GiB");
    explain(TORCH_OLD, &d);
    assert_int_equal(d.cause, MEMFIT_DIAGNOSIS_TOO_LARGE);
    assert_int_equal(d.request_bytes, UINT64_C(2) << 30);
    assert_true(d.card_bytes > 0 && d.card_free_bytes == UINT64_C(300) << 20);
    explain(TF_BFC, &d);
    assert_string_equal(d.framework, "tensorflow");
    assert_string_equal(d.operation, "model/conv2d_3/Conv2D");
    assert_int_equal(d.limit_bytes, UINT64_C(1) << 32);
    assert_int_equal(d.in_use_bytes, 4026531840u);
    bool chunks = false;
    for (size_t i = 0; i < d.owner_count; i++)
        chunks |= strstr(d.owners[i].name, "3 blocks of 1.00 GiB") != NULL && d.owners[i].bytes == UINT64_C(3) << 30;
    assert_true(chunks);
    explain("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`\n", &d);
    assert_int_equal(d.cause, MEMFIT_DIAGNOSIS_LIBRARY);
    explain("E tensorflow/stream_executor/cuda/cuda_dnn.cc:329] Could not create cudnn handle: "
            "CUDNN_STATUS_INTERNAL_ERROR\n",
            &d);
    assert_int_equal(d.cause, MEMFIT_DIAGNOSIS_LIBRARY);
    explain(
        "tensorflow 4.0\nRuntimeError: NVML_SUCCESS == DriverAPI::get()->nvmlDeviceGetHandleByPciBusId_v2_( pci_id, "
        "&nvml_device) INTERNAL ASSERT FAILED at \"/pytorch/c10/cuda/CUDACachingAllocator.cpp\":1150\n",
        &d);
    assert_int_equal(d.cause, MEMFIT_DIAGNOSIS_OTHER_FRAMEWORK);
    assert_true(suggests(&d, "TF_FORCE_GPU_ALLOW_GROWTH=true"));
    explain("memory is fine\nall epochs done\n", &d);
    assert_int_equal(d.cause, MEMFIT_DIAGNOSIS_UNKNOWN);
    assert_true(d.certainty < 0.5 && d.settle[0]);
    explain(
        "step 1 memory 1000 MiB\nstep 2 memory 1900 MiB\nstep 3 memory 2700 MiB\nstep 4 memory 3500 MiB\n" TORCH_OLD,
        &d);
    assert_int_equal(d.cause, MEMFIT_DIAGNOSIS_GROWING);
    /* The number before the words; a rate is no amount, and what does not speak of memory neither. */
    explain("episode 1: 900 MB used\nepisode 2: 1800 MB used\nepisode 3: 2700 MB used\n" TORCH_OLD, &d);
    assert_int_equal(d.cause, MEMFIT_DIAGNOSIS_GROWING);
    explain("step 1: memory copied at 100 MB/s\nstep 2: memory copied at 300 MB/s\nstep 3: memory copied at 900 MB/s\n"
            "step 4: 1 GB of text\nstep 5: 2 GB of text\nstep 6: 8 GB of text\n" TORCH_OLD,
            &d);
    assert_int_equal(d.cause, MEMFIT_DIAGNOSIS_TOO_LARGE);
}

/* What killed a process is said, and who it is before it is stopped. */
static void test_host_details(void **state)
{
    (void)state;
    memfit_diagnosis d = MEMFIT_DIAGNOSIS;
    explain("[1.0] Tasks state (memory values in pages):\n"
            "[1.0] [  pid  ]   uid  tgid total_vm      rss pgtables_bytes swapents oom_score_adj name\n"
            "[1.0] [    911]   112   911  9120331  6901882  56623104        0          -900 postgres\n"
            "[1.0] [   4410]  1000  4410  2803311   812001   9633792        0             0 python3\n"
            "[1.0] Out of memory: Killed process 4410 (python3) total-vm:11213244kB, anon-rss:3248004kB\n",
            &d);
    assert_int_equal(d.cause, MEMFIT_DIAGNOSIS_OTHER_PROCESS);
    assert_true(d.host);
    assert_string_equal(d.suggestions[0].kind, "stop-process");
    assert_true(strncmp(d.suggestions[0].change, "ps -o user,etime,args -p 911 ", 29) == 0);
    assert_false(suggests(&d, "XLA_PYTHON_CLIENT_PREALLOCATE"));
    assert_int_equal(d.owners[0].bytes, UINT64_C(6901882) * 4096);
    explain("Killed\n", &d);
    assert_true(d.host && d.certainty < 0.6 && strstr(d.settle, "dmesg"));
    explain("Unable to allocate 1.50 GiB for an array with shape (3, 67108864) and data type float64\n", &d);
    assert_int_equal(d.request_bytes, UINT64_C(3) << 29);
    assert_true(suggests(&d, "dtype=np.float32"));
    assert_false(suggests(&d, "batch_size"));
    /* TensorFlow's own pool is no limit that somebody set. */
    static const char made[] =
        "gpu_device.cc:2043] Created device /job:localhost/device:GPU:0 with 5023 MB memory:  -> "
        "device: 0, name: NVIDIA GeForce RTX 2060, pci bus id: 0\n" TF_BFC;
    explain(made, &d);
    assert_int_equal(d.cause, MEMFIT_DIAGNOSIS_TOO_LARGE);
    assert_int_equal(d.limit_bytes, 0);
    assert_int_equal(d.reserved_bytes, UINT64_C(5023) << 20);
    assert_int_equal(d.card_bytes, UINT64_C(6144) << 20);
}

/* Ninety processes in one message: what follows them is read too. */
static void test_long_line(void **state)
{
    (void)state;
    static char text[16384];
    size_t n = (size_t)snprintf(text, sizeof text,
                                "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 8.00 GiB. GPU 0 has a "
                                "total capacity of 79.10 GiB of which 1.00 GiB is free. ");
    for (unsigned i = 0; i < 90; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "Process %u has 600.00 MiB memory in use. ", 1000 + i);
    snprintf(
        text + n, sizeof text - n,
        "Including non-PyTorch memory, this process has 20.00 GiB memory in use. Of the allocated memory 19.00 GiB "
        "is allocated by PyTorch, and 100.00 MiB is reserved by PyTorch but unallocated.\n");
    memfit_diagnosis d = MEMFIT_DIAGNOSIS;
    explain(text, &d);
    assert_int_equal(d.cause, MEMFIT_DIAGNOSIS_OTHER_PROCESS);
    assert_int_equal(d.in_use_bytes, UINT64_C(19) << 30);
    sane(&d);
}

/* Each: a log in which the setting is visible, and the suggestion it rules out. */
static void test_in_force(void **state)
{
    (void)state;
    static const struct {
        const char *setting, *log, *change;
    } cases[] = {
        {"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n", TORCH_PIECES, "expandable_segments:True"},
        {"PYTORCH_ALLOC_CONF=max_split_size_mb:64,expandable_segments:True\n", TORCH_PIECES, "=max_split"},
        {"environ: {'PYTORCH_CUDA_ALLOC_CONF': 'expandable_segments:True', 'HOME': '/root'}\n", TORCH_PIECES,
         "expandable_segments:True"},
        {"+ export XLA_PYTHON_CLIENT_PREALLOCATE=false\n", JAX_REFUSED, "PREALLOCATE=false"},
        {"XLA_PYTHON_CLIENT_PREALLOCATE: false\n", JAX_REFUSED, "PREALLOCATE=false"},
        {"CUDA_VISIBLE_DEVICES=1\n", JAX_REFUSED, "CUDA_VISIBLE_DEVICES=1"},
        {"  File \"/usr/lib/python3/dist-packages/torch/utils/_contextlib.py\", line 120, in decorate_context\n"
         "  File \"train.py\", line 40, in validate\n",
         TORCH_OLD, "no_grad"},
        {"TF_FORCE_GPU_ALLOW_GROWTH=true\n",
         "tensorflow.python: could not create cudnn handle: CUDNN_STATUS_NOT_INITIALIZED\n", "ALLOW_GROWTH=true"},
        {"4.00 GiB allowed\n",
         "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 MiB. 4.00 GiB allowed; CUDA error: out "
         "of memory\n",
         "set_per_process_memory_fraction(0.9)"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[4096];
        memfit_diagnosis d = MEMFIT_DIAGNOSIS;
        snprintf(text, sizeof text, "%s%s", cases[i].setting, cases[i].log);
        explain(text, &d);
        sane(&d);
        if (suggests(&d, cases[i].change)) {
            fprintf(stderr, "case %zu: %s is in force and suggested\n", i, cases[i].change);
            fail();
        }
    }
    memfit_diagnosis d = MEMFIT_DIAGNOSIS;
    explain(JAX_REFUSED, &d);
    assert_int_equal(d.cause, MEMFIT_DIAGNOSIS_OTHER_PROCESS);
    assert_true(suggests(&d, "XLA_PYTHON_CLIENT_PREALLOCATE=false"));
}

/* ---- what is damaged ---- */

static void test_no_log(void **state)
{
    (void)state;
    memfit_diagnosis d = MEMFIT_DIAGNOSIS;
    memfit_error err;
    assert_int_equal(memfit_explain_log("", 0, &d, &err), MEMFIT_DAMAGED);
    char binary[4096];
    for (size_t i = 0; i < sizeof binary; i++)
        binary[i] = (char)(i * 7 % 32);
    assert_int_equal(memfit_explain_log(binary, sizeof binary, &d, &err), MEMFIT_DAMAGED);
    assert_true(strstr(err.message, "not text") != NULL);
    /* One line without an end, of ten megabytes. */
    size_t bytes = 10u << 20;
    char *line = malloc(bytes);
    assert_non_null(line);
    memset(line, 'a', bytes);
    assert_ok(memfit_explain_log(line, bytes, &d, &err), err);
    assert_int_equal(d.cause, MEMFIT_DIAGNOSIS_UNKNOWN);
    free(line);
}

/* A log cut anywhere, or with bytes changed, is still an answer or DAMAGED: nothing in between. */
static void test_cut_and_garbled(void **state)
{
    (void)state;
    static const char *const names[] = {"torch-too-large", "jax-too-large", "torch-growing-graph"};
    for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
        char path[1024];
        memfit_error err;
        memfit_diagnosis d = MEMFIT_DIAGNOSIS;
        mf_mapping map;
        assert_ok(mf_os_map_file(source_path(path, sizeof path, names[n], ".log"), &map, &err), err);
        size_t most = map.bytes < 6000 ? map.bytes : 6000;
        char *text = malloc(most);
        assert_non_null(text);
        size_t start = map.bytes - most;
        for (size_t cut = 1; cut <= most; cut += 7) {
            memcpy(text, (const char *)map.data + start, cut);
            if (memfit_explain_log(text, cut, &d, &err) == MEMFIT_OK)
                sane(&d);
        }
        uint64_t seed = 12345 + n;
        for (int round = 0; round < 300; round++) {
            memcpy(text, (const char *)map.data + start, most);
            for (int k = 0; k < 40; k++) {
                seed = seed * 6364136223846793005u + 1442695040888963407u;
                text[(seed >> 33) % most] = (char)(seed >> 20);
            }
            if (memfit_explain_log(text, most, &d, &err) == MEMFIT_OK)
                sane(&d);
        }
        free(text);
        mf_os_unmap_file(&map);
    }
}

/* ---- recordings ---- */

static void explain_file(const char *path, memfit_diagnosis *d)
{
    memfit_error err;
    mf_mapping map;
    assert_ok(mf_os_map_file(path, &map, &err), err);
    assert_ok(memfit_explain(map.data, map.bytes, d, &err), err);
    mf_os_unmap_file(&map);
    sane(d);
}

static void test_snapshots(void **state)
{
    (void)state;
    char path[1024];
    memfit_diagnosis d = MEMFIT_DIAGNOSIS;
    explain_file(source_path(path, sizeof path, "torch-fragmentation-0", ".pickle"), &d);
    assert_string_equal(d.source, "snapshot");
    assert_int_equal(d.cause, MEMFIT_DIAGNOSIS_FRAGMENTATION);
    assert_int_equal(d.request_bytes, UINT64_C(3) << 29);
    assert_int_equal(d.reserved_bytes, UINT64_C(6) << 30);
    assert_true(d.replay_bytes > d.request_bytes && d.replay_bytes <= d.reserved_bytes);
    assert_string_equal(d.owners[1].name, "gib (<string>:7) < <module> (<string>:20)");
    assert_true(suggests(&d, "expandable_segments:True"));
    explain_file(source_path(path, sizeof path, "torch-limit-expandable", ".pickle"), &d);
    assert_int_equal(d.cause, MEMFIT_DIAGNOSIS_LIMIT);
    assert_int_equal(d.in_use_bytes, UINT64_C(3) << 30);
    assert_true(d.replay_bytes > d.reserved_bytes);
    assert_false(suggests(&d, "expandable_segments:True"));
}

typedef struct recording {
    memfit_recorder *recorder;
    uint64_t next;
} recording;

static uint64_t put(recording *r, memfit_event_op op, uint64_t id, uint64_t bytes, const char *name)
{
    memfit_event e = {.op = (uint8_t)op, .id = id, .bytes = bytes, .name = memfit_recorder_name(r->recorder, name)};
    memfit_recorder_put(r->recorder, &e);
    return id;
}

/* Saves, explains, throws away. */
static void explain_recording(recording *r, memfit_diagnosis *d)
{
    memfit_error err;
    char path[] = "/tmp/test_oom_XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    assert_ok(memfit_recorder_save(r->recorder, path, &err), err);
    memfit_recorder_destroy(r->recorder);
    explain_file(path, d);
    unlink(path);
    assert_string_equal(d->source, "trace");
    assert_string_equal(d->framework, "memfit");
}

static void begin(recording *r)
{
    memfit_error err;
    *r = (recording){0};
    assert_ok(memfit_recorder_create(NULL, &r->recorder, &err), err);
}

static void test_traces(void **state)
{
    (void)state;
    const uint64_t mib = UINT64_C(1) << 20;
    recording r;
    memfit_diagnosis d = MEMFIT_DIAGNOSIS;
    /* Each step keeps one block. */
    begin(&r);
    put(&r, MEMFIT_EVENT_LIMIT, 0, 1024 * mib, "");
    for (uint64_t step = 0; step < 100; step++) {
        put(&r, MEMFIT_EVENT_ALLOC, 4096 * (2 * step + 1), 8 * mib, "kept loss");
        put(&r, MEMFIT_EVENT_ALLOC, 4096 * (2 * step + 2), 64 * mib, "activations");
        put(&r, MEMFIT_EVENT_FREE, 4096 * (2 * step + 2), 64 * mib, "");
    }
    put(&r, MEMFIT_EVENT_FAIL, 0, 512 * mib, "activations");
    explain_recording(&r, &d);
    assert_int_equal(d.cause, MEMFIT_DIAGNOSIS_GROWING);
    assert_string_equal(d.owners[0].name, "kept loss");
    assert_true(strstr(d.evidence, "600.00 MiB of it by kept loss") != NULL);
    assert_int_equal(d.owners[0].bytes, 800 * mib);
    assert_int_equal(d.limit_bytes, 1024 * mib);
    /* A shortage: no pool could have served it. */
    begin(&r);
    put(&r, MEMFIT_EVENT_LIMIT, 0, 1024 * mib, "");
    put(&r, MEMFIT_EVENT_ALLOC, 4096, 700 * mib, "parameters");
    put(&r, MEMFIT_EVENT_FAIL, 0, 512 * mib, "activations");
    explain_recording(&r, &d);
    assert_int_equal(d.cause, MEMFIT_DIAGNOSIS_LIMIT);
    assert_string_equal(d.line, "activations");
    assert_true(d.replay_bytes >= 1212 * mib);
    /* Nothing failed. */
    begin(&r);
    put(&r, MEMFIT_EVENT_ALLOC, 4096, 700 * mib, "parameters");
    explain_recording(&r, &d);
    assert_int_equal(d.cause, MEMFIT_DIAGNOSIS_UNKNOWN);
    assert_true(d.settle[0]);
}

static void test_hostile(void **state)
{
    (void)state;
    memfit_error err;
    memfit_diagnosis d = MEMFIT_DIAGNOSIS;
    static const char program[] = "\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R.";
    assert_int_equal(memfit_explain(program, sizeof program - 1, &d, &err), MEMFIT_DAMAGED);
    assert_true(strstr(err.message, "plain data") != NULL);
    assert_int_equal(memfit_explain("MEMFITTRxxxx", 12, &d, &err), MEMFIT_DAMAGED);
    char path[1024];
    mf_mapping map;
    assert_ok(mf_os_map_file(source_path(path, sizeof path, "torch-limit-expandable", ".pickle"), &map, &err), err);
    for (size_t cut = 3; cut < map.bytes; cut += map.bytes / 61 + 1)
        assert_int_equal(memfit_explain(map.data, cut, &d, &err), MEMFIT_DAMAGED);
    mf_os_unmap_file(&map);
}

/* Every allocation fails, once and from then on: an error that says so, or the answer; nothing is lost. */
static void fail_every_allocation(const mf_mapping *map)
{
    static memfit_diagnosis whole = MEMFIT_DIAGNOSIS, d = MEMFIT_DIAGNOSIS;
    memfit_error err;
    assert_ok(memfit_explain(map->data, map->bytes, &whole, &err), err);
    for (int for_ever = 0; for_ever < 2; for_ever++)
        for (uint64_t n = 1;; n++) {
            mf_fault_host fault;
            mf_fault_host_init(&fault, NULL, n, for_ever);
            memset(&err, 0, sizeof err);
            memfit_status status = mf_explain(&fault.host, map->data, map->bytes, &d, &err);
            assert_int_equal(fault.live_bytes, 0);
            assert_int_equal(fault.live_count, 0);
            if (status) {
                assert_int_equal(status, MEMFIT_NO_HOST_MEMORY);
                assert_true(err.message[0]);
            } else {
                assert_int_equal(d.cause, whole.cause);
                assert_int_equal(d.replay_bytes, whole.replay_bytes);
            }
            if (fault.calls < n)
                break;
        }
}

static void test_no_memory(void **state)
{
    (void)state;
    static const char *const names[] = {"torch-too-large.log", "jax-growing.log", "torch-fragmentation-0.pickle",
                                        "torch-limit-expandable.pickle"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[1024];
        mf_mapping map;
        memfit_error err;
        assert_ok(mf_os_map_file(source_path(path, sizeof path, names[i], ""), &map, &err), err);
        fail_every_allocation(&map);
        mf_os_unmap_file(&map);
    }
}

static void test_names(void **state)
{
    (void)state;
    for (int c = 0; c < MEMFIT_DIAGNOSIS_COUNT; c++) {
        assert_true(strlen(memfit_diagnosis_cause_name((memfit_diagnosis_cause)c)) > 3);
        assert_true(strlen(memfit_diagnosis_cause_words((memfit_diagnosis_cause)c)) > 10);
    }
    assert_string_equal(memfit_diagnosis_cause_name((memfit_diagnosis_cause)99), "?");
    assert_string_equal(memfit_diagnosis_cause_words((memfit_diagnosis_cause)99), "?");
}

/* A number no memory has is no size: it is passed over, not turned into another one. */
static void absurd_sizes_are_passed_over(void **state)
{
    (void)state;
    static const char text[] =
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 99999999999999999999.00 GiB. "
        "GPU 0 has a total capacity of 7.79 GiB of which 1.00 GiB is free.\n";
    mf_oom_facts facts;
    mf_oom_read(text, sizeof text - 1, &facts);
    assert_int_equal(facts.request, 0);
    assert_false(facts.torch_message);
}

/* Of the other processes on the card the largest is named, wherever the log lists it. */
static void test_largest_process(void **state)
{
    (void)state;
    char text[4096], *end = text;
    end += sprintf(
        end, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 8.00 GiB. GPU 0 has a total capacity of "
             "139.80 GiB of which 2.30 GiB is free. ");
    for (unsigned i = 0; i < 20; i++) /* more than are remembered */
        end += sprintf(end, "Process %u has %u.50 GiB memory in use. ", 1000 + i, i == 18 ? 60 : 1 + i % 3);
    end +=
        sprintf(end, "Including non-PyTorch memory, this process has 16.98 GiB memory in use. Of the allocated memory "
                     "16.38 GiB is allocated by PyTorch, and 1.85 MiB is reserved by PyTorch but unallocated.\n");
    memfit_diagnosis d = MEMFIT_DIAGNOSIS;
    explain(text, &d);
    assert_int_equal(d.cause, MEMFIT_DIAGNOSIS_OTHER_PROCESS);
    assert_true(suggests(&d, "kill 1018"));
    assert_false(suggests(&d, "kill 1000"));
    bool owner = false;
    for (size_t i = 0; i < d.owner_count; i++)
        owner |= strstr(d.owners[i].name, "process 1018") != NULL;
    assert_true(owner);
}

/* Held to a part of the card by memfit: PyTorch's text is of a card of that size, and lists processes that are beside it. */
static void a_part_of_the_card_is_a_limit(void **state)
{
    (void)state;
#define REFUSED                                                                                                        \
    "memfit: refused 8.00 GiB of card 0 to process 26273 (python3 -m train): of 8.00 GiB, 4.22 GiB were in use\n"
#define ASKED                                                                                                          \
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 8.00 GiB. GPU 0 has a total capacity of 8.00 GiB "  \
    "of which 3.78 GiB is free. Process 26013 has 1.02 GiB memory in use. Process 26022 has %s memory in use. "        \
    "Including non-PyTorch memory, this process has 4.22 GiB memory in use. Of the allocated memory 2.49 GiB is "      \
    "allocated by PyTorch, and %s is reserved by PyTorch but unallocated.\n"
    const struct {
        bool refused;
        const char *other, *unused;
        memfit_diagnosis_cause cause;
        uint64_t limit;
    } rows[] = {
        {true, "10.18 GiB", "1.10 GiB", MEMFIT_DIAGNOSIS_LIMIT, UINT64_C(8) << 30},
        {true, "5.18 GiB", "1.10 GiB", MEMFIT_DIAGNOSIS_LIMIT, UINT64_C(8) << 30},
        {true, "5.18 GiB", "8.10 GiB", MEMFIT_DIAGNOSIS_FRAGMENTATION, 0},
        {false, "10.18 GiB", "1.10 GiB", MEMFIT_DIAGNOSIS_LIMIT, 0}, /* others hold more than there is */
        {false, "5.18 GiB", "1.10 GiB", MEMFIT_DIAGNOSIS_OTHER_PROCESS, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[2048];
        memfit_diagnosis d = MEMFIT_DIAGNOSIS;
        size_t at = (size_t)snprintf(text, sizeof text, "%s", rows[i].refused ? REFUSED : "");
        snprintf(text + at, sizeof text - at, ASKED, rows[i].other, rows[i].unused);
        explain(text, &d);
        assert_int_equal(d.cause, rows[i].cause);
        assert_int_equal(d.limit_bytes, rows[i].limit);
        assert_false(suggests(&d, "set_per_process_memory_fraction(1.0)")); /* it is not PyTorch that limits */
    }
}

/* ---- logs that are no plain text ---- */

static const unsigned char packed_log[] = {
    0x1f, 0x8b, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00, 0x02, 0x03, 0x73, 0x0e, 0x75, 0x71, 0x54, 0x48,
    0x2d, 0x2a, 0xca, 0x2f, 0xb2, 0x52, 0xc8, 0x2f, 0x2d, 0x51, 0xc8, 0x4f, 0x53, 0xc8, 0x4d, 0xcd,
    0xcd, 0x2f, 0xaa, 0xe4, 0x02, 0x00, 0x8f, 0xb5, 0xfc, 0x65, 0x1a, 0x00, 0x00, 0x00}; /* "CUDA error: out of memory" */

/* The text in UTF-16; `high`: that byte first. Returns the bytes. */
static size_t widen(const char *text, bool high, bool marked, unsigned char *out)
{
    size_t n = 0;
    if (marked) {
        out[n++] = high ? 0xFE : 0xFF;
        out[n++] = high ? 0xFF : 0xFE;
    }
    for (; *text; text++) {
        out[n++] = high ? 0 : (unsigned char)*text;
        out[n++] = high ? (unsigned char)*text : 0;
    }
    return n;
}

static void packed_and_wide_logs_are_read(void **state)
{
    (void)state;
    memfit_error err;
    memfit_diagnosis d = MEMFIT_DIAGNOSIS;
    assert_ok(memfit_explain(packed_log, sizeof packed_log, &d, &err), err);
    assert_int_equal(d.cause, MEMFIT_DIAGNOSIS_LIBRARY);
    for (size_t cut = 18; cut < sizeof packed_log; cut++) {
        assert_int_equal(memfit_explain(packed_log, cut, &d, &err), MEMFIT_DAMAGED);
        assert_non_null(strstr(err.message, "packed"));
    }
    unsigned char wide[4096];
    for (int form = 0; form < 4; form++) {
        size_t n = widen("epoch 1\r\n" TORCH_OLD, form & 1, form & 2, wide);
        assert_ok(memfit_explain(wide, n, &d, &err), err);
        assert_int_equal(d.cause, MEMFIT_DIAGNOSIS_TOO_LARGE);
        assert_int_equal(d.request_bytes, UINT64_C(2) << 30);
        assert_ok(memfit_explain_log((const char *)wide, n - 1, &d, &err), err);
        assert_int_equal(d.request_bytes, UINT64_C(2) << 30);
    }
    mf_mapping map = {.data = packed_log, .bytes = sizeof packed_log};
    fail_every_allocation(&map);
    map = (mf_mapping){.data = wide, .bytes = widen(TORCH_OLD, false, true, wide)};
    fail_every_allocation(&map);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_provoked),
        cmocka_unit_test(test_host),
        cmocka_unit_test(test_host_quiet),
        cmocka_unit_test(test_host_details),
        cmocka_unit_test(test_largest_process),
        cmocka_unit_test(test_re_created),
        cmocka_unit_test(test_in_force),
        cmocka_unit_test(test_long_line),
        cmocka_unit_test(test_no_log),
        cmocka_unit_test(test_cut_and_garbled),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_snapshots),
        cmocka_unit_test(test_traces),
        cmocka_unit_test(test_hostile),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_classes_tried),
        cmocka_unit_test(test_classes_documented),
        cmocka_unit_test(packed_and_wide_logs_are_read),
        cmocka_unit_test(absurd_sizes_are_passed_over),
        cmocka_unit_test(a_part_of_the_card_is_a_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
