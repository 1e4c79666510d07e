/* os_linux.c: Linux, but for writing files (os_write_linux.c). The files of /proc are read into buffers on the stack, so that asking about memory takes none. */
#include "base/os.h"
#include "base/bytes.h"
#include "base/error.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/membarrier.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <time.h>
#include <sys/wait.h>
#include <unistd.h>

memfit_status mf_os_map_watched(const char *path, mf_mapping *mapping, int *descriptor, memfit_error *err)
{
    *descriptor = -1;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe without a writer must not be waited for */
    if (fd < 0 && strcmp(path, "-") == 0)
        return mf_fail(err, MEMFIT_NOT_FOUND,
                       "there is no file named \"-\"\n"
                       "standard input cannot be read here: give the name of a file");
    if (fd < 0)
        return mf_fail(err, errno == EMFILE || errno == ENFILE || errno == EIO ? MEMFIT_IO : MEMFIT_NOT_FOUND, "%s: %s",
                       *path ? path : "\"\"", strerror(errno));
    struct stat st;
    memfit_status status = MEMFIT_OK;
    if (fstat(fd, &st) != 0)
        status = mf_fail(err, MEMFIT_IO, "%s: %s", path, strerror(errno));
    else if (S_ISDIR(st.st_mode))
        status = mf_fail(err, MEMFIT_DAMAGED, "%s is a directory, a file was expected", path);
    else if (!S_ISREG(st.st_mode))
        status =
            mf_fail(err, MEMFIT_DAMAGED,
                    "%s is a %s, not a regular file\nits bytes are read in any order: save them to a file first", path,
                    S_ISFIFO(st.st_mode)  ? "pipe"
                    : S_ISCHR(st.st_mode) ? "character device"
                                          : "device");
    else if (st.st_size == 0)
        *mapping = (mf_mapping){(const unsigned char *)"", 0};
    else {
        void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED)
            status = mf_fail(err, MEMFIT_IO, "%s: %s", path, strerror(errno));
        else
            *mapping = (mf_mapping){p, (uint64_t)st.st_size};
    }
    if (status == MEMFIT_OK)
        *descriptor = fd;
    else
        close(fd);
    return status;
}

memfit_status mf_os_map_file(const char *path, mf_mapping *mapping, memfit_error *err)
{
    int descriptor;
    memfit_status status = mf_os_map_watched(path, mapping, &descriptor, err);
    mf_os_unwatch(descriptor);
    return status;
}

uint64_t mf_os_watched_bytes(int descriptor)
{
    struct stat st;
    return fstat(descriptor, &st) == 0 ? (uint64_t)st.st_size : 0;
}

uint64_t mf_os_watched_stamp(int descriptor)
{
    struct stat st;
    if (descriptor < 0 || fstat(descriptor, &st) != 0)
        return 0;
    return ((uint64_t)st.st_mtim.tv_sec * 1000000000u + (uint64_t)st.st_mtim.tv_nsec) * 31 + (uint64_t)st.st_size;
}

void mf_os_unwatch(int descriptor)
{
    if (descriptor >= 0)
        close(descriptor);
}

void mf_os_read_ahead(const void *mapped, uint64_t bytes)
{
    uintptr_t page = (uintptr_t)mf_os_page_bytes(), from = (uintptr_t)mapped / page * page;
    madvise((void *)from, (uintptr_t)mapped + bytes - from, MADV_WILLNEED);
}

bool mf_os_is_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

bool mf_os_is_stream(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && (S_ISFIFO(st.st_mode) || S_ISCHR(st.st_mode));
}

void mf_os_unmap_file(mf_mapping *mapping)
{
    if (mapping->bytes)
        munmap((void *)(uintptr_t)mapping->data, mapping->bytes);
    *mapping = (mf_mapping){0};
}

void mf_os_keep_standard(void)
{
    /* In the wrong direction on purpose: writing to a standard output that was closed then fails, as it should. */
    static const int modes[] = {O_WRONLY, O_RDONLY, O_WRONLY};
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) == -1 && errno == EBADF && open("/dev/null", modes[fd]) < 0)
            return;
}

