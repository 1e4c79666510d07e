/*
 * doctor.c: looks at the machine and turns what it finds into checks. Order: the kernel's side, the driver, the cards,
 * the libraries each framework would load, the frameworks, the environment, the limits. Every check says what was
 * found; one that is not ok says what is wanted and the command or line that mends it. The verdict is the worst
 * check's.
 *
 * Everything is read below `root`, so that a saved tree or a test's made-up installation is examined by the same code;
 * only NVML is asked where it is.
 */
#include "diagnose/look.h"

#include "base/error.h"
#include "base/os.h"
#include "base/text.h"
#include "device/finder.h"
#include "device/nvml.h"
#include "diagnose/rules.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

const char *memfit_check_state_name(memfit_check_state state)
{
    static const char *const names[] = {"ok", "note", "warn", "fail"};
    return (unsigned)state < 4 ? names[state] : "?";
}

const char *mf_doctor_below(const char *root, const char *path)
{
    size_t n = strlen(root);
    return n && strncmp(path, root, n) == 0 ? path + n : path;
}

/* ---- checks ----------------------------------------------------------------------------------------------- */

memfit_check *mf_doctor_check(memfit_doctor *d, const char *name, memfit_check_state state, const char *format, ...)
{
    if (d->check_count < MEMFIT_DOCTOR_CHECKS) /* when there are more, the last one makes room */
        d->check_count++;
    memfit_check *c = &d->checks[d->check_count - 1];
    *c = (memfit_check){.state = state};
    snprintf(c->name, sizeof c->name, "%s", name);
    va_list args;
    va_start(args, format);
    vsnprintf(c->found, sizeof c->found, format, args);
    va_end(args);
    if (state > d->state)
        d->state = state;
    return c;
}

void mf_doctor_mend(memfit_check *c, const char *wanted, const char *format, ...)
{
    snprintf(c->wanted, sizeof c->wanted, "%s", wanted);
    va_list args;
    va_start(args, format);
    vsnprintf(c->fix, sizeof c->fix, format, args);
    va_end(args);
}

static void append(char *text, size_t bytes, const char *more)
{
    size_t n = strlen(text);
    snprintf(text + n, bytes - n, "%s", more);
}

bool mf_doctor_read(const char *root, const char *path, char *text, size_t bytes)
{
    char full[1200];
    snprintf(full, sizeof full, "%s%s", root, path);
    FILE *f = fopen(full, "re");
    if (!f)
        return false;
    size_t n = fread(text, 1, bytes - 1, f);
    fclose(f);
    text[n] = 0;
    return n > 0;
}

static bool exists(const char *root, const char *path)
{
    char full[1200];
    snprintf(full, sizeof full, "%s%s", root, path);
    return access(full, F_OK) == 0;
}

/* The version in a library's real file name: libcuda.so.580.159.04, libcudart.so.13.0.96. */
static mf_version version_of_file(const char *path, const char *stem)
{
    char real[PATH_MAX];
    const char *use = realpath(path, real) ? real : path;
    const char *name = strrchr(use, '/');
    name = name ? name + 1 : use;
    size_t n = strlen(stem);
    return strncmp(name, stem, n) == 0 && name[n] == '.' ? mf_version_parse(name + n + 1) : (mf_version){{0}};
}

/* A wheel's version, from the name of its folder of records: nvidia_cudnn_cu13-9.19.0.56.dist-info beside nvidia/. */
static bool version_of_wheel(const char *path, const char *wheel, char *text, size_t bytes)
{
    char folder[PATH_MAX];
    if (!realpath(path, folder))
        return false;
    char *nvidia = strstr(folder, "/nvidia/");
    if (!nvidia)
        return false;
    *nvidia = 0;
    DIR *dir = opendir(folder);
    bool found = false;
    for (struct dirent *e; dir && !found && (e = readdir(dir));) {
        const char *dash = strchr(e->d_name, '-'), *end = strstr(e->d_name, ".dist-info");
        if (strncmp(e->d_name, wheel, strlen(wheel)) != 0 || !dash || !end || end < dash)
            continue;
        const char *rest = e->d_name + strlen(wheel);
        if (rest != dash && strncmp(rest, "_cu", 3) != 0)
            continue;
        snprintf(text, bytes, "%.*s", (int)(end - dash - 1), dash + 1);
        found = true;
    }
    if (dir)
        closedir(dir);
    return found;
}

