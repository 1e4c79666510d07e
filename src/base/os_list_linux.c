/* os_list_linux.c: folders with many files, patterns, and reading one file after another. See os.h. */
#include "base/os.h"

#include "base/error.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

/* The listing tells the type of most entries: only links are asked for. */
static mf_entry_type type_of(int folder, const struct dirent *e)
{
    struct stat st;
    if (e->d_type == DT_REG)
        return MF_ENTRY_FILE;
    if (e->d_type == DT_DIR)
        return MF_ENTRY_FOLDER;
    if ((e->d_type != DT_LNK && e->d_type != DT_UNKNOWN) || fstatat(folder, e->d_name, &st, 0) != 0)
        return MF_ENTRY_OTHER;
    return S_ISREG(st.st_mode)   ? MF_ENTRY_FILE
           : S_ISDIR(st.st_mode) ? (e->d_type == DT_LNK ? MF_ENTRY_LINKED_FOLDER : MF_ENTRY_FOLDER)
                                 : MF_ENTRY_OTHER;
}

memfit_status mf_os_list_folder(const char *path,
                                memfit_status (*each)(void *ctx, const char *name, mf_entry_type type,
                                                      memfit_error *err),
                                void *ctx, memfit_error *err)
{
    DIR *d = opendir(path);
    if (!d)
        return mf_fail(err, errno == ENOENT || errno == EACCES || errno == ENOTDIR ? MEMFIT_NOT_FOUND : MEMFIT_IO,
                       "%s: %s", path, strerror(errno));
    memfit_status status = MEMFIT_OK;
    const struct dirent *e;
    errno = 0;
    while (status == MEMFIT_OK && (e = readdir(d))) {
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            status = each(ctx, e->d_name, type_of(dirfd(d), e), err);
        errno = 0;
    }
    if (status == MEMFIT_OK && errno)
        status = mf_fail(err, MEMFIT_IO, "%s: %s", path, strerror(errno));
    closedir(d);
    return status;
}

memfit_status mf_os_glob(const char *pattern, memfit_status (*each)(void *ctx, const char *path, memfit_error *err),
                         void *ctx, memfit_error *err)
{
    glob_t found = {0};
    int failed = glob(pattern, GLOB_ERR | GLOB_BRACE, NULL, &found);
    memfit_status status = MEMFIT_OK;
    if (failed == GLOB_NOMATCH)
        status =
            mf_fail(err, MEMFIT_NOT_FOUND, "%s matches no file\nin quotes, memfit resolves * and ? itself", pattern);
    else if (failed)
        status = mf_fail(err, failed == GLOB_NOSPACE ? MEMFIT_NO_HOST_MEMORY : MEMFIT_IO, "%s: %s", pattern,
                         failed == GLOB_NOSPACE ? "no memory to list its files" : "a folder cannot be read");
    for (size_t i = 0; status == MEMFIT_OK && i < found.gl_pathc; i++)
        status = each(ctx, found.gl_pathv[i], err);
    globfree(&found);
    return status;
}

bool mf_os_disk_is_slow(const char *path)
{
    static const unsigned long remote[] = {0x6969,     0xff534d42, 0xfe534d42, 0x517b,     0x01021997,
                                           0x00c36400, 0x0bd00bd0, 0x65735546, 0x47504653, 0x73757245};
    struct stat st;
    struct statfs fs;
    if (statfs(path, &fs) == 0)
        for (size_t i = 0; i < sizeof remote / sizeof *remote; i++)
            if (((unsigned long)fs.f_type & 0xffffffff) == remote[i])
                return true;
    char name[128], text[8] = "", device[512] = "";
    if (stat(path, &st) != 0)
        return false;
    snprintf(name, sizeof name, "/sys/dev/block/%u:%u", major(st.st_dev), minor(st.st_dev));
    if (readlink(name, device, sizeof device - 1) > 0 && strstr(device, "/virtio"))
        return false; /* a virtual machine's disk says that it turns, whatever it is */
    snprintf(name, sizeof name, "/sys/dev/block/%u:%u/queue/rotational", major(st.st_dev), minor(st.st_dev));
    if (!mf_os_read_text(name, text, sizeof text)) { /* a partition: the disk is above it */
        snprintf(name, sizeof name, "/sys/dev/block/%u:%u/../queue/rotational", major(st.st_dev), minor(st.st_dev));
        if (!mf_os_read_text(name, text, sizeof text))
            return false;
    }
    return text[0] == '1';
}

int mf_os_open_folder(const char *path)
{
    return open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

int mf_os_open_in(int folder, const char *path)
{
    struct stat st;
    int fd = openat(folder, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd >= 0 && (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))) {
        close(fd);
        errno = EINVAL;
        return -1;
    }
    return fd;
}

uint64_t mf_os_read_at(int descriptor, void *out, uint64_t bytes, uint64_t at)
{
    ssize_t n;
    do
        n = pread(descriptor, out, bytes, (off_t)at);
    while (n < 0 && errno == EINTR);
    return n > 0 ? (uint64_t)n : 0;
}

bool mf_os_write_at(int descriptor, const void *data, uint64_t bytes, uint64_t at)
{
    const char *from = data;
    for (uint64_t done = 0; done < bytes;) {
        ssize_t n = pwrite(descriptor, from + done, bytes - done, (off_t)(at + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        done += (uint64_t)n;
    }
    return true;
}

int mf_os_open_update(const char *path)
{
    struct stat st;
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (fd >= 0 && (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))) {
        close(fd);
        errno = EINVAL;
        return -1;
    }
    return fd;
}

bool mf_os_stamp_in(int folder, const char *path, uint64_t *bytes, uint64_t *changed_ns)
{
    struct stat st;
    if (fstatat(folder < 0 ? AT_FDCWD : folder, path, &st, 0) != 0)
        return false;
    *bytes = (uint64_t)st.st_size;
    *changed_ns = (uint64_t)st.st_mtim.tv_sec * 1000000000u + (uint64_t)st.st_mtim.tv_nsec;
    return true;
}

uint64_t mf_os_peek(const char *path, void *out, uint64_t bytes)
{
    int fd = mf_os_open_in(AT_FDCWD, path);
    uint64_t n = fd >= 0 ? mf_os_read_at(fd, out, bytes, 0) : 0;
    mf_os_unwatch(fd);
    return n;
}

uint64_t mf_os_read_input(void *out, uint64_t bytes)
{
    char *to = out;
    uint64_t done = 0;
    while (done < bytes) {
        ssize_t n = read(STDIN_FILENO, to + done, bytes - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        done += (uint64_t)n;
    }
    return done;
}