uint64_t mf_os_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t mf_os_cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

memfit_status mf_os_make_folder(const char *path, memfit_error *err)
{
    if (mkdir(path, 0777) != 0 && errno != EEXIST)
        return mf_fail(err, MEMFIT_IO, "cannot make the folder %s: %s", path, strerror(errno));
    return MEMFIT_OK;
}

uint64_t mf_os_file_bytes(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 ? (uint64_t)st.st_size : 0;
}

uint64_t mf_os_file_fingerprint(const char *path)
{
    unsigned char some[16384] = {0};
    uint64_t hash = 0xcbf29ce484222325u, word; /* Fowler, Noll, Vo, by words */
    int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat st;
    if (descriptor < 0)
        return 0;
    bool whole = fstat(descriptor, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0;
    for (uint64_t at = 0; whole && at < (uint64_t)st.st_size;) {
        uint64_t left = (uint64_t)st.st_size - at, want = left < sizeof some ? left : sizeof some, got = 0;
        while (whole && got < want) {
            ssize_t n = pread(descriptor, some + got, want - got, (off_t)(at + got));
            whole = n > 0 || (n < 0 && errno == EINTR);
            got += n > 0 ? (uint64_t)n : 0;
        }
        memset(some + got, 0, (8 - got % 8) % 8);
        for (uint64_t i = 0; i < got; i += 8) {
            memcpy(&word, some + i, 8);
            hash = (hash ^ word) * 0x100000001b3u;
            hash ^= hash >> 29;
        }
        at += got;
    }
    close(descriptor);
    hash = (hash ^ (uint64_t)st.st_size) * 0x100000001b3u;
    return whole ? hash | 1 : 0;
}

int mf_os_in_child(int (*work)(void *ctx), void *ctx)
{
    fflush(NULL); /* or the child writes it too */
    pid_t child = fork();
    if (child == 0) {
        int result = work(ctx);
        fflush(NULL);
        _exit(result);
    }
    int how = 0;
    while (child > 0 && waitpid(child, &how, 0) < 0 && errno == EINTR)
        ;
    return child > 0 && WIFEXITED(how) ? WEXITSTATUS(how) : -1;
}

void mf_os_host_name(char *buf, size_t bytes)
{
    if (gethostname(buf, bytes) != 0)
        snprintf(buf, bytes, "host");
    buf[bytes - 1] = 0;
}

long mf_os_process_id(void)
{
    return (long)getpid();
}

double mf_os_unix_time(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

uint64_t mf_os_now_us(void)
{
    return mf_os_now_ns() / 1000;
}

unsigned mf_os_cpu_count(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0)
        return (unsigned)CPU_COUNT(&set);
    return 1;
}

void mf_os_yield(void)
{
    sched_yield();
}

bool mf_os_barrier_ready(void)
{
    return !syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0);
}

/* Cannot fail after mf_os_barrier_ready, also in a child of fork. */
void mf_os_barrier(void)
{
    syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0);
}

long mf_os_process(void)
{
    return (long)getpid();
}

void mf_os_empty_in_child(void *pages, size_t bytes, bool empty)
{
#ifdef MADV_WIPEONFORK
    madvise(pages, bytes, empty ? MADV_WIPEONFORK : MADV_KEEPONFORK);
#else
    (void)pages, (void)bytes, (void)empty;
#endif
}

uint64_t mf_os_page_bytes(void)
{
    return (uint64_t)sysconf(_SC_PAGESIZE);
}

bool mf_os_read_text(const char *path, char *buf, size_t bytes)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    size_t n = 0;
    for (;;) {
        ssize_t got = read(fd, buf + n, bytes - 1 - n);
        if (got <= 0)
            break;
        n += (size_t)got;
    }
    close(fd);
    buf[n] = 0;
    return n > 0;
}