static unsigned define_in(const char *text, const char *name)
{
    char line[64];
    snprintf(line, sizeof line, "#define %s ", name);
    const char *p = strstr(text, line);
    return p ? (unsigned)strtoul(p + strlen(line), NULL, 10) : 0;
}

/* cuDNN's header, beside the library's folder or in the system's include folder. */
static bool version_of_header(const char *root, const char *path, char *out, size_t bytes)
{
    char header[PATH_MAX], text[8192];
    char *lib = realpath(path, header) ? strstr(header, "/lib/libcudnn") : NULL;
    if (!lib && realpath(path, header))
        lib = strstr(header, "/lib64/libcudnn");
    if (lib)
        snprintf(lib, sizeof header - (size_t)(lib - header), "/include/cudnn_version.h");
    if ((!lib || !mf_doctor_read("", header, text, sizeof text)) &&
        !mf_doctor_read(root, "/usr/include/cudnn_version.h", text, sizeof text))
        return false;
    unsigned major = define_in(text, "CUDNN_MAJOR");
    if (major)
        snprintf(out, bytes, "%u.%u.%u", major, define_in(text, "CUDNN_MINOR"), define_in(text, "CUDNN_PATCHLEVEL"));
    return major != 0;
}

/* The fullest version that can be told: the file's own name, its wheel, cuDNN's header, its major number. */
static void version_of_library(const char *root, const char *path, const char *stem, const char *wheel, char *text,
                               size_t bytes)
{
    mf_version v = version_of_file(path, stem);
    if (v.part[1] || v.part[2])
        mf_version_format(v, text, bytes);
    else if (!version_of_wheel(path, wheel, text, bytes) &&
             !(strcmp(stem, "libcudnn.so") == 0 && version_of_header(root, path, text, bytes)))
        snprintf(text, bytes, v.part[0] ? "%u" : "version unknown", v.part[0]);
}

/* ---- kernel, driver, cards -------------------------------------------------------------------------------- */

/* A line of /proc/meminfo, in bytes. */
static uint64_t meminfo(const char *root, const char *key)
{
    char text[4096];
    const char *p = mf_doctor_read(root, "/proc/meminfo", text, sizeof text) ? strstr(text, key) : NULL;
    return p ? strtoull(p + strlen(key), NULL, 10) * 1024 : 0;
}

static void look_at_system(const char *root, memfit_doctor *d)
{
    char text[4096];
    struct utsname name;
    if (*root && mf_doctor_read(root, "/proc/sys/kernel/osrelease", text, sizeof text))
        snprintf(d->kernel, sizeof d->kernel, "Linux %.*s", (int)(strcspn(text, "\n") & 63), text);
    else if (uname(&name) == 0)
        snprintf(d->kernel, sizeof d->kernel, "%s %s", name.sysname, name.release);
    if (mf_doctor_read(root, "/etc/os-release", text, sizeof text)) {
        const char *pretty = strstr(text, "PRETTY_NAME=\"");
        if (pretty)
            snprintf(d->system, sizeof d->system, "%.*s", (int)strcspn(pretty + 13, "\""), pretty + 13);
    }
    bool wsl = mf_doctor_read(root, "/proc/version", text, sizeof text) &&
               (strstr(text, "microsoft") || strstr(text, "Microsoft"));
    bool container = exists(root, "/.dockerenv") || exists(root, "/run/.containerenv");
    d->memory_bytes = *root ? meminfo(root, "MemTotal:") : mf_os_total_memory();
    mf_doctor_check(d, "system", MEMFIT_CHECK_OK, "%s, %s%s%s", d->system[0] ? d->system : "Linux", d->kernel,
                    wsl ? ", WSL2" : "", container ? ", in a container" : "");
    if (wsl)
        mf_doctor_check(d, "wsl", MEMFIT_CHECK_NOTE,
                        "WSL2: the driver is Windows's; NVML does not tell memory by process there");
    if (mf_doctor_read(root, "/proc/driver/nvidia/version", text, sizeof text)) {
        /* "... Kernel Module for x86_64  580.159.04  Release Build": the first number with a point in it */
        const char *p = strstr(text, "Module");
        for (; p && *p; p += strspn(p, "0123456789")) {
            p += strcspn(p, "0123456789\n");
            if (p[strspn(p, "0123456789")] == '.' || *p == '\n')
                break;
        }
        if (p)
            snprintf(d->kernel_module, sizeof d->kernel_module, "%.*s", (int)strspn(p, "0123456789."), p);
    }
}

