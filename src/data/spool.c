/* spool.c: see spool.h. Disk space is taken at once (fallocate), so that a full disk is an error here and not a signal
 * when the mapping is written. */
#include "data/spool.h"

#include "base/error.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

memfit_status mf_spool_map(uint64_t bytes, unsigned char **data, memfit_error *err)
{
    const char *folder = getenv("TMPDIR");
    if (!folder || !*folder)
        folder = "/var/tmp";
    char path[4096];
    snprintf(path, sizeof path, "%s/memfit-XXXXXX", folder);
    int fd = mkostemp(path, O_CLOEXEC);
    if (fd < 0)
        return mf_fail(err, MEMFIT_IO, "cannot make a temporary file in %s: %s\nset TMPDIR to a folder with room",
                       folder, strerror(errno));
    unlink(path);
    int why = posix_fallocate(fd, 0, (off_t)(bytes ? bytes : 1));
    if (why) {
        close(fd);
        return mf_fail(err, MEMFIT_IO, "no room for %llu bytes in %s: %s\nset TMPDIR to a folder with room",
                       (unsigned long long)bytes, folder, strerror(why));
    }
    void *p = mmap(NULL, bytes ? bytes : 1, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    why = errno;
    close(fd);
    if (p == MAP_FAILED)
        return mf_fail(err, MEMFIT_IO, "cannot map a temporary file: %s", strerror(why));
    *data = p;
    return MEMFIT_OK;
}

void mf_spool_unmap(unsigned char *data, uint64_t bytes)
{
    munmap(data, bytes ? bytes : 1);
}
