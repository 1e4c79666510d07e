/* A limit that several processes share: never passed, whoever is killed, stopped or forked meanwhile. SHARE_OPS and
 * SHARE_KILLS: how many (10^8 and 10,000 by hand). */
#include "test.h"

#include "govern/share.h"

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

enum { LIMIT = 1000, PROCESSES = 6, THREADS = 2 };

static int number(const char *name, int usual)
{
    return getenv(name) ? atoi(getenv(name)) : usual;
}

static mf_share new_share(const char *path, uint64_t limit)
{
    mf_share share;
    unlink(path);
    assert_int_equal(mf_share_create(path, &share), MF_SHARE_OK);
    share.file->limit_bytes[0] = limit;
    return share;
}

static void one_process(void **state)
{
    (void)state;
    mf_share a = new_share(test_path("share"), LIMIT);
    assert_int_equal(mf_share_ask(&a, 0, 600, 0), MF_SHARE_OK);
    assert_int_equal(mf_share_in_use(&a, 0), 600);
    assert_int_equal(mf_share_own(&a, 0), 0);
    mf_share_take(&a, 0, 600, 640); /* the driver rounds */
    assert_int_equal(mf_share_own(&a, 0), 640);
    assert_int_equal(mf_share_ask(&a, 0, 361, 0), MF_SHARE_REFUSED);
    assert_int_equal(mf_share_ask(&a, 0, UINT64_MAX, 0), MF_SHARE_REFUSED);
    assert_int_equal(mf_share_ask(&a, 0, 360, 0), MF_SHARE_OK);
    mf_share_drop(&a, 0, 360);
    assert_int_equal(mf_share_ask(&a, 1, 1ull << 50, 0), MF_SHARE_OK); /* no limit there */
    mf_share_drop(&a, 1, 1ull << 50);
    a.file->limit_bytes[0] = 500; /* lowered below what is held: nobody gets more, frees go on */
    assert_int_equal(mf_share_ask(&a, 0, 1, 0), MF_SHARE_REFUSED);
    mf_share_give_back(&a, 0, 640);
    assert_int_equal(mf_share_ask(&a, 0, 500, 0), MF_SHARE_OK);
    assert_int_equal(a.file->refused[0], 3);
    mf_share_close(&a);
}

static void strange_files_are_refused(void **state)
{
    (void)state;
    const char *path = test_path("share"), *link = test_path("link");
    mf_share a = new_share(path, LIMIT), b;
    assert_int_equal(mf_share_create(path, &b), MF_SHARE_NO_SPACE);
    assert_int_equal(mf_share_create("/nonexistent/folder/share", &b), MF_SHARE_NO_SPACE);
    assert_int_equal(mf_share_open(test_path("missing"), &b), MF_SHARE_MISSING);
    assert_int_equal(symlink(path, link), 0);
    assert_int_equal(mf_share_open(link, &b), MF_SHARE_FOREIGN);
    assert_int_equal(mf_share_create(link, &b), MF_SHARE_NO_SPACE);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    chmod(path, 0640);
    assert_int_equal(mf_share_open(path, &b), MF_SHARE_FOREIGN);
    chmod(path, 0600);
    if (geteuid() == 0) {
        assert_int_equal(chown(path, 12345, (gid_t)-1), 0);
        assert_int_equal(mf_share_open(path, &b), MF_SHARE_FOREIGN);
        assert_int_equal(chown(path, 0, (gid_t)-1), 0);
    }
    assert_int_equal(mf_share_open(test_folder(), &b), MF_SHARE_MISSING);
    assert_int_equal(mf_share_open(path, &b), MF_SHARE_OK);
    mf_share_close(&b);
    for (int other = -1; other <= 1; other += 2) { /* older, newer */
        a.file->version += (uint32_t)other;
        assert_int_equal(mf_share_open(path, &b), MF_SHARE_VERSION_DIFFERS);
        a.file->version -= (uint32_t)other;
    }
    a.file->turn = MF_SHARE_JOBS + 1;
    assert_int_equal(mf_share_open(path, &b), MF_SHARE_DAMAGED);
    a.file->turn = 0;
    a.file->slots_ever = MF_SHARE_SLOTS + 1;
    assert_int_equal(mf_share_open(path, &b), MF_SHARE_DAMAGED);
    a.file->slots_ever = 0;
    a.file->magic[0] = 'X';
    assert_int_equal(mf_share_open(path, &b), MF_SHARE_DAMAGED);
    mf_share_close(&a);
    assert_int_equal(truncate(path, 100), 0);
    assert_int_equal(mf_share_open(path, &b), MF_SHARE_DAMAGED);
    for (int r = MF_SHARE_OK; r <= MF_SHARE_NO_SPACE; r++)
        assert_true(strlen(mf_share_words(r)) > 3);
}