static void look_at_driver(const char *root, memfit_doctor *d)
{
    mf_finder finder = *mf_finder_default();
    finder.root = root;
    mf_candidate list[8];
    size_t count = mf_finder_candidates(&finder, MF_LIBRARY_CUDA, list, 8);
    const mf_candidate *file = NULL;
    for (size_t i = 0; i < count && i < 8; i++)
        if (!file && strchr(list[i].path, '/'))
            file = &list[i];
    memfit_check *c;
    char a[32], b[32];
    if (file)
        snprintf(d->libcuda, sizeof d->libcuda, "%.255s", mf_doctor_below(root, file->path));
    bool hardware = exists(root, "/dev/nvidia0") || exists(root, "/dev/dxg") || exists(root, "/proc/driver/nvidia");
    if (!file && !d->kernel_module[0]) {
        c = mf_doctor_check(d, "driver", hardware ? MEMFIT_CHECK_FAIL : MEMFIT_CHECK_NOTE,
                            "no NVIDIA driver is installed");
        if (hardware)
            mf_doctor_mend(c, "the driver for this card", "sudo apt-get install nvidia-driver");
        return;
    }
    if (file && strstr(file->path, "/stubs/")) {
        c = mf_doctor_check(d, "libcuda", MEMFIT_CHECK_FAIL, "%s is a stub, made for linking only", d->libcuda);
        mf_doctor_mend(c, "the driver's own libcuda.so.1",
                       "take the stubs folder out of LD_LIBRARY_PATH (CUDA error 34 means this)");
        return;
    }
    if (file && strstr(file->path, "/compat/"))
        mf_doctor_check(d, "libcuda", MEMFIT_CHECK_NOTE,
                        "%s is the forward-compatibility library: it serves data-centre cards only (CUDA error 804 on "
                        "others)",
                        d->libcuda);
    mf_version user = file ? version_of_file(file->path, "libcuda.so") : (mf_version){{0}};
    mf_version kernel = mf_version_parse(d->kernel_module);
    if (!d->kernel_module[0]) {
        c = mf_doctor_check(d, "kernel module", exists(root, "/dev/dxg") ? MEMFIT_CHECK_OK : MEMFIT_CHECK_WARN,
                            "libcuda is there (%s), the kernel module is not loaded", d->libcuda);
        if (c->state)
            mf_doctor_mend(c, "the module, if this machine has a card", "sudo modprobe nvidia");
    } else if (!file) {
        c = mf_doctor_check(d, "libcuda", MEMFIT_CHECK_FAIL, "the kernel module is %s, libcuda.so.1 was not found",
                            d->kernel_module);
        mf_doctor_mend(c, "the driver's libraries, same version",
                       "in a container: start it with --gpus all; else reinstall the driver");
    } else if (user.part[1] && mf_version_compare(user, kernel) != 0) {
        c = mf_doctor_check(d, "driver versions", MEMFIT_CHECK_FAIL, "kernel module %s, libcuda %s", d->kernel_module,
                            mf_version_format(user, a, sizeof a));
        mf_doctor_mend(c, "one version for both (NVML error 18, CUDA error 803)", "sudo reboot");
    } else {
        mf_doctor_check(d, "driver", MEMFIT_CHECK_OK, "%s, serves CUDA up to %s", d->kernel_module,
                        mf_version_format(mf_newest_cuda_of_driver(kernel), b, sizeof b));
    }
}

