/*
 * watch.c: see watch.h.
 *
 * A walk over /proc finds who belongs to the program, once a second, and at every look in the first two seconds; in
 * between we read only those already known.
 *
 * NVML numbers processes as the host does. In a container these are other numbers than ours. Then we take a process for
 * the program's if NVML did not list it at the first look and it does not exist here by that number (`by_arrival`).
 */
#include "govern/watch.h"

#include "base/error.h"
#include "base/os.h"
#include "device/nvml.h"
#include "govern/holdings.h"
#include "govern/limit.h"
#include "govern/tree.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

/* One part of so many of the time may be spent: on looking, on walking over /proc, on that at the beginning. */
/* A context with its libraries, at most. */
#define CONTEXT_BYTES (UINT64_C(1) << 30)
enum { LISTED = 128, SHARE = 10, WALK_SHARE = 100, EAGER_SHARE = 20, EAGER_SAMPLES = 20 };

typedef struct card {
    unsigned index;
    unsigned number;         /* the share's */
    unsigned before[LISTED]; /* who was there at the first look */
    size_t before_count;
    bool same_numbers; /* a process of ours was listed by the number it has here: no need to go by when one came */
} card;

struct mf_watch {
    const memfit_host *host;
    uint32_t sample_ms;
    mf_share *share; /* NULL: no limit */
    const mf_facts *facts;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool stop;
    /* Only the thread touches what follows, until it has ended. */
    mf_tree tree; /* after a walk: the program's processes alone */
    int root;
    mf_nvml *nvml;
    bool nvml_asked;
    card cards[MEMFIT_RUN_CARDS];
    mf_share_told told[MF_SHARE_SLOTS]; /* when NVML was asked last */
    uint32_t told_count;
    uint64_t walk_at_ns; /* when /proc is walked next */
    memfit_run_result seen;
    mf_holdings most;
};

/* The record of a process, made when it is new; NULL when there is no more room. */
static memfit_run_process *record_of(memfit_run_result *r, unsigned pid)
{
    for (size_t i = 0; i < r->process_count; i++)
        if (r->processes[i].pid == pid)
            return &r->processes[i];
    if (r->process_count == MEMFIT_RUN_PROCESSES)
        return NULL;
    memfit_run_process *p = &r->processes[r->process_count++];
    *p = (memfit_run_process){.pid = pid};
    mf_process_name((int)pid, p->name, sizeof p->name);
    return p;
}

static void walk(mf_watch *w)
{
    if (mf_tree_look(&w->tree, w->root, NULL)) {
        w->tree.count = 0;
        return;
    }
    size_t kept = 0;
    for (size_t i = 0; i < w->tree.count; i++)
        if (w->tree.list[i].below && w->tree.list[i].state != 'Z')
            w->tree.list[kept++] = w->tree.list[i];
    w->tree.count = kept;
}

static void look_at_host(mf_watch *w)
{
    uint64_t sum = 0;
    unsigned count = 0;
    for (size_t i = 0; i < w->tree.count; i++) {
        int pid = w->tree.list[i].pid;
        uint64_t bytes = mf_process_memory(pid);
        if (!bytes)
            continue;
        memfit_run_process *p = record_of(&w->seen, (unsigned)pid);
        if (p && bytes > p->host_peak_bytes) {
            if (!p->host_peak_bytes || w->seen.samples < EAGER_SAMPLES) /* it may have called exec since */
                mf_process_name(pid, p->name, sizeof p->name);
            p->host_peak_bytes = bytes;
        }
        sum += bytes;
        count++;
    }
    if (sum > w->seen.host_peak_bytes) {
        w->seen.host_peak_bytes = sum;
        w->seen.host_peak_processes = count;
        w->seen.host_peak_sampled = true;
    }
}