/* ---- many at once ----------------------------------------------------------------------------------------- */

typedef struct worker {
    mf_share *share;
    uint64_t *real; /* what the card has handed out, counted by the card */
    unsigned seed;
    int ops;
    bool over;
} worker;

/* Takes and gives back without end (ops < 0) or so often; the card never hands out more than the limit. */
static void *work(void *arg)
{
    worker *w = arg;
    uint64_t mine[8] = {0};
    for (int i = 0; w->ops < 0 || i < w->ops; i++) {
        unsigned k = (unsigned)rand_r(&w->seed) % 8;
        if (mine[k]) {
            __atomic_fetch_sub(w->real, mine[k], __ATOMIC_SEQ_CST);
            mf_share_give_back(w->share, 0, mine[k]);
            mine[k] = 0;
            continue;
        }
        uint64_t bytes = 1 + (unsigned)rand_r(&w->seed) % 200;
        if (mf_share_ask(w->share, 0, bytes, 2000) != MF_SHARE_OK)
            continue;
        if (i % 17 == 0) { /* the driver has none */
            mf_share_drop(w->share, 0, bytes);
            continue;
        }
        w->over |= __atomic_add_fetch(w->real, bytes, __ATOMIC_SEQ_CST) > LIMIT;
        mf_share_take(w->share, 0, bytes, bytes);
        mine[k] = bytes;
    }
    for (int k = 0; k < 8; k++) {
        __atomic_fetch_sub(w->real, mine[k], __ATOMIC_SEQ_CST);
        mf_share_give_back(w->share, 0, mine[k]);
    }
    return NULL;
}

static _Noreturn void be_worker(const char *path, uint64_t *real, unsigned seed, int ops)
{
    mf_share share;
    if (mf_share_open(path, &share))
        _exit(2);
    pthread_t threads[THREADS];
    worker w[THREADS];
    for (unsigned t = 0; t < THREADS; t++) {
        w[t] = (worker){&share, real, seed * THREADS + t, ops, false};
        pthread_create(&threads[t], NULL, work, &w[t]);
    }
    bool over = false;
    for (int t = 0; t < THREADS; t++) {
        pthread_join(threads[t], NULL);
        over |= w[t].over;
    }
    _exit(over ? 1 : mf_share_own(&share, 0) ? 3 : 0);
}

static uint64_t *shared_words(void)
{
    uint64_t *words = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(words != MAP_FAILED);
    return words;
}

static void the_limit_is_never_passed(void **state)
{
    (void)state;
    int ops = number("SHARE_OPS", 240000) / (PROCESSES * THREADS);
    const char *path = test_path("share");
    mf_share share = new_share(path, LIMIT);
    uint64_t *real = shared_words();
    pid_t pids[PROCESSES];
    for (unsigned p = 0; p < PROCESSES; p++) {
        pids[p] = fork();
        assert_true(pids[p] >= 0);
        if (pids[p] == 0)
            be_worker(path, real, p + 1, ops);
    }
    for (int p = 0; p < PROCESSES; p++) {
        int status;
        assert_int_equal(waitpid(pids[p], &status, 0), pids[p]);
        assert_int_equal(status, 0);
    }
    assert_int_equal(*real, 0);
    assert_int_equal(mf_share_in_use(&share, 0), 0);
    assert_true(share.file->peak_bytes[0] <= LIMIT);
    mf_share_sweep(&share);
    mf_share_close(&share);
    munmap(real, 4096);
}

static uint64_t held_of_all(const mf_share_file *f)
{
    uint64_t sum = 0;
    for (int i = 0; i < MF_SHARE_SLOTS; i++)
        sum += __atomic_load_n(&f->slots[i].card[0].held, __ATOMIC_SEQ_CST);
    return sum;
}