static memfit_status look_at_cards(const memfit_host *host, const char *root, memfit_doctor *d, memfit_error *failure)
{
    memfit_error err;
    if (*root && !getenv("MEMFIT_LIB_NVML"))
        return MEMFIT_OK;
    memfit_status status = mf_cards_look(host, &d->cards, &err);
    if (status == MEMFIT_NOT_FOUND && !d->kernel_module[0])
        return MEMFIT_OK;
    if (status == MEMFIT_NO_HOST_MEMORY) {
        if (failure)
            *failure = err;
        return status;
    }
    if (status) {
        memfit_check *c = mf_doctor_check(d, "NVML", MEMFIT_CHECK_FAIL, "%.190s", err.message);
        mf_doctor_mend(c, "NVML answers", "%s", err.hint[0] ? err.hint : "nvidia-smi");
        return MEMFIT_OK;
    }
    char a[24], b[24];
    for (size_t k = 0; k < d->cards.card_count; k++) {
        const memfit_gpu *card = &d->cards.cards[k];
        uint64_t others = 0;
        size_t holders = 0;
        for (size_t i = 0; i < d->cards.process_count; i++)
            if (d->cards.processes[i].card == k) {
                others += d->cards.processes[i].bytes;
                holders++;
            }
        size_t hidden = 0;
        for (size_t i = 0; i < d->cards.process_count; i++)
            hidden += d->cards.processes[i].card == k && !d->cards.processes[i].name[0];
        memfit_check *c = card->memory_known
                              ? mf_doctor_check(d, "card", MEMFIT_CHECK_OK, "%u: %s, %s free of %s", card->index,
                                                card->name, memfit_size_format(card->free_bytes, a, sizeof a),
                                                memfit_size_format(card->total_bytes, b, sizeof b))
                              : mf_doctor_check(d, "card", MEMFIT_CHECK_NOTE,
                                                "%u: %s, the driver does not tell its memory", card->index, card->name);
        if (card->capability >= 0)
            snprintf(c->found + strlen(c->found), sizeof c->found - strlen(c->found), ", compute capability %d.%d",
                     card->capability / 10, card->capability % 10);
        if (holders) {
            c = mf_doctor_check(d, "other processes",
                                others * 4 > card->total_bytes ? MEMFIT_CHECK_WARN : MEMFIT_CHECK_NOTE,
                                "card %u: %zu process%s hold%s %s", card->index, holders, holders == 1 ? "" : "es",
                                holders == 1 ? "s" : "", memfit_size_format(others, a, sizeof a));
            if (hidden)
                snprintf(c->found + strlen(c->found), sizeof c->found - strlen(c->found),
                         "; %zu of them not visible from here (another PID namespace)", hidden);
            if (c->state == MEMFIT_CHECK_WARN)
                mf_doctor_mend(c, "a free card",
                               "memfit ps shows who; stop them, or CUDA_VISIBLE_DEVICES=<another card>");
        }
    }
    mf_nvml *nvml;
    if ((status = mf_nvml_open(host, mf_finder_default(), &nvml, failure)) != MEMFIT_OK)
        return status == MEMFIT_NO_HOST_MEMORY ? status : MEMFIT_OK;
    for (size_t k = 0; k < d->cards.card_count; k++) {
        mf_nvml_card card;
        if (mf_nvml_card_get(nvml, d->cards.cards[k].index, &card, NULL))
            continue;
        if (card.compute_mode == 2 || card.compute_mode == 3) {
            memfit_check *c = mf_doctor_check(d, "compute mode", MEMFIT_CHECK_WARN, "card %u: %s", card.index,
                                              card.compute_mode == 2 ? "prohibited: no program may use it"
                                                                     : "exclusive: one process at a time");
            mf_doctor_mend(c, "default", "sudo nvidia-smi -i %u -c DEFAULT", card.index);
        }
        if (card.mig_enabled == 1)
            mf_doctor_check(d, "MIG", MEMFIT_CHECK_NOTE,
                            "card %u is cut into instances: programs see an instance's memory, not the card's",
                            card.index);
        if (card.ecc_enabled == 1)
            for (size_t i = 0; i < d->check_count; i++) { /* said with the card: it takes memory on cards with GDDR */
                char start[16];
                snprintf(start, sizeof start, "%u: ", card.index);
                if (strcmp(d->checks[i].name, "card") == 0 && strncmp(d->checks[i].found, start, strlen(start)) == 0)
                    append(d->checks[i].found, sizeof d->checks[i].found, ", ECC on");
            }
        if (card.display_active == 1)
            mf_doctor_check(d, "display", MEMFIT_CHECK_NOTE, "card %u drives a display, which takes some of its memory",
                            card.index);
    }
    mf_nvml_close(nvml);
    return MEMFIT_OK;
}

