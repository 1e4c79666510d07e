/*
 * preload_attach.c: into a program that runs already, before its first use of the driver.
 *
 * There is no preloading then, but the same table works: what other libraries imported as dlsym, dlvsym or one of the
 * driver's names stands in their tables of addresses (GOT), and we write ours there. CUDA's runtime asks for the driver's
 * functions at its first use; who has asked before has them, so attaching after that would be a limit with holes, and
 * is refused. Libraries that come later are written to when anybody asks dlsym for anything: whoever loads a library asks it
 * for its entry next.
 */
#include "govern/preload.h"

#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct object { /* as the loader keeps it */
    ElfW(Addr) base;
    const ElfW(Sym) * symbols;
    const char *strings;
    const ElfW(Rela) * tables[2];
    size_t counts[2];
    uintptr_t sealed, sealed_end; /* read-only after loading */
} object;

static bool attached;
static unsigned long long seen_adds;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static bool write_slot(const object *o, void **slot, void *value)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)slot & ~(page - 1);
    bool is_sealed = (uintptr_t)slot >= o->sealed && (uintptr_t)slot < o->sealed_end;
    if (is_sealed && mprotect((void *)at, page, PROT_READ | PROT_WRITE) != 0)
        return false;
    __atomic_store_n(slot, value, __ATOMIC_RELEASE);
    if (is_sealed)
        mprotect((void *)at, page, PROT_READ);
    return true;
}

/* What is looked for: imports of one library, or of all but those that are left alone. */
typedef struct search {
    const char *only;
    void *(*ours)(const char *name);
    unsigned written;
} search;

static unsigned write_tables(const object *o, void *(*ours_for)(const char *name))
{
    unsigned written = 0;
    for (int t = 0; t < 2; t++)
        for (size_t i = 0; i < o->counts[t]; i++) {
            const ElfW(Rela) *r = &o->tables[t][i];
            unsigned type = (unsigned)ELF64_R_TYPE(r->r_info);
            if (type != R_X86_64_JUMP_SLOT && type != R_X86_64_GLOB_DAT)
                continue;
            void *ours = ours_for(o->strings + o->symbols[ELF64_R_SYM(r->r_info)].st_name);
            void **slot = (void **)(o->base + r->r_offset);
            if (ours && *slot != ours)
                written += write_slot(o, slot, ours);
        }
    return written;
}

/* The loader, the C library, the driver and we stay as they are. */
static bool is_meant(const search *want, const char *path)
{
    static const char *const names[] = {"ld-linux",   "libc.so",    "libc-",      "libdl.",     "libdl-",
                                        "libpthread", "linux-vdso", "libcuda.so", "libnvidia-", "libmemfit-govern"};
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    if (want->only)
        return strncmp(name, want->only, strlen(want->only)) == 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strncmp(name, names[i], strlen(names[i])) == 0)
            return false;
    return true;
}

static int look_into(struct dl_phdr_info *info, size_t size, void *ctx)
{
    (void)size;
    object o = {.base = info->dlpi_addr};
    const ElfW(Dyn) *d = NULL;
    search *want = ctx;
    if (!is_meant(want, info->dlpi_name))
        return 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        if (part->p_type == PT_DYNAMIC)
            d = (const ElfW(Dyn) *)(o.base + part->p_vaddr);
        if (part->p_type == PT_GNU_RELRO) {
            o.sealed = o.base + part->p_vaddr;
            o.sealed_end = o.sealed + part->p_memsz;
        }
    }
    for (; d && d->d_tag != DT_NULL; d++) {
        if (d->d_tag == DT_SYMTAB)
            o.symbols = (const ElfW(Sym) *)d->d_un.d_ptr;
        if (d->d_tag == DT_STRTAB)
            o.strings = (const char *)d->d_un.d_ptr;
        if (d->d_tag == DT_JMPREL)
            o.tables[0] = (const ElfW(Rela) *)d->d_un.d_ptr;
        if (d->d_tag == DT_PLTRELSZ)
            o.counts[0] = d->d_un.d_val / sizeof(ElfW(Rela));
        if (d->d_tag == DT_RELA)
            o.tables[1] = (const ElfW(Rela) *)d->d_un.d_ptr;
        if (d->d_tag == DT_RELASZ)
            o.counts[1] = d->d_un.d_val / sizeof(ElfW(Rela));
    }
    for (int t = 0; t < 2; t++)
        if (!o.tables[t])
            o.counts[t] = 0;
    if (o.symbols && o.strings)
        want->written += write_tables(&o, want->ours);
    return 0;
}

EARLY static int read_adds(struct dl_phdr_info *info, size_t size, void *ctx)
{
    if (size >= offsetof(struct dl_phdr_info, dlpi_subs))
        *(unsigned long long *)ctx = info->dlpi_adds;
    return 1;
}

/* How many places were written. */
static unsigned write_all(void)
{
    search want = {NULL, mf_govern_ours, 0};
    pthread_mutex_lock(&lock);
    dl_iterate_phdr(read_adds, &seen_adds); /* first: what is loaded meanwhile is looked at again */
    dl_iterate_phdr(look_into, &want);
    pthread_mutex_unlock(&lock);
    return want.written;
}

unsigned mf_govern_write_imports(const char *library, void *(*ours)(const char *name))
{
    search want = {library, ours, 0};
    pthread_mutex_lock(&lock);
    dl_iterate_phdr(look_into, &want);
    pthread_mutex_unlock(&lock);
    return want.written;
}

EARLY void mf_govern_look_again(void)
{
    unsigned long long adds = 0;
    if (!__atomic_load_n(&attached, __ATOMIC_ACQUIRE))
        return;
    int saved = errno;
    dl_iterate_phdr(read_adds, &adds);
    if (adds != __atomic_load_n(&seen_adds, __ATOMIC_ACQUIRE))
        write_all();
    errno = saved;
}

/* The driver counts its cards only when it has begun. */
static bool is_late(void)
{
    int count, (*ask)(int *) = (int (*)(int *))mf_govern_driver("cuDeviceGetCount");
    return ask && ask(&count) != NOT_INITIALIZED;
}

/*
 * For whoever loads this library into a running program (memfit.limit of the Python package): holds the process to
 * `limit_bytes` on each card. MEMFIT_GOVERN, and if it is set MEMFIT_GOVERN_FACTS, name files that do not exist yet. 0: done; 1:
 * the driver is in use already; 2: the files cannot be made; 3: attached before, only the limit was changed; 4: preloaded.
 */
EXPORT int memfit_govern_attach(uint64_t limit_bytes)
{
    const char *path = getenv("MEMFIT_GOVERN"), *facts = getenv("MEMFIT_GOVERN_FACTS");
    mf_share share;
    if (__atomic_load_n(&attached, __ATOMIC_ACQUIRE)) {
        mf_share *there = mf_govern_share();
        for (int c = 0; there && c < MF_SHARE_CARDS; c++)
            __atomic_store_n(&there->file->limit_bytes[c], limit_bytes, __ATOMIC_SEQ_CST);
        return 3;
    }
    if (mf_govern_is_preloaded())
        return 4;
    if (is_late())
        return 1;
    if (!path || mf_share_create(path, &share))
        return 2;
    for (int c = 0; c < MF_SHARE_CARDS; c++)
        share.file->limit_bytes[c] = limit_bytes;
    mf_share_close(&share);
    mf_facts_close(facts ? mf_facts_create(facts) : NULL);
    if (!mf_govern_share())
        return 2;
    __atomic_store_n(&attached, true, __ATOMIC_RELEASE);
    write_all();
    return 0;
}