/* Processes that are killed at any moment, and others in their place: no byte stays behind, nobody waits for the dead. */
static void kills_leak_nothing(void **state)
{
    (void)state;
    int kills = number("SHARE_KILLS", 100);
    const char *path = test_path("share");
    mf_share share = new_share(path, LIMIT);
    uint64_t *real = shared_words(); /* means nothing here: the dead do not give back */
    pid_t pids[PROCESSES] = {0};
    unsigned seed = 7, made = 0;
    for (int k = 0; k < kills + PROCESSES; k++) {
        int p = k % PROCESSES;
        if (pids[p]) {
            usleep((unsigned)rand_r(&seed) % 3000);
            kill(pids[p], SIGKILL);
            assert_int_equal(waitpid(pids[p], NULL, 0), pids[p]);
        }
        pids[p] = k < kills ? fork() : 0;
        if (k < kills && pids[p] == 0)
            be_worker(path, real, 100 + made, -1);
        made++;
        assert_true(held_of_all(share.file) <= LIMIT);
    }
    mf_share_sweep(&share);
    assert_int_equal(mf_share_in_use(&share, 0), 0);
    assert_int_equal(mf_share_ask(&share, 0, LIMIT, 0), MF_SHARE_OK);
    mf_share_close(&share);
    munmap(real, 4096);
}

/* One that dies with all of it: who asks next gets it at once, without a sweep by anybody. */
static void the_dead_are_found_when_it_matters(void **state)
{
    (void)state;
    const char *path = test_path("share");
    mf_share share = new_share(path, LIMIT);
    for (int amid = 0; amid < 2; amid++) {
        pid_t pid = fork();
        if (pid == 0) {
            mf_share mine;
            if (mf_share_open(path, &mine) || mf_share_ask(&mine, 0, LIMIT, 0))
                _exit(1);
            if (!amid)
                mf_share_take(&mine, 0, LIMIT, LIMIT);
            raise(SIGKILL);
        }
        assert_int_equal(waitpid(pid, NULL, 0), pid);
        assert_int_equal(mf_share_in_use(&share, 0), LIMIT);
        assert_int_equal(mf_share_ask(&share, 0, LIMIT, 0), MF_SHARE_OK);
        mf_share_drop(&share, 0, LIMIT);
    }
    mf_share_close(&share);
}

/* One that is stopped amid a request holds what it asked for; the others go on, and learn why they cannot have that. */
static void a_stopped_process_stops_nobody(void **state)
{
    (void)state;
    const char *path = test_path("share");
    mf_share share = new_share(path, LIMIT);
    pid_t pid = fork();
    if (pid == 0) {
        mf_share mine;
        if (mf_share_open(path, &mine) || mf_share_ask(&mine, 0, 700, 0))
            _exit(1);
        raise(SIGSTOP);
        mf_share_drop(&mine, 0, 700);
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
    assert_true(WIFSTOPPED(status));
    assert_int_equal(mf_share_ask(&share, 0, 300, 10000), MF_SHARE_OK);
    assert_int_equal(mf_share_ask(&share, 0, 300, 10000), MF_SHARE_BUSY);
    mf_share_drop(&share, 0, 300);
    kill(pid, SIGCONT);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_int_equal(mf_share_ask(&share, 0, LIMIT, 10000), MF_SHARE_OK);
    mf_share_close(&share);
}

/* What the parent holds stays the parent's; the child has a slot when it takes memory itself, and leaves the parent's
 * alone when it ends. */
static void forked_children_have_their_own(void **state)
{
    (void)state;
    mf_share share = new_share(test_path("share"), LIMIT);
    assert_int_equal(mf_share_ask(&share, 0, 400, 0), MF_SHARE_OK);
    mf_share_take(&share, 0, 400, 400);
    for (int i = 0; i < 40; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            mf_share_after_fork(&share);
            if (mf_share_own(&share, 0) != 0 || mf_share_ask(&share, 0, 600, 0) != MF_SHARE_OK)
                _exit(1);
            mf_share_take(&share, 0, 600, 600);
            if (mf_share_ask(&share, 0, 1, 0) != MF_SHARE_REFUSED)
                _exit(2);
            if (i % 2)
                mf_share_close(&share);
            _exit(0);
        }
        int status;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_int_equal(status, 0);
        assert_int_equal(mf_share_own(&share, 0), 400);
    }
    mf_share_sweep(&share);
    assert_int_equal(mf_share_in_use(&share, 0), 400);
    mf_share_close(&share);
}

