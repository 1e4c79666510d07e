/*
 * preload_find.c: how calls reach us, and how we reach the driver.
 *
 * Programs reach the driver by linking to it (our exported names come first), by dlsym, or by cuGetProcAddress, which
 * they got from dlsym. So dlsym and dlvsym are ours. For a name of the list they return our function. For everything
 * else they jump (not call) into the C library's, which looks at the return address to know who asks: RTLD_NEXT then
 * means the caller's next, as without us. Nothing here waits on a once-guard: the driver calls dlsym inside its own
 * initialisation.
 *
 * We find the C library's dlsym in its symbol table, because asking for it by name would find ours.
 */
#include "govern/preload.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>

typedef struct entry {
    const char *name;
    void *ours, *real;
} entry;

#define X(name, version) extern EXPORT int name(void *, void *, void *, void *, void *, void *);
MF_DRIVER_NAMES(X)
#undef X
static entry entries[] = {
#define X(name, version) {#name, (void *)name, NULL},
    MF_DRIVER_NAMES(X)
#undef X
};

void *mf_govern_libc_dlsym __attribute__((visibility("hidden")));
void *mf_govern_libc_dlvsym __attribute__((visibility("hidden")));
typedef void *(*dlsym_function)(void *, const char *);

/* ---- the C library's own ---------------------------------------------------------------------------------- */

/* A sanitizer looks up the C library's string functions by dlsym, so nothing on the way there may call them. */
EARLY static bool is_same(const char *a, const char *b)
{
    for (; *a && *a == *b; a++)
        b++;
    return *a == *b;
}

EARLY static bool begins_with(const char *text, const char *begin)
{
    for (; *begin && *text == *begin; begin++)
        text++;
    return !*begin;
}

EARLY static const char *name_in(const char *path)
{
    const char *name = path;
    for (; *path; path++)
        if (*path == '/')
            name = path + 1;
    return name;
}

EARLY static void look_into(const struct link_map *library)
{
    const ElfW(Sym) *symbols = NULL;
    const char *strings = NULL;
    for (const ElfW(Dyn) *d = library->l_ld; d && d->d_tag != DT_NULL; d++) {
        if (d->d_tag == DT_SYMTAB)
            symbols = (const ElfW(Sym) *)d->d_un.d_ptr;
        if (d->d_tag == DT_STRTAB)
            strings = (const char *)d->d_un.d_ptr;
    }
    /* The strings follow the symbols in every library that a linker of GNU made. */
    for (const ElfW(Sym) *s = symbols; s && strings && (const char *)(s + 1) <= strings; s++) {
        if (!s->st_value || ELF64_ST_TYPE(s->st_info) != STT_FUNC)
            continue;
        void *at = (void *)(library->l_addr + s->st_value);
        if (is_same(strings + s->st_name, "dlsym"))
            mf_govern_libc_dlsym = at;
        if (is_same(strings + s->st_name, "dlvsym"))
            mf_govern_libc_dlvsym = at;
    }
}

/* By the loader's own list, which it keeps for debuggers: libraries that are there from the begin stand first in it and stay. */
EARLY static void find_libc(void)
{
    if (__atomic_load_n(&mf_govern_libc_dlvsym, __ATOMIC_ACQUIRE) && mf_govern_libc_dlsym)
        return;
    for (const struct link_map *m = _r_debug.r_map; m; m = m->l_next) {
        const char *name = name_in(m->l_name);
        if (begins_with(name, "libc.so") || begins_with(name, "libdl.so") || begins_with(name, "libc-") ||
            begins_with(name, "libdl-"))
            look_into(m);
    }
}

__attribute__((constructor)) static void begin(void)
{
    find_libc();
}

/* ---- the driver's own ------------------------------------------------------------------------------------- */

void *mf_govern_driver(const char *name)
{
    return mf_govern_from(name[0] == 'n' ? "libnvidia-ml.so.1" : "libcuda.so.1", name);
}

