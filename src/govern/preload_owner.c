/*
 * preload_owner.c: whose memory it is, and the story of a refusal.
 *
 * An owner is the library whose code asked: the first on the stack that is neither the driver, nor CUDA's runtime, nor
 * we. To find it we walk the stack (preload_stack.c) for requests of a megabyte or more: some microseconds beside the
 * driver's 60. Smaller requests count for their caller.
 *
 * Counts lie in the job's file (facts.h), so a refusal only copies them: no walk over blocks, no allocation, no lock.
 */
#include "govern/holdings.h"
#include "govern/preload.h"

#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { LIBRARIES = 256, CACHE = 1024, UNWIND_BYTES = 1 << 20, GRAPH_RESERVED = 2 };

static mf_facts *facts;
static int facts_state; /* 0: not looked; 1: being looked; 2: there they are; 3: none */
static mf_facts_process *own;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of new rows and new libraries */
static uint32_t open_denials;                            /* of this process: may be followed by a grant */

/* ---- libraries -------------------------------------------------------------------------------------------- */

typedef struct library {
    uintptr_t begin, end;
    bool passes; /* the driver, the runtime, we: who called these is meant */
    char name[MF_FACTS_LIBRARY];
} library;
static library libraries[LIBRARIES];
static uint32_t library_count;
static uint64_t cache[CACHE]; /* address << 16 | library + 1, one word each: torn by nobody */

static bool is_between(const char *name)
{
    static const char *const list[] = {"libcudart", "libcuda.", "libmemfit-govern", "libffi.", "_ctypes."};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        if (strncmp(name, list[i], strlen(list[i])) == 0)
            return true;
    return false;
}

typedef struct search {
    uintptr_t address;
    library found;
} search;

static int look_at(struct dl_phdr_info *info, size_t size, void *ctx)
{
    (void)size;
    search *s = ctx;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        uintptr_t begin = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr, end = begin + info->dlpi_phdr[i].p_memsz;
        if (info->dlpi_phdr[i].p_type != PT_LOAD || s->address < begin || s->address >= end)
            continue;
        const char *path = info->dlpi_name[0] ? info->dlpi_name : program_invocation_short_name;
        const char *slash = strrchr(path, '/');
        s->found.begin = begin;
        s->found.end = end;
        strncpy(s->found.name, slash ? slash + 1 : path, MF_FACTS_LIBRARY - 1);
        s->found.passes = is_between(s->found.name);
        return 1;
    }
    return 0;
}

/* The number of the library an address lies in; LIBRARIES: in none, or there are too many. */
static uint32_t library_of(uintptr_t address)
{
    uint64_t *cached = &cache[(address >> 4) % CACHE], word = __atomic_load_n(cached, __ATOMIC_RELAXED);
    if (word >> 16 == (address & 0xffffffffffff))
        return (uint32_t)(word & 0xffff) - 1;
    search s = {.address = address};
    uint32_t at = 0;
    pthread_mutex_lock(&lock);
    while (at < library_count && (address < libraries[at].begin || address >= libraries[at].end))
        at++;
    if (at == library_count) {
        at = LIBRARIES;
        if (dl_iterate_phdr(look_at, &s) && library_count < LIBRARIES) {
            libraries[library_count] = s.found;
            at = library_count++;
        }
    }
    pthread_mutex_unlock(&lock);
    if (at < LIBRARIES)
        __atomic_store_n(cached, (address & 0xffffffffffff) << 16 | (at + 1), __ATOMIC_RELAXED);
    return at;
}

bool mf_govern_passes(uintptr_t address)
{
    uint32_t found = library_of(address - 1);
    return found == LIBRARIES || libraries[found].passes;
}

static bool is_passed(uintptr_t address, void *ctx)
{
    uint32_t found = library_of(address - 1);
    if (found == LIBRARIES || libraries[found].passes)
        return true;
    *(uint32_t *)ctx = found;
    return false;
}

static uint32_t library_on_stack(uint64_t bytes, uintptr_t caller)
{
    uint32_t found = LIBRARIES;
    if (bytes >= UNWIND_BYTES)
        mf_govern_walk(is_passed, &found);
    return found < LIBRARIES ? found : library_of(caller - 1);
}

/* ---- owners ----------------------------------------------------------------------------------------------- */

