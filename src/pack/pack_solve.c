/*
 * pack_solve.c: which searches are run, by whom, and when to stop.
 *
 * The search is heavy-tailed: for nearly every problem some order and rule solve it in about as many nodes as there are
 * buffers, and most others do not in a million. So many short searches beat one long one. A cycle runs every rule with
 * every order in both directions of time under a small limit of nodes; the next cycle allows twice as many and shakes
 * the orders at random.
 *
 * With a capacity all searches ask for it. Without one they take turns: one asks for the bound, the other for a height
 * between the bound and the best known, half way at first, nearer to the best as that keeps failing. A search that ran
 * to its end in vain raises the bound.
 *
 * Threads take the next search from one list under a lock and report to it; each has a workspace of its own. One thread
 * alone runs in the caller.
 */
#include "pack/pack_solve.h"

#include "base/error.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

static const char *const orders[] = {"TWA", "ZWT", "AWT", "TAW", "TZW", "CTZ", "UWT", "RRR"};
enum { ORDERS = sizeof orders / sizeof *orders, CYCLE = ORDERS * MF_PACK_RULE_COUNT * 2, PATIENCE = 16 };

typedef struct course { /* the searches of one part */
    mf_pack_part part;
    uint32_t *whole; /* its whole-life items */
    uint32_t whole_count;
    _Atomic uint64_t height; /* = part.height, read without the lock to stop what is no longer wanted */
    uint64_t turn;
    uint64_t asked[2]; /* searches: at the bound, between */
    uint64_t divisor;  /* the distance to the bound is divided by this */
    unsigned failures;
} course;

typedef struct solver {
    const mf_pack_problem *problem;
    const mf_pack_solve_options *options;
    course *courses;
    size_t course_count;
    uint64_t scale;
    uint64_t goal; /* units: a capacity, or 0 */
    uint64_t *best;
    bool improved;
    pthread_mutex_t lock;
    pthread_cond_t ended;
    unsigned running;
    _Atomic bool done;
    _Atomic uint64_t nodes;
} solver;

typedef struct worker {
    solver *solver;
    mf_pack_search search;
    course *course;
    uint64_t target;
    pthread_t thread;
} worker;

static uint64_t bound_of(const solver *v)
{
    uint64_t bound = v->problem->bound;
    for (size_t i = 0; i < v->course_count; i++)
        bound = v->courses[i].part.bound > bound ? v->courses[i].part.bound : bound;
    return bound;
}

/* What the next search should ask for; NULL when nothing is left to do. Under the lock. */
static course *next_search(solver *v, mf_pack_config *config, uint64_t *target, uint64_t *limit)
{
    uint64_t bound = bound_of(v), enough = v->goal > bound ? v->goal : bound;
    course *c = NULL;
    if (v->goal && bound > v->goal)
        return NULL; /* proven impossible */
    for (size_t i = 0; i < v->course_count; i++)
        if (v->courses[i].part.height > enough && (!c || v->courses[i].part.height > c->part.height))
            c = &v->courses[i];
    if (!c)
        return NULL;
    uint64_t distance = c->part.height - enough;
    bool between = !v->goal && distance > 1 && (c->turn & 1);
    c->turn++;
    uint64_t step = distance / c->divisor;
    *target = between ? c->part.height - (step ? step : 1) : enough;
    uint64_t number = c->asked[between]++, cycle = number / CYCLE, i = number % CYCLE;
    *config = (mf_pack_config){
        .order = orders[(i + i / MF_PACK_RULE_COUNT) % ORDERS],
        .rule = (mf_pack_rule)(i % MF_PACK_RULE_COUNT),
        .reversed = (i / MF_PACK_RULE_COUNT) & 1,
        .noise = cycle ? (cycle & 1 ? 0.3 : 0.05) : 0,
        .seed = v->options->seed * UINT64_C(0x9E3779B97F4A7C15) + number,
    };
    *limit = (2 * c->part.count + 300) << (cycle < 40 ? cycle : 40);
    return c;
}

/* Under the lock: a packing of a part, if it is better than the best known. */
static void keep(worker *w, course *c)
{
    solver *v = w->solver;
    const mf_pack_search *q = &w->search;
    int32_t top = 0;
    for (int32_t i = 0; i < q->count; i++)
        top = q->offset[i] + q->size[i] > top ? q->offset[i] + q->size[i] : top;
    uint64_t height = c->part.base + (uint64_t)top * v->scale;
    if (height >= c->part.height)
        return;
    c->part.height = height;
    atomic_store_explicit(&c->height, height, memory_order_relaxed);
    for (int32_t i = 0; i < q->count; i++)
        v->best[q->item[i]] = c->part.base + (uint64_t)q->offset[i] * v->scale;
    for (uint64_t i = 0, at = 0; i < c->whole_count; i++) {
        v->best[c->whole[i]] = at;
        at += v->problem->items[c->whole[i]].size;
    }
    v->improved = true;
}

