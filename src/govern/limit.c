/* limit.c: see limit.h. */
#include "govern/limit.h"

#include "base/error.h"
#include "base/os.h"
#include "govern/named.h"
#include "govern/turns.h"

#include <dirent.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { MOST_PRELOAD = 8192, YOUNG_S = 10 };
#define LIBRARY_NAME "libmemfit-govern.so" /* a folder may be made and not locked yet for a moment */

/* ---- the program ------------------------------------------------------------------------------------------ */

static bool find_in_path(const char *command, char *path, size_t bytes)
{
    if (strchr(command, '/')) {
        snprintf(path, bytes, "%s", command);
        return access(path, X_OK) == 0;
    }
    const char *list = getenv("PATH");
    for (const char *p = list ? list : "/bin:/usr/bin"; *p;) {
        size_t n = strcspn(p, ":");
        snprintf(path, bytes, "%.*s/%s", (int)(n ? n : 1), n ? p : ".", command);
        if (access(path, X_OK) == 0)
            return true;
        p += n + (p[n] == ':');
    }
    return false;
}

/* "#!/usr/bin/python3 -s": the program that runs a script. */
static bool find_interpreter(int fd, char *path, size_t bytes)
{
    char line[256];
    ssize_t n = pread(fd, line, sizeof line - 1, 0);
    if (n < 3 || line[0] != '#' || line[1] != '!')
        return false;
    line[n] = 0;
    const char *name = line + 2 + strspn(line + 2, " \t");
    int length = (int)strcspn(name, " \t\n");
    return length > 0 && (size_t)snprintf(path, bytes, "%.*s", length, name) < bytes;
}

static bool has_loader(int fd)
{
    Elf64_Ehdr header;
    if (pread(fd, &header, sizeof header, 0) != (ssize_t)sizeof header ||
        memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64)
        return true; /* no program that we know */
    for (int i = 0; i < header.e_phnum; i++) {
        Elf64_Phdr part;
        off_t at = (off_t)(header.e_phoff + (uint64_t)i * header.e_phentsize);
        if (pread(fd, &part, sizeof part, at) != (ssize_t)sizeof part || part.p_type == PT_INTERP)
            return true;
    }
    return false;
}

/* The loader reads LD_PRELOAD; a program without one (static), or one that runs with another's rights, does not. Of a
 * script it is the interpreter that counts, which may be a script itself; the kernel goes five deep. */
static memfit_status check_program(const char *command, memfit_error *err)
{
    char path[4096];
    struct stat st;
    bool found = find_in_path(command, path, sizeof path), loads = true;
    for (int depth = 0; found && loads && depth < 5; depth++) {
        if (stat(path, &st) != 0)
            return MEMFIT_OK; /* starting it will say so */
        bool rights = st.st_mode & (S_ISUID | S_ISGID) && (st.st_uid != geteuid() || st.st_mode & S_ISGID);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        char interpreter[256];
        found = fd >= 0 && find_interpreter(fd, interpreter, sizeof interpreter);
        if (rights && S_ISREG(st.st_mode) && !found) { /* the kernel gives a script no rights */
            if (fd >= 0)
                close(fd);
            return mf_fail(err, MEMFIT_UNSUPPORTED,
                           "%s runs with another user's or group's rights: nothing can be loaded into it\n"
                           "limit the program that it starts",
                           path);
        }
        loads = found || fd < 0 || has_loader(fd);
        if (fd >= 0)
            close(fd);
        if (found)
            snprintf(path, sizeof path, "%s", interpreter);
    }
    return loads ? MEMFIT_OK
                 : mf_fail(err, MEMFIT_UNSUPPORTED,
                           "%s is linked statically: nothing can be loaded into it, so it cannot be limited", path);
}

/* ---- the library ------------------------------------------------------------------------------------------ */

static memfit_status find_library(mf_limit *limit, const char *given, memfit_error *err)
{
    static const char *const places[] = {"", "../lib/", "../lib/x86_64-linux-gnu/", "../lib64/"};
    char self[2048];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    self[n > 0 ? n : 0] = 0;
    char *slash = strrchr(self, '/');
    if (slash)
        slash[1] = 0;
    for (size_t i = 0; i < (given ? 1 : sizeof places / sizeof *places); i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s%s%s", given ? given : self, given ? "" : places[i], given ? "" : LIBRARY_NAME);
        if (realpath(path, limit->library))
            return MEMFIT_OK;
    }
    return mf_fail(err, MEMFIT_NOT_FOUND,
                   "libmemfit-govern.so is not there: without it nothing can be limited\n"
                   "it belongs beside memfit, or in ../lib");
}

