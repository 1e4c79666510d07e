/* turns.c: see turns.h. */
#include "govern/turns.h"

#include "base/error.h"
#include "base/os.h"
#include "device/finder.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum {
    LOOK_MS = 20,
    RETRY_US = 500000,
    LOCK_MS = 10000,
    LEAST_DRIVER = 12080, /* CUDA 12.8, driver 570 */
    MOST_PROCESSES = 64,
    NOT_READY = 600,   /* the driver's: it did not come to a halt in time */
    FIRST_TURN_S = 20, /* with MEMFIT_RUN_TURNS_AUTO, while nobody knows what a change costs */
    LEAST_TURN_S = 10,
    MOST_TURN_S = 600,
    TURN_CHANGES = 10, /* a turn is so many times as long as a change: one part in eleven is lost */
};

typedef struct lock_options { /* CUcheckpointLockArgs */
    unsigned timeout_ms, zero;
    uint64_t zeros[7];
} lock_options;

typedef struct driver {
    int (*init)(unsigned);
    int (*version)(int *);
    int (*lock)(int, const lock_options *);
    int (*save)(int, const void *);
    int (*restore)(int, const void *);
    int (*unlock)(int, const void *);
} driver;

typedef enum { WAITS, RUNS, SUSPENDED, STAYS /* cannot be suspended */ } turn_state;

struct mf_turns {
    const memfit_host *host;
    mf_share *share;
    driver driver;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool stop;
    /* Only the thread touches what follows, until it has ended. */
    turn_state state;
    bool begun; /* the driver */
    uint64_t away_since_us, away_us, switching_us;
    uint64_t try_at_us;       /* not to be tried before: there was no room */
    uint64_t out_us, back_us; /* the last suspension, the last coming back; 0: none yet */
    unsigned suspended;
    char why_not[160];
};

static memfit_status open_driver(driver *d, memfit_error *err)
{
    mf_library library;
    const mf_symbol symbols[] = {
        {"cuInit", &d->init, true},
        {"cuDriverGetVersion", &d->version, true},
        {"cuCheckpointProcessLock", &d->lock, false},
        {"cuCheckpointProcessCheckpoint", &d->save, false},
        {"cuCheckpointProcessRestore", &d->restore, false},
        {"cuCheckpointProcessUnlock", &d->unlock, false},
    };
    int version = 0;
    if (mf_library_open(mf_finder_default(), MF_LIBRARY_CUDA, 0, &library, err) ||
        mf_library_resolve(&library, symbols, sizeof symbols / sizeof *symbols, err))
        return mf_fail(err, MEMFIT_UNSUPPORTED, "--turns: there is no driver of a card here");
    if (d->version(&version) || version < LEAST_DRIVER || !d->lock || !d->save || !d->restore || !d->unlock)
        return mf_fail(err, MEMFIT_UNSUPPORTED,
                       "--turns: this driver (CUDA %d.%d) cannot suspend a process\n"
                       "driver 570 (CUDA 12.8) and newer can; without turns --share alone limits the jobs together",
                       version / 1000, version % 1000 / 10);
    return MEMFIT_OK;
}

memfit_status mf_turns_check(uint64_t limit_bytes, memfit_error *err)
{
    driver d = {0};
    char a[24], b[24];
    memfit_status status = open_driver(&d, err);
    uint64_t available = mf_os_available_memory();
    if (!status && available < limit_bytes)
        status = mf_fail(err, MEMFIT_UNSUPPORTED,
                         "--turns: a suspended job's memory is kept on the host: up to %s, but %s are available",
                         memfit_size_format(limit_bytes, a, sizeof a), memfit_size_format(available, b, sizeof b));
    return status;
}

/* ---- off the cards, and back ------------------------------------------------------------------------------ */

static bool lives(const mf_turns *t, uint32_t slot)
{
    return mf_share_lives(__atomic_load_n(&t->share->file->slots[slot].owner, __ATOMIC_SEQ_CST));
}

/* The job's processes that have memory on a card, by slot. */
static unsigned processes_of(const mf_turns *t, uint32_t list[MOST_PROCESSES])
{
    const mf_share_file *f = t->share->file;
    uint32_t most = __atomic_load_n(&f->slots_ever, __ATOMIC_SEQ_CST);
    unsigned count = 0;
    for (uint32_t i = 0; i < most && count < MOST_PROCESSES; i++)
        if (f->slots[i].job == t->share->job && lives(t, i))
            list[count++] = i;
    return count;
}

static int pid_of(const mf_turns *t, uint32_t slot)
{
    return (int)(__atomic_load_n(&t->share->file->slots[slot].owner, __ATOMIC_SEQ_CST) >> 32);
}

