/*
 * pack_search.c: is there a packing with this capacity? A depth-first search over skylines.
 *
 *     offset                            The skyline: how high each section is filled. An unplaced buffer cannot lie
 *       |        ____                   lower than `at`, the highest floor under its lifetime. A section's floor is
 *       |  _____|    |___    ___        the least `at` of the unplaced buffers that cross it: below that it stays
 *       | |              |  |   |       empty for ever, and that is lost.
 *       | |    placed    |__|   |
 *       +------------------------ sections (time)
 *                         ^^ a valley: a run of sections at one floor, both neighbours higher
 *
 * Branching. Take a section of a valley. The buffers that could lie on its floor lie wholly inside the valley (one that
 * crossed a wall could not lie this low), so putting one there decides about nothing else. Left branch: buffer j lies
 * on the floor. Right branch, when the left one failed: no packing has j there, so j rests on some other unplaced
 * buffer k, and at(j) rises to the least end any such k can have. The right branch is a loop in the same node: with the
 * raised `at` floors rise, another section may be the tightest one, and when the floor of a section has risen too far
 * the node has failed. Any valley may be taken, not only the lowest: that is what lets forced moves, a section with one
 * choice and no slack, be made at once wherever they are.
 *
 * Bound. In one section the unplaced buffers are jobs on one machine, `at` their release: taken by ascending `at`, the
 * end of the last one is the least possible top of this section. One above the capacity and the node has failed.
 *
 * Exchange. If j spans its valley from wall to wall, all that could lie between the floor and j, as long as j is below
 * the walls, lies inside the valley too and could be moved above j. So when j on the floor has failed, at(j) rises to
 * the lower wall; at a part's ends the walls are infinite. Twins (same life, size, alignment) rise together.
 *
 * Parts. When no unplaced buffer lives across a border any more, the sides are searched one after the other, the
 * smaller first, and the failure of one is the failure of both.
 *
 * Memory of failures. A state is the set of unplaced buffers with their `at`; its 64-bit hash with the capacity goes to
 * a table when it was searched to the end in vain, and is valid for all capacities up to that one, all orders and both
 * directions of time. (A proof so rests on hashes: a false match in 10^8 look-ups has a chance of some 3 in a million.
 * Packings do not: the validator sees them.)
 *
 * The idea of floors, remaining totals and splitting is in Moffitt's MiniMalloc paper (ASPLOS 2023), which places by
 * ascending offset over the whole width; that order was not built here, so the two were not compared node by node.
 */
#include "pack/pack_search.h"

#include "base/error.h"

#include <string.h>

/* Heights stay below 2^28. An alignment above WIDE leaves only the offset 0, and so does WIDE itself. */
enum { HIGH = 1 << 30, WIDE = 1 << 29 };

struct mf_pack_known {
    uint64_t hash;
    int32_t capacity;
};

memfit_status mf_pack_search_init(mf_pack_search *q, const mf_pack_problem *problem, mf_arena *arena, size_t count,
                                  size_t sections, uint64_t scale, unsigned known_bits, memfit_error *err)
{
    *q = (mf_pack_search){.problem = problem, .scale = scale, .can_shift = !problem->any_align};
    /* A node keeps three lists of its items and two of those it raised; along a path they get shorter by one each.
     * Should it not be enough, a search ends as stopped. Not from the arena, which would touch all of it. */
    q->stack_size = 2 * count * count + 64 * count + 1024;
    q->known_bits = count < 100 ? 14 : known_bits;
    struct {
        int32_t **array;
        size_t length;
    } arrays[] = {
        {&q->s0, count},
        {&q->s1, count},
        {&q->size, count},
        {&q->align, count},
        {&q->at, count},
        {&q->offset, count},
        {&q->crossing, sections + 1},
        {&q->floor, sections + 1},
        {&q->top, sections + 1},
        {&q->choices, sections + 1},
        {&q->run_end, sections + 1},
    };
    bool there = true;
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        there = (*arrays[i].array = MF_NEW_ARRAY(arena, int32_t, arrays[i].length)) && there;
    q->twin = MF_NEW_ARRAY(arena, uint32_t, count);
    q->item = MF_NEW_ARRAY(arena, uint32_t, count);
    q->pairs = MF_NEW_ARRAY(arena, mf_pack_pair, count);
    q->scratch = MF_NEW_ARRAY(arena, mf_pack_pair, count);
    q->known = MF_NEW_ARRAY(arena, mf_pack_known, (size_t)1 << q->known_bits);
    q->stack = mf_host_alloc(problem->host, q->stack_size * sizeof *q->stack);
    if (!there || !q->twin || !q->item || !q->pairs || !q->scratch || !q->known || !q->stack)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "packing: no host memory to search %zu buffers", count);
    return MEMFIT_OK;
}

