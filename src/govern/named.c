/* named.c: see named.h. */
#include "govern/named.h"

#include "base/abi.h"
#include "base/error.h"
#include "base/os.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LOCK_US = 1000000, LOOK_US = 2000, MOST_NAME = 64, TRIES = 50 };

/* ---- where ------------------------------------------------------------------------------------------------ */

static bool good_name(const char *name)
{
    size_t n = strlen(name);
    return n && n <= MOST_NAME && name[0] != '.' && name[0] != '-' &&
           strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == n;
}

/* Ours alone, and no link: whoever may write there could give us any file. */
static memfit_status own_folder(const char *folder, memfit_error *err)
{
    struct stat st;
    if (mkdir(folder, 0700) != 0 && errno != EEXIST)
        return mf_fail(err, MEMFIT_IO,
                       "%s cannot be made: %s\n"
                       "shared limits lie there; XDG_RUNTIME_DIR names another place",
                       folder, strerror(errno));
    if (lstat(folder, &st) != 0)
        return mf_fail(err, MEMFIT_IO, "%s: %s", folder, strerror(errno));
    if (!S_ISDIR(st.st_mode) || st.st_uid != geteuid() || st.st_mode & 0077)
        return mf_fail(err, MEMFIT_IO,
                       "%s is not a folder of this user alone, so no shared limit is kept there\n"
                       "remove it, or set XDG_RUNTIME_DIR to a folder of your own",
                       folder);
    return MEMFIT_OK;
}

memfit_status mf_named_path(const char *name, char *path, size_t bytes, memfit_error *err)
{
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    char folder[256];
    if (!good_name(name))
        return mf_fail(
            err, MEMFIT_INVALID,
            "\"%s\" is not a name for a share: letters, digits, dots, dashes and underscores, at most %d, and no "
            "dot or dash in front",
            name, MOST_NAME);
    if (runtime && runtime[0] == '/' && strlen(runtime) < 200)
        snprintf(folder, sizeof folder, "%s/memfit", runtime);
    else
        snprintf(folder, sizeof folder, "/tmp/memfit-%u", (unsigned)geteuid());
    memfit_status status = own_folder(folder, err);
    if (!status && (size_t)snprintf(path, bytes, "%s/%s.share", folder, name) >= bytes)
        status = mf_fail(err, MEMFIT_INVALID, "%s: the path is too long", folder);
    return status;
}

/* ---- coming and going ------------------------------------------------------------------------------------- */

static memfit_status tell(const char *path, mf_share_result result, memfit_error *err)
{
    const char *words = mf_share_words(result);
    if (result == MF_SHARE_FOREIGN)
        return mf_fail(err, MEMFIT_IO, "%s: %s\nanother user's share is not joined", path, words);
    if (result == MF_SHARE_DAMAGED)
        return mf_fail(err, MEMFIT_DAMAGED, "%s: %s\nif no job uses it, remove the file", path, words);
    if (result == MF_SHARE_VERSION_DIFFERS)
        return mf_fail(err, MEMFIT_DAMAGED,
                       "%s: %s\nlet its jobs end first, or use another name; if no job uses it, remove the file", path,
                       words);
    return mf_fail(err, MEMFIT_IO, "%s: %s", path, words);
}

/* Said explicitly: a mapping of the file would keep the lock. */
static void unlock_close(int fd)
{
    flock(fd, LOCK_UN);
    close(fd);
}

/* The file, locked; -1: there is none (errno ENOENT), it cannot be opened, or somebody keeps the lock (EWOULDBLOCK). */
static int open_locked(const char *path)
{
    uint64_t until = mf_os_now_us() + LOCK_US;
    int fd = open(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return -1;
    while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK || mf_os_now_us() > until) {
            int code = errno;
            close(fd);
            errno = code;
            return -1;
        }
        usleep(LOOK_US);
    }
    struct stat st;
    if (fstat(fd, &st) == 0 && st.st_nlink)
        return fd;
    close(fd); /* its last job has just taken it away */
    errno = ESTALE;
    return -1;
}

static memfit_status cannot_open(const char *path, memfit_error *err)
{
    if (errno == ELOOP)
        return tell(path, MF_SHARE_FOREIGN, err);
    if (errno == EWOULDBLOCK)
        return mf_fail(err, MEMFIT_CONFLICT, "%s: another memfit stands still while it holds the share", path);
    return mf_fail(err, MEMFIT_IO, "%s: %s", path, strerror(errno));
}

static void set_limits(mf_share_file *f, uint64_t bytes)
{
    for (int c = 0; c < MF_SHARE_CARDS; c++)
        __atomic_store_n(&f->limit_bytes[c], bytes, __ATOMIC_SEQ_CST);
}

/* Whole before it has its name: nobody sees half a share. */
static memfit_status make(const char *path, uint64_t limit_bytes, memfit_error *err)
{
    char part[512];
    mf_share share;
    snprintf(part, sizeof part, "%s.%ld", path, (long)getpid());
    unlink(part);
    mf_share_result result = mf_share_create(part, &share);
    if (result)
        return mf_fail(err, MEMFIT_IO, "%s: %s", path, mf_share_words(result));
    set_limits(share.file, limit_bytes);
    mf_share_close(&share);
    int failed = link(part, path) != 0 && errno != EEXIST ? errno : 0;
    unlink(part);
    return failed ? mf_fail(err, MEMFIT_IO, "%s: %s", path, strerror(failed)) : MEMFIT_OK;
}