static void cannot(mf_turns *t, const char *what, int code)
{
    t->state = STAYS;
    snprintf(t->why_not, sizeof t->why_not, "%s answers %d%s", what, code,
             code == 801   ? " (not supported: managed memory, or memory shared with other processes)"
             : code == 800 ? " (not permitted: root's right, or CAP_SYS_PTRACE)"
                           : "");
}

static void set_away(const mf_turns *t, const uint32_t *list, unsigned count, uint32_t away)
{
    for (unsigned i = 0; i < count; i++)
        __atomic_store_n(&t->share->file->slots[list[i]].away, away, __ATOMIC_SEQ_CST);
}

/* All are held before the first is copied: they may wait for each other. */
static bool suspend(mf_turns *t)
{
    uint32_t list[MOST_PROCESSES];
    unsigned count = processes_of(t, list), held = 0, saved = 0;
    const lock_options options = {.timeout_ms = LOCK_MS};
    int code = 0;
    const char *what = "cuCheckpointProcessLock";
    for (; held < count && !code; held += !code)
        code = t->driver.lock(pid_of(t, list[held]), &options);
    if (!code)
        what = "cuCheckpointProcessCheckpoint";
    for (; saved < count && !code; saved += !code)
        code = t->driver.save(pid_of(t, list[saved]), NULL);
    if (!code) {
        set_away(t, list, count, 1);
        return true;
    }
    for (unsigned i = 0; i < saved; i++)
        t->driver.restore(pid_of(t, list[i]), NULL);
    for (unsigned i = 0; i < held; i++)
        t->driver.unlock(pid_of(t, list[i]), NULL);
    if (code != NOT_READY && processes_of(t, list) == count) /* and not because one of them has ended */
        cannot(t, what, code);
    return false;
}

/* False: jobs that take no turns have filled the share meanwhile, or others the card. Then all is as it was before. */
static bool come_back(mf_turns *t)
{
    uint32_t list[MOST_PROCESSES];
    unsigned count = processes_of(t, list), back = 0;
    mf_share_file *f = t->share->file;
    bool room = true;
    set_away(t, list, count, 0);
    for (unsigned c = 0; c < MF_SHARE_CARDS; c++)
        room = room && mf_share_in_use(t->share, c) <= __atomic_load_n(&f->limit_bytes[c], __ATOMIC_SEQ_CST);
    while (room && back < count && (t->driver.restore(pid_of(t, list[back]), NULL) == 0 || !lives(t, list[back])))
        back++;
    if (back < count) {
        while (back > 0)
            t->driver.save(pid_of(t, list[--back]), NULL);
        set_away(t, list, count, 1);
        return false;
    }
    for (unsigned i = 0; i < count; i++)
        t->driver.unlock(pid_of(t, list[i]), NULL);
    return true;
}

/* ---- whose turn ------------------------------------------------------------------------------------------- */

static bool takes_turns(const mf_share_file *f, uint32_t job)
{
    const mf_share_job *j = &f->jobs[job - 1];
    return j->turns_s && __atomic_load_n(&j->wants, __ATOMIC_SEQ_CST) &&
           mf_share_lives(__atomic_load_n(&j->owner, __ATOMIC_SEQ_CST));
}

/* The next one round the table that waits; 0: nobody. */
static uint32_t next_job(const mf_turns *t)
{
    for (uint32_t k = 1; k < MF_SHARE_JOBS; k++) {
        uint32_t job = (t->share->job - 1 + k) % MF_SHARE_JOBS + 1;
        if (takes_turns(t->share->file, job))
            return job;
    }
    return 0;
}

/* At a change one job goes and another comes. What the other takes we do not know: as much as we. */
static uint64_t turn_length_us(const mf_turns *t)
{
    uint32_t seconds = t->share->file->jobs[t->share->job - 1].turns_s;
    const uint64_t second = 1000000, change_us = t->out_us + (t->back_us ? t->back_us : t->out_us / 2);
    if (seconds != MEMFIT_RUN_TURNS_AUTO)
        return seconds * second;
    if (!t->out_us)
        return FIRST_TURN_S * second;
    uint64_t wanted = change_us * TURN_CHANGES, least = LEAST_TURN_S * second, most = MOST_TURN_S * second;
    return wanted < least ? least : wanted > most ? most : wanted;
}