/* LD_PRELOAD is a list whose words end at blanks and colons: a library in "my programs/" gets a name without them. */
static memfit_status name_library(mf_limit *limit, memfit_error *err)
{
    const char *others = getenv("LD_PRELOAD");
    if (strpbrk(limit->library, " :")) {
        char name[sizeof limit->folder + 32];
        snprintf(name, sizeof name, "%s/%s", limit->folder, LIBRARY_NAME);
        if (symlink(limit->library, name) != 0)
            return mf_fail(err, MEMFIT_IO, "%s cannot be made: %s", name, strerror(errno));
        limit->linked = true;
        snprintf(limit->library, sizeof limit->library, "%s", name);
    }
    if (others && strlen(limit->library) + strlen(others) + 2 > MOST_PRELOAD)
        return mf_fail(err, MEMFIT_UNSUPPORTED, "LD_PRELOAD has %zu characters: there is no room for memfit's library",
                       strlen(others));
    return MEMFIT_OK;
}

/* A program of ours may run memfit again. With a share of its own what that one starts would no longer count in ours. */
static memfit_status check_outer(memfit_error *err)
{
    const char *path = getenv("MEMFIT_GOVERN"), *loaded = getenv("LD_PRELOAD");
    mf_share outer;
    char size[24];
    if (!path || !loaded || !strstr(loaded, LIBRARY_NAME) || mf_share_open(path, &outer))
        return MEMFIT_OK;
    uint64_t limit = outer.file->limit_bytes[0];
    mf_share_close(&outer);
    if (limit == UINT64_MAX)
        return MEMFIT_OK;
    return mf_fail(err, MEMFIT_CONFLICT,
                   "this is inside a program that memfit run limits to %s on each card already\n"
                   "a limit inside it would take its programs out of that one: leave out --memory, --share and --trace",
                   memfit_size_format(limit, size, sizeof size));
}

/* ---- the share -------------------------------------------------------------------------------------------- */

/* A memfit that was killed leaves its folder. While it lives it holds a lock on it, which dies with it. */
static void sweep(const char *place)
{
    DIR *list = opendir(place);
    for (struct dirent *e; list && (e = readdir(list));) {
        char path[512];
        struct stat st;
        if (strncmp(e->d_name, "memfit-run-", 11) != 0 ||
            (size_t)snprintf(path, sizeof path, "%s/%s", place, e->d_name) >= sizeof path || lstat(path, &st) != 0 ||
            !S_ISDIR(st.st_mode) || st.st_uid != geteuid() || st.st_mtime + YOUNG_S > time(NULL))
            continue;
        int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0) {
            unlinkat(fd, "share", 0);
            unlinkat(fd, "facts", 0);
            unlinkat(fd, LIBRARY_NAME, 0);
            rmdir(path); /* with anything else in it, it stays */
        }
        if (fd >= 0)
            close(fd);
    }
    if (list)
        closedir(list);
}