static void more_processes_than_slots(void **state)
{
    (void)state;
    mf_share share = new_share(test_path("share"), LIMIT), more;
    share.file->slots_ever = MF_SHARE_SLOTS;
    assert_int_equal(mf_share_ask(&share, 0, 1, 0), MF_SHARE_OK);
    uint64_t self = share.file->slots[0].owner;
    for (int i = 0; i < MF_SHARE_SLOTS; i++)
        share.file->slots[i].owner = self;
    assert_int_equal(mf_share_open(test_path("share"), &more), MF_SHARE_OK);
    assert_int_equal(mf_share_ask(&more, 0, 1, 0), MF_SHARE_FULL);
    share.file->slots[77].owner = (uint64_t)0x7ffffff0 << 32 | 2; /* nobody */
    assert_int_equal(mf_share_ask(&more, 0, 1, 0), MF_SHARE_OK);
    assert_int_equal(more.slot, 77);
    mf_share_close(&more);
    mf_share_close(&share);
}

/* The driver is asked while a request is on its way: what it then shows may have the request in it or not, and neither makes
 * the next request fail or lets it pass by mistake. */
static void requests_on_their_way_are_not_beside(void **state)
{
    (void)state;
    mf_share a = new_share(test_path("share"), LIMIT);
    assert_int_equal(mf_share_ask(&a, 0, 400, 0), MF_SHARE_OK);
    mf_share_take(&a, 0, 400, 400);
    uint32_t slot = (uint32_t)a.slot;
    const uint64_t *beside = &a.file->slots[slot].card[0].beside;
    mf_share_show(&a, slot, 0, mf_share_tells(&a, slot, 0), 500); /* a context of 100 */
    assert_int_equal(*beside, 100);

    mf_share_told before = mf_share_tells(&a, slot, 0);
    assert_int_equal(mf_share_ask(&a, 0, 300, 0), MF_SHARE_OK);
    mf_share_show(&a, slot, 0, before, 800); /* the driver has given it, the process has not yet said so */
    assert_int_equal(*beside, 100);
    mf_share_show(&a, slot, 0, mf_share_tells(&a, slot, 0), 500); /* the driver has not given it yet */
    assert_int_equal(*beside, 100);
    mf_share_show(&a, slot, 0, mf_share_tells(&a, slot, 0), 830); /* a module came meanwhile */
    assert_int_equal(*beside, 130);
    before = mf_share_tells(&a, slot, 0);
    mf_share_take(&a, 0, 300, 300);
    mf_share_show(&a, slot, 0, before, 800);
    assert_int_equal(*beside, 130);
    assert_int_equal(mf_share_ask(&a, 0, 170, 0), MF_SHARE_OK); /* all that is left */
    mf_share_drop(&a, 0, 170);

    before = mf_share_tells(&a, slot, 0);
    mf_share_give_back(&a, 0, 300);
    mf_share_show(&a, slot, 0, before, 830); /* shown before it was given back */
    assert_int_equal(*beside, 130);
    assert_int_equal(mf_share_ask(&a, 0, 470, 0), MF_SHARE_OK);
    mf_share_drop(&a, 0, 470);
    mf_share_show(&a, slot, 0, mf_share_tells(&a, slot, 0), 450); /* at rest: as it is shown */
    assert_int_equal(*beside, 50);
    mf_share_close(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_process),
        cmocka_unit_test(strange_files_are_refused),
        cmocka_unit_test(the_limit_is_never_passed),
        cmocka_unit_test(kills_leak_nothing),
        cmocka_unit_test(the_dead_are_found_when_it_matters),
        cmocka_unit_test(a_stopped_process_stops_nobody),
        cmocka_unit_test(forked_children_have_their_own),
        cmocka_unit_test(more_processes_than_slots),
        cmocka_unit_test(requests_on_their_way_are_not_beside),
    };
    return cmocka_run_group_tests(tests, test_folder_make, test_folder_drop);
}