/* ---- libraries and frameworks ----------------------------------------------------------------------------- */

/* Is this cuDNN for this CUDA and these cards? Nothing is claimed of versions the matrix does not know. */
static void check_cudnn(memfit_doctor *d, const char *cudart)
{
    mf_version cudnn = mf_version_parse(d->cudnn_version), cuda = mf_version_parse(cudart);
    if (!mf_cudnn_known(cudnn) || !strchr(d->cudnn_version, '.') || !strchr(cudart, '.'))
        return; /* a major number alone says too little */
    unsigned capability = d->cards.card_count && d->cards.cards[0].capability > 0
                              ? (unsigned)d->cards.cards[0].capability
                              : 75; /* served by every row but Blackwell's own */
    const mf_cudnn_row *row = mf_cudnn_row_of(cudnn, cuda, capability);
    mf_version driver = mf_version_parse(d->kernel_module);
    memfit_check *c;
    char a[32];
    if (row && driver.part[0] && mf_version_compare(driver, row->driver) < 0) {
        c = mf_doctor_check(d, "cuDNN and driver", MEMFIT_CHECK_FAIL, "cuDNN %s for CUDA %s, driver %s",
                            d->cudnn_version, cudart, d->kernel_module);
        mf_doctor_mend(c, "the driver its support matrix names", "update the driver to %s or newer",
                       mf_version_format(row->driver, a, sizeof a));
    }
    if (row)
        return;
    c = mf_doctor_check(d, "cuDNN and CUDA", MEMFIT_CHECK_FAIL,
                        "cuDNN %s does not serve CUDA %s on compute capability %u.%u", d->cudnn_version, cudart,
                        capability / 10, capability % 10);
    if (capability < 75 && cudnn.part[0] == 9 && cudnn.part[1] > 10) /* the last for cards before Turing is 9.10 */
        mf_doctor_mend(c, "a cuDNN that still serves this card", "pip install 'nvidia-cudnn-cu12<9.11'");
    else
        mf_doctor_mend(c, "a cuDNN whose support matrix has this CUDA and card",
                       "pip install --upgrade nvidia-cudnn-cu%u", cuda.part[0]);
}

/* A file that a variable names and that is not there: nothing else is taken in its place. */
static bool names_nothing(const mf_candidate *c, const char *root, const char *name, memfit_doctor *d)
{
    if (strncmp(c->how, "MEMFIT_LIB_", 11) != 0 || mf_os_file_bytes(c->path) > 0)
        return false;
    memfit_check *check = mf_doctor_check(d, name, MEMFIT_CHECK_WARN, "%s names %.100s, which is not there", c->how,
                                          mf_doctor_below(root, c->path));
    mf_doctor_mend(check, "a file that can be opened: no other copy is looked for", "unset %s, or name the library",
                   c->how);
    return true;
}