/* A folder that only this job knows, and only this user may enter. */
static memfit_status make_folder(mf_limit *limit, memfit_error *err)
{
    const char *runtime = getenv("XDG_RUNTIME_DIR"), *places[] = {runtime && *runtime ? runtime : "/tmp", "/tmp"};
    for (int i = 0; i < 2; i++) {
        if (strlen(places[i]) > 64 || strpbrk(places[i], " :"))
            continue;
        snprintf(limit->folder, sizeof limit->folder, "%s/memfit-run-XXXXXX", places[i]);
        if (!mkdtemp(limit->folder)) /* 0700, and of a name nobody can foresee */
            continue;
        limit->folder_lock = open(limit->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (limit->folder_lock >= 0)
            flock(limit->folder_lock, LOCK_SH);
        sweep(places[i]);
        return MEMFIT_OK;
    }
    limit->folder[0] = 0;
    return mf_fail(err, MEMFIT_IO, "the job's limit has no place: no folder can be made in %s or /tmp: %s", places[0],
                   strerror(errno));
}

static memfit_status make_facts(mf_limit *limit, const memfit_run_options *o, memfit_error *err)
{
    snprintf(limit->facts_path, sizeof limit->facts_path, "%s/facts", limit->folder);
    limit->facts = mf_facts_create(limit->facts_path);
    if (!limit->facts)
        return mf_fail(err, MEMFIT_IO, "%s cannot be made: %s", limit->facts_path, strerror(errno));
    char folder[4096] = ".";
    if (!o->trace)
        return MEMFIT_OK;
    const char *slash = strrchr(o->trace, '/'); /* absolute: the program may go elsewhere */
    if (slash)
        snprintf(folder, sizeof folder, "%.*s/", (int)(slash - o->trace), o->trace);
    char *whole = realpath(folder, NULL);
    int n = whole ? snprintf(limit->trace, sizeof limit->trace, "%s/%s", whole, slash ? slash + 1 : o->trace) : -1;
    free(whole);
    return n > 0 && (size_t)n < sizeof limit->trace - 32
               ? MEMFIT_OK
               : mf_fail(err, MEMFIT_IO, "%s: the folder of the trace is not there", o->trace);
}

static memfit_status make_share(mf_limit *limit, const memfit_run_options *o, memfit_error *err)
{
    memfit_status status = make_folder(limit, err);
    if (!status)
        status = make_facts(limit, o, err);
    if (status)
        return status;
    if (o->share) {
        limit->named = true;
        status = mf_named_path(o->share, limit->path, sizeof limit->path, err);
        if (!status)
            status = mf_named_join(limit->path, o->share, o->limit_bytes, o->turns_s, &limit->share, err);
    } else {
        snprintf(limit->path, sizeof limit->path, "%s/share", limit->folder);
        mf_share_result result = mf_share_create(limit->path, &limit->share);
        if (result)
            status = mf_fail(err, MEMFIT_IO, "%s: %s", limit->path, mf_share_words(result));
        for (int c = 0; !status && c < MF_SHARE_CARDS; c++)
            limit->share.file->limit_bytes[c] = o->limit_bytes ? o->limit_bytes : UINT64_MAX;
    }
    for (int c = 0; !status && c < MF_SHARE_CARDS; c++)
        limit->refused_before += limit->share.file->refused[c];
    return status;
}

bool mf_limit_is_wanted(const memfit_run_options *options)
{
    return options->limit_bytes || options->share || options->trace;
}

memfit_status mf_limit_begin(mf_limit *limit, const memfit_run_options *options, memfit_error *err)
{
    *limit = (mf_limit){.share = {.slot = -1}, .folder_lock = -1};
    memfit_status status = check_program(options->command[0], err);
    if (!status)
        status = check_outer(err);
    if (!status)
        status = find_library(limit, options->library, err);
    if (!status)
        status = make_share(limit, options, err);
    if (!status)
        status = name_library(limit, err);
    if (!status && options->turns_s)
        status = mf_turns_check(limit->share.file->limit_bytes[0], err);
    if (status)
        mf_limit_end(limit);
    return status;
}

void mf_limit_set_environment(const mf_limit *limit)
{
    char preload[MOST_PRELOAD];
    const char *others = getenv("LD_PRELOAD");
    snprintf(preload, sizeof preload, "%s%s%s", limit->library, others && *others ? ":" : "", others ? others : "");
    setenv("LD_PRELOAD", preload, 1);
    setenv("MEMFIT_GOVERN", limit->path, 1);
    char job[16];
    snprintf(job, sizeof job, "%u", limit->share.job);
    setenv("MEMFIT_GOVERN_JOB", job, 1);
    setenv("MEMFIT_GOVERN_FACTS", limit->facts_path, 1);
    unsetenv("MEMFIT_GOVERN_LOOK"); /* we look */
    if (limit->trace[0])
        setenv("MEMFIT_GOVERN_TRACE", limit->trace, 1);
    else
        unsetenv("MEMFIT_GOVERN_TRACE"); /* an outer memfit's */
}

void mf_limit_result(const mf_limit *limit, memfit_run_result *result)
{
    const mf_share_file *f = limit->share.file;
    if (!f)
        return;
    result->limit_bytes = f->limit_bytes[0] == UINT64_MAX ? 0 : f->limit_bytes[0];
    for (int c = 0; c < MF_SHARE_CARDS; c++) {
        result->refused += f->refused[c];
        result->charged_peak_bytes =
            f->peak_bytes[c] > result->charged_peak_bytes ? f->peak_bytes[c] : result->charged_peak_bytes;
    }
    result->refused -= limit->refused_before;
    uint32_t denials = __atomic_load_n(&limit->facts->denial_count, __ATOMIC_ACQUIRE);
    result->refused = limit->named ? denials : result->refused; /* the share counts other jobs' too */
    result->denial_count = denials < MF_FACTS_DENIALS ? denials : MF_FACTS_DENIALS;
}

/* What is in the file was written by somebody else's process: every number is checked, every text ended. */
static void put_text(char *to, size_t bytes, const char *from, size_t from_bytes)
{
    snprintf(to, bytes, "%.*s", (int)strnlen(from, from_bytes), from);
}

static void put_owner(const mf_facts_owner *from, memfit_run_owner *to)
{
    *to = (memfit_run_owner){.pid = from->pid, .bytes = from->bytes, .count = from->count};
    put_text(to->library, sizeof to->library, from->library, sizeof from->library);
    snprintf(to->memory_class, sizeof to->memory_class, "%s", mf_memory_class_key(from->memory_class));
    snprintf(to->words, sizeof to->words, "%s", mf_memory_class_words(from->memory_class));
}

void mf_limit_held(const mf_holdings *held, memfit_run_result *result)
{
    result->held_bytes = held->bytes;
    result->held_card = held->card;
    result->held_count = held->count;
    for (size_t i = 0; i < held->count; i++)
        put_owner(&held->owners[i], &result->held[i]);
}

memfit_status mf_limit_denial(const mf_limit *limit, size_t index, memfit_run_denial *denial, memfit_error *err)
{
    const mf_facts_denial *d = limit->facts && index < MF_FACTS_DENIALS ? &limit->facts->denials[index] : NULL;
    if (!d || index >= limit->facts->denial_count || d->state < MF_DENIAL_REFUSED)
        return mf_fail(err, MEMFIT_NOT_FOUND, "there is no denial %zu", index);
    *denial = (memfit_run_denial){.size = sizeof *denial, .pid = d->pid, .card = d->card, .tries = d->tries};
    denial->granted_later = d->state == MF_DENIAL_GRANTED_LATER;
    denial->waited = d->waited != 0;
    denial->unix_us = d->unix_us;
    denial->request_bytes = d->request_bytes;
    denial->limit_bytes = d->limit_bytes;
    denial->in_use_bytes = d->in_use_bytes;
    denial->unused_bytes = d->unused_bytes;
    denial->freed_bytes = d->freed_bytes;
    denial->took_ns = d->took_ns;
    put_text(denial->library, sizeof denial->library, d->library, sizeof d->library);
    snprintf(denial->memory_class, sizeof denial->memory_class, "%s", mf_memory_class_key(d->memory_class));
    snprintf(denial->words, sizeof denial->words, "%s", mf_memory_class_words(d->memory_class));
    denial->owner_count = d->named < MF_FACTS_NAMED ? d->named : MF_FACTS_NAMED;
    for (size_t i = 0; i < denial->owner_count; i++)
        put_owner(&d->owners[i], &denial->owners[i]);
    return MEMFIT_OK;
}

void mf_limit_end(mf_limit *limit)
{
    mf_facts_close(limit->facts);
    limit->facts = NULL;
    if (limit->facts_path[0])
        unlink(limit->facts_path);
    if (limit->named)
        mf_named_leave(limit->path, &limit->share);
    else if (limit->path[0])
        unlink(limit->path);
    mf_share_close(&limit->share);
    if (limit->linked)
        unlink(limit->library);
    limit->linked = false;
    if (limit->folder[0])
        rmdir(limit->folder);
    if (limit->folder_lock >= 0)
        close(limit->folder_lock);
    limit->folder[0] = limit->path[0] = limit->facts_path[0] = 0;
    limit->folder_lock = -1;
}