static void open_nvml(mf_watch *w)
{
    unsigned count = 0;
    w->nvml_asked = true;
    if (mf_nvml_open(w->host, mf_finder_default(), &w->nvml, NULL)) {
        w->nvml = NULL;
        return;
    }
    if (mf_nvml_card_count(w->nvml, &count, NULL))
        count = 0;
    for (unsigned i = 0; i < count && w->seen.card_count < MEMFIT_RUN_CARDS; i++) {
        mf_nvml_card c;
        if (mf_nvml_card_get(w->nvml, i, &c, NULL))
            continue;
        size_t at = w->seen.card_count++;
        w->seen.cards[at].index = w->cards[at].index = i;
        w->cards[at].number = w->share ? mf_share_card(w->share, mf_share_id(c.uuid)) : MF_SHARE_CARDS;
        snprintf(w->seen.cards[at].name, sizeof w->seen.cards[at].name, "%s", c.name);
        snprintf(w->seen.cards[at].uuid, sizeof w->seen.cards[at].uuid, "%s", c.uuid);
        w->seen.cards[at].total_bytes = c.total_bytes;
        mf_nvml_process list[LISTED];
        size_t listed = 0;
        if (mf_nvml_processes(w->nvml, i, list, LISTED, &listed, NULL))
            listed = 0;
        for (size_t k = 0; k < listed && k < LISTED; k++)
            w->cards[at].before[w->cards[at].before_count++] = list[k].pid;
    }
}

static bool is_alive(const mf_watch *w, unsigned pid)
{
    for (size_t i = 0; i < w->tree.count; i++)
        if ((unsigned)w->tree.list[i].pid == pid)
            return true;
    return false;
}

static bool came_since(const card *c, unsigned pid)
{
    for (size_t i = 0; i < c->before_count; i++)
        if (c->before[i] == pid)
            return false;
    char path[32];
    struct stat st;
    snprintf(path, sizeof path, "/proc/%u", pid);
    return stat(path, &st) != 0;
}

/* What every slot has told of a card, before NVML is asked. */
static void note_told(mf_watch *w, unsigned number)
{
    uint32_t slots = w->share && number < MF_SHARE_CARDS ? w->share->file->slots_ever : 0;
    w->told_count = slots < MF_SHARE_SLOTS ? slots : MF_SHARE_SLOTS;
    for (uint32_t i = 0; i < w->told_count; i++)
        w->told[i] = mf_share_tells(w->share, i, number);
}

/* The part that no call has charged: context, modules, the driver's own. False: the process has asked for nothing. */
static bool charge_beside(mf_watch *w, unsigned number, unsigned pid, uint64_t bytes)
{
    const mf_share_file *f = w->share->file;
    bool found = false;
    for (uint32_t i = 0; i < w->told_count; i++) {
        if ((unsigned)(__atomic_load_n(&f->slots[i].owner, __ATOMIC_SEQ_CST) >> 32) != pid)
            continue;
        mf_share_show(w->share, i, number, w->told[i], bytes);
        found = true;
    }
    return found;
}

/* A process of ours with more than a context, who never asked: the library is not in it, or may not open the share. One
 * that ends has given up its slot before the driver has given back its memory, and has no mappings any more. */
static void note_outside(mf_watch *w, unsigned number, unsigned pid, uint64_t bytes)
{
    memfit_run_process *p = &w->seen.outside;
    if (number >= MF_SHARE_CARDS || bytes <= CONTEXT_BYTES || bytes <= p->card_peak_bytes ||
        __atomic_load_n(&w->share->file->limit_bytes[number], __ATOMIC_SEQ_CST) == UINT64_MAX ||
        !mf_process_is_without((int)pid, "libmemfit-govern.so"))
        return;
    *p = (memfit_run_process){.pid = pid, .card_peak_bytes = bytes};
    mf_process_name((int)pid, p->name, sizeof p->name);
}

static void look_at_card(mf_watch *w, size_t at)
{
    mf_nvml_process list[LISTED];
    size_t count = 0;
    uint64_t own = 0, strange = 0, all = 0;
    note_told(w, w->cards[at].number);
    if (mf_nvml_processes(w->nvml, w->cards[at].index, list, LISTED, &count, NULL))
        return;
    count = count < LISTED ? count : LISTED;
    for (size_t i = 0; i < count; i++) {
        all += list[i].bytes;
        if (is_alive(w, list[i].pid)) {
            own += list[i].bytes;
            w->cards[at].same_numbers = true;
            if (w->share && !charge_beside(w, w->cards[at].number, list[i].pid, list[i].bytes))
                note_outside(w, w->cards[at].number, list[i].pid, list[i].bytes);
            memfit_run_process *p = record_of(&w->seen, list[i].pid);
            if (p && list[i].bytes > p->card_peak_bytes)
                p->card_peak_bytes = list[i].bytes;
        } else if (came_since(&w->cards[at], list[i].pid)) {
            strange += list[i].bytes;
        }
    }
    bool by_arrival = !w->cards[at].same_numbers && strange;
    own += by_arrival ? strange : 0;
    if (w->seen.cards[at].by_arrival && !by_arrival && own) /* what came before was another's, on its way out */
        w->seen.cards[at].peak_bytes = 0;
    if (own <= w->seen.cards[at].peak_bytes)
        return;
    w->seen.cards[at].peak_bytes = own;
    w->seen.cards[at].others_bytes = all - own;
    w->seen.cards[at].by_arrival = by_arrival;
}

