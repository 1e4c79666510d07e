/*
 * os_write_linux.c: files written whole or not at all.
 *
 *   open      a file without a name in the target's folder (O_TMPFILE), which vanishes with its process; where the file
 *             system has none, one named TARGET.<16 hexadecimal digits>.memfit.tmp
 *   write     anything
 *   commit    fsync; the file gets that name, if it has none yet; rename over the target; fsync of the folder
 *
 * So a process that is killed leaves a file behind only between its name and the rename, or where files without a name
 * cannot be had. Each file is locked while its process lives (flock: the lock goes with the process, in whatever
 * container it ran): whoever writes to the same target next removes those that nobody holds.
 *
 * Nothing here allocates, but for stdio's own buffer.
 */
#include "base/error.h"
#include "base/os.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static const char tail[] = ".memfit.tmp";
enum { DIGITS = 16 };

/* Where bytes meant for `path` go. A link stays one: the file it leads to is replaced. A device or a pipe (/dev/null,
 * /dev/stdout) must not be replaced by a file: it is written in place, and `temporary` is empty. */
static memfit_status choose_target(const char *path, char *target, char *temporary, memfit_error *err)
{
    if (!*path)
        return mf_fail(err, MEMFIT_INVALID, "a file to write has an empty name");
    if (strlen(path) >= MF_MOST_PATH)
        return mf_fail(err, MEMFIT_INVALID, "a path of %zu characters is too long", strlen(path));
    snprintf(target, MF_MOST_PATH, "%s", path);
    temporary[0] = 0;
    struct stat link, st;
    bool is_link = lstat(path, &link) == 0 && S_ISLNK(link.st_mode), there = stat(path, &st) == 0;
    if (there && S_ISDIR(st.st_mode))
        return mf_fail(err, MEMFIT_IO, "cannot write %s: it is a folder", path);
    if (there && !S_ISREG(st.st_mode))
        return MEMFIT_OK;
    mf_os_place place;
    if (is_link && !mf_os_find_place(path, &place)) /* a missing target is made, but not its folder */
        return mf_fail(err, MEMFIT_IO, "cannot write %s: it is a link, and what it leads to cannot be made", path);
    if (is_link)
        memcpy(target, place.path, sizeof place.path);
    uint64_t random; /* nobody can lay a file or a link in its way; see open_named */
    if (getrandom(&random, sizeof random, GRND_NONBLOCK) != (ssize_t)sizeof random)
        random = mf_os_now_ns() ^ (uint64_t)getpid() << 40;
    snprintf(temporary, MF_MOST_PATH + 32, "%s.%016llx%s", target, (unsigned long long)random, tail);
    return MEMFIT_OK;
}

/* The folder of a path, and the name in it. */
static const char *split(const char *path, char *folder)
{
    const char *slash = strrchr(path, '/');
    if (!slash)
        snprintf(folder, MF_MOST_PATH, ".");
    else
        snprintf(folder, MF_MOST_PATH, "%.*s", slash == path ? 1 : (int)(slash - path), path);
    return slash ? slash + 1 : path;
}

/* A new file, never one that is there: in a folder that others may write to, a name that is taken may be a trap. Gone
 * between its making and its locking, it was taken for one that a dead process left. */
static int open_named(const char *temporary, int access, mode_t mode)
{
    struct stat st;
    int fd = open(temporary, access | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
    if (fd < 0)
        return fd;
    bool locked = flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK; /* some disks have no locks */
    if (locked && fstat(fd, &st) == 0 && st.st_nlink > 0)
        return fd;
    close(fd);
    unlink(temporary);
    errno = EAGAIN;
    return -1;
}

/* Where the new bytes go. It has the permissions of the file it will replace, so that what was kept from others stays
 * so. *named: it is there as `temporary`. */
static int open_new(const char *target, const char *temporary, int access, bool *named)
{
    struct stat st;
    char folder[MF_MOST_PATH];
    split(target, folder);
    bool there = stat(target, &st) == 0;
    mode_t mode = there ? st.st_mode & 0777 : 0666;
    int fd = -1;
    *named = false;
    if (faccessat(AT_FDCWD, "/proc/self/fd", X_OK, 0) == 0)
        fd = open(folder, access | O_TMPFILE | O_CLOEXEC, mode);
    if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0)
        errno = 0;
    if (fd < 0) {
        *named = true;
        fd = open_named(temporary, access, mode);
    }
    if (fd >= 0 && there && fchmod(fd, mode) != 0) /* the umask took some away; some disks have none */
        errno = 0;
    return fd;
}