static void report(worker *w, course *c, mf_pack_verdict verdict, bool between)
{
    solver *v = w->solver;
    if (verdict == MF_PACK_FOUND) {
        keep(w, c);
        c->failures = 0;
        c->divisor = c->divisor > 2 ? c->divisor / 2 : 2;
    } else if (verdict == MF_PACK_FAILED) {
        if (v->scale == 1 && w->target + 1 > c->part.bound)
            c->part.bound = w->target + 1;
    } else if (between && w->target < c->part.height && ++c->failures >= PATIENCE) {
        c->failures = 0;
        c->divisor = c->divisor < 4096 ? c->divisor * 2 : 2;
        if (c->part.height - w->target <= 1)
            c->divisor = 4; /* the smallest step failed: farther off again, with longer searches */
    }
}

/* Work of one node: the sweep over sections, and the list. */
static uint64_t node_work(const course *c)
{
    return 8 * (uint64_t)c->part.sections + 6 * (uint64_t)c->part.count + 100;
}

static bool should_stop(void *ctx)
{
    worker *w = ctx;
    solver *v = w->solver;
    return atomic_load_explicit(&v->done, memory_order_relaxed) || mf_pack_out_of_time(v->options->pace) ||
           atomic_load_explicit(&w->course->height, memory_order_relaxed) <= w->target;
}

static void *work(void *argument)
{
    worker *w = argument;
    solver *v = w->solver;
    mf_pack_pace *pace = v->options->pace;
    pthread_mutex_lock(&v->lock);
    while (!atomic_load_explicit(&v->done, memory_order_relaxed)) {
        mf_pack_config config;
        uint64_t limit;
        course *c = next_search(v, &config, &w->target, &limit);
        if (!c || mf_pack_is_late(pace)) {
            atomic_store_explicit(&v->done, true, memory_order_relaxed);
            break;
        }
        bool between = w->target > c->part.bound;
        uint64_t nodes_left = (pace->most - pace->work) / node_work(c) + 1;
        limit = limit < nodes_left ? limit : nodes_left;
        w->course = c;
        mf_pack_part part = c->part;
        pthread_mutex_unlock(&v->lock);
        mf_pack_search_load(&w->search, &part, &config);
        mf_pack_verdict verdict = mf_pack_search_run(&w->search, (int32_t)((w->target - part.base) / v->scale), limit);
        atomic_fetch_add_explicit(&v->nodes, w->search.nodes, memory_order_relaxed);
        pthread_mutex_lock(&v->lock);
        pace->work += w->search.nodes * node_work(c);
        report(w, c, verdict, between);
    }
    v->running--;
    pthread_cond_signal(&v->ended);
    pthread_mutex_unlock(&v->lock);
    return NULL;
}

/* ---- parts ---- */

/* Cuts the items (by birth) where no lifetime crosses, and strips the whole-life ones. */
static memfit_status make_courses(solver *v, mf_arena *arena, memfit_error *err)
{
    const mf_pack_problem *p = v->problem;
    v->courses = MF_NEW_ARRAY(arena, course, p->count);
    uint32_t *numbers = MF_NEW_ARRAY(arena, uint32_t, p->count);
    if (!v->courses || !numbers)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "packing %zu buffers: the host is out of memory", p->count);
    for (size_t i = 0, end; i < p->count; i = end) {
        uint32_t last = p->items[i].s1;
        for (end = i + 1; end < p->count && p->items[end].s0 < last; end++)
            last = p->items[end].s1 > last ? p->items[end].s1 : last;
        course *c = &v->courses[v->course_count++];
        uint32_t front = (uint32_t)i, back = (uint32_t)end;
        for (size_t k = i; k < end; k++)
            if (p->items[k].whole && !p->any_align) {
                numbers[--back] = (uint32_t)k;
                c->part.base += p->items[k].size;
            } else {
                numbers[front++] = (uint32_t)k;
            }
        c->part.items = numbers + i;
        c->part.count = front - (uint32_t)i;
        c->whole = numbers + back;
        c->whole_count = (uint32_t)end - back;
        c->part.first_section = p->items[i].s0;
        c->part.sections = last - p->items[i].s0;
        for (uint32_t s = p->items[i].s0; s < last; s++)
            c->part.bound = p->load[s] > c->part.bound ? p->load[s] : c->part.bound;
        for (size_t k = i; k < end; k++)
            if (v->best[k] + p->items[k].size > c->part.height)
                c->part.height = v->best[k] + p->items[k].size;
        atomic_init(&c->height, c->part.height);
        c->divisor = 2;
    }
    return MEMFIT_OK;
}