/* "Name:   123 kB" in bytes; 0 when missing. */
static uint64_t kb_field(const char *text, const char *name)
{
    const char *p = strstr(text, name);
    return p ? strtoull(p + strlen(name), NULL, 10) * 1024 : 0;
}

memfit_status mf_os_process_memory(mf_os_memory *memory, memfit_error *err)
{
    char buf[8192];
    if (!mf_os_read_text("/proc/self/status", buf, sizeof buf))
        return mf_fail(err, MEMFIT_IO, "/proc/self/status cannot be read");
    *memory = (mf_os_memory){.rss_anon = kb_field(buf, "RssAnon:"),
                             .rss_shmem = kb_field(buf, "RssShmem:"),
                             .rss_file = kb_field(buf, "RssFile:"),
                             .vm_hwm = kb_field(buf, "VmHWM:")};
    return MEMFIT_OK;
}

uint64_t mf_os_counter_error_bytes(void)
{
    struct utsname u;
    unsigned major = 0, minor = 0;
    if (uname(&u) != 0 || sscanf(u.release, "%u.%u", &major, &minor) != 2 || major > 6 || (major == 6 && minor >= 17))
        return 0;
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    uint64_t n = cpus > 0 ? (uint64_t)cpus : 1, batch = major == 6 && minor >= 2 ? 2 * n : 64;
    return n * (batch > 32 ? batch : 32) * mf_os_page_bytes();
}

static uint64_t number_file(const char *path)
{
    char buf[64];
    if (!mf_os_read_text(path, buf, sizeof buf) || buf[0] < '0' || buf[0] > '9')
        return UINT64_MAX; /* "max", or not there */
    return strtoull(buf, NULL, 10);
}

/* The number behind a key of memory.stat; 0: it has none. */
static uint64_t stat_field(const char *stat, const char *key)
{
    size_t length = strlen(key);
    for (const char *line = stat; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, key, length) == 0 && line[length] == ' ')
            return strtoull(line + length + 1, NULL, 10);
    }
    return 0;
}

uint64_t mf_os_cgroup_used(uint64_t current, const char *stat)
{
    const char *v1 = strstr(stat, "total_inactive_file ") ? "total_" : "";
    static const char *const keys[] = {"inactive_file", "active_file", "slab_reclaimable"};
    static const char *const kept[] = {"file_dirty", "file_writeback", "dirty", "writeback"};
    uint64_t drops = 0, stays = 0;
    char key[64];
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        snprintf(key, sizeof key, "%s%s", v1, keys[i]);
        drops += stat_field(stat, key);
    }
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        snprintf(key, sizeof key, "%s%s", v1, kept[i]);
        stays += stat_field(stat, key);
    }
    drops = drops > stays ? drops - stays : 0;
    return current > drops ? current - drops : 0;
}