/* Of this thread: on a busy machine time that others took is no cost of ours. */
static uint64_t spent_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void walk_if_due(mf_watch *w)
{
    uint64_t now = mf_os_now_ns(), before = spent_ns();
    if (now < w->walk_at_ns)
        return;
    walk(w);
    bool eager = w->seen.samples < EAGER_SAMPLES;
    uint64_t cost = (spent_ns() - before) * (eager ? EAGER_SHARE : WALK_SHARE), least = eager ? 0 : 1000000000u;
    w->walk_at_ns = now + (cost > least ? cost : least);
}

static void look(mf_watch *w)
{
    if (w->share)
        mf_share_sweep(w->share); /* what a dead process had is back within a look */
    look_at_host(w);
    for (size_t i = 0; w->nvml && i < w->seen.card_count; i++)
        look_at_card(w, i);
    if (w->share && w->facts)
        mf_holdings_look(&w->most, w->facts, w->share);
    w->seen.samples++;
}

/* The lock is held, and is when it returns. */
static void sleep_until(mf_watch *w, uint64_t ns)
{
    struct timespec at = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    while (!w->stop && pthread_cond_timedwait(&w->wake, &w->lock, &at) == 0)
        ;
}

static void *run_thread(void *ctx)
{
    mf_watch *w = ctx;
    uint64_t period = w->sample_ms * 1000000ull, next = mf_os_now_ns() + period / 5; /* a short program is seen once */
    pthread_mutex_lock(&w->lock);
    for (;;) {
        sleep_until(w, next);
        if (w->stop)
            break;
        pthread_mutex_unlock(&w->lock);
        walk_if_due(w);
        if ((w->seen.samples || w->share) && !w->nvml_asked)
            open_nvml(w);
        uint64_t begin = mf_os_now_ns(), before = spent_ns();
        look(w);
        uint64_t pause = (spent_ns() - before) * SHARE;
        next = begin + (pause > period ? pause : period);
        pthread_mutex_lock(&w->lock);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

memfit_status mf_watch_begin(const memfit_host *host, uint32_t sample_ms, mf_share *share, const mf_facts *facts,
                             mf_watch **watch, memfit_error *err)
{
    mf_watch *w = mf_host_zalloc(host, sizeof *w);
    if (!w)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no host memory to watch a program");
    w->host = w->tree.host = host;
    w->sample_ms = sample_ms;
    w->share = share;
    w->facts = facts;
    w->root = (int)mf_os_process_id();
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->wake, &clock);
    pthread_condattr_destroy(&clock);
    int code = pthread_create(&w->thread, NULL, run_thread, w);
    if (code) {
        mf_host_free(host, w, sizeof *w);
        return mf_fail(err, MEMFIT_IO, "no thread to watch a program: %s", strerror(code));
    }
    *watch = w;
    return MEMFIT_OK;
}

void mf_watch_end(mf_watch *watch, memfit_run_result *result)
{
    if (!watch)
        return;
    pthread_mutex_lock(&watch->lock);
    watch->stop = true;
    pthread_cond_signal(&watch->wake);
    pthread_mutex_unlock(&watch->lock);
    pthread_join(watch->thread, NULL);
    memfit_run_result *s = &watch->seen;
    result->samples = s->samples;
    result->host_peak_bytes = s->host_peak_bytes;
    result->host_peak_processes = s->host_peak_processes;
    result->host_peak_sampled = s->host_peak_sampled;
    result->card_count = s->card_count;
    memcpy(result->cards, s->cards, sizeof s->cards);
    result->process_count = s->process_count;
    memcpy(result->processes, s->processes, sizeof s->processes);
    result->outside = s->outside;
    mf_limit_held(&watch->most, result);
    mf_nvml_close(watch->nvml);
    mf_tree_drop(&watch->tree);
    pthread_cond_destroy(&watch->wake);
    pthread_mutex_destroy(&watch->lock);
    mf_host_free(watch->host, watch, sizeof *watch);
}