void *mf_govern_from(const char *path, const char *name)
{
    find_libc();
    void *library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
    void *found = library ? ((dlsym_function)mf_govern_libc_dlsym)(library, name) : NULL;
    if (library)
        dlclose(library); /* NOLOAD counted one more; it stays as long as its user has it */
    return found;
}

bool mf_govern_load(const char *library)
{
    return dlopen(library, RTLD_LAZY | RTLD_LOCAL) != NULL;
}

void mf_govern_wait_for_loader(void)
{
    void *program = dlopen(NULL, RTLD_LAZY);
    if (program)
        dlclose(program);
}

void *mf_govern_real(enum mf_driver_name name)
{
    void *real = __atomic_load_n(&entries[name].real, __ATOMIC_ACQUIRE);
    if (!real) {
        real = mf_govern_driver(entries[name].name);
        __atomic_store_n(&entries[name].real, real, __ATOMIC_RELEASE);
    }
    return real;
}

void *mf_govern_mapped(void *real)
{
    for (int i = 0; i < MF_NAME_COUNT; i++)
        if (real && real == mf_govern_real((enum mf_driver_name)i))
            return entries[i].ours;
    return real;
}

/* ---- dlsym ------------------------------------------------------------------------------------------------ */

EARLY static entry *entry_of(const char *name)
{
    if (!name || !(begins_with(name, "cu") || begins_with(name, "nvml")))
        return NULL;
    for (int i = 0; i < MF_NAME_COUNT; i++)
        if (is_same(name, entries[i].name))
            return &entries[i];
    return NULL;
}

extern EXPORT char mf_govern_jump_dlsym[] __asm__("dlsym"), mf_govern_jump_dlvsym[] __asm__("dlvsym");

void *mf_govern_ours(const char *name)
{
    if (name[0] == 'd')
        return is_same(name, "dlsym") ? mf_govern_jump_dlsym : is_same(name, "dlvsym") ? mf_govern_jump_dlvsym : NULL;
    entry *e = entry_of(name);
    return e ? e->ours : NULL;
}

bool mf_govern_is_preloaded(void)
{
    find_libc();
    void *program = dlopen(NULL, RTLD_LAZY); /* what it sees; RTLD_DEFAULT would be what we see */
    bool ours = program && ((dlsym_function)mf_govern_libc_dlsym)(program, "dlsym") == (void *)mf_govern_jump_dlsym;
    if (program)
        dlclose(program);
    return ours;
}

/* Ours, or NULL: go on to the C library's. What it does not find it must not find through us either, and the caller's next
 * is not ours to say. */
EARLY __attribute__((used, visibility("hidden"))) void *mf_govern_choose(void *handle, const char *name)
{
    find_libc();
    mf_govern_look_again();
    entry *e = entry_of(name);
    if (!e || handle == RTLD_NEXT || handle == RTLD_DEFAULT)
        return NULL;
    void *real = ((dlsym_function)mf_govern_libc_dlsym)(handle, name);
    if (!real || real == e->ours)
        return NULL;
    void *known = NULL;
    if (!__atomic_compare_exchange_n(&e->real, &known, real, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE) &&
        known != real)
        return NULL; /* another library has a function of that name */
    return e->ours;
}

#if defined(__x86_64__)
#define JUMP(name)                                                                                                     \
    __asm__(".text\n.globl " #name "\n.type " #name ",@function\n" #name ":\n"                                         \
            "endbr64\npush %rdi\npush %rsi\npush %rdx\n"                                                               \
            "call mf_govern_choose\n"                                                                                  \
            "pop %rdx\npop %rsi\npop %rdi\n"                                                                           \
            "test %rax, %rax\njz 1f\nret\n"                                                                            \
            "1: jmp *mf_govern_libc_" #name "(%rip)\n"                                                                 \
            ".size " #name ", .-" #name "\n");
JUMP(dlsym)
JUMP(dlvsym)
#else
#error "the jump into the C library's dlsym is written for x86-64"
#endif