/* Some file systems make files without a name and can give them none: then a second file takes the bytes. */
static bool copy_to_name(int fd, const char *temporary)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return false;
    int to = open_named(temporary, O_WRONLY, st.st_mode & 0777);
    if (to < 0)
        return false;
    off_t at = 0;
    ssize_t n = 0;
    while (at < st.st_size && (n = sendfile(to, fd, &at, (size_t)(st.st_size - at))) > 0)
        ;
    bool done = at == st.st_size && fchmod(to, st.st_mode & 0777) == 0 && fsync(to) == 0;
    int why = n == 0 && !done ? EIO : errno;
    if (close(to) != 0 || !done) {
        unlink(temporary);
        errno = why;
        return false;
    }
    return true;
}

static bool give_name(int fd, const char *temporary)
{
    char self[32];
    snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
    return linkat(AT_FDCWD, self, AT_FDCWD, temporary, AT_SYMLINK_FOLLOW) == 0 || copy_to_name(fd, temporary);
}

/* The name of a file that has none yet, then the target's. 0 or errno. */
static int take_place(int fd, bool named, const char *temporary, const char *target)
{
    if (!named && !give_name(fd, temporary))
        return errno ? errno : EIO;
    if (rename(temporary, target) == 0)
        return 0;
    int why = errno ? errno : EIO;
    unlink(temporary);
    return why;
}

/* ---- what the dead left ------------------------------------------------------------------------------------- */

/* Is `name` a temporary of the file `base`? */
static bool is_temporary(const char *name, const char *base)
{
    size_t n = strlen(base);
    if (strncmp(name, base, n) != 0 || name[n] != '.' || strlen(name) != n + 1 + DIGITS + sizeof tail - 1)
        return false;
    return strspn(name + n + 1, "0123456789abcdef") == DIGITS && strcmp(name + n + 1 + DIGITS, tail) == 0;
}

/* Removes a temporary that no process holds. */
static void remove_stale(int folder, const char *name)
{
    struct stat st;
    int fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && flock(fd, LOCK_EX | LOCK_NB) == 0)
        unlinkat(folder, name, 0);
    close(fd);
}

/* Of a process that was killed while it wrote `target`. The folder is read without libc's readdir, which allocates. */
static void clear_stale(const char *target)
{
    struct entry {
        uint64_t number;
        int64_t next;
        unsigned short bytes;
        unsigned char type;
        char name[];
    };
    _Alignas(struct entry) char buffer[4096];
    char folder[MF_MOST_PATH];
    const char *base = split(target, folder);
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return;
    for (long n; (n = syscall(SYS_getdents64, fd, buffer, sizeof buffer)) > 0;)
        for (long at = 0; at < n;) {
            const struct entry *e = (const struct entry *)(const void *)(buffer + at);
            at += e->bytes;
            if (is_temporary(e->name, base))
                remove_stale(fd, e->name);
        }
    close(fd);
}

/* ---- streams ------------------------------------------------------------------------------------------------ */

/* An error of writing; what it says of the file is true only where a temporary was written. */
static memfit_status write_failed(const char *path, const char *temporary, int why, memfit_error *err)
{
    return mf_fail(err, MEMFIT_IO,
                   *temporary ? "cannot write %s: %s\nwhat was there before is unchanged" : "cannot write %s: %s", path,
                   strerror(why ? why : EIO));
}

static void drop(const char *temporary, bool named)
{
    if (named)
        unlink(temporary);
}

memfit_status mf_os_out_open(mf_outfile *out, const char *path, memfit_error *err)
{
    memfit_status status = choose_target(path, out->path, out->temporary, err);
    if (status != MEMFIT_OK)
        return status;
    if (out->temporary[0])
        clear_stale(out->path);
    int fd = out->temporary[0] ? open_new(out->path, out->temporary, O_RDWR, &out->named) : -1;
    if (!out->temporary[0])
        out->file = fopen(out->path, "wbe");
    else
        out->file = fd < 0 ? NULL : fdopen(fd, "w+b");
    if (out->file)
        return MEMFIT_OK;
    status = mf_fail(err, MEMFIT_IO, "cannot write %s: %s", path, strerror(errno));
    if (fd >= 0) {
        close(fd);
        drop(out->temporary, out->named);
    }
    return status;
}