/* Waits for the workers and tells the caller how it goes, ten times a second. */
static void watch(solver *v)
{
    const mf_pack_solve_options *o = v->options;
    pthread_mutex_lock(&v->lock);
    while (v->running) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += 100000000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        if (pthread_cond_timedwait(&v->ended, &v->lock, &until) == 0 || !o->progress)
            continue;
        uint64_t height = 0, bound = bound_of(v);
        for (size_t i = 0; i < v->course_count; i++)
            height = v->courses[i].part.height > height ? v->courses[i].part.height : height;
        pthread_mutex_unlock(&v->lock);
        if (!o->progress(o->progress_ctx, height, bound, atomic_load_explicit(&v->nodes, memory_order_relaxed)))
            atomic_store_explicit(&v->done, true, memory_order_relaxed);
        pthread_mutex_lock(&v->lock);
    }
    pthread_mutex_unlock(&v->lock);
}

static void run_workers(solver *v, worker *workers, unsigned threads)
{
    pthread_attr_t attributes;
    unsigned started = 0;
    if ((threads > 1 || v->options->progress) && pthread_attr_init(&attributes) == 0) {
        pthread_attr_setstacksize(&attributes, (size_t)16 << 20);
        pthread_mutex_lock(&v->lock);
        while (started < threads && pthread_create(&workers[started].thread, &attributes, work, &workers[started]) == 0)
            started++;
        v->running = started;
        pthread_mutex_unlock(&v->lock);
        pthread_attr_destroy(&attributes);
    }
    if (started) {
        watch(v);
    } else {
        v->running = 1;
        work(&workers[0]);
    }
    for (unsigned i = 0; i < started; i++)
        pthread_join(workers[i].thread, NULL);
}

memfit_status mf_pack_solve(const mf_pack_problem *p, const mf_pack_solve_options *options, uint64_t *best,
                            mf_pack_solution *solution, memfit_error *err)
{
    *solution = (mf_pack_solution){.bound = p->bound};
    if (p->any_fixed || p->count == 0)
        return MEMFIT_OK;
    mf_arena arena;
    mf_arena_init(&arena, p->host);
    solver v = {.problem = p, .options = options, .goal = options->capacity, .best = best, .scale = 1};
    unsigned threads = options->threads;
    worker *workers = MF_NEW_ARRAY(&arena, worker, threads);
    memfit_status status = workers ? make_courses(&v, &arena, err)
                                   : mf_fail(err, MEMFIT_NO_HOST_MEMORY, "packing: the host is out of memory");
    size_t items = 0, sections = 0;
    uint64_t height = 0;
    for (size_t i = 0; i < v.course_count; i++) {
        items = v.courses[i].part.count > items ? v.courses[i].part.count : items;
        sections = v.courses[i].part.sections > sections ? v.courses[i].part.sections : sections;
        height = v.courses[i].part.height > height ? v.courses[i].part.height : height;
    }
    while (height / v.scale >= (UINT64_C(1) << 28) || p->bound / v.scale >= (UINT64_C(1) << 28))
        v.scale *= 2;
    if (status || items > options->items_most || (v.scale > 1 && p->any_align))
        goto done;
    for (unsigned i = 0; i < threads && !status; i++) {
        status = mf_pack_search_init(&workers[i].search, p, &arena, items, sections, v.scale, options->known_bits, err);
        workers[i].solver = &v;
        workers[i].search.stop = should_stop;
        workers[i].search.stop_ctx = &workers[i];
    }
    if (!status) {
        pthread_mutex_init(&v.lock, NULL);
        pthread_cond_init(&v.ended, NULL);
        run_workers(&v, workers, threads);
        pthread_cond_destroy(&v.ended);
        pthread_mutex_destroy(&v.lock);
        *solution = (mf_pack_solution){bound_of(&v), atomic_load(&v.nodes), v.improved};
    }
done:
    for (unsigned i = 0; workers && i < threads; i++)
        mf_pack_search_destroy(&workers[i].search);
    mf_arena_destroy(&arena);
    return status;
}