static void look_at_libraries(const char *root, memfit_doctor *d)
{
    mf_finder finder = *mf_finder_default();
    finder.root = root;
    mf_candidate list[16];
    static const struct {
        mf_library_id id;
        const char *name, *stem, *wheel;
    } wanted[] = {{MF_LIBRARY_CUDART, "CUDA runtime", "libcudart.so", "nvidia_cuda_runtime"},
                  {MF_LIBRARY_CUBLASLT, "cuBLASLt", "libcublasLt.so", "nvidia_cublas"},
                  {MF_LIBRARY_NVRTC, "NVRTC", "libnvrtc.so", "nvidia_cuda_nvrtc"},
                  {MF_LIBRARY_CUDNN, "cuDNN", "libcudnn.so", "nvidia_cudnn"}};
    char cudart[24] = "";
    for (size_t w = 0; w < sizeof wanted / sizeof *wanted; w++) {
        size_t count = mf_finder_candidates(&finder, wanted[w].id, list, 16), files = 0;
        const mf_candidate *first = NULL;
        unsigned majors = 0, last_major = 0;
        for (size_t i = 0; i < count && i < 16; i++) {
            if (!strchr(list[i].path, '/'))
                continue;
            files++;
            if (!first)
                first = &list[i];
            if (list[i].major != last_major && last_major)
                majors++;
            last_major = list[i].major;
        }
        if (!first || names_nothing(first, root, wanted[w].name, d))
            continue;
        char text[24];
        version_of_library(root, first->path, wanted[w].stem, wanted[w].wheel, text, sizeof text);
        if (wanted[w].id == MF_LIBRARY_CUDART)
            snprintf(cudart, sizeof cudart, "%s", text);
        char *slot = wanted[w].id == MF_LIBRARY_CUDNN ? d->cudnn : wanted[w].id == MF_LIBRARY_CUDART ? d->cudart : NULL;
        if (slot)
            snprintf(slot, 256, "%.255s", mf_doctor_below(root, first->path));
        memfit_check *c = mf_doctor_check(
            d, wanted[w].name, wanted[w].id == MF_LIBRARY_CUDNN && files > 1 ? MEMFIT_CHECK_WARN : MEMFIT_CHECK_OK,
            "%s at %.100s (%s)%s", text, mf_doctor_below(root, first->path), first->how,
            files > 1 ? "; more than one copy is found" : "");
        if (c->state == MEMFIT_CHECK_WARN)
            mf_doctor_mend(
                c, "one copy: cuDNN opens its parts by bare name, a second copy mixes in",
                "keep the wheel's: sudo apt-get remove 'libcudnn*', or take the other folder out of LD_LIBRARY_PATH");
        if (wanted[w].id == MF_LIBRARY_CUDNN) {
            snprintf(d->cudnn_version, sizeof d->cudnn_version, "%s", text);
            check_cudnn(d, cudart);
        }
    }
}

/* ---- limits ------------------------------------------------------------------------------------------------ */

/* Limits of the own control group (version 2): memory.max, and dmem.max where the kernel limits device memory. */
static void look_at_cgroup(const char *root, memfit_doctor *d)
{
    char text[1024], path[600], a[24];
    if (!mf_doctor_read(root, "/proc/self/cgroup", text, sizeof text))
        return;
    char own_path[512] = "";
    const char *own = strstr(text, "0::");
    if (own)
        snprintf(own_path, sizeof own_path, "%.*s", (int)strcspn(own + 3, "\n"), own + 3);
    snprintf(path, sizeof path, "/sys/fs/cgroup%s/memory.max", own_path);
    if ((mf_doctor_read(root, path, text, sizeof text) ||
         mf_doctor_read(root, "/sys/fs/cgroup/memory.max", text, sizeof text)) &&
        text[0] >= '0' && text[0] <= '9') {
        d->memory_limit_bytes = strtoull(text, NULL, 10);
        mf_doctor_check(d, "memory limit", MEMFIT_CHECK_NOTE, "this control group may use %s",
                        memfit_size_format(d->memory_limit_bytes, a, sizeof a));
    }
    snprintf(path, sizeof path, "/sys/fs/cgroup%s/dmem.max", own_path);
    if ((mf_doctor_read(root, path, text, sizeof text) ||
         mf_doctor_read(root, "/sys/fs/cgroup/dmem.max", text, sizeof text)) &&
        strpbrk(text, "0123456789") && !strstr(text, "max"))
        mf_doctor_check(d, "device limit", MEMFIT_CHECK_NOTE, "the control group limits device memory: %.*s",
                        (int)strcspn(text, "\n"), text);
}