mf_facts *mf_govern_facts(void)
{
    int now;
    while ((now = __atomic_load_n(&facts_state, __ATOMIC_ACQUIRE)) == 1)
        sched_yield(); /* another thread opens the file: a moment */
    if (now)
        return now == 2 ? facts : NULL;
    int none = 0;
    if (!__atomic_compare_exchange_n(&facts_state, &none, 1, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        return mf_govern_facts();
    const char *path = getenv("MEMFIT_GOVERN_FACTS");
    facts = path ? mf_facts_open(path) : NULL;
    __atomic_store_n(&facts_state, facts ? 2 : 3, __ATOMIC_RELEASE);
    return facts;
}

/* This process's row: a free one, else one whose process is dead, else one of its own that nobody reads: looking again
 * for each request would cost more than the request. The lock is held. */
static mf_facts_process *row_of_process(mf_facts *f)
{
    static mf_facts_process unread;
    if (own)
        return own;
    uint64_t self = mf_share_self();
    for (int dead = 0; dead < 2 && !own; dead++)
        for (int i = 0; i < MF_FACTS_PROCESSES && !own; i++) {
            uint64_t there = __atomic_load_n(&f->processes[i].owner, __ATOMIC_SEQ_CST);
            if (there && (!dead || mf_share_lives(there)))
                continue;
            if (!__atomic_compare_exchange_n(&f->processes[i].owner, &there, self, false, __ATOMIC_SEQ_CST,
                                             __ATOMIC_SEQ_CST))
                continue;
            if (there)
                memset(&f->processes[i].owner_count, 0, sizeof *own - offsetof(mf_facts_process, owner_count));
            own = &f->processes[i];
        }
    own = own ? own : &unread;
    return own;
}

static uint32_t find_owner(const mf_facts_process *p, unsigned card, unsigned memory_class, const char *name)
{
    uint32_t count = __atomic_load_n(&p->owner_count, __ATOMIC_ACQUIRE);
    for (uint32_t i = 0; i < count; i++)
        if (p->owners[i].card == card && p->owners[i].memory_class == memory_class &&
            strcmp(p->owners[i].library, name) == 0)
            return i;
    return MF_FACTS_OWNERS;
}

/* The row of an owner + 1, made when it is new; the last row takes those that come too late. 0: there is no place. */
static uint32_t owner_row(unsigned card, unsigned memory_class, const char *name)
{
    mf_facts *f = mf_govern_facts();
    if (!f)
        return 0;
    mf_facts_process *p = __atomic_load_n(&own, __ATOMIC_ACQUIRE);
    uint32_t at = p ? find_owner(p, card, memory_class, name) : MF_FACTS_OWNERS;
    if (at < MF_FACTS_OWNERS)
        return at + 1;
    pthread_mutex_lock(&lock);
    p = row_of_process(f);
    at = p ? find_owner(p, card, memory_class, name) : MF_FACTS_OWNERS;
    if (p && at == MF_FACTS_OWNERS) {
        at = p->owner_count < MF_FACTS_OWNERS ? p->owner_count : MF_FACTS_OWNERS - 1;
        mf_facts_owner *o = &p->owners[at];
        if (!o->used) {
            bool last = at == MF_FACTS_OWNERS - 1;
            o->pid = (uint32_t)getpid();
            o->card = (uint16_t)card;
            o->memory_class = (uint8_t)memory_class;
            strncpy(o->library, last ? "others" : name, MF_FACTS_LIBRARY - 1);
            o->used = 1;
            __atomic_store_n(&p->owner_count, at + 1, __ATOMIC_RELEASE);
        }
    }
    pthread_mutex_unlock(&lock);
    return p ? at + 1 : 0;
}

uint32_t mf_govern_owner(unsigned card, unsigned memory_class, uint64_t bytes, uintptr_t caller)
{
    if (!mf_govern_facts())
        return 0;
    if (!caller) /* the driver's own: context, module, graph */
        return owner_row(card, memory_class, "");
    uint32_t from = library_on_stack(bytes, caller);
    return owner_row(card, memory_class, from < LIBRARIES ? libraries[from].name : "generated code");
}

const char *mf_govern_owner_name(uint32_t owner, unsigned *memory_class)
{
    mf_facts_process *p = __atomic_load_n(&own, __ATOMIC_ACQUIRE);
    *memory_class = p && owner ? p->owners[owner - 1].memory_class : 0;
    return p && owner ? p->owners[owner - 1].library : "";
}

void mf_govern_owns(uint32_t owner, int64_t bytes, int64_t count)
{
    mf_facts_process *p = __atomic_load_n(&own, __ATOMIC_ACQUIRE);
    if (!p || !owner)
        return;
    __atomic_fetch_add(&p->owners[owner - 1].bytes, (uint64_t)bytes, __ATOMIC_RELAXED);
    __atomic_fetch_add(&p->owners[owner - 1].count, (uint64_t)count, __ATOMIC_RELAXED);
}

void mf_govern_owns_nothing(unsigned card)
{
    mf_facts_process *p = __atomic_load_n(&own, __ATOMIC_ACQUIRE);
    for (uint32_t i = 0; p && i < p->owner_count; i++)
        if (p->owners[i].card == card && p->owners[i].memory_class != MF_MEMORY_CONTEXT) {
            __atomic_store_n(&p->owners[i].bytes, 0, __ATOMIC_RELAXED);
            __atomic_store_n(&p->owners[i].count, 0, __ATOMIC_RELAXED);
        }
}

void mf_govern_owner_forget(void)
{
    pthread_mutex_init(&lock, NULL);
    if (facts_state == 1) /* the thread that was opening the file is not here */
        facts_state = 0;
    own = NULL;
    open_denials = 0;
}

/* ---- a refusal -------------------------------------------------------------------------------------------- */

static void add_owner(mf_facts_denial *d, const mf_facts_owner *o)
{
    size_t named = d->named;
    mf_holdings_add(d->owners, &named, o);
    d->named = (uint32_t)named;
}

static void name_process(uint32_t pid, char *name)
{
    char path[32] = "/proc/";
    size_t n = 6;
    char digits[12];
    int count = 0;
    for (uint32_t v = pid; v || !count; v /= 10)
        digits[count++] = (char)('0' + v % 10);
    while (count)
        path[n++] = digits[--count];
    memcpy(path + n, "/comm", 6);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd >= 0 ? read(fd, name, MF_FACTS_LIBRARY - 1) : 0;
    if (fd >= 0)
        close(fd);
    name[got > 0 ? got - (name[got - 1] == '\n') : 0] = 0;
}

/* Owners of one process on the card; returns their bytes. */
static uint64_t add_process(mf_facts_denial *d, const mf_facts *f, uint64_t owner, unsigned card)
{
    uint64_t sum = 0;
    for (int i = 0; i < MF_FACTS_PROCESSES; i++) {
        const mf_facts_process *p = &f->processes[i];
        if (__atomic_load_n(&p->owner, __ATOMIC_SEQ_CST) != owner)
            continue;
        uint32_t count = __atomic_load_n(&p->owner_count, __ATOMIC_ACQUIRE);
        for (uint32_t k = 0; k < count && k < MF_FACTS_OWNERS; k++) {
            mf_facts_owner o = mf_facts_owner_now(&p->owners[k]);
            if (o.card != card)
                continue;
            add_owner(d, &o);
            sum += o.bytes;
        }
    }
    return sum;
}

uint64_t mf_govern_graph_bytes(void)
{
    int (*here)(int *) = (int (*)(int *))mf_govern_driver("cuCtxGetDevice");
    int (*get)(int, int, void *) = (int (*)(int, int, void *))mf_govern_driver("cuDeviceGetGraphMemAttribute");
    int ordinal;
    uint64_t bytes = 0;
    return here && get && here(&ordinal) == 0 && get(ordinal, GRAPH_RESERVED, &bytes) == 0 ? bytes : 0;
}

/* Every process of the share, by owner where it is one of this job's. */
static void add_owners(mf_facts_denial *d, const mf_facts *f, const mf_share *share, unsigned card)
{
    const mf_share_file *file = share->file;
    uint32_t most = __atomic_load_n(&file->slots_ever, __ATOMIC_SEQ_CST);
    for (uint32_t i = 0; i < most; i++) {
        const mf_share_slot *slot = &file->slots[i];
        uint64_t owner = __atomic_load_n(&slot->owner, __ATOMIC_SEQ_CST);
        uint64_t beside = __atomic_load_n(&slot->card[card].beside, __ATOMIC_SEQ_CST);
        uint64_t has = __atomic_load_n(&slot->card[card].held, __ATOMIC_SEQ_CST) + beside;
        if (!owner || __atomic_load_n(&slot->away, __ATOMIC_SEQ_CST))
            continue;
        uint32_t pid = (uint32_t)(owner >> 32);
        uint64_t told = add_process(d, f, owner, card), graph = pid == d->pid && beside ? mf_govern_graph_bytes() : 0;
        graph = graph < beside ? graph : beside;
        mf_facts_owner rest = {.bytes = has > told + graph ? has - told - graph : 0, .count = 1, .pid = pid};
        rest.card = (uint16_t)card;
        rest.memory_class = told ? MF_MEMORY_MODULE : MF_MEMORY_PROCESS;
        if (!told)
            name_process(pid, rest.library);
        add_owner(d, &rest);
        rest.bytes = graph;
        rest.memory_class = MF_MEMORY_GRAPH;
        add_owner(d, &rest);
    }
}

static uint64_t clock_ns(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* The last denial of this thread, if it was for the same bytes; NULL: none that is still open. */
static mf_facts_denial *last_of_thread(mf_facts *f, unsigned card, uint64_t bytes)
{
    uint32_t count = __atomic_load_n(&f->denial_count, __ATOMIC_ACQUIRE), pid = (uint32_t)getpid();
    uint32_t thread = (uint32_t)syscall(SYS_gettid);
    for (uint32_t i = count < MF_FACTS_DENIALS ? count : MF_FACTS_DENIALS; i-- > 0;) {
        mf_facts_denial *d = &f->denials[i];
        uint32_t state = __atomic_load_n(&d->state, __ATOMIC_ACQUIRE); /* another's row may be half written */
        if ((state != MF_DENIAL_REFUSED && state != MF_DENIAL_GRANTED_LATER) || d->pid != pid || d->thread != thread)
            continue;
        return state == MF_DENIAL_REFUSED && d->card == card && d->request_bytes == bytes ? d : NULL;
    }
    return NULL;
}

static void note_try(mf_facts_denial *d, mf_share *share, unsigned card)
{
    uint64_t held = mf_share_own(share, card);
    d->tries++;
    d->freed_bytes = d->held_bytes > held ? d->held_bytes - held : 0;
}

void mf_govern_denied(mf_share *share, unsigned card, unsigned memory_class, uint64_t bytes, bool waited,
                      uintptr_t caller)
{
    mf_facts *f = mf_govern_facts();
    uint64_t begin = clock_ns(CLOCK_MONOTONIC);
    if (!f)
        return;
    mf_facts_denial *again = last_of_thread(f, card, bytes);
    if (again) {
        note_try(again, share, card);
        return;
    }
    uint32_t at = __atomic_fetch_add(&f->denial_count, 1, __ATOMIC_ACQ_REL);
    if (at >= MF_FACTS_DENIALS)
        return;
    mf_facts_denial *d = &f->denials[at];
    __atomic_store_n(&d->state, MF_DENIAL_BEING_WRITTEN, __ATOMIC_RELEASE);
    d->pid = (uint32_t)getpid();
    d->thread = (uint32_t)syscall(SYS_gettid);
    d->card = (uint16_t)card;
    d->memory_class = (uint8_t)memory_class;
    d->waited = waited;
    d->tries = 1;
    d->unix_us = clock_ns(CLOCK_REALTIME) / 1000;
    d->request_bytes = bytes;
    d->limit_bytes = __atomic_load_n(&share->file->limit_bytes[card], __ATOMIC_SEQ_CST);
    d->in_use_bytes = mf_share_in_use(share, card);
    d->held_bytes = mf_share_own(share, card);
    d->unused_bytes = mf_govern_pool_unused();
    uint32_t from = library_on_stack(bytes, caller);
    strncpy(d->library, from < LIBRARIES ? libraries[from].name : "generated code", MF_FACTS_LIBRARY - 1);
    add_owners(d, f, share, card);
    d->took_ns = clock_ns(CLOCK_MONOTONIC) - begin;
    __atomic_store_n(&d->state, MF_DENIAL_REFUSED, __ATOMIC_RELEASE);
    __atomic_fetch_add(&open_denials, 1, __ATOMIC_RELAXED);
}

void mf_govern_granted(mf_share *share, unsigned card, uint64_t bytes)
{
    if (!__atomic_load_n(&open_denials, __ATOMIC_RELAXED))
        return;
    mf_facts_denial *d = last_of_thread(facts, card, bytes);
    if (!d)
        return;
    note_try(d, share, card);
    __atomic_store_n(&d->state, MF_DENIAL_GRANTED_LATER, __ATOMIC_RELEASE);
    __atomic_fetch_sub(&open_denials, 1, __ATOMIC_RELAXED);
}
