/*
 * preload_attach.c: attaches to a program that already runs, before its first use of the driver.
 *
 * There is no preloading then, but the same table works: what other libraries imported as dlsym, dlvsym or one of the
 * driver's names stands in their tables of addresses (GOT), and we write ours there. CUDA's runtime asks for the
 * driver's functions at its first use and keeps them, so attaching after that would be a limit with holes: we refuse.
 * We write to libraries that are loaded later when anything calls dlsym, because whoever loads a library asks it for
 * its entry next. We do that where we were preloaded too: a library loaded with RTLD_DEEPBIND finds the driver's
 * functions and the C library's dlsym before ours.
 *
 * The loader lists a library before it makes its tables; it would write over ours, or, in a lazy table, add to what it
 * finds. So we list the new libraries first, then take the loader's own lock once, which waits for a loading that is
 * under way, and then write to those of the list, each once: their tables may have a million entries.
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

static bool watching; /* for libraries that come */
static bool attached;
static unsigned long long seen_adds, seen_subs; /* libraries ever loaded, and unloaded */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Libraries that were written to, by where their dynamic section lies; 0: free. */
enum { DONE_SLOTS = 4096, FRESH = 256 };
static ElfW(Addr) done[DONE_SLOTS];
static unsigned done_count;

static ElfW(Addr) * done_slot(ElfW(Addr) key)
{
    size_t at = (size_t)(key * 0x9e3779b97f4a7c15u >> 52) % DONE_SLOTS;
    while (done[at] && done[at] != key)
        at = (at + 1) % DONE_SLOTS;
    return &done[at];
}

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

/* What is looked for: imports of one library, or of the new ones. */
typedef struct search {
    const char *only;
    void *(*ours)(const char *name);
    unsigned written;
    ElfW(Addr) fresh[FRESH];
    unsigned fresh_count;
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

static const ElfW(Dyn) * dynamic_of(const struct dl_phdr_info *info)
{
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
            return (const ElfW(Dyn) *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
    return NULL;
}

/* Into the list, unless it was written to. */
static int list_fresh(struct dl_phdr_info *info, size_t size, void *ctx)
{
    (void)size;
    search *want = ctx;
    ElfW(Addr) key = (ElfW(Addr))(uintptr_t)dynamic_of(info);
    if (key && want->fresh_count < FRESH && is_meant(want, info->dlpi_name) && !*done_slot(key))
        want->fresh[want->fresh_count++] = key;
    return 0;
}

static bool is_fresh(const search *want, ElfW(Addr) key)
{
    for (unsigned i = 0; i < want->fresh_count; i++)
        if (want->fresh[i] == key)
            return true;
    return false;
}

static int look_into(struct dl_phdr_info *info, size_t size, void *ctx)
{
    (void)size;
    object o = {.base = info->dlpi_addr};
    const ElfW(Dyn) *d = dynamic_of(info);
    search *want = ctx;
    if (!d || !is_fresh(want, (ElfW(Addr))(uintptr_t)d))
        return 0;
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_GNU_RELRO) {
            o.sealed = o.base + info->dlpi_phdr[i].p_vaddr;
            o.sealed_end = o.sealed + info->dlpi_phdr[i].p_memsz;
        }
    for (const ElfW(Dyn) *e = d; e->d_tag != DT_NULL; e++) {
        if (e->d_tag == DT_SYMTAB)
            o.symbols = (const ElfW(Sym) *)e->d_un.d_ptr;
        if (e->d_tag == DT_STRTAB)
            o.strings = (const char *)e->d_un.d_ptr;
        if (e->d_tag == DT_JMPREL)
            o.tables[0] = (const ElfW(Rela) *)e->d_un.d_ptr;
        if (e->d_tag == DT_PLTRELSZ)
            o.counts[0] = e->d_un.d_val / sizeof(ElfW(Rela));
        if (e->d_tag == DT_RELA)
            o.tables[1] = (const ElfW(Rela) *)e->d_un.d_ptr;
        if (e->d_tag == DT_RELASZ)
            o.counts[1] = e->d_un.d_val / sizeof(ElfW(Rela));
    }
    for (int t = 0; t < 2; t++)
        if (!o.tables[t])
            o.counts[t] = 0;
    if (o.symbols && o.strings)
        want->written += write_tables(&o, want->ours);
    ElfW(Addr) *slot = done_slot((ElfW(Addr))(uintptr_t)d);
    if (!want->only && !*slot && done_count < DONE_SLOTS / 2) {
        *slot = (ElfW(Addr))(uintptr_t)d;
        done_count++;
    }
    return 0;
}

typedef struct counts {
    unsigned long long adds, subs;
} counts;

EARLY static int read_counts(struct dl_phdr_info *info, size_t size, void *ctx)
{
    if (size >= offsetof(struct dl_phdr_info, dlpi_tls_modid))
        *(counts *)ctx = (counts){info->dlpi_adds, info->dlpi_subs};
    return 1;
}

static void write_fresh(search *want)
{
    if (!want->fresh_count)
        return;
    mf_govern_wait_for_loader(); /* our lock is not held: who holds the loader's may wait for it */
    pthread_mutex_lock(&lock);
    dl_iterate_phdr(look_into, want);
    pthread_mutex_unlock(&lock);
}

static void write_all(void)
{
    search want;
    do {
        want = (search){.ours = mf_govern_ours};
        counts now = {0, 0};
        pthread_mutex_lock(&lock);
        dl_iterate_phdr(read_counts, &now); /* first: what is loaded meanwhile is looked at again */
        if (now.subs != seen_subs) {        /* another library may lie where one was */
            memset(done, 0, sizeof done);
            done_count = 0;
        }
        seen_subs = now.subs;
        __atomic_store_n(&seen_adds, now.adds, __ATOMIC_RELEASE);
        dl_iterate_phdr(list_fresh, &want);
        pthread_mutex_unlock(&lock);
        write_fresh(&want);
    } while (want.fresh_count == FRESH && done_count < DONE_SLOTS / 2);
}

unsigned mf_govern_write_imports(const char *library, void *(*ours)(const char *name))
{
    search want = {.only = library, .ours = ours};
    pthread_mutex_lock(&lock);
    dl_iterate_phdr(list_fresh, &want);
    pthread_mutex_unlock(&lock);
    write_fresh(&want);
    return want.written;
}

EARLY void mf_govern_look_again(void)
{
    counts now = {0, 0};
    if (!__atomic_load_n(&watching, __ATOMIC_ACQUIRE))
        return;
    int saved = errno;
    dl_iterate_phdr(read_counts, &now);
    if (now.adds != __atomic_load_n(&seen_adds, __ATOMIC_ACQUIRE))
        write_all();
    errno = saved;
}

/* Preloaded, with a limit: what is there at the begin finds us by itself. */
__attribute__((constructor)) static void watch_if_preloaded(void)
{
    if (getenv("MEMFIT_GOVERN") && mf_govern_is_preloaded())
        __atomic_store_n(&watching, true, __ATOMIC_RELEASE);
}

void mf_govern_attach_forget(void)
{
    pthread_mutex_init(&lock, NULL);
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
    __atomic_store_n(&watching, true, __ATOMIC_RELEASE);
    write_all();
    return 0;
}