/* A rename is durable once its folder is. */
static void sync_folder(const char *path)
{
    char folder[MF_MOST_PATH];
    split(path, folder);
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        fsync(fd);
        close(fd);
    }
}

memfit_status mf_os_out_commit(mf_outfile *out, memfit_error *err)
{
    const bool in_place = !out->temporary[0]; /* a device or pipe: nothing to sync, nothing to rename */
    int failed = fflush(out->file) != 0 || ferror(out->file) || (!in_place && fsync(fileno(out->file)) != 0);
    int why = failed ? errno : 0;
    if (failed)
        drop(out->temporary, out->named);
    else if (!in_place)
        failed = (why = take_place(fileno(out->file), out->named, out->temporary, out->path)) != 0;
    if (fclose(out->file) != 0 && !failed) {
        failed = 1;
        why = errno;
    }
    out->file = NULL;
    if (failed)
        return write_failed(out->path, out->temporary, why, err);
    if (!in_place)
        sync_folder(out->path);
    return MEMFIT_OK;
}

void mf_os_out_abandon(mf_outfile *out)
{
    if (!out->file)
        return;
    fclose(out->file);
    drop(out->temporary, out->named);
    out->file = NULL;
}

/* ---- descriptors -------------------------------------------------------------------------------------------- */

memfit_status mf_os_raw_open(mf_rawfile *out, const char *path, memfit_error *err)
{
    out->descriptor = -1;
    memfit_status status = choose_target(path, out->path, out->temporary, err);
    if (status != MEMFIT_OK)
        return status;
    out->named = false;
    out->descriptor = out->temporary[0] ? open_new(out->path, out->temporary, O_RDWR, &out->named)
                                        : open(out->path, O_WRONLY | O_CLOEXEC);
    if (out->descriptor < 0)
        return mf_fail(err, MEMFIT_IO, "cannot write %s: %s", path, strerror(errno));
    return MEMFIT_OK;
}

memfit_status mf_os_raw_probe(const char *path, memfit_error *err)
{
    mf_rawfile probe;
    memfit_status status = choose_target(path, probe.path, probe.temporary, err);
    if (status != MEMFIT_OK)
        return status;
    if (!probe.temporary[0]) /* opening a pipe and closing it again would end it for its reader */
        return access(path, W_OK) == 0 ? MEMFIT_OK
                                       : mf_fail(err, MEMFIT_IO, "cannot write %s: %s", path, strerror(errno));
    clear_stale(probe.path);
    status = mf_os_raw_open(&probe, path, err);
    if (status == MEMFIT_OK)
        mf_os_raw_abandon(&probe);
    return status;
}

memfit_status mf_os_raw_write(mf_rawfile *out, const void *data, uint64_t bytes, memfit_error *err)
{
    const char *p = data;
    while (bytes) {
        ssize_t n = write(out->descriptor, p, bytes < (1u << 30) ? bytes : 1u << 30);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return write_failed(out->path, out->temporary, n < 0 ? errno : ENOSPC, err);
        p += n;
        bytes -= (uint64_t)n;
    }
    return MEMFIT_OK;
}

void mf_os_raw_abandon(mf_rawfile *out)
{
    if (out->descriptor >= 0) {
        close(out->descriptor);
        drop(out->temporary, out->named);
    }
    out->descriptor = -1;
}

memfit_status mf_os_raw_commit(mf_rawfile *out, memfit_error *err)
{
    const bool in_place = !out->temporary[0];
    int why = !in_place && fsync(out->descriptor) != 0 ? errno : 0;
    if (why)
        drop(out->temporary, out->named);
    else if (!in_place)
        why = take_place(out->descriptor, out->named, out->temporary, out->path);
    if (close(out->descriptor) != 0 && !why)
        why = errno;
    out->descriptor = -1;
    if (why)
        return write_failed(out->path, out->temporary, why, err);
    if (!in_place)
        sync_folder(out->path);
    return MEMFIT_OK;
}
