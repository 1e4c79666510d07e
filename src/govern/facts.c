/* facts.c: see facts.h. */
#include "govern/facts.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const char magic[8] = "MEMFITFA";

const char *mf_memory_class_key(unsigned memory_class)
{
    static const char *const keys[] = {
#define X(name, key, words) key,
        MF_MEMORY_CLASSES(X)
#undef X
    };
    return memory_class < MF_MEMORY_CLASS_COUNT ? keys[memory_class] : "?";
}

const char *mf_memory_class_words(unsigned memory_class)
{
    static const char *const list[] = {
#define X(name, key, words) words,
        MF_MEMORY_CLASSES(X)
#undef X
    };
    return memory_class < MF_MEMORY_CLASS_COUNT ? list[memory_class] : "?";
}

mf_facts_owner mf_facts_owner_now(const mf_facts_owner *row)
{
    mf_facts_owner now = {.pid = row->pid, .card = row->card, .memory_class = row->memory_class, .used = row->used};
    now.bytes = __atomic_load_n(&row->bytes, __ATOMIC_RELAXED);
    now.count = __atomic_load_n(&row->count, __ATOMIC_RELAXED);
    memcpy(now.library, row->library, sizeof now.library);
    return now;
}

static mf_facts *map(int fd)
{
    void *p = mmap(NULL, sizeof(mf_facts), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return p == MAP_FAILED ? NULL : p;
}

mf_facts *mf_facts_create(const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return NULL;
    int code = posix_fallocate(fd, 0, sizeof(mf_facts)); /* or a full disk would end the program with SIGBUS */
    mf_facts *f = code ? NULL : map(fd);
    if (!f) {
        errno = code ? code : errno;
        unlink(path);
    } else {
        f->version = MF_FACTS_VERSION;
        f->bytes = sizeof *f;
        memcpy(f->magic, magic, sizeof magic);
    }
    close(fd);
    return f;
}

mf_facts *mf_facts_open(const char *path)
{
    struct stat st;
    int fd = open(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return NULL;
    bool good = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid() && st.st_size == sizeof(mf_facts);
    mf_facts *f = good ? map(fd) : NULL;
    close(fd);
    if (f && (memcmp(f->magic, magic, sizeof magic) != 0 || f->version != MF_FACTS_VERSION || f->bytes != sizeof *f)) {
        mf_facts_close(f);
        f = NULL;
    }
    return f;
}

void mf_facts_close(mf_facts *facts)
{
    if (facts)
        munmap(facts, sizeof *facts);
}