static void look_at_limits(const char *root, memfit_doctor *d)
{
    char text[256], a[24], b[24];
    struct rlimit limit;
    memfit_check *c;
    if (!*root && getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
        c = mf_doctor_check(d, "address space", MEMFIT_CHECK_FAIL,
                            "limited to %s: CUDA reserves far more addresses than it uses",
                            memfit_size_format(limit.rlim_cur, a, sizeof a));
        mf_doctor_mend(c, "unlimited", "ulimit -v unlimited");
    }
    uint64_t available = *root ? meminfo(root, "MemAvailable:") : mf_os_available_memory();
    if (d->memory_bytes)
        mf_doctor_check(d, "memory", available < (UINT64_C(1) << 30) ? MEMFIT_CHECK_WARN : MEMFIT_CHECK_OK,
                        "%s available of %s", memfit_size_format(available, a, sizeof a),
                        memfit_size_format(d->memory_bytes, b, sizeof b));
    if (mf_doctor_read(root, "/proc/sys/vm/overcommit_memory", text, sizeof text) && text[0] == '2') {
        c = mf_doctor_check(d, "overcommit", MEMFIT_CHECK_WARN,
                            "the kernel refuses to overcommit (vm.overcommit_memory=2)");
        mf_doctor_mend(c, "0 or 1: CUDA reserves more than it uses", "sudo sysctl vm.overcommit_memory=0");
    }
    look_at_cgroup(root, d);
    if (exists(root, "/tmp/nvidia-mps/control") || getenv("CUDA_MPS_PIPE_DIRECTORY"))
        mf_doctor_check(
            d, "MPS", MEMFIT_CHECK_NOTE,
            "an MPS server is in use: its memory limit is per process, and programs see the whole card's total");
}

static void conclude(memfit_doctor *d)
{
    const memfit_check *worst = NULL;
    for (size_t i = 0; i < d->check_count; i++)
        if (!worst || d->checks[i].state > worst->state)
            worst = &d->checks[i];
    if (!worst || d->state <= MEMFIT_CHECK_NOTE)
        snprintf(d->verdict, sizeof d->verdict,
                 d->cards.card_count ? "ready: driver, libraries and cards go together"
                                     : "no NVIDIA card or driver here; everything on the cpu works");
    else
        snprintf(d->verdict, sizeof d->verdict, "%s: %s%s%s%s%s", worst->name, worst->found,
                 worst->wanted[0] ? "; needs: " : "", worst->wanted, worst->fix[0] ? ". Next: " : "", worst->fix);
}

memfit_status mf_doctor_look(const memfit_host *host, const char *root, memfit_doctor *d, memfit_error *err)
{
    memset(d, 0, sizeof *d);
    root = root ? root : "";
    look_at_system(root, d);
    look_at_driver(root, d);
    memfit_status status = look_at_cards(host, root, d, err);
    if (status)
        return status;
    look_at_libraries(root, d);
    mf_doctor_frameworks(root, d);
    mf_doctor_environment(d);
    look_at_limits(root, d);
    conclude(d);
    return MEMFIT_OK;
}

memfit_status memfit_doctor_look(const char *root, memfit_doctor *d, memfit_error *err)
{
    return mf_doctor_look(NULL, root, d, err);
}