/* The tightest memory limit of this process's cgroups, what is left below it, and the tightest polite one. */
static void cgroup_limits(uint64_t *limit, uint64_t *left, uint64_t *soft)
{
    char groups[4096], *save = NULL;
    *limit = *left = *soft = UINT64_MAX;
    if (!mf_os_read_text("/proc/self/cgroup", groups, sizeof groups))
        return;
    for (char *line = strtok_r(groups, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        bool v2 = strncmp(line, "0::", 3) == 0;
        char *memory = strstr(line, ":memory:");
        if (!v2 && !memory)
            continue;
        char path[2048];
        snprintf(path, sizeof path, "%.2000s", v2 ? line + 3 : memory + 8);
        /* From the leaf up to the root: any level may hold the limit. */
        for (;;) {
            char file[2304];
            const char *root = v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
            snprintf(file, sizeof file, "%s%s/%s", root, path, v2 ? "memory.max" : "memory.limit_in_bytes");
            uint64_t most = number_file(file);
            snprintf(file, sizeof file, "%s%s/%s", root, path, v2 ? "memory.current" : "memory.usage_in_bytes");
            uint64_t used = number_file(file);
            char stat[8192];
            snprintf(file, sizeof file, "%s%s/memory.stat", root, path);
            if (used != UINT64_MAX && mf_os_read_text(file, stat, sizeof stat))
                used = mf_os_cgroup_used(used, stat);
            snprintf(file, sizeof file, "%s%s/%s", root, path, v2 ? "memory.high" : "memory.soft_limit_in_bytes");
            uint64_t polite = number_file(file);
            if (polite < (1ull << 60) && polite < *soft)
                *soft = polite;
            if (most < (1ull << 60)) {
                if (most < *limit)
                    *limit = most;
                uint64_t rest = used == UINT64_MAX ? most : most > used ? most - used : 0;
                if (rest < *left)
                    *left = rest;
            }
            char *slash = strrchr(path, '/');
            if (!slash || !path[0])
                break;
            *slash = 0;
        }
    }
}

/* What `ulimit` leaves of one resource whose use /proc/self/status shows under `name`. */
static uint64_t ulimit_left(int resource, const char *name)
{
    struct rlimit r;
    char buf[8192];
    if (getrlimit((__rlimit_resource_t)resource, &r) != 0 || r.rlim_cur == RLIM_INFINITY ||
        !mf_os_read_text("/proc/self/status", buf, sizeof buf))
        return UINT64_MAX;
    uint64_t used = kb_field(buf, name);
    return r.rlim_cur > used ? r.rlim_cur - used : 0;
}

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

uint64_t mf_os_available_memory(void)
{
    char buf[4096];
    uint64_t limit, left, soft;
    cgroup_limits(&limit, &left, &soft);
    uint64_t available = mf_os_read_text("/proc/meminfo", buf, sizeof buf) ? kb_field(buf, "MemAvailable:") : 0;
    uint64_t by_user = smaller(ulimit_left(RLIMIT_AS, "VmSize:"), ulimit_left(RLIMIT_DATA, "VmData:"));
    return smaller(smaller(left, available), by_user);
}

uint64_t mf_os_soft_limit(void)
{
    uint64_t limit, left, soft;
    cgroup_limits(&limit, &left, &soft);
    return soft;
}

/* ---- large pieces of memory --------------------------------------------------------------------------------- */

/* Large pages, where the system gives them: steps are 2 to 4 % faster, and processes of one plan differ less in time.
 * They lie within what was asked for, so that what is resident stays exact. */
enum { LARGE_PAGE = 2 << 20 };

memfit_status mf_os_reserve(uint64_t bytes, unsigned char **mapped, uint64_t *mapped_bytes, memfit_error *err)
{
    uint64_t page = mf_os_page_bytes(), pages = mf_round_up(bytes, page);
    uint64_t spare = pages >= LARGE_PAGE ? LARGE_PAGE : 0; /* to begin where a large page does */
    unsigned char *p =
        mmap(NULL, spare + pages + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return mf_fail(err, MEMFIT_OUT_OF_MEMORY, "the system refuses %llu bytes of addresses: %s",
                       (unsigned long long)pages, strerror(errno));
    if (spare) {
        uint64_t before = (LARGE_PAGE - (uintptr_t)p % LARGE_PAGE) % LARGE_PAGE;
        if (before)
            munmap(p, before);
        p += before;
        if (spare > before)
            munmap(p + pages + page, spare - before);
#if defined(MADV_HUGEPAGE)
        madvise(p, pages, MADV_HUGEPAGE);
#endif
    }
    *mapped = p;
    *mapped_bytes = pages + page;
    mprotect(*mapped + pages, page, PROT_NONE);
    return MEMFIT_OK;
}

void mf_os_unreserve(unsigned char *mapped, uint64_t mapped_bytes)
{
    munmap(mapped, mapped_bytes);
}

void mf_os_populate(unsigned char *mapped, uint64_t bytes)
{
#if defined(MADV_POPULATE_WRITE)
    if (madvise(mapped, bytes, MADV_POPULATE_WRITE) == 0)
        return;
#endif
    volatile unsigned char *p = mapped;
    for (uint64_t i = 0, page = mf_os_page_bytes(); i < bytes; i += page)
        p[i] = p[i];
}

static const char *temporary_folder(void)
{
    const char *folder = getenv("TMPDIR");
    return folder && *folder ? folder : "/var/tmp";
}

bool mf_os_temporary_folder(char *path, size_t size)
{
    return snprintf(path, size, "%s/memfit-XXXXXX", temporary_folder()) < (int)size && mkdtemp(path);
}

void mf_os_remove_folder(const char *path)
{
    rmdir(path);
}

memfit_status mf_os_spool_open(mf_spool *spool, memfit_error *err)
{
    const char *folder = temporary_folder();
    char path[4096];
    snprintf(path, sizeof path, "%s/memfit-XXXXXX", folder);
    *spool = (mf_spool){mkostemp(path, O_CLOEXEC), 0};
    if (spool->descriptor < 0)
        return mf_fail(err, MEMFIT_IO, "cannot make a temporary file in %s: %s\nset TMPDIR to a folder with room",
                       folder, strerror(errno));
    unlink(path);
    return MEMFIT_OK;
}

memfit_status mf_os_spool_write(mf_spool *spool, const void *data, uint64_t bytes, memfit_error *err)
{
    const char *p = data;
    while (bytes) {
        ssize_t n = write(spool->descriptor, p, bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return mf_fail(err, MEMFIT_IO, "no room in %s: %s\nset TMPDIR to a folder with room", temporary_folder(),
                           strerror(errno));
        p += n;
        bytes -= (uint64_t)n;
        spool->bytes += (uint64_t)n;
    }
    return MEMFIT_OK;
}

memfit_status mf_os_spool_finish(mf_spool *spool, unsigned char **data, memfit_error *err)
{
    void *p = mmap(NULL, spool->bytes ? spool->bytes : 1, PROT_READ, MAP_SHARED, spool->descriptor, 0);
    int why = errno;
    mf_os_spool_drop(spool);
    if (p == MAP_FAILED)
        return mf_fail(err, MEMFIT_IO, "a temporary file cannot be mapped: %s", strerror(why));
    *data = p;
    return MEMFIT_OK;
}

void mf_os_spool_drop(mf_spool *spool)
{
    mf_os_unwatch(spool->descriptor);
    spool->descriptor = -1;
}

memfit_status mf_os_spool_map(uint64_t bytes, unsigned char **data, memfit_error *err)
{
    const char *folder = temporary_folder();
    mf_spool spool;
    memfit_status status = mf_os_spool_open(&spool, err);
    if (status != MEMFIT_OK)
        return status;
    int fd = spool.descriptor, why = posix_fallocate(fd, 0, (off_t)(bytes ? bytes : 1));
    void *p = MAP_FAILED;
    if (!why) {
        p = mmap(NULL, bytes ? bytes : 1, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        why = p == MAP_FAILED ? errno : 0;
    }
    close(fd);
    if (why)
        return mf_fail(err, MEMFIT_IO, "no room for %llu bytes in %s: %s\nset TMPDIR to a folder with room",
                       (unsigned long long)bytes, folder, strerror(why));
    *data = p;
    return MEMFIT_OK;
}

void mf_os_spool_unmap(unsigned char *data, uint64_t bytes)
{
    munmap(data, bytes ? bytes : 1);
}

uint64_t mf_os_total_memory(void)
{
    char buf[4096];
    uint64_t limit, left, soft;
    cgroup_limits(&limit, &left, &soft);
    uint64_t total = mf_os_read_text("/proc/meminfo", buf, sizeof buf) ? kb_field(buf, "MemTotal:") : 0;
    return limit < total ? limit : total;
}

unsigned mf_os_terminal_columns(FILE *file)
{
    struct winsize size;
    int fd = file == stdout ? STDOUT_FILENO : file == stderr ? STDERR_FILENO : fileno(file);
    if (!isatty(fd) || ioctl(fd, TIOCGWINSZ, &size) != 0)
        return 0;
    return size.ws_col ? size.ws_col : 80;
}