static void have_turn(mf_turns *t)
{
    mf_share_file *f = t->share->file;
    uint64_t now = mf_os_now_us();
    if (t->state == SUSPENDED) {
        if (now < t->try_at_us)
            return;
        if (!come_back(t)) { /* there is no room now: another's turn, if one waits */
            t->try_at_us = now + RETRY_US;
            uint32_t mine = t->share->job, next = next_job(t);
            if (next)
                __atomic_compare_exchange_n(&f->turn, &mine, next, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
            return;
        }
        t->away_us += mf_os_now_us() - t->away_since_us;
        t->back_us = mf_os_now_us() - now;
        t->switching_us += t->back_us;
        if (t->state == SUSPENDED)
            t->state = RUNS;
        /* What coming back took is not its time. */
        __atomic_store_n(&f->turn_since_us, mf_os_now_us(), __ATOMIC_SEQ_CST);
        return;
    }
    if (t->state == WAITS) {
        t->state = RUNS;
        __atomic_store_n(&f->turn_since_us, now, __ATOMIC_SEQ_CST);
    }
    uint32_t next = t->state == RUNS ? next_job(t) : 0;
    if (!next)
        return;
    if (!t->begun && t->driver.init(0)) /* takes a second, so not when the turn is over */
        return cannot(t, "cuInit", 999);
    t->begun = true;
    now = mf_os_now_us();
    if (now - f->turn_since_us < turn_length_us(t) || !suspend(t))
        return;
    t->state = SUSPENDED;
    t->away_since_us = now;
    t->out_us = mf_os_now_us() - now;
    t->switching_us += t->out_us;
    t->suspended++;
    __atomic_store_n(&f->turn, next, __ATOMIC_SEQ_CST);
}

static void look(mf_turns *t)
{
    mf_share_file *f = t->share->file;
    uint32_t turn = __atomic_load_n(&f->turn, __ATOMIC_SEQ_CST);
    if (turn && !takes_turns(f, turn)) { /* it is dead, or done */
        __atomic_compare_exchange_n(&f->turn, &turn, 0, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
        turn = __atomic_load_n(&f->turn, __ATOMIC_SEQ_CST);
    }
    if (!turn && takes_turns(f, t->share->job))
        __atomic_compare_exchange_n(&f->turn, &turn, t->share->job, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&f->turn, __ATOMIC_SEQ_CST) == t->share->job)
        have_turn(t);
}

static void *run_thread(void *ctx)
{
    mf_turns *t = ctx;
    pthread_mutex_lock(&t->lock);
    while (!t->stop) {
        pthread_mutex_unlock(&t->lock);
        look(t);
        uint64_t next = mf_os_now_ns() + LOOK_MS * 1000000ull;
        struct timespec at = {(time_t)(next / 1000000000u), (long)(next % 1000000000u)};
        pthread_mutex_lock(&t->lock);
        if (!t->stop)
            pthread_cond_timedwait(&t->wake, &t->lock, &at);
    }
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

memfit_status mf_turns_begin(const memfit_host *host, mf_share *share, mf_turns **turns, memfit_error *err)
{
    mf_turns *t = mf_host_zalloc(host, sizeof *t);
    if (!t)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no host memory for turns");
    t->host = host;
    t->share = share;
    memfit_status status = open_driver(&t->driver, err);
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->wake, &clock);
    pthread_condattr_destroy(&clock);
    if (!status && pthread_create(&t->thread, NULL, run_thread, t))
        status = mf_fail(err, MEMFIT_IO, "no thread for turns");
    if (status) {
        mf_host_free(host, t, sizeof *t);
        return status;
    }
    *turns = t;
    return MEMFIT_OK;
}

void mf_turns_end(mf_turns *turns, memfit_run_result *result)
{
    if (!turns)
        return;
    pthread_mutex_lock(&turns->lock);
    turns->stop = true;
    pthread_cond_signal(&turns->wake);
    pthread_mutex_unlock(&turns->lock);
    pthread_join(turns->thread, NULL);
    mf_share_file *f = turns->share->file;
    uint32_t mine = turns->share->job;
    __atomic_store_n(&f->jobs[mine - 1].wants, 0, __ATOMIC_SEQ_CST);
    __atomic_compare_exchange_n(&f->turn, &mine, 0, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    if (turns->state == SUSPENDED) /* it died while it was away */
        turns->away_us += mf_os_now_us() - turns->away_since_us;
    result->suspended = turns->suspended;
    result->away_seconds = (double)turns->away_us / 1e6;
    result->switching_seconds = (double)turns->switching_us / 1e6;
    memcpy(result->turns_refused, turns->why_not, sizeof result->turns_refused);
    pthread_cond_destroy(&turns->wake);
    pthread_mutex_destroy(&turns->lock);
    mf_host_free(turns->host, turns, sizeof *turns);
}
