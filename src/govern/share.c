/* share.c: see share.h. */
#include "govern/share.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const char magic[8] = "MEMFITSH";
enum {
    SWEEPING = 1,        /* lowest bit of an owner: its slot is being cleared, by the process named */
    THOROUGH_US = 10000, /* how often who is refused looks for zombies */
};

const char *mf_share_words(mf_share_result result)
{
    static const char *const words[] = {
        [MF_SHARE_OK] = "done",
        [MF_SHARE_REFUSED] = "over the limit",
        [MF_SHARE_BUSY] = "another process stands still amid a request",
        [MF_SHARE_FULL] = "more processes than a share has room for",
        [MF_SHARE_MISSING] = "there is no such share, or it may not be opened",
        [MF_SHARE_FOREIGN] = "it is not a plain file of this user alone",
        [MF_SHARE_DAMAGED] = "it is damaged: it is no share",
        [MF_SHARE_VERSION_DIFFERS] = "another version of memfit made it",
        [MF_SHARE_NO_SPACE] = "it cannot be made: no space, or a folder that may not be written to",
    };
    return words[result];
}

/* ---- who lives -------------------------------------------------------------------------------------------- */

/* Field 22 of /proc/PID/stat, behind the last ')'; 0 when there is no such process or it is a zombie. */
static uint64_t start_of(pid_t pid)
{
    char path[32], text[768];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT || errno == ESRCH ? 0 : UINT64_MAX; /* it cannot be told: it lives */
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0)
        return 0;
    text[n] = 0;
    char *field = strrchr(text, ')');
    if (!field || field[2] == 'Z' || field[2] == 'X')
        return 0;
    for (int i = 0; i < 20 && field; i++)
        field = strchr(field + 1, ' ');
    return field ? strtoull(field, NULL, 10) : UINT64_MAX;
}

/* 32 bits of number, 31 of start time, the flag. Never 0 for a process. */
static uint64_t owner_of(pid_t pid, uint64_t start)
{
    return (uint64_t)(uint32_t)pid << 32 | ((start << 1) & 0xfffffffe);
}

static bool is_dead(uint64_t owner)
{
    pid_t pid = (pid_t)(owner >> 32);
    uint64_t start = start_of(pid);
    return start == 0 || (start != UINT64_MAX && owner_of(pid, start) != (owner & ~(uint64_t)SWEEPING));
}

uint64_t mf_share_self(void)
{
    return owner_of(getpid(), start_of(getpid()));
}

bool mf_share_lives(uint64_t owner)
{
    return owner && !is_dead(owner);
}

