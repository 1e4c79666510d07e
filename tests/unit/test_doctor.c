/* Machines that are not there: installations made up in a temporary folder, cards and processes from the fake NVML. */
#include "test.h"

#include "device/nvml.h"
#include "diagnose/look.h"

#include <sys/stat.h>

static char root[64];
static memfit_doctor doctor, other;

static void put(const char *path, const char *text)
{
    char full[512];
    snprintf(full, sizeof full, "%s%s", root, path);
    for (char *p = full + strlen(root) + 1; (p = strchr(p, '/')); p++) {
        *p = 0;
        mkdir(full, 0755);
        *p = '/';
    }
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void point(const char *from, const char *to)
{
    char full[512];
    snprintf(full, sizeof full, "%s%s", root, from);
    assert_int_equal(symlink(to, full), 0);
}

static int begin(void **state)
{
    (void)state;
    static const char *const unset[] = {"LD_LIBRARY_PATH", "CONDA_PREFIX",        "CUDA_VISIBLE_DEVICES",
                                        "MEMFIT_LIB_NVML", "FAKE_NVML_PROCESSES", "FAKE_NVML_INIT",
                                        "FAKE_NVML_CARDS", "FAKE_NVML_MEMORY",    "FAKE_NVML_VERSION"};
    for (size_t i = 0; i < sizeof unset / sizeof *unset; i++)
        unsetenv(unset[i]);
    snprintf(root, sizeof root, "/tmp/test_doctor_XXXXXX");
    setenv("VIRTUAL_ENV", "/venv", 1);
    setenv("PATH", "/usr/bin:/bin", 1);
    return mkdtemp(root) ? 0 : -1;
}

static int end(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", root);
    return system(command);
}

static const memfit_check *look(const char *name)
{
    memfit_error err;
    assert_ok(memfit_doctor_look(root, &doctor, &err), err);
    assert_true(doctor.verdict[0]);
    for (size_t i = 0; i < doctor.check_count; i++)
        if (strcmp(doctor.checks[i].name, name) == 0)
            return &doctor.checks[i];
    return NULL;
}

#define has(text, part) assert_true(strstr((text), (part)) != NULL)

static void module(const char *version)
{
    char text[256];
    snprintf(text, sizeof text, "NVRM version: NVIDIA UNIX x86_64 Kernel Module  %s  Tue Apr  1 00:00:00 UTC 2026\n",
             version);
    put("/proc/driver/nvidia/version", text);
}

static void libcuda(const char *version)
{
    char file[128], name[64];
    snprintf(name, sizeof name, "libcuda.so.%s", version);
    snprintf(file, sizeof file, "/usr/lib/x86_64-linux-gnu/%s", name);
    put(file, "");
    point("/usr/lib/x86_64-linux-gnu/libcuda.so.1", name);
}

static void test_no_driver(void **state)
{
    (void)state;
    put("/etc/os-release", "NAME=\"Test\"\nPRETTY_NAME=\"Test Linux 1\"\n");
    const memfit_check *c = look("driver");
    assert_non_null(c);
    assert_int_equal(c->state, MEMFIT_CHECK_NOTE);
    has(doctor.verdict, "no NVIDIA card");
    assert_string_equal(doctor.system, "Test Linux 1");
    put("/dev/nvidia0", "");
    c = look("driver");
    assert_int_equal(c->state, MEMFIT_CHECK_FAIL);
    assert_true(c->fix[0]);
}

static void test_good_driver(void **state)
{
    (void)state;
    module("580.159.04");
    libcuda("580.159.04");
    const memfit_check *c = look("driver");
    assert_non_null(c);
    assert_int_equal(c->state, MEMFIT_CHECK_OK);
    has(c->found, "CUDA up to 13.0");
}

static void test_mismatch(void **state)
{
    (void)state;
    module("580.159.04");
    libcuda("570.124.06");
    const memfit_check *c = look("driver versions");
    assert_non_null(c);
    assert_int_equal(c->state, MEMFIT_CHECK_FAIL);
    has(c->found, "570.124.06");
    has(c->found, "580.159.04");
    has(c->fix, "reboot");
    has(doctor.verdict, "driver versions");
}

static void test_module_without_libraries(void **state)
{
    (void)state;
    module("580.159.04");
    const memfit_check *c = look("libcuda");
    assert_non_null(c);
    assert_int_equal(c->state, MEMFIT_CHECK_FAIL);
    has(c->fix, "--gpus all");
}

static void test_libraries_without_module(void **state)
{
    (void)state;
    libcuda("580.159.04");
    const memfit_check *c = look("kernel module");
    assert_non_null(c);
    assert_int_equal(c->state, MEMFIT_CHECK_WARN);
}

static void test_compat(void **state)
{
    (void)state;
    module("580.159.04");
    put("/usr/local/cuda/compat/libcuda.so.1", "");
    setenv("MEMFIT_CUDA_LIBDIR", "/usr/local/cuda/compat", 1);
    const memfit_check *c = look("libcuda");
    unsetenv("MEMFIT_CUDA_LIBDIR");
    assert_non_null(c);
    has(c->found, "804");
}

static void test_stub(void **state)
{
    (void)state;
    module("580.159.04");
    put("/usr/local/cuda/lib64/stubs/libcuda.so.1", "");
    setenv("MEMFIT_CUDA_LIBDIR", "/usr/local/cuda/lib64/stubs", 1);
    const memfit_check *c = look("libcuda");
    unsetenv("MEMFIT_CUDA_LIBDIR");
    assert_non_null(c);
    assert_int_equal(c->state, MEMFIT_CHECK_FAIL);
    has(c->found, "stub");
}

#define SITE "/venv/lib/python3.11/site-packages"

static void test_cudnn_copies(void **state)
{
    (void)state;
    put(SITE "/nvidia/cudnn/lib/libcudnn.so.9", "");
    put(SITE "/nvidia_cudnn_cu12-9.10.2.21.dist-info/METADATA", "");
    const memfit_check *c = look("cuDNN");
    assert_non_null(c);
    assert_int_equal(c->state, MEMFIT_CHECK_OK);
    has(c->found, "9.10.2.21");
    put("/usr/lib/x86_64-linux-gnu/libcudnn.so.9.5.1", "");
    point("/usr/lib/x86_64-linux-gnu/libcudnn.so.9", "libcudnn.so.9.5.1");
    c = look("cuDNN");
    assert_int_equal(c->state, MEMFIT_CHECK_WARN);
    has(c->found, "more than one copy");
    has(c->found, "9.10.2.21"); /* the wheel's is the one that is loaded */
}

/* What a variable names is that library and no other, as when training. */
static void test_named_library(void **state)
{
    (void)state;
    put("/usr/lib/x86_64-linux-gnu/libcudnn.so.9", "x");
    put("/usr/lib/x86_64-linux-gnu/libnvrtc.so.13", "x");
    setenv("MEMFIT_LIB_CUDNN", "/elsewhere/libcudnn.so.9", 1);
    const memfit_check *c = look("cuDNN");
    assert_int_equal(c->state, MEMFIT_CHECK_WARN);
    assert_non_null(strstr(c->found, "MEMFIT_LIB_CUDNN names /elsewhere/libcudnn.so.9, which is not there"));
    unsetenv("MEMFIT_LIB_CUDNN");
    assert_int_equal(look("cuDNN")->state, MEMFIT_CHECK_OK);
    c = look("NVRTC");
    assert_int_equal(c->state, MEMFIT_CHECK_OK);
    assert_non_null(strstr(c->found, "libnvrtc.so.13"));
}

static void test_cudnn_header(void **state)
{
    (void)state;
    put(SITE "/nvidia/cudnn/lib/libcudnn.so.9", "");
    put(SITE "/nvidia/cudnn/include/cudnn_version.h",
        "#define CUDNN_MAJOR 9\n#define CUDNN_MINOR 5\n#define CUDNN_PATCHLEVEL 1\n");
    const memfit_check *c = look("cuDNN");
    assert_non_null(c);
    has(c->found, "9.5.1");
    put(SITE "/nvidia/cuda_runtime/lib/libcudart.so.12", "");
    put(SITE "/nvidia_cuda_runtime_cu12-12.8.57.dist-info/METADATA", "");
    c = look("cuDNN and CUDA"); /* 9.5 ends at CUDA 12.6 */
    assert_non_null(c);
    assert_int_equal(c->state, MEMFIT_CHECK_FAIL);
}

static void test_frameworks(void **state)
{
    (void)state;
    module("535.104.05");
    libcuda("535.104.05");
    put(SITE "/torch-2.11.0.dist-info/METADATA", "");
    put(SITE "/torch/version.py", "__version__ = '2.11.0'\ncuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n");
    put(SITE "/tensorflow-2.15.0.dist-info/METADATA", "");
    const memfit_check *c = look("torch");
    assert_non_null(c);
    has(c->found, "CUDA 13.0");
    assert_int_equal(c->state, MEMFIT_CHECK_FAIL);
    has(c->wanted, "580.65.06");
    has(c->fix, "12.2");
    c = look("tensorflow");
    assert_int_equal(c->state, MEMFIT_CHECK_OK);
    has(c->found, "CUDA 12.2");
    put(SITE "/tensorflow-2.3.0.dist-info/METADATA", ""); /* Python 3.5 to 3.8 */
    bool old = false;
    look("tensorflow");
    for (size_t i = 0; i < doctor.check_count; i++)
        old |= strstr(doctor.checks[i].wanted, "Python 3.5 to 3.8") != NULL;
    assert_true(old);
}

static void test_environment(void **state)
{
    (void)state;
    static const struct {
        const char *name, *value, *found;
    } rows[] = {
        {"TF_FORCE_GPU_ALOW_GROWTH", "true", "no framework reads it"},
        {"TF_FORCE_GPU_ALLOW_GROWTH", "yes", "ignored"},
        {"XLA_PYTHON_CLIENT_MEM_FRACTION", "75", "no fraction"},
        {"CUDA_VISIBLE_DEVICES", "-1", "hides every card"},
        {"PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True,backend:cudaMallocAsync", "no effect"},
        {"PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64,expandable_segment:True", "does not know"},
        {"PYTORCH_ALLOC_CONF", "max_split_size:64", "does not know"},
        {"TF_GPU_ALLOCATOR", "cuda_async", "no allocator of TensorFlow"},
        {"PYTORCH_NO_CUDA_MEMORY_CACHING", "1", "driver call"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        setenv(rows[i].name, rows[i].value, 1);
        const memfit_check *c = look("environment");
        unsetenv(rows[i].name);
        assert_non_null(c);
        assert_int_equal(c->state, MEMFIT_CHECK_WARN);
        has(c->found, rows[i].found);
        assert_true(c->fix[0]);
    }
    assert_null(look("environment"));
    setenv("XLA_CLIENT_MEM_FRACTION", "0.5", 1);
    setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.75", 1);
    has(look("environment")->found, "contradict");
    unsetenv("XLA_CLIENT_MEM_FRACTION");
    unsetenv("XLA_PYTHON_CLIENT_MEM_FRACTION");
    setenv("PYTORCH_CUDA_ALLOC_CONF", "roundup_power2_divisions:[256:1,512:2,>:4],max_split_size_mb:64", 1);
    assert_null(look("environment"));
    unsetenv("PYTORCH_CUDA_ALLOC_CONF");
}

static void test_surroundings(void **state)
{
    (void)state;
    put("/proc/version", "Linux version 5.15.90.1-microsoft-standard-WSL2\n");
    put("/.dockerenv", "");
    put("/proc/self/cgroup", "0::/job\n");
    put("/sys/fs/cgroup/job/memory.max", "8589934592\n");
    put("/sys/fs/cgroup/job/dmem.max", "drm/0000:41:00.0/vram0 8589934592\n");
    put("/proc/sys/vm/overcommit_memory", "2\n");
    put("/tmp/nvidia-mps/control", "");
    assert_non_null(look("wsl"));
    has(look("system")->found, "in a container");
    has(look("memory limit")->found, "8.00 GiB");
    has(look("device limit")->found, "vram0 8589934592");
    assert_int_equal(look("overcommit")->state, MEMFIT_CHECK_WARN);
    assert_non_null(look("MPS"));
    assert_int_equal(doctor.memory_limit_bytes, UINT64_C(8) << 30);
}

/* ---- cards ---- */

static void use_fake(void)
{
    const char *fake = getenv("FAKE_NVML_LIBRARY");
    if (!fake)
        skip();
    setenv("MEMFIT_LIB_NVML", fake, 1);
}

static void test_processes(void **state)
{
    (void)state;
    use_fake();
    const uint64_t mib = UINT64_C(1) << 20;
    static memfit_gpus cards;
    memfit_error err;
    char list[256];
    snprintf(list, sizeof list, "0:%d:1000,0:999999991:2000,0:999999992:30:g,1:999999993:na", (int)getpid());
    setenv("FAKE_NVML_CARDS", "3", 1);
    setenv("FAKE_NVML_PROCESSES", list, 1);
    for (int version = 1; version <= 3; version++) {
        char text[2] = {(char)('0' + version), 0};
        setenv("FAKE_NVML_VERSION", text, 1);
        assert_ok(memfit_gpus_look(&cards, &err), err);
        assert_int_equal(cards.card_count, 3);
        assert_int_equal(cards.process_count, 4);
        uint64_t sum = 0;
        for (size_t i = 0; i < cards.process_count; i++)
            if (cards.processes[i].card == 0)
                sum += cards.processes[i].bytes;
        assert_int_equal(sum, 3030 * mib);
        const memfit_gpu *g = &cards.cards[0];
        assert_int_equal(g->processes_bytes, sum);
        assert_int_equal(g->contexts, 2);
        assert_int_equal(g->driver_bytes, 14 * mib + mib / 2);
        assert_int_equal(g->unexplained_bytes, 0);
        assert_int_equal(g->used_bytes, sum + g->driver_bytes);
        assert_int_equal(g->reserved_bytes, 615 * mib);
        assert_int_equal(cards.cards[1].unexplained_bytes, 700 * mib + mib / 4 * 3 + mib / 8 + 8 * mib);
        assert_int_equal(g->total_bytes, g->used_bytes + g->free_bytes + g->reserved_bytes);
        assert_int_equal(cards.cards[2].total_bytes, UINT64_C(24) << 30);
        assert_int_equal(cards.processes[0].pid, getpid());
        assert_true(cards.processes[0].name[0] != 0);
        assert_true(cards.processes[1].name[0] == 0); /* of another PID namespace */
        assert_true(cards.processes[2].graphics);
        assert_string_equal(cards.processes[2].kind, "display");
        assert_false(cards.processes[3].bytes_known);
        assert_string_equal(cards.driver, "580.159.04");
        assert_int_equal(cards.cuda_version, 13000);
    }
    setenv("FAKE_NVML_MEMORY", "v1", 1);
    assert_ok(memfit_gpus_look(&cards, &err), err);
    assert_true(cards.cards[0].memory_known);
    assert_int_equal(cards.cards[0].reserved_bytes, 0); /* then it is in what is used, and nobody's */
    assert_int_equal(cards.cards[0].unexplained_bytes, 615 * mib + 14 * mib + mib / 2);
    setenv("FAKE_NVML_MEMORY", "na", 1);
    assert_ok(memfit_gpus_look(&cards, &err), err);
    assert_false(cards.cards[0].memory_known);
    setenv("FAKE_NVML_INIT", "18", 1);
    assert_int_equal(memfit_gpus_look(&cards, &err), MEMFIT_DEVICE);
    has(err.message, "18");
    has(err.hint, "reboot");
    setenv("FAKE_NVML_INIT", "9", 1);
    assert_int_equal(memfit_gpus_look(&cards, &err), MEMFIT_DEVICE);
    has(err.hint, "modprobe");
    setenv("FAKE_NVML_INIT", "15", 1);
    assert_int_equal(memfit_gpus_look(&cards, &err), MEMFIT_DEVICE);
    has(err.hint, "dmesg");
}

static void test_ecc(void **state)
{
    (void)state;
    use_fake();
    setenv("FAKE_NVML_ECC", "1", 1);
    has(look("card")->found, "ECC on");
    setenv("FAKE_NVML_ECC", "0", 1);
    assert_null(strstr(look("card")->found, "ECC"));
    unsetenv("FAKE_NVML_ECC");
}

static void test_compare(void **state)
{
    (void)state;
    memfit_error err;
    char path[128];
    memfit_difference list[32];
    size_t count = 0;
    snprintf(path, sizeof path, "%s/old.json", root);
    module("550.54.14");
    libcuda("550.54.14");
    put(SITE "/torch-2.4.0+cu124.dist-info/METADATA", "");
    put(SITE "/keras-3.3.0.dist-info/METADATA", "");
    assert_ok(memfit_doctor_look(root, &other, &err), err);
    other.cards.card_count = 1;
    other.cards.cards[0] = (memfit_gpu){.name = "NVIDIA A100 80GB",
                                        .total_bytes = UINT64_C(80) << 30,
                                        .free_bytes = UINT64_C(79) << 30,
                                        .memory_known = true,
                                        .capability = 80};
    snprintf(other.cudart, sizeof other.cudart, "/home/alice/venv/libcudart.so.13");
    assert_ok(memfit_doctor_save(&other, path, &err), err);
    char saved[8192] = "";
    FILE *record = fopen(path, "r");
    assert_non_null(record);
    assert_true(fread(saved, 1, sizeof saved - 1, record) > 0);
    fclose(record);
    assert_non_null(strstr(saved, "\"libcudart.so.13\""));
    assert_null(strstr(saved, "alice"));
    assert_ok(memfit_doctor_compare(&other, path, list, 32, &count, &err), err);
    assert_int_equal(count, 0); /* round trip */
    doctor = other;
    doctor.cards.cards[0] = (memfit_gpu){.name = "NVIDIA T4",
                                         .total_bytes = UINT64_C(16) << 30,
                                         .free_bytes = UINT64_C(10) << 30,
                                         .memory_known = true,
                                         .capability = 75};
    snprintf(doctor.kernel_module, sizeof doctor.kernel_module, "580.159.04");
    snprintf(doctor.frameworks[0].version, sizeof doctor.frameworks[0].version, "9.9.9");
    snprintf(doctor.system, sizeof doctor.system, "Other Linux");
    assert_ok(memfit_doctor_compare(&doctor, path, list, 32, &count, &err), err);
    assert_true(count >= 6);
    bool memory = false, reserve = false, done = false;
    for (size_t i = 0; i < count; i++) {
        memory |= strcmp(list[i].what, "card memory") == 0 && list[i].matters;
        reserve |= strcmp(list[i].what, "compute capability") == 0 && strstr(list[i].why, "TensorFlow keeps");
        assert_false(done && list[i].matters); /* those that matter come first */
        done |= !list[i].matters;
    }
    assert_true(memory && reserve && done);
    assert_ok(memfit_doctor_compare(&doctor, path, list, 1, &count, &err), err);
    assert_true(count > 1 && list[0].matters);
    put("/old.json", "{\"format\": \"something\"}");
    assert_int_equal(memfit_doctor_compare(&doctor, path, list, 32, &count, &err), MEMFIT_DAMAGED);
    put("/old.json", "{\"format\": \"memfit doctor\", \"version\": 99}");
    assert_int_equal(memfit_doctor_compare(&doctor, path, list, 32, &count, &err), MEMFIT_UNSUPPORTED);
    put("/old.json", "no json");
    assert_int_equal(memfit_doctor_compare(&doctor, path, list, 32, &count, &err), MEMFIT_DAMAGED);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, begin, end)

/* Every allocation of doctor and ps fails, once and from then on: an error that says so, nothing is lost. */
static void test_no_memory(void **state)
{
    (void)state;
    use_fake();
    module("580.159.04");
    libcuda("580.159.04");
    setenv("FAKE_NVML_PROCESSES", "0:999999991:5000", 1);
    char record[128];
    memfit_error err;
    snprintf(record, sizeof record, "%s/record.json", root);
    assert_ok(memfit_doctor_look(root, &other, &err), err);
    assert_ok(memfit_doctor_save(&other, record, &err), err);
    for (int what = 0; what < 3; what++)
        for (int for_ever = 0; for_ever < 2; for_ever++)
            for (uint64_t n = 1;; n++) {
                static memfit_difference differences[32];
                mf_fault_host fault;
                size_t count = 0;
                memset(&err, 0, sizeof err);
                mf_fault_host_init(&fault, NULL, n, for_ever);
                memfit_status status =
                    what == 0   ? mf_cards_look(&fault.host, &doctor.cards, &err)
                    : what == 1 ? mf_doctor_look(&fault.host, root, &doctor, &err)
                                : mf_doctor_compare(&fault.host, &other, record, differences, 32, &count, &err);
                assert_int_equal(fault.live_bytes, 0);
                assert_int_equal(fault.live_count, 0);
                if (status) {
                    assert_int_equal(status, MEMFIT_NO_HOST_MEMORY);
                    assert_true(err.message[0]);
                }
                if (fault.calls < n) {
                    assert_int_equal(status, MEMFIT_OK);
                    assert_true(n > 1); /* something was asked for */
                    break;
                }
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(test_no_driver),
        CASE(test_good_driver),
        CASE(test_mismatch),
        CASE(test_module_without_libraries),
        CASE(test_libraries_without_module),
        CASE(test_compat),
        CASE(test_stub),
        CASE(test_cudnn_copies),
        CASE(test_cudnn_header),
        CASE(test_named_library),
        CASE(test_no_memory),
        CASE(test_frameworks),
        CASE(test_environment),
        CASE(test_surroundings),
        CASE(test_processes),
        CASE(test_ecc),
        CASE(test_compare),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