void mf_pack_search_destroy(mf_pack_search *q)
{
    if (q->stack)
        mf_host_free(q->problem->host, q->stack, q->stack_size * sizeof *q->stack);
    q->stack = NULL;
}

/* ---- loading a part ---- */

static uint64_t next_random(uint64_t *state)
{
    *state += UINT64_C(0x9E3779B97F4A7C15);
    uint64_t z = (*state ^ (*state >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

static double key_of(const mf_pack_problem *p, const mf_pack_item *it, char letter, bool reversed, uint64_t *seed)
{
    uint32_t birth = reversed ? (uint32_t)p->sections - it->s1 : it->s0;
    uint32_t death = reversed ? (uint32_t)p->sections - it->s0 : it->s1;
    switch (letter) {
    case 'T':
        return (double)it->crossed;
    case 'W':
        return (double)it->life;
    case 'Z':
        return (double)it->size;
    case 'A':
        return (double)it->size * (double)it->life;
    case 'C':
        return (double)(it->s1 - it->s0);
    case 'L':
        return (double)p->sections - birth;
    case 'U':
        return (double)death;
    default:
        return (double)(next_random(seed) >> 12);
    }
}

/* Local numbers by the config's letters; the bits of positive doubles sort like the doubles. */
static void sort_items(mf_pack_search *q, const mf_pack_part *part, const mf_pack_config *config)
{
    uint64_t seed = config->seed;
    for (uint32_t i = 0; i < part->count; i++)
        q->pairs[i].value = part->items[i];
    for (size_t letter = strlen(config->order); letter-- > 0;) {
        for (uint32_t i = 0; i < part->count; i++) {
            const mf_pack_item *it = &q->problem->items[q->pairs[i].value];
            double key = key_of(q->problem, it, config->order[letter], config->reversed, &seed);
            if (config->noise > 0)
                key *= 1 - config->noise * (double)(next_random(&seed) >> 11) * 0x1p-53;
            uint64_t bits;
            memcpy(&bits, &key, sizeof bits);
            q->pairs[i].key = ~bits;
        }
        mf_pack_sort(q->pairs, q->scratch, part->count);
    }
}

/* Items that can be exchanged get the same number: the least of theirs. */
static void mark_twins(mf_pack_search *q)
{
    size_t n = (size_t)q->count;
    for (size_t i = 0; i < n; i++) {
        uint64_t life = (uint64_t)(uint32_t)q->s0[i] << 32 | (uint32_t)q->s1[i];
        uint64_t rest = (uint64_t)(uint32_t)q->size[i] << 32 | (uint32_t)q->align[i];
        q->pairs[i] =
            (mf_pack_pair){life * UINT64_C(0x9E3779B97F4A7C15) ^ rest * UINT64_C(0xC2B2AE3D27D4EB4F), (uint32_t)i};
    }
    mf_pack_sort(q->pairs, q->scratch, n);
    for (size_t i = 0, end; i < n; i = end) {
        uint32_t a = q->pairs[i].value, least = q->item[a];
        for (end = i + 1; end < n; end++) {
            uint32_t b = q->pairs[end].value;
            if (q->s0[a] != q->s0[b] || q->s1[a] != q->s1[b] || q->size[a] != q->size[b] || q->align[a] != q->align[b])
                break;
            least = q->item[b] < least ? q->item[b] : least;
        }
        for (size_t k = i; k < end; k++)
            q->twin[q->pairs[k].value] = least;
    }
}

void mf_pack_search_load(mf_pack_search *q, const mf_pack_part *part, const mf_pack_config *config)
{
    sort_items(q, part, config);
    q->count = (int32_t)part->count;
    q->sections = (int32_t)part->sections;
    q->rule = config->rule;
    q->salt = part->first_section;
    memset(q->crossing, 0, ((size_t)q->sections + 1) * sizeof *q->crossing);
    for (int32_t i = 0; i < q->count; i++) {
        uint32_t number = q->pairs[i].value;
        const mf_pack_item *it = &q->problem->items[number];
        int32_t a = (int32_t)(it->s0 - part->first_section), b = (int32_t)(it->s1 - part->first_section);
        q->s0[i] = config->reversed ? q->sections - b : a;
        q->s1[i] = config->reversed ? q->sections - a : b;
        q->size[i] = (int32_t)((it->size + q->scale - 1) / q->scale);
        q->align[i] = it->align > WIDE ? WIDE : (int32_t)it->align; /* with alignments the scale is 1 */
        q->item[i] = number;
        q->at[i] = 0;
        for (int32_t t = q->s0[i] + 1; t < q->s1[i]; t++)
            q->crossing[t]++;
    }
    mark_twins(q);
}

/* ---- the search ---- */

static inline bool overlap(const mf_pack_search *q, int32_t j, int32_t k)
{
    return q->s0[j] < q->s1[k] && q->s0[k] < q->s1[j];
}

static inline int32_t align_up(int32_t x, int32_t align)
{
    return align <= 1 ? x : (x + align - 1) / align * align;
}

static inline uint64_t state_hash(uint64_t twin, uint64_t at)
{
    uint64_t h = twin * UINT64_C(0x9E3779B97F4A7C15) ^ (at + 81) * UINT64_C(0xC2B2AE3D27D4EB4F);
    h ^= h >> 29;
    h *= UINT64_C(0xBF58476D1CE4E5B9);
    return h ^ (h >> 32);
}

/* Floors and least tops of sections [a, b); false when one is above the capacity. `list` ascends by `at`. Half of all
 * time is spent here: the inner loops are written for the vectoriser, and compiled twice where that helps. */
static inline __attribute__((always_inline)) bool sweep_body(const mf_pack_search *q, const int32_t *list,
                                                             int32_t count, int32_t a, int32_t b)
{
    int32_t *restrict top = q->top, *restrict floor = q->floor;
    for (int32_t s = a; s < b; s++) {
        top[s] = 0;
        floor[s] = HIGH;
    }
    for (int32_t i = 0; i < count; i++) {
        const int32_t j = list[i], at = q->at[j], size = q->size[j], end = q->s1[j];
        for (int32_t s = q->s0[j]; s < end; s++) {
            int32_t t = top[s] > at ? top[s] : at;
            top[s] = t + size;
            floor[s] = floor[s] < at ? floor[s] : at;
        }
    }
    int32_t most = 0;
    for (int32_t s = a; s < b; s++)
        most = top[s] > most ? top[s] : most;
    return most <= q->capacity;
}

static bool sweep_plain(const mf_pack_search *q, const int32_t *list, int32_t count, int32_t a, int32_t b)
{
    return sweep_body(q, list, count, a, b);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static bool sweep_avx2(const mf_pack_search *q, const int32_t *list, int32_t count,
                                                       int32_t a, int32_t b)
{
    return sweep_body(q, list, count, a, b);
}
#endif

static bool (*choose_sweep(void))(const mf_pack_search *, const int32_t *, int32_t, int32_t, int32_t)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2"))
        return sweep_avx2;
#endif
    return sweep_plain;
}

/* How many items could lie on the floor of each section; runs of equal floors. */
static void count_choices(mf_pack_search *q, const int32_t *list, int32_t count, int32_t a, int32_t b)
{
    for (int32_t s = b, end = b; s-- > a;) {
        if (s + 1 < b && q->floor[s] != q->floor[s + 1])
            end = s + 1;
        q->run_end[s] = end;
        q->choices[s] = 0;
    }
    for (int32_t i = 0; i < count; i++) {
        int32_t j = list[i];
        if (q->floor[q->s0[j]] == q->at[j] && q->run_end[q->s0[j]] >= q->s1[j])
            for (int32_t s = q->s0[j]; s < q->s1[j]; s++)
                q->choices[s]++;
    }
}

static int64_t score(const mf_pack_search *q, int32_t s)
{
    const int64_t wide = INT64_C(1) << 31;
    int64_t slack = q->capacity - q->top[s], low = q->floor[s], choices = q->choices[s] + (slack > 0);
    switch (q->rule) {
    case MF_PACK_FEWEST:
        return choices * wide + slack;
    case MF_PACK_TIGHTEST:
        return slack * wide + choices;
    case MF_PACK_FORCED_LOW:
        return choices <= 1 ? choices - wide : low * wide + slack;
    case MF_PACK_FORCED_TIGHT:
        return choices <= 1 ? choices - wide : slack * wide + low;
    case MF_PACK_LOWEST:
        return low * wide + choices;
    default:
        return choices <= 1 ? -1 : s;
    }
}

/* The section to branch at, among all valleys of [a, b); its valley is [*left, *right). */
static int32_t choose_section(const mf_pack_search *q, int32_t a, int32_t b, int32_t *left, int32_t *right)
{
    int32_t best = -1;
    int64_t best_score = 0;
    for (int32_t s = a, end; s < b; s = end) {
        end = q->run_end[s];
        int32_t low = q->floor[s];
        if (low == HIGH || (s > a && q->floor[s - 1] < low) || (end < b && q->floor[end] < low))
            continue;
        for (int32_t t = s; t < end; t++) {
            int64_t x = score(q, t);
            if (best < 0 || x < best_score) {
                best = t;
                best_score = x;
                *left = s;
                *right = end;
            }
        }
    }
    return best;
}

/* Index in `list` of the item to put on the floor of section s; one that spans the valley comes first. */
static int32_t choose_item(const mf_pack_search *q, const int32_t *list, int32_t count, int32_t s, int32_t left,
                           int32_t right, bool *spans)
{
    int32_t best = -1, floor = q->floor[s];
    *spans = false;
    for (int32_t i = 0; i < count && q->at[list[i]] <= floor; i++) {
        int32_t j = list[i];
        if (q->at[j] != floor || q->s0[j] > s || q->s1[j] <= s)
            continue;
        bool span = q->can_shift && q->s0[j] == left && q->s1[j] == right;
        if (best < 0 || (span && !*spans) || (span == *spans && j < list[best])) {
            best = i;
            *spans = span;
        }
    }
    return best;
}

static mf_pack_verdict solve(mf_pack_search *q, const int32_t *list, int32_t count, int32_t a, int32_t b);

/* The unplaced items of [a, b), cut where nothing crosses: each piece on its own, the smallest first. */
static mf_pack_verdict solve_pieces(mf_pack_search *q, const int32_t *list, int32_t count, int32_t a, int32_t b)
{
    typedef struct {
        int32_t a, b, count, from;
    } piece;
    size_t used = q->stack_used, most = (size_t)(b - a) * 4 + (size_t)count;
    if (used + most > q->stack_size)
        return MF_PACK_STOPPED;
    piece *pieces = (piece *)(void *)(q->stack + used);
    int32_t *lists = q->stack + used + (size_t)(b - a) * 4, filled = 0, piece_count = 0;
    q->stack_used += most;
    for (int32_t s = a, end; s < b; s = end) {
        for (end = s + 1; end < b && q->crossing[end] > 0;)
            end++;
        piece p = {s, end, 0, filled};
        for (int32_t i = 0; i < count; i++)
            if (q->s0[list[i]] >= s && q->s0[list[i]] < end)
                lists[filled++] = list[i];
        p.count = filled - p.from;
        if (!p.count)
            continue;
        int32_t k = piece_count++;
        for (; k > 0 && pieces[k - 1].count > p.count; k--)
            pieces[k] = pieces[k - 1];
        pieces[k] = p;
    }
    mf_pack_verdict verdict = MF_PACK_FOUND;
    for (int32_t k = 0; k < piece_count && verdict == MF_PACK_FOUND; k++)
        verdict = solve(q, lists + pieces[k].from, pieces[k].count, pieces[k].a, pieces[k].b);
    q->stack_used = used;
    return verdict;
}

/* Left branch: list[index] on its floor. Everything is as before when it returns, but q->offset. */
static mf_pack_verdict place(mf_pack_search *q, const int32_t *list, int32_t count, int32_t index, int32_t a, int32_t b)
{
    const int32_t j = list[index], top = q->at[j] + q->size[j];
    size_t used = q->stack_used;
    if (used + 3 * (size_t)count > q->stack_size)
        return MF_PACK_STOPPED;
    int32_t *next = q->stack + used, *raised = next + count;
    int32_t kept = 0, raised_count = 0;
    bool fits = true;
    for (int32_t i = 0; i < count; i++) {
        int32_t k = list[i];
        if (k == j)
            continue;
        if (q->at[k] < top && overlap(q, j, k))
            raised[raised_count++] = k;
        else
            next[kept++] = k;
    }
    int32_t *before = raised + raised_count;
    for (int32_t r = 0; r < raised_count; r++) {
        int32_t k = raised[r];
        before[r] = q->at[k];
        q->at[k] = align_up(top, q->align[k]);
        fits = fits && q->at[k] + q->size[k] <= q->capacity;
        int32_t i = kept++;
        for (; i > 0 && q->at[next[i - 1]] > q->at[k]; i--)
            next[i] = next[i - 1];
        next[i] = k;
    }
    q->offset[j] = q->at[j];
    mf_pack_verdict verdict = MF_PACK_FAILED;
    if (fits) {
        q->stack_used += (size_t)count + 2 * (size_t)raised_count;
        bool cut = false;
        for (int32_t t = q->s0[j] + 1; t < q->s1[j]; t++)
            cut = --q->crossing[t] == 0 || cut;
        verdict = cut ? solve_pieces(q, next, count - 1, a, b) : solve(q, next, count - 1, a, b);
        for (int32_t t = q->s0[j] + 1; t < q->s1[j]; t++)
            q->crossing[t]++;
        q->stack_used = used;
    }
    for (int32_t r = 0; r < raised_count; r++)
        q->at[raised[r]] = before[r];
    return verdict;
}

/* The least `at` among the items that live in section s. */
static int32_t floor_of(const mf_pack_search *q, const int32_t *list, int32_t count, int32_t s)
{
    for (int32_t i = 0; i < count; i++)
        if (q->s0[list[i]] <= s && s < q->s1[list[i]])
            return q->at[list[i]];
    return HIGH;
}

/* Right branch: j does not lie on its floor. Raises it and its twins; false when there is no room left for it. */
static bool raise_item(mf_pack_search *q, int32_t *list, int32_t count, int32_t j, int32_t wall)
{
    int32_t least = HIGH, floor = q->at[j];
    for (int32_t i = 0; i < count; i++) {
        int32_t k = list[i];
        if (k != j && overlap(q, j, k) && q->at[k] + q->size[k] < least)
            least = q->at[k] + q->size[k];
    }
    least = align_up(least > wall ? least : wall, q->align[j]);
    if (least > q->capacity - q->size[j])
        return false;
    for (int32_t i = count; i-- > 0;) { /* from the end, so that what moves up is not met again */
        int32_t k = list[i];
        if (q->twin[k] != q->twin[j] || q->at[k] != floor)
            continue;
        q->at[k] = least;
        int32_t at = i;
        for (; at + 1 < count && q->at[list[at + 1]] < least; at++)
            list[at] = list[at + 1];
        list[at] = k;
    }
    return true;
}

/* One node: all ways to place the items of `from`, which ascend by `at` and live in [a, b) connected. */
static mf_pack_verdict solve(mf_pack_search *q, const int32_t *from, int32_t count, int32_t a, int32_t b)
{
    if (count == 0)
        return MF_PACK_FOUND;
    size_t used = q->stack_used;
    if (used + 2 * (size_t)count > q->stack_size)
        return MF_PACK_STOPPED;
    int32_t *list = q->stack + used, *before = list + count;
    q->stack_used += 2 * (size_t)count;
    memcpy(list, from, (size_t)count * sizeof *list);
    for (int32_t i = 0; i < count; i++)
        before[i] = q->at[from[i]];
    mf_pack_verdict verdict = MF_PACK_FAILED;
    uint64_t entry = 0;
    for (bool first = true;; first = false) {
        if (++q->nodes >= q->node_limit || ((q->nodes & 255) == 0 && q->stop && q->stop(q->stop_ctx))) {
            verdict = MF_PACK_STOPPED;
            break;
        }
        uint64_t hash = q->salt;
        for (int32_t i = 0; i < count; i++)
            hash += state_hash(q->twin[list[i]], (uint64_t)q->at[list[i]]);
        const mf_pack_known *known = &q->known[hash >> (64 - q->known_bits)];
        if (first)
            entry = hash;
        if (known->hash == hash && known->capacity >= q->capacity)
            break;
        if (!q->sweep(q, list, count, a, b))
            break;
        count_choices(q, list, count, a, b);
        int32_t left = a, right = b;
        int32_t s = choose_section(q, a, b, &left, &right);
        bool spans;
        int32_t index = choose_item(q, list, count, s, left, right, &spans), j = list[index];
        verdict = place(q, list, count, index, a, b);
        if (verdict != MF_PACK_FAILED)
            break;
        int32_t wall = 0;
        if (spans) {
            int32_t before_it = left > a ? floor_of(q, list, count, left - 1) : HIGH;
            int32_t behind_it = right < b ? floor_of(q, list, count, right) : HIGH;
            wall = before_it < behind_it ? before_it : behind_it;
        }
        if (!raise_item(q, list, count, j, wall))
            break;
    }
    for (int32_t i = 0; i < count; i++)
        q->at[from[i]] = before[i];
    q->stack_used = used;
    if (verdict == MF_PACK_FAILED) {
        mf_pack_known *known = &q->known[entry >> (64 - q->known_bits)];
        *known = (mf_pack_known){entry, q->capacity};
    }
    return verdict;
}

mf_pack_verdict mf_pack_search_run(mf_pack_search *q, int32_t capacity, uint64_t node_limit)
{
    q->capacity = capacity;
    q->sweep = choose_sweep();
    q->nodes = 0;
    q->node_limit = node_limit;
    q->stack_used = (size_t)q->count;
    for (int32_t i = 0; i < q->count; i++)
        q->stack[i] = i;
    return solve(q, q->stack, q->count, 0, q->sections);
}