/* A row for this job. The lock is held. */
static memfit_status add_job(mf_share *share, uint32_t turns_s, memfit_error *err)
{
    mf_share_file *f = share->file;
    for (uint32_t j = 0; j < MF_SHARE_JOBS; j++) {
        if (mf_share_lives(f->jobs[j].owner))
            continue;
        f->jobs[j] = (mf_share_job){.owner = mf_share_self(), .turns_s = turns_s};
        share->job = j + 1;
        if (f->turn == j + 1) /* the dead one's */
            f->turn = 0;
        return MEMFIT_OK;
    }
    return mf_fail(err, MEMFIT_CONFLICT, "a share has room for %d jobs, and they are all there", MF_SHARE_JOBS);
}

/* The lock is held. */
static memfit_status join_open(int fd, const char *path, const char *name, uint64_t limit_bytes, uint32_t turns_s,
                               mf_share *share, memfit_error *err)
{
    mf_share_result result = mf_share_open_file(fd, share);
    if (result)
        return tell(path, result, err);
    mf_share_file *f = share->file;
    memfit_status status = MEMFIT_OK;
    char a[24], b[24];
    if (!mf_share_is_used(share)) { /* all its jobs were killed */
        if (limit_bytes)
            set_limits(f, limit_bytes);
        memset(f->refused, 0, sizeof f->refused);
        memset(f->peak_bytes, 0, sizeof f->peak_bytes);
        f->turn = 0;
    } else if (limit_bytes && limit_bytes != f->limit_bytes[0]) {
        status = mf_fail(err, MEMFIT_CONFLICT,
                         "the share \"%s\" has %s, not %s\n"
                         "leave --memory out to join it; memfit run --set %s --memory %s changes it for all its jobs",
                         name, memfit_size_format(f->limit_bytes[0], a, sizeof a),
                         memfit_size_format(limit_bytes, b, sizeof b), name, b);
    }
    if (!status)
        status = add_job(share, turns_s, err);
    if (status)
        mf_share_close(share);
    return status;
}

memfit_status mf_named_join(const char *path, const char *name, uint64_t limit_bytes, uint32_t turns_s, mf_share *share,
                            memfit_error *err)
{
    for (int tries = 0; tries < TRIES; tries++) {
        int fd = open_locked(path);
        if (fd >= 0) {
            memfit_status status = join_open(fd, path, name, limit_bytes, turns_s, share, err);
            unlock_close(fd);
            return status;
        }
        if (errno == ESTALE)
            continue;
        if (errno != ENOENT)
            return cannot_open(path, err);
        if (!limit_bytes)
            return mf_fail(err, MEMFIT_NOT_FOUND,
                           "there is no share \"%s\": its first job says how large it is\n"
                           "add --memory SIZE",
                           name);
        memfit_status status = make(path, limit_bytes, err);
        if (status)
            return status;
    }
    return mf_fail(err, MEMFIT_CONFLICT, "%s comes and goes too fast to be joined", path);
}

void mf_named_leave(const char *path, mf_share *share)
{
    mf_share_file *f = share->file;
    if (!f)
        return;
    int fd = open_locked(path);
    mf_share_leave(share);
    if (share->job) {
        uint32_t turn = share->job;
        __atomic_store_n(&f->jobs[share->job - 1].owner, 0, __ATOMIC_SEQ_CST);
        __atomic_compare_exchange_n(&f->turn, &turn, 0, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    }
    if (fd >= 0 && !mf_share_is_used(share))
        unlink(path);
    if (fd >= 0)
        unlock_close(fd);
    mf_share_close(share);
}

/* ---- changing it ------------------------------------------------------------------------------------------ */

memfit_status memfit_share_set(const char *name, uint64_t limit_bytes, memfit_share_state *state, memfit_error *err)
{
    char path[512];
    memfit_status status = state ? mf_abi_check(state, "MEMFIT_SHARE_STATE", err) : MEMFIT_OK;
    if (!status)
        status = mf_named_path(name, path, sizeof path, err);
    if (status)
        return status;
    int fd = open_locked(path);
    if (fd < 0 && (errno == ENOENT || errno == ESTALE))
        return mf_fail(err, MEMFIT_NOT_FOUND, "there is no share \"%s\": no job that runs has named it", name);
    if (fd < 0)
        return cannot_open(path, err);
    mf_share share;
    mf_share_result result = mf_share_open_file(fd, &share);
    if (result) {
        unlock_close(fd);
        return tell(path, result, err);
    }
    memfit_share_state now = MEMFIT_SHARE_STATE;
    if (!mf_share_is_used(&share)) {
        status = mf_fail(err, MEMFIT_NOT_FOUND, "the share \"%s\" has no job any more", name);
    } else {
        now.before_bytes = share.file->limit_bytes[0];
        if (limit_bytes)
            set_limits(share.file, limit_bytes);
        for (int j = 0; j < MF_SHARE_JOBS; j++)
            now.jobs += mf_share_lives(share.file->jobs[j].owner);
        for (unsigned c = 0; c < MF_SHARE_CARDS; c++) {
            uint64_t used = mf_share_in_use(&share, c);
            now.in_use_bytes = used > now.in_use_bytes ? used : now.in_use_bytes;
        }
    }
    mf_share_close(&share);
    unlock_close(fd);
    if (!status && state)
        mf_abi_write(state, &now, sizeof now);
    return status;
}
