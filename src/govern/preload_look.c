/*
 * preload_look.c: what the driver takes by itself, in a process that nobody watches.
 *
 * `memfit run` asks NVML ten times a second and charges what no call has reported: contexts, modules, graphs (watch.c).
 * A process that the library was attached to, and those that it starts (MEMFIT_GOVERN_LOOK), look themselves: when they
 * request memory, at most ten times a second, and at most for a tenth of the time. Between two requests nothing needs
 * to be known.
 */
#include "govern/preload.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { LISTED = 512, PERIOD_NS = 100000000, PART = 10, MOST_CARDS = 64, TEXT = 96 };

typedef struct process { /* NVML's, of its second and third list */
    unsigned pid;
    unsigned long long bytes;
    unsigned instance, part;
} process;
typedef int (*list_function)(void *, unsigned *, process *);

static int wanted; /* 0: not looked; 1: no; 2: yes */
static uint64_t next_ns;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static list_function list;
static void *handles[MF_SHARE_CARDS]; /* NVML's, by the share's number */

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Opens NVML for good, and finds the share's cards among its own. */
static bool open_nvml(mf_share *share)
{
    bool there = mf_govern_load("libnvidia-ml.so.1");
    int (*init)(void) = there ? (int (*)(void))mf_govern_driver("nvmlInit_v2") : NULL;
    int (*count)(unsigned *) = (int (*)(unsigned *))mf_govern_driver("nvmlDeviceGetCount_v2");
    int (*handle)(unsigned, void **) = (int (*)(unsigned, void **))mf_govern_driver("nvmlDeviceGetHandleByIndex_v2");
    int (*uuid)(void *, char *, unsigned) = (int (*)(void *, char *, unsigned))mf_govern_driver("nvmlDeviceGetUUID");
    list = (list_function)mf_govern_driver("nvmlDeviceGetComputeRunningProcesses_v3");
    unsigned cards = 0;
    if (!init || !count || !handle || !uuid || !list || init() || count(&cards))
        return false;
    for (unsigned i = 0; i < cards && i < MOST_CARDS; i++) {
        char text[TEXT];
        void *card;
        if (handle(i, &card) || uuid(card, text, sizeof text))
            continue;
        unsigned number = mf_share_card(share, mf_share_id(text));
        if (number < MF_SHARE_CARDS)
            handles[number] = card;
    }
    return true;
}

static bool is_wanted(mf_share *share)
{
    int known = __atomic_load_n(&wanted, __ATOMIC_ACQUIRE);
    if (!known) {
        known = getenv("MEMFIT_GOVERN_LOOK") && open_nvml(share) ? 2 : 1;
        __atomic_store_n(&wanted, known, __ATOMIC_RELEASE);
    }
    return known == 2;
}

static void charge(mf_share *share, unsigned card)
{
    static process rows[LISTED];
    unsigned count = LISTED, self = (unsigned)getpid();
    mf_share_told before = mf_share_tells(share, (uint32_t)share->slot, card);
    if (!handles[card] || list(handles[card], &count, rows))
        return;
    for (unsigned i = 0; i < count && i < LISTED; i++)
        if (rows[i].pid == self && rows[i].bytes != ~0ull)
            mf_share_show(share, (uint32_t)share->slot, card, before, rows[i].bytes);
}

void mf_govern_look_beside(mf_share *share, unsigned card)
{
    if (__atomic_load_n(&wanted, __ATOMIC_ACQUIRE) == 1)
        return;
    uint64_t begin = now_ns();
    if (begin < __atomic_load_n(&next_ns, __ATOMIC_ACQUIRE) || share->slot < 0 || pthread_mutex_trylock(&lock))
        return;
    if (is_wanted(share))
        charge(share, card);
    uint64_t took = now_ns() - begin, pause = took * PART;
    __atomic_store_n(&next_ns, begin + (pause > PERIOD_NS ? pause : PERIOD_NS), __ATOMIC_RELEASE);
    pthread_mutex_unlock(&lock);
}

/* In a child of fork, which another thread may have left the lock to. */
void mf_govern_look_forget(void)
{
    pthread_mutex_init(&lock, NULL);
    next_ns = 0;
}
