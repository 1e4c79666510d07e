/* preload_table.c: the governor's state in a process: the job's share, and which block has how many bytes. */
#include "govern/preload.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

/* Open addressing; a slot with key 0 ends a search. Lies in zero pages until it is used. When it is full, blocks are not
 * remembered: their bytes stay charged until the process ends. */
enum { SLOTS = 1 << 18 };
static mf_govern_block table[SLOTS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint32_t count;

static mf_share share = {.slot = -1};
static int state; /* 0: not looked; 1: being looked; 2: there is one; 3: none */

static void before_fork(void)
{
    pthread_mutex_lock(&lock);
}

static void after_fork_parent(void)
{
    pthread_mutex_unlock(&lock);
}

/* The driver's memory is the parent's: a child of fork starts with nothing. */
static void after_fork_child(void)
{
    pthread_mutex_unlock(&lock);
    if (count)
        memset(table, 0, sizeof table);
    count = 0;
    mf_govern_forget();
    mf_govern_owner_forget();
    mf_govern_trace_forget();
    mf_govern_look_forget();
    mf_govern_attach_forget();
    if (state == 2)
        mf_share_after_fork(&share);
}

mf_share *mf_govern_share(void)
{
    int now;
    while ((now = __atomic_load_n(&state, __ATOMIC_ACQUIRE)) == 1)
        sched_yield(); /* another thread opens the file: a moment */
    if (now)
        return now == 2 ? &share : NULL;
    int none = 0, saved = errno;
    if (!__atomic_compare_exchange_n(&state, &none, 1, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        return mf_govern_share();
    const char *path = getenv("MEMFIT_GOVERN");
    bool there = path && mf_share_open(path, &share) == MF_SHARE_OK;
    const char *job = getenv("MEMFIT_GOVERN_JOB");
    share.job = there && job ? (uint32_t)atoi(job) : 0;
    if (there)
        pthread_atfork(before_fork, after_fork_parent, after_fork_child);
    __atomic_store_n(&state, there ? 2 : 3, __ATOMIC_RELEASE);
    errno = saved;
    return there ? &share : NULL;
}

static uint32_t place_of(uint64_t key)
{
    return (uint32_t)((key * 0x9e3779b97f4a7c15u) >> 46) & (SLOTS - 1);
}

static mf_govern_block *find(uint64_t key)
{
    for (uint32_t i = place_of(key);; i = (i + 1) & (SLOTS - 1))
        if (!table[i].key || table[i].key == key)
            return table[i].key ? &table[i] : NULL;
}

void mf_govern_put(const mf_govern_block *block)
{
    pthread_mutex_lock(&lock);
    mf_govern_block *old = find(block->key);
    if (!old && count < SLOTS / 4 * 3) {
        uint32_t i = place_of(block->key);
        while (table[i].key)
            i = (i + 1) & (SLOTS - 1);
        old = &table[i];
        count++;
    }
    if (old)
        *old = *block;
    pthread_mutex_unlock(&lock);
}

/* What follows in the chain moves up, so that no search ends too early. */
static void remove_block(mf_govern_block *block)
{
    uint32_t hole = (uint32_t)(block - table);
    count--;
    for (uint32_t i = (hole + 1) & (SLOTS - 1); table[i].key; i = (i + 1) & (SLOTS - 1)) {
        uint32_t home = place_of(table[i].key);
        if (((i - home) & (SLOTS - 1)) >= ((i - hole) & (SLOTS - 1))) {
            table[hole] = table[i];
            hole = i;
        }
    }
    table[hole].key = 0;
}

bool mf_govern_take(uint64_t key, mf_govern_block *block)
{
    pthread_mutex_lock(&lock);
    mf_govern_block *found = key ? find(key) : NULL;
    if (found) {
        *block = *found;
        remove_block(found);
    }
    pthread_mutex_unlock(&lock);
    return found != NULL;
}

bool mf_govern_count(uint64_t key, int references, int maps, mf_govern_block *block)
{
    pthread_mutex_lock(&lock);
    mf_govern_block *found = key ? find(key) : NULL;
    bool gone = false;
    if (found) {
        found->references = (uint32_t)((int)found->references + references);
        found->maps = (uint32_t)((int)found->maps + maps);
        gone = !found->references && !found->maps;
        *block = *found;
        if (gone)
            remove_block(found);
    }
    pthread_mutex_unlock(&lock);
    return gone;
}

uint64_t mf_govern_take_all(uint32_t card)
{
    uint64_t bytes = 0;
    pthread_mutex_lock(&lock);
    for (uint32_t i = 0; i < SLOTS && count;) {
        if (table[i].key && table[i].card == card) {
            bytes += table[i].bytes;
            remove_block(&table[i]); /* another may have moved here: the same place again */
        } else {
            i++;
        }
    }
    pthread_mutex_unlock(&lock);
    return bytes;
}
