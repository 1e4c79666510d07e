/*
 * preload_stack.c: who called: return addresses, and their names.
 *
 * We use libgcc's unwinder where the process already has it (every program with C++ in it): it knows code without frame
 * pointers. Otherwise we follow frame pointers (this library is built with them), and read each through the kernel, so
 * that a register that holds none ends the walk and not the program.
 */
#include "govern/preload.h"

#include <elf.h>
#include <errno.h>
#include <link.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

enum { DEEP = 64, STOP = 4, FURTHEST = 1 << 23 };

typedef struct walk {
    mf_govern_each each;
    void *ctx;
    int left;
} walk;
typedef uintptr_t (*ip_function)(void *);
typedef int (*walk_function)(int (*)(void *, void *), void *);
static ip_function address_of;

static int step(void *context, void *ctx)
{
    walk *w = ctx;
    uintptr_t at = address_of(context);
    return at && w->each(at, w->ctx) && --w->left > 0 ? 0 : STOP;
}

static void walk_frames(walk *w, const uintptr_t *frame)
{
    while (w->left-- > 0 && frame && (uintptr_t)frame % sizeof *frame == 0) {
        uintptr_t pair[2];
        struct iovec here = {pair, sizeof pair}, there = {(void *)(uintptr_t)frame, sizeof pair};
        if (process_vm_readv(getpid(), &here, 1, &there, 1, 0) != (ssize_t)sizeof pair || !w->each(pair[1], w->ctx))
            return;
        if (pair[0] <= (uintptr_t)frame || pair[0] - (uintptr_t)frame > FURTHEST)
            return;
        frame = (const uintptr_t *)pair[0];
    }
}

void mf_govern_walk(mf_govern_each each, void *ctx)
{
    static walk_function unwind;
    static int looked;
    int saved = errno;
    walk w = {each, ctx, DEEP};
    if (!__atomic_load_n(&looked, __ATOMIC_ACQUIRE)) {
        address_of = (ip_function)mf_govern_from("libgcc_s.so.1", "_Unwind_GetIP");
        unwind = address_of ? (walk_function)mf_govern_from("libgcc_s.so.1", "_Unwind_Backtrace") : NULL;
        __atomic_store_n(&looked, 1, __ATOMIC_RELEASE);
    }
    if (unwind)
        unwind(step, &w);
    else
        walk_frames(&w, __builtin_frame_address(0));
    errno = saved;
}

/* "_ZN2at6native10empty_cudaEv" is at::native::empty_cuda; what is more than names (templates, operators) ends it there. */
static void put_symbol(char *to, size_t bytes, const char *symbol)
{
    size_t used = 0;
    bool mangled = strncmp(symbol, "_Z", 2) == 0, nested = mangled && symbol[2] == 'N';
    const char *p = symbol + (mangled ? 2 + nested : 0);
    p += nested ? strspn(p, "KVrRO") : 0;
    for (bool more = mangled; more && *p >= '1' && *p <= '9'; more = nested) {
        size_t n = 0;
        for (; *p >= '0' && *p <= '9' && n < 1000; p++)
            n = n * 10 + (size_t)(*p - '0');
        if (n > strlen(p) || used + n + 3 > bytes)
            break;
        memcpy(to + used, used ? "::" : "", used ? 2 : 0);
        used += used ? 2 : 0;
        memcpy(to + used, p, n);
        used += n;
        p += n;
    }
    to[used] = 0;
    if (!used)
        snprintf(to, bytes, "%s", symbol);
}

typedef struct place {
    uintptr_t address;
    char library[64];
    const char *symbol; /* the exported function it lies in; NULL: in none */
    uintptr_t offset;   /* into the library */
} place;

typedef struct names { /* of a library's exported functions */
    const ElfW(Sym) * symbols;
    const char *strings;
    const uint32_t *old_hash, *hash;
    size_t string_bytes;
} names;

/* How many symbols there are stands nowhere: the old hash table has as many links; of GNU's the last chain ends with the last symbol. */
static uint32_t count_symbols(const names *n)
{
    if (n->old_hash)
        return n->old_hash[1];
    if (!n->hash)
        return 0;
    uint32_t buckets = n->hash[0], first = n->hash[1], last = 0;
    const uint32_t *bucket = n->hash + 4 + n->hash[2] * (sizeof(ElfW(Addr)) / sizeof *n->hash);
    const uint32_t *chain = bucket + buckets;
    for (uint32_t i = 0; i < buckets; i++)
        last = bucket[i] > last ? bucket[i] : last;
    if (last < first)
        return first;
    while (!(chain[last - first] & 1))
        last++;
    return last + 1;
}

static const char *symbol_at(const struct dl_phdr_info *info, const ElfW(Dyn) * d, uintptr_t address)
{
    names n = {0};
    for (; d && d->d_tag != DT_NULL; d++) {
        const void *at = (const void *)d->d_un.d_ptr;
        if (d->d_tag == DT_SYMTAB)
            n.symbols = at;
        else if (d->d_tag == DT_STRTAB)
            n.strings = at;
        else if (d->d_tag == DT_HASH)
            n.old_hash = at;
        else if (d->d_tag == DT_GNU_HASH)
            n.hash = at;
        else if (d->d_tag == DT_STRSZ)
            n.string_bytes = d->d_un.d_val;
    }
    if (!n.symbols || !n.strings || (uintptr_t)n.symbols < info->dlpi_addr) /* the kernel's own is not relocated */
        return NULL;
    for (uint32_t i = 0, count = count_symbols(&n); i < count; i++) {
        const ElfW(Sym) *s = &n.symbols[i];
        if (s->st_value && ELF64_ST_TYPE(s->st_info) == STT_FUNC && s->st_name < n.string_bytes &&
            address - info->dlpi_addr - s->st_value < s->st_size)
            return n.strings + s->st_name;
    }
    return NULL;
}

/* Not dladdr: that takes the loader's lock, which a thread that loads a library holds while it may wait for us. */
static int look_at(struct dl_phdr_info *info, size_t size, void *ctx)
{
    (void)size;
    place *p = ctx;
    const ElfW(Dyn) *dynamic = NULL;
    bool here = false;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        here |= part->p_type == PT_LOAD && p->address - info->dlpi_addr - part->p_vaddr < part->p_memsz;
        if (part->p_type == PT_DYNAMIC)
            dynamic = (const ElfW(Dyn) *)(info->dlpi_addr + part->p_vaddr);
    }
    if (!here)
        return 0;
    const char *path = info->dlpi_name[0] ? info->dlpi_name : program_invocation_short_name;
    const char *slash = strrchr(path, '/');
    snprintf(p->library, sizeof p->library, "%s", slash ? slash + 1 : path);
    p->offset = p->address - info->dlpi_addr;
    p->symbol = symbol_at(info, dynamic, p->address);
    return 1;
}

void mf_govern_frame_name(uintptr_t address, char *to, size_t bytes)
{
    place p = {.address = address - 1};
    char symbol[96];
    if (!dl_iterate_phdr(look_at, &p)) {
        snprintf(to, bytes, "generated code");
    } else if (p.symbol) {
        put_symbol(symbol, sizeof symbol, p.symbol);
        snprintf(to, bytes, "%s (%s)", symbol, p.library);
    } else {
        snprintf(to, bytes, "%s+0x%lx", p.library, (unsigned long)p.offset + 1);
    }
}