/* Only who turns the owner into SWEEPING clears the numbers: one who came too late would clear the next owner's. */
static bool clear(mf_share_slot *slot, uint64_t dead)
{
    uint64_t self = mf_share_self() | SWEEPING;
    if (!__atomic_compare_exchange_n(&slot->owner, &dead, self, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        return false;
    for (int c = 0; c < MF_SHARE_CARDS; c++) {
        __atomic_store_n(&slot->card[c].held, 0, __ATOMIC_SEQ_CST);
        __atomic_store_n(&slot->card[c].asking, 0, __ATOMIC_SEQ_CST);
        __atomic_store_n(&slot->card[c].beside, 0, __ATOMIC_SEQ_CST);
    }
    slot->job = slot->away = 0;
    __atomic_store_n(&slot->owner, 0, __ATOMIC_SEQ_CST);
    return true;
}

/* `thoroughly`: zombies and numbers that were given again are found too, by reading /proc: some 20 us a process. */
static unsigned sweep(mf_share *share, bool thoroughly)
{
    mf_share_file *f = share->file;
    unsigned count = 0;
    int saved = errno;
    uint32_t most = __atomic_load_n(&f->slots_ever, __ATOMIC_SEQ_CST);
    for (uint32_t i = 0; i < most && i < MF_SHARE_SLOTS; i++) {
        uint64_t owner = __atomic_load_n(&f->slots[i].owner, __ATOMIC_SEQ_CST);
        bool gone = owner && kill((pid_t)(owner >> 32), 0) != 0 && errno == ESRCH;
        if ((gone || (owner && thoroughly && is_dead(owner))) && clear(&f->slots[i], owner))
            count++;
    }
    errno = saved;
    return count;
}

bool mf_share_gone(pid_t pid)
{
    return (kill(pid, 0) != 0 && errno == ESRCH) || start_of(pid) == 0;
}

unsigned mf_share_sweep(mf_share *share)
{
    return sweep(share, true);
}

/* ---- the file --------------------------------------------------------------------------------------------- */

static mf_share_result map_file(int fd, mf_share *share)
{
    void *p = mmap(NULL, sizeof(mf_share_file), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        return MF_SHARE_MISSING;
    *share = (mf_share){.file = p, .slot = -1, .process = getpid()};
    return MF_SHARE_OK;
}

mf_share_result mf_share_create(const char *path, mf_share *share)
{
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return MF_SHARE_NO_SPACE;
    mf_share_result result = MF_SHARE_NO_SPACE;
    if (fchmod(fd, 0600) == 0 && posix_fallocate(fd, 0, sizeof(mf_share_file)) == 0)
        result = map_file(fd, share);
    close(fd);
    if (result) {
        unlink(path);
        return MF_SHARE_NO_SPACE;
    }
    mf_share_file *f = share->file;
    f->version = MF_SHARE_VERSION;
    f->slot_count = MF_SHARE_SLOTS;
    f->bytes = sizeof *f;
    for (int c = 0; c < MF_SHARE_CARDS; c++)
        f->limit_bytes[c] = UINT64_MAX;
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    memcpy(f->magic, magic, sizeof magic); /* last: before it there is no share */
    return MF_SHARE_OK;
}

/* What says of what kind a file is, before it is mapped: a file of another size could end below a mapping. */
static mf_share_result check_head(int fd, off_t bytes)
{
    mf_share_file head;
    size_t n = offsetof(mf_share_file, limit_bytes);
    if (pread(fd, &head, n, 0) != (ssize_t)n || memcmp(head.magic, magic, sizeof magic) != 0)
        return MF_SHARE_DAMAGED;
    if (head.version != MF_SHARE_VERSION)
        return MF_SHARE_VERSION_DIFFERS;
    return bytes == sizeof head && head.bytes == sizeof head && head.slot_count == MF_SHARE_SLOTS ? MF_SHARE_OK
                                                                                                  : MF_SHARE_DAMAGED;
}

mf_share_result mf_share_open_file(int fd, mf_share *share)
{
    struct stat st;
    mf_share_result result = fstat(fd, &st) != 0 ? MF_SHARE_MISSING
                             : !S_ISREG(st.st_mode) || st.st_uid != geteuid() || st.st_mode & 0077
                                 ? MF_SHARE_FOREIGN
                                 : check_head(fd, st.st_size);
    if (!result)
        result = map_file(fd, share);
    if (result)
        return result;
    const mf_share_file *f = share->file;
    if (f->slots_ever <= MF_SHARE_SLOTS && f->turn <= MF_SHARE_JOBS)
        return MF_SHARE_OK;
    munmap(share->file, sizeof *share->file);
    share->file = NULL;
    return MF_SHARE_DAMAGED;
}

mf_share_result mf_share_open(const char *path, mf_share *share)
{
    int fd = open(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return errno == ELOOP ? MF_SHARE_FOREIGN : MF_SHARE_MISSING;
    mf_share_result result = mf_share_open_file(fd, share);
    close(fd);
    return result;
}

bool mf_share_is_used(mf_share *share)
{
    mf_share_sweep(share);
    bool used = false;
    for (int j = 0; j < MF_SHARE_JOBS; j++)
        used |= mf_share_lives(__atomic_load_n(&share->file->jobs[j].owner, __ATOMIC_SEQ_CST));
    for (int i = 0; i < MF_SHARE_SLOTS && !used; i++)
        used = __atomic_load_n(&share->file->slots[i].owner, __ATOMIC_SEQ_CST) != 0;
    return used;
}

void mf_share_leave(mf_share *share)
{
    if (share->file && share->slot >= 0 && share->process == getpid()) {
        mf_share_slot *slot = &share->file->slots[share->slot];
        clear(slot, __atomic_load_n(&slot->owner, __ATOMIC_SEQ_CST));
    }
    share->slot = -1;
}

void mf_share_close(mf_share *share)
{
    if (!share->file)
        return;
    mf_share_leave(share);
    munmap(share->file, sizeof *share->file);
    *share = (mf_share){.slot = -1};
}

void mf_share_after_fork(mf_share *share)
{
    share->slot = -1;
    share->process = getpid();
}

uint64_t mf_share_id_of(const unsigned char uuid[16])
{
    uint64_t h = 1469598103934665603u;
    for (int i = 0; i < 16; i++)
        h = (h ^ uuid[i]) * 1099511628211u;
    return h | 1;
}

uint64_t mf_share_id(const char *text)
{
    unsigned char id[16];
    size_t n = 0;
    if (strncmp(text, "GPU-", 4) != 0)
        return 0;
    for (const char *p = text + 4; *p && n < 32; p++) {
        int digit = *p >= '0' && *p <= '9' ? *p - '0' : *p >= 'a' && *p <= 'f' ? *p - 'a' + 10 : -1;
        if (digit < 0)
            continue;
        id[n / 2] = (unsigned char)(n % 2 ? id[n / 2] | digit : digit << 4);
        n++;
    }
    return n == 32 ? mf_share_id_of(id) : 0;
}

unsigned mf_share_card(mf_share *share, uint64_t id)
{
    if (!id)
        return MF_SHARE_CARDS;
    for (unsigned c = 0; c < MF_SHARE_CARDS; c++) {
        uint64_t there = 0;
        if (__atomic_compare_exchange_n(&share->file->card_id[c], &there, id, false, __ATOMIC_SEQ_CST,
                                        __ATOMIC_SEQ_CST) ||
            there == id)
            return c;
    }
    return MF_SHARE_CARDS;
}

/* ---- asking and giving back ------------------------------------------------------------------------------- */

static uint64_t now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000;
}

/* A free slot, or one whose owner is dead. Two threads of a process may both take one: the second gives its own up. */
static mf_share_result join(mf_share *share)
{
    mf_share_file *f = share->file;
    uint64_t self = mf_share_self();
    for (int tries = 0; tries < 2; tries++) {
        for (int i = 0; i < MF_SHARE_SLOTS; i++) {
            uint64_t free_slot = 0;
            if (!__atomic_compare_exchange_n(&f->slots[i].owner, &free_slot, self, false, __ATOMIC_SEQ_CST,
                                             __ATOMIC_SEQ_CST))
                continue;
            uint32_t ever = __atomic_load_n(&f->slots_ever, __ATOMIC_SEQ_CST);
            while (ever < (uint32_t)i + 1 && !__atomic_compare_exchange_n(&f->slots_ever, &ever, (uint32_t)i + 1, false,
                                                                          __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
                ;
            f->slots[i].job = share->job;
            int none = -1;
            if (!__atomic_compare_exchange_n(&share->slot, &none, i, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
                __atomic_store_n(&f->slots[i].owner, 0, __ATOMIC_SEQ_CST);
            return MF_SHARE_OK;
        }
        mf_share_sweep(share);
    }
    return MF_SHARE_FULL;
}

/* Both numbers of every slot, and *held alone. Asking is read first: what moves to held meanwhile is counted twice at
 * worst, never missed. */
static uint64_t add_up(const mf_share *share, unsigned card, uint64_t *held)
{
    const mf_share_file *f = share->file;
    uint64_t sum = 0, firm = 0;
    uint32_t most = __atomic_load_n(&f->slots_ever, __ATOMIC_SEQ_CST);
    for (uint32_t i = 0; i < most; i++) {
        uint64_t owner = __atomic_load_n(&f->slots[i].owner, __ATOMIC_SEQ_CST);
        if (owner & SWEEPING || __atomic_load_n(&f->slots[i].away, __ATOMIC_SEQ_CST))
            continue; /* of the dead, or not on the card */
        uint64_t asking = __atomic_load_n(&f->slots[i].card[card].asking, __ATOMIC_SEQ_CST);
        uint64_t has = __atomic_load_n(&f->slots[i].card[card].held, __ATOMIC_SEQ_CST);
        has += __atomic_load_n(&f->slots[i].card[card].beside, __ATOMIC_SEQ_CST);
        sum += asking + has;
        firm += has;
    }
    if (held)
        *held = firm;
    return sum;
}

static void note_peak(mf_share_file *f, unsigned card, uint64_t sum)
{
    uint64_t peak = __atomic_load_n(&f->peak_bytes[card], __ATOMIC_RELAXED);
    while (sum > peak &&
           !__atomic_compare_exchange_n(&f->peak_bytes[card], &peak, sum, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
}

/* Steps back for a while that differs from process to process and from try to try. */
static void step_back(unsigned tries)
{
    uint64_t mixed = (uint64_t)getpid() * 0x9e3779b97f4a7c15u + tries * 0xbf58476d1ce4e5b9u;
    struct timespec pause = {0, (long)((mixed >> 40) % 50000u + 1000u)};
    if (tries < 4)
        sched_yield();
    else
        nanosleep(&pause, NULL);
}

void mf_share_tidy(mf_share *share)
{
    uint64_t now = now_us(), last = __atomic_load_n(&share->swept_us, __ATOMIC_RELAXED);
    bool due = now - last >= THOROUGH_US;
    if (due)
        __atomic_store_n(&share->swept_us, now, __ATOMIC_RELAXED);
    sweep(share, due);
}

mf_share_result mf_share_ask(mf_share *share, unsigned card, uint64_t bytes, unsigned wait_us)
{
    mf_share_file *f = share->file;
    if (share->slot < 0) {
        mf_share_result result = join(share);
        if (result)
            return result;
    }
    uint64_t *asking = &f->slots[share->slot].card[card].asking, until = 0;
    bool swept = false;
    for (unsigned tries = 0;; tries++) {
        uint64_t held, limit = __atomic_load_n(&f->limit_bytes[card], __ATOMIC_SEQ_CST);
        __atomic_fetch_add(asking, bytes, __ATOMIC_SEQ_CST);
        uint64_t sum = add_up(share, card, &held);
        if (sum <= limit && bytes <= limit) {
            note_peak(f, card, sum);
            return MF_SHARE_OK;
        }
        __atomic_fetch_sub(asking, bytes, __ATOMIC_SEQ_CST);
        if (!swept) {
            swept = true;
            mf_share_tidy(share); /* before anybody is refused for the sake of the dead */
            until = now_us() + wait_us;
            continue;
        }
        if (bytes > limit || held > limit - bytes) {
            __atomic_fetch_add(&f->refused[card], 1, __ATOMIC_RELAXED);
            return MF_SHARE_REFUSED;
        }
        if (now_us() >= until)
            return MF_SHARE_BUSY;
        step_back(tries);
    }
}

void mf_share_take(mf_share *share, unsigned card, uint64_t asked, uint64_t held)
{
    mf_share_slot *slot = &share->file->slots[share->slot];
    __atomic_fetch_add(&slot->card[card].held, held, __ATOMIC_SEQ_CST); /* first: what moves is never missing */
    __atomic_fetch_sub(&slot->card[card].asking, asked, __ATOMIC_SEQ_CST);
}

void mf_share_drop(mf_share *share, unsigned card, uint64_t asked)
{
    __atomic_fetch_sub(&share->file->slots[share->slot].card[card].asking, asked, __ATOMIC_SEQ_CST);
}

void mf_share_give_back(mf_share *share, unsigned card, uint64_t bytes)
{
    if (share->slot >= 0)
        __atomic_fetch_sub(&share->file->slots[share->slot].card[card].held, bytes, __ATOMIC_SEQ_CST);
}

mf_share_told mf_share_tells(const mf_share *share, uint32_t slot, unsigned card)
{
    const mf_share_slot *s = &share->file->slots[slot];
    uint64_t asking = __atomic_load_n(&s->card[card].asking, __ATOMIC_SEQ_CST); /* first, as in add_up */
    return (mf_share_told){.held = __atomic_load_n(&s->card[card].held, __ATOMIC_SEQ_CST), .asking = asking};
}

void mf_share_show(mf_share *share, uint32_t slot, unsigned card, mf_share_told before, uint64_t shown)
{
    uint64_t *beside = &share->file->slots[slot].card[card].beside;
    mf_share_told now = mf_share_tells(share, slot, card);
    uint64_t first = before.held + before.asking, then = now.held + now.asking, most = first > then ? first : then;
    uint64_t more = shown > most ? shown - most : 0;
    bool still = !before.asking && !now.asking && before.held == now.held;
    if (still || more > __atomic_load_n(beside, __ATOMIC_SEQ_CST))
        __atomic_store_n(beside, more, __ATOMIC_SEQ_CST);
}

uint64_t mf_share_in_use(const mf_share *share, unsigned card)
{
    return add_up(share, card, NULL);
}

uint64_t mf_share_own(const mf_share *share, unsigned card)
{
    return share->slot < 0 ? 0 : __atomic_load_n(&share->file->slots[share->slot].card[card].held, __ATOMIC_SEQ_CST);
}
