/*
 * state.h: the structures of a pool, for the files of this folder.
 *
 *   addresses   |--live--|hole|--live--|span: 64 KiB slabs of small slots|-----------hole-----------| tail ...
 *   pages       [ mapped ][ mapped ][ mapped ][ idle ][ none ][ none ][ mapped ] ...
 *
 * - Blocks cover the whole range without gaps, in address order: live blocks, spans (which hold slabs), holes. A hole
 *   is as long as it can be. It does not matter to a hole whether there is physical memory behind it.
 * - Physical memory is handles of one page (or of several, when created in bulk), mapped somewhere in the range or
 * spare. Every page a live byte lies in is mapped. A mapped page that lies wholly in holes safe for every stream is
 * idle: it can be taken out and mapped elsewhere, or given back.
 * - Sizes up to 32 KiB live in slabs; per-thread magazines of free slots stand before them. Larger ones are blocks.
 * - A lane is a stream's own set of holes and slabs: free for work on that stream, not yet for others. Lane 0 holds
 * what is safe for all. While a pool has seen one stream only, everything is in lane 0, and pages are unmapped only
 * after waiting for that stream.
 *
 * - A thread that frees a block may keep it: the block is as before, but its word says so, and the thread's next
 * request of exactly this size has it again. Whatever needs pool->lock gives back first what its own thread keeps;
 * nobody makes or moves a page while another thread keeps a block. So a kept block costs nobody anything.
 *
 * Locks: pool->lock guards everything but the threads' caches (magazines, kept blocks, tallies). A cache is entered by
 * its own thread without any locked instruction; others, who hold pool->lock, seize it (cache.c). Cells, slot words,
 * the table of blocks and a live block's word and tag are read without a lock, as atomics.
 */
#ifndef MF_POOL_STATE_H
#define MF_POOL_STATE_H

#include "pool/fence.h"
#include "pool/pool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>

enum {
    MF_UNIT = 256,         /* placement */
    MF_SMALL_MOST = 32768, /* larger is a block of its own */
    MF_SLAB = 65536,
    MF_CELL_SHIFT = 16,   /* a cell stands for 64 KiB: a slab, or none */
    MF_LEAF_CELLS = 4096, /* a leaf covers 256 MiB */
    MF_LEAF_SHIFT = 28,
    MF_SLAB_SLOTS = 256,
    MF_CLASSES = 30,
    MF_LEVELS = 50, /* of the bins: powers of two */
    MF_STEP_BITS = 6,
    MF_STEPS = 1 << MF_STEP_BITS, /* of the bins: per power of two */
    MF_LOOK = 16,                 /* entries of a bin looked at for a better fit */
    MF_LANES = 64,                /* streams a pool can tell apart */
    MF_SHADOWS = 2048,
    MF_TIERS = 8, /* sizes of handles */
    MF_PRESSURES = 8,
    MF_MAGAZINE = 64,
    MF_KEPT = 8,      /* blocks a thread keeps */
    MF_CACHE_AT = 64, /* a power of two */
    MF_DRIFT = 65536, /* bytes a thread's tally may rise before it is folded */
    MF_OWNER_CHUNK = 256,
    MF_OWNERS_MOST = 65536,
    MF_MOVE_SHARE = 100,       /* of the elapsed time, one part may go into moving pages */
    MF_MOVE_WINDOW = 10000000, /* microseconds over which this holds */
};

/* ---- blocks ----------------------------------------------------------------------------------------------- */

typedef enum mf_block_state {
    MF_HOLE,
    MF_LIVE,
    MF_SPAN,
    MF_HELD, /* freed, but a further stream may still use it (fence.c) */
} mf_block_state;

typedef struct mf_span mf_span;

struct mf_block {
    uint64_t start, bytes; /* offset in the range; multiples of MF_UNIT */
    mf_block *before, *after;
    union {
        mf_block *bin_before; /* hole */
        _Atomic uint64_t tag; /* live: mark << 32 | owner << 16 | bytes not asked for */
        mf_span *span;        /* span */
    };
    mf_block *bin_after;   /* hole */
    _Atomic uint64_t word; /* live: start | MF_WORD_LIVE or MF_WORD_KEPT; otherwise 0. A thread that frees what is no
                              longer there may look at it at any time, so it is never anything else */
    uint64_t serial : 48;  /* hole in a lane: that lane's count of frees when it last grew */
    uint64_t lane : 8;     /* hole: whose it is; live: the lane it was asked on */
    uint64_t state : 8;
};
#define MF_SERIAL_MOST ((UINT64_C(1) << 48) - 1) /* a year of ten million frees a second */
_Static_assert(sizeof(mf_block) == 64, "a block's record is a line of the cache");

#define MF_WORD_LIVE UINT64_C(1)
#define MF_WORD_KEPT UINT64_C(3) /* freed, in the cache of a thread */
/* Not asked for are an alignment unit and a guard at most. */
#define MF_TAG_REST(tag)  ((tag)&0xffff)
#define MF_TAG_OWNER(tag) ((uint32_t)((tag) >> 16) & 0xffff)
#define MF_TAG_MARK(tag)  ((tag) >> 32)

static inline uint64_t mf_block_tag(const mf_block *b)
{
    return atomic_load_explicit(&((mf_block *)b)->tag, memory_order_relaxed);
}
static inline bool mf_block_live(const mf_block *b) /* and not kept */
{
    return b->state == MF_LIVE &&
           atomic_load_explicit(&((mf_block *)b)->word, memory_order_relaxed) == (b->start | MF_WORD_LIVE);
}

/* Live blocks by address: open addressing, at most half full. Read without a lock: a reader may miss a block or be led
 * to another one, which the block's word tells. Old tables stay until the pool ends. */
typedef struct mf_table {
    uint64_t size;
    unsigned shift;
    struct mf_table *older;
    struct mf_entry {
        _Atomic uint64_t key; /* start + 1; 0: empty */
        _Atomic(mf_block *) block;
    } entry[];
} mf_table;

/* Holes by size: level and step as in two-level segregated fit, so that finding is two bit scans. */
typedef struct mf_bins {
    uint64_t levels;
    uint64_t steps[MF_LEVELS];
    mf_block *first[MF_LEVELS][MF_STEPS];
} mf_bins;

/* ---- slabs ------------------------------------------------------------------------------------------------ */

/* A slot's word: 0 when free, otherwise LIVE | mark << 33 | owner << 17 | asked. */
#define MF_SLOT_LIVE       (UINT64_C(1) << 63)
#define MF_SLOT_MARK_SHIFT 33
#define MF_SLOT_MARK_MOST  ((UINT64_C(1) << 30) - 1)
#define MF_SLOT_OWNER(w)   ((uint32_t)((w) >> 17) & 0xffff)
#define MF_SLOT_ASKED(w)   ((w)&0x1ffff)

/* What all slabs of a class have in common. */
typedef struct mf_shape {
    uint32_t slot_bytes, inverse; /* index = offset / MF_UNIT * inverse >> 24 */
    uint32_t slots;
} mf_shape;
extern const mf_shape mf_shapes[MF_CLASSES];

/* The records of slabs lie at multiples of MF_SLAB_ALIGN, and a cell shows one as its address + its class + 1: so who
 * frees a slot need not look at the record's head, only at the slot's word. Words of two records are never on one line
 * of the cache, so threads with a slab each do not disturb each other. */
#define MF_SLAB_ALIGN 32
_Static_assert(MF_CLASSES < MF_SLAB_ALIGN, "a class and one fit below the address of a record");

struct mf_slab {
    uint64_t start;
    uint32_t slot_bytes;
    uint16_t slots, free, size_class;
    uint8_t lane;
    mf_span *span;
    mf_slab *before, *after; /* slabs of this class and lane with a free slot */
    uint64_t free_bits[MF_SLAB_SLOTS / 64];
    _Atomic uint64_t word[]; /* by mf_slot_word */
};

static inline _Atomic uint64_t *mf_slot_word(const mf_slab *slab, uint32_t index)
{
    return &((mf_slab *)slab)->word[index];
}
static inline uint64_t mf_slot_load(const mf_slab *slab, uint32_t index)
{
    return atomic_load_explicit(mf_slot_word(slab, index), memory_order_relaxed);
}
static inline void mf_slot_store(const mf_slab *slab, uint32_t index, uint64_t word)
{
    atomic_store_explicit(mf_slot_word(slab, index), word, memory_order_relaxed);
}

struct mf_span {
    mf_block *block;
    uint32_t free_slabs; /* bit i: 64 KiB at i are not used */
    uint8_t lane;
    mf_span *before, *after; /* of this lane, with room for a slab */
    mf_slab *slab[32];
};

/* ---- lanes ------------------------------------------------------------------------------------------------ */

typedef struct mf_slot_ref {
    mf_slab *slab;
    uint32_t index;
} mf_slot_ref;

typedef struct mf_lane {
    bool used;
    mf_bins bins;
    mf_slab *partial[MF_CLASSES];
    mf_span *spans;
    mf_clock clock;
    uint32_t waits; /* held blocks that wait for this stream */
    bool graph;     /* a CUDA graph's memory: never safe for others before the graph is released */
    bool leaving;   /* released, but the device has not come to rest since */
    uint32_t open, references;
    uint64_t graph_id;
    /* Slots freed on this stream that belong to another lane's slab. */
    struct mf_slot_wait {
        mf_slot_ref ref;
        uint64_t serial;
    } * slot_waits;
    size_t slot_wait_count, slot_wait_capacity;
    uint64_t pending_bytes; /* of holes and slots in this lane that are not safe for others yet */
} mf_lane;

/* ---- pages ------------------------------------------------------------------------------------------------ */

typedef struct mf_handle mf_handle;
struct mf_handle {
    mf_physical physical;
    uint64_t page;  /* where it is mapped, when mapped */
    uint32_t pages; /* 1, or more when made in bulk */
    bool mapped;
    uint32_t shadows; /* old mappings that are still to be undone (shadows.c) */
    mf_handle *next;  /* spare or unused records */
};

typedef struct mf_pages {
    uint64_t bytes, shift; /* of a page */
    uint64_t covered;      /* pages the arrays below reach */
    uint64_t top;          /* no page at or above this is mapped */
    uint64_t *mapped, *idle, *shadowed;
    mf_handle **handle;
    mf_handle *spare[MF_TIERS];    /* by size */
    mf_handle *unclean;            /* mapped, but neither usable nor unmappable when last tried: a device fault */
    mf_handle *unused;             /* records */
    int64_t move_credit_us;        /* time that may still be spent on moving pages while there is room to grow */
    uint64_t credit_at_us;         /* when it was last added to */
    uint64_t made_now;             /* pages created by the request at work, */
    uint64_t making_us;            /* and the time it took */
    uint32_t tier_pages[MF_TIERS]; /* the sizes of handles, smallest first: one page, ... */
    unsigned tiers;
    uint64_t part;     /* no handle is made that is more than one part in so many of what is reserved; 0: no matter */
    uint64_t idle_top; /* no word of idle above this has a bit */
    uint64_t spare_count; /* pages in spare handles */
    uint64_t reserved, reserved_peak;
    uint64_t idle_count; /* set bits of idle */
    uint64_t mapped_count;
    uint64_t low_idle;    /* fewest idle pages since the last purge */
    uint64_t purge_at_us; /* when the next purge is due */
    uint64_t *freed;      /* single stream: the count of frees when the page became idle */
    struct mf_shadow {
        uint64_t page;
        mf_handle *handle;
        uint64_t serial; /* with several streams: it can go when the lane's stream has come so far */
        unsigned lane;
    } shadow[MF_SHADOWS];
    unsigned shadow_count;
    uint64_t stamp_until; /* from this count of frees on, pages are not stamped and no events put behind frees */
} mf_pages;

/* ---- ledger ----------------------------------------------------------------------------------------------- */

typedef struct mf_tally { /* a thread's part: what changed since it was last folded into the pool's */
    _Atomic int64_t now, top;
} mf_tally;

typedef struct mf_owner_tally {
    mf_tally bytes;
    _Atomic uint64_t allocations, frees; /* the kinds' and the total's are their owners' sums */
    memfit_kind kind;
} mf_owner_tally;

typedef struct mf_account { /* the pool's own */
    uint64_t now, peak, allocations, frees;
} mf_account;

typedef struct mf_owner {
    mf_account account;
    uint64_t at_mark; /* bytes when the last mark was set */
    uint32_t grown;
    memfit_kind kind;
    char name[64];
} mf_owner;

typedef struct mf_at_hand { /* a free slot */
    _Atomic uint64_t *word;
    uint64_t offset;
} mf_at_hand;

typedef struct mf_magazine {
    uint32_t count, most;
    mf_at_hand *item;
} mf_magazine;

typedef struct mf_kept {
    uint64_t bytes;
    mf_block *block;
} mf_kept;

typedef struct mf_cache {           /* of one thread in one pool */
    _Alignas(64) _Atomic bool busy; /* its thread is inside */
    _Atomic bool wanted;            /* someone else is, or wants to be */
    bool in_use;                    /* a thread has it */
    _Atomic uint32_t kept_count;    /* changed inside only; others read it as a hint */
    uint32_t owner_known;           /* owners below have a tally that knows their kind */
    mf_owner_tally *owner;
    mf_tally total, kind[MEMFIT_KIND_COUNT];
    mf_kept kept[MF_KEPT];    /* in the order they were freed */
    _Atomic uintptr_t thread; /* whose it is; 0: nobody's */
    struct mf_cache *next;
    memfit_pool *pool;
    void *memory; /* what it lies in */
    uint32_t owner_capacity;
    mf_magazine magazine[MF_CLASSES];
    mf_at_hand items[]; /* what the magazines point into */
} mf_cache;

typedef struct mf_pressure {
    memfit_pressure_fn fn;
    void *ctx;
} mf_pressure;

/* Why the last attempt found no place; read by the explanation. */
typedef enum mf_refusal {
    MF_REFUSED_NOT,
    MF_REFUSED_LIMIT,   /* the pool's limit */
    MF_REFUSED_BUDGET,  /* the device's other pools */
    MF_REFUSED_DEVICE,  /* the device said no: others have it, or a fault */
    MF_REFUSED_STREAM,  /* pages are there, but a stream may still use them */
    MF_REFUSED_ADDRESS, /* no addresses */
    MF_REFUSED_HOST,    /* no host memory */
} mf_refusal;

#define MF_POOL_ALIVE 0x6c6f6f706d656d66u
#define MF_POOL_DEAD  0x646165646c6f6f70u

struct memfit_pool {
    /* what the hot path reads, and nobody writes while it runs */
    _Atomic uint64_t magic;
    _Atomic uint64_t pass; /* MF_POOL_ALIVE ^ the stream whose calls may go to threads' caches; 0: none */
    mf_address range;
    uint64_t range_bytes;
    _Atomic(uintptr_t *) *leaf; /* slabs by address: leaf[offset >> 28][offset >> 16 & 4095] */
    _Atomic uint32_t owner_count;
    _Atomic(mf_table *) table;
    _Atomic bool cached;   /* threads have magazines: one stream so far, not debug */
    _Atomic bool keeps;    /* and may keep blocks (mf_pool_decide_keeping) */
    bool fenced;           /* entering a cache needs a fence: the system has no barrier for all threads */
    _Atomic uint64_t home; /* the only stream seen so far */
    _Atomic(mf_pool_hook) hook;
    void *hook_ctx;
    struct memfit_recorder *trace_file; /* made for MEMFIT_TRACE */
    _Atomic uint64_t slot_bits,
        tag_bits; /* what is the same in every slot's word and block's tag until the next mark */
    pthread_key_t key;
    bool have_key;
    _Atomic(mf_cache *) cache_at[MF_CACHE_AT]; /* threads' caches, for finding them quickly */
    unsigned char class_of[MF_SMALL_MOST / MF_UNIT + 1];
    mf_owner *owner_chunk[MF_OWNERS_MOST / MF_OWNER_CHUNK];

    _Alignas(64) pthread_mutex_t lock;
    mf_device *device;
    const memfit_host *host;
    memfit_pool_options options;
    char name[64];
    memfit_pool *next, *previous; /* of this device */
    _Atomic bool pays_fixed;
    bool shown;           /* in the device's list */
    uint64_t share_bytes; /* a slice: what it took out of the device's budget */
    bool multi;           /* more than one stream has been seen */
    bool debug;

    mf_block *first, *tail; /* address order; tail is the last hole, without end for all purposes */
    uint64_t table_used;
    mf_block *unused_blocks;
    uint64_t unused_block_count;
    mf_arena arena; /* records of blocks, handles, spans */
    mf_span *unused_spans;
    mf_slab *unused_slabs[MF_CLASSES];
    char *slab_records, *slab_records_end; /* room for more of them */
    mf_lane *lane[MF_LANES];
    unsigned lane_count;
    mf_fence fence;

    mf_pages pages;
    memfit_policy policy;
    uint64_t limit_bytes, soft_limit_bytes, purge_us;
    uint64_t span_bytes;
    mf_pressure pressure[MF_PRESSURES];
    unsigned pressure_count;

    mf_account total, kind[MEMFIT_KIND_COUNT];
    uint32_t *owner_table; /* hash of kind and name -> owner + 1 */
    size_t owner_table_size;
    mf_cache *caches;         /* a list that only grows */
    uint64_t block_bytes;     /* address space of live blocks, the kept among them */
    uint64_t slab_bytes;      /* of slabs */
    uint64_t slab_free_bytes; /* of them: slots not handed out, neither to a block nor to a magazine */
    _Atomic uint64_t marks;
    uint64_t failures, remaps, remapped_pages, created_pages, released_pages, stream_waits, frees_central;
    uint64_t moving_us; /* time that went into moving pages */
    uint64_t central_calls;
    uint64_t remaps_seen, remaps_at; /* the central call when they last became more; 0: never */
    uint64_t remapped_now;           /* pages moved by the request at work */
    uint64_t host_bytes;             /* outside the arena */

    mf_refusal refusal;
    uint64_t refused_pages;  /* what the best place would still have needed */
    memfit_error refused_by; /* the device's own words */
    void *explain;           /* what the explanation keeps in reserve */
    void *shell_memory;
    uint64_t born; /* as magic, but not in the first page, which a child of fork does not see */
};
_Static_assert(offsetof(memfit_pool, born) >= 4096, "beyond the page that is empty in a child");

#define MF_BEYOND    UINT64_MAX
#define MF_NO_STREAM UINT64_MAX

static inline void mf_pass_set(memfit_pool *pool) /* after cached or home changed */
{
    uint64_t home = atomic_load(&pool->home);
    atomic_store(&pool->pass, atomic_load(&pool->cached) && home != MF_NO_STREAM ? MF_POOL_ALIVE ^ home : 0);
}
/* A living pool, threads have caches, and this is the only stream. */
static inline bool mf_pass(memfit_pool *pool, mf_stream stream)
{
    return pool && atomic_load_explicit(&pool->pass, memory_order_acquire) == (MF_POOL_ALIVE ^ stream);
}

static inline uint64_t mf_round_up(uint64_t n, uint64_t to)
{
    return (n + to - 1) / to * to;
}

static inline uintptr_t mf_cell_load(memfit_pool *pool, uint64_t offset)
{
    uintptr_t *leaf = atomic_load_explicit(&pool->leaf[offset >> MF_LEAF_SHIFT], memory_order_acquire);
    if (!leaf)
        return 0;
    _Atomic uintptr_t *cell = (_Atomic uintptr_t *)&leaf[offset >> MF_CELL_SHIFT & (MF_LEAF_CELLS - 1)];
    return atomic_load_explicit(cell, memory_order_acquire);
}

/* ---- blocks.c: records, bins, splitting and joining -------------------------------------------------------- */
bool mf_blocks_init(memfit_pool *pool);
bool mf_blocks_make(memfit_pool *pool, unsigned count);
static inline bool mf_blocks_reserve(memfit_pool *pool, unsigned count) /* so many records can be had without failing */
{
    return pool->unused_block_count >= count || mf_blocks_make(pool, count);
}
bool mf_table_grow(memfit_pool *pool);
static inline bool mf_table_reserve(memfit_pool *pool) /* room for one more live block */
{
    const mf_table *table = atomic_load_explicit(&pool->table, memory_order_relaxed);
    return (table && pool->table_used < table->size / 4) || mf_table_grow(pool);
}
void mf_table_add(memfit_pool *pool, mf_block *block);
void mf_table_remove(memfit_pool *pool, mf_block *block);
mf_block *mf_table_find(const memfit_pool *pool, uint64_t offset); /* the block that begins there, live or kept */
void mf_tables_end(memfit_pool *pool);
static inline uint64_t mf_table_home(const mf_table *table, uint64_t offset)
{
    return (offset / MF_UNIT * 0x9e3779b97f4a7c15u) >> table->shift;
}
static inline void mf_table_warm(const memfit_pool *pool, uint64_t offset) /* a block will be added there soon */
{
    const mf_table *table = atomic_load_explicit(&((memfit_pool *)pool)->table, memory_order_relaxed);
    if (table)
        __builtin_prefetch(&table->entry[mf_table_home(table, offset)], 1);
}
/* The same without the lock. May miss it, and what it finds may be another block: look at its word. */
static inline mf_block *mf_table_peek(memfit_pool *pool, uint64_t offset)
{
    mf_table *table = atomic_load_explicit(&pool->table, memory_order_acquire);
    if (!table)
        return NULL;
    for (uint64_t i = mf_table_home(table, offset), looks = 0; looks < 16; looks++, i = (i + 1) & (table->size - 1)) {
        uint64_t key = atomic_load_explicit(&table->entry[i].key, memory_order_acquire);
        if (key == offset + 1)
            return atomic_load_explicit(&table->entry[i].block, memory_order_acquire);
        if (!key)
            return NULL;
    }
    return NULL;
}
bool mf_cells_reserve(memfit_pool *pool, uint64_t offset, uint64_t bytes);
void mf_cell_store(memfit_pool *pool, uint64_t offset, uintptr_t value);
void mf_bins_add(mf_bins *bins, mf_block *hole);
void mf_bins_remove(mf_bins *bins, mf_block *hole);
mf_block *mf_bins_fit(const mf_bins *bins, uint64_t bytes);
void mf_bins_warm(const mf_bins *bins, uint64_t bytes); /* it will be asked for so many soon */
/* Cuts [start, start + bytes) out of a hole. Needs two records in reserve. */
mf_block *mf_block_cut(memfit_pool *pool, mf_block *hole, uint64_t start, uint64_t bytes, mf_block_state state);
/* Makes a hole of a block again, in a lane, and joins it with its neighbours there. */
void mf_block_drop(memfit_pool *pool, mf_block *block, unsigned lane, uint64_t serial);
/* Makes one hole of a lane from holes side by side, first to last, of that lane or of nobody. The last may be the tail,
 * of which `bytes` are taken. Needs two records in reserve. */
mf_block *mf_holes_join(memfit_pool *pool, mf_block *first, mf_block *last, unsigned lane, uint64_t bytes);
/* Gives a part of a hole to a lane, as if its stream had freed it just now. Returns the hole it lies in. Needs two records
 * in reserve. */
mf_block *mf_hole_claim(memfit_pool *pool, mf_block *hole, uint64_t start, uint64_t bytes, unsigned lane);
/* Moves a hole from its lane to lane 0. Returns the joined hole. */
mf_block *mf_hole_release(memfit_pool *pool, mf_block *hole);

/* ---- pages.c, page_bits.c: physical memory
 * ------------------------------------------------------------------------------ */
bool mf_pages_init(memfit_pool *pool);
void mf_pages_end(memfit_pool *pool);
uint64_t mf_pages_missing(const memfit_pool *pool, uint64_t start, uint64_t bytes); /* not mapped */
typedef enum mf_growth {                   /* when pages are missing, none more are made than */
                         MF_GROW_NOT,      /* what is surely wanted: the peak in use */
                         MF_GROW_TO_SOFT,  /* the soft limit allows */
                         MF_GROW_TO_LIMIT, /* the limit allows */
} mf_growth;
/* Puts memory behind [start, start + bytes), a place in a hole for a lane's stream. A part of the hole may become the
 * lane's own; then *hole is that. On failure nothing else has changed that can be seen; pool->refusal says why. Needs four
 * records in reserve. */
memfit_status mf_pages_back(memfit_pool *pool, mf_block **hole, uint64_t start, uint64_t bytes, unsigned lane,
                            mf_growth growth, memfit_error *err);
void mf_pages_give_back_made(memfit_pool *pool);                          /* what this request made and could not use */
void mf_pages_set_idle(memfit_pool *pool, uint64_t first, uint64_t past); /* those of [first, past) that are mapped */
void mf_pages_clear_idle(memfit_pool *pool, uint64_t first, uint64_t past);
uint64_t mf_pages_limit(const memfit_pool *pool); /* how many the limit allows */
uint64_t mf_pages_idle(const memfit_pool *pool);  /* idle or spare */
uint64_t mf_pages_loose(const memfit_pool *pool); /* of them: not part of a bulk handle with live bytes */
/* Gives back until at most keep pages are reserved. Returns how many went. */
uint64_t mf_pages_trim(memfit_pool *pool, uint64_t keep);
memfit_status mf_pages_fill(memfit_pool *pool, memfit_error *err); /* preallocate */
void mf_pages_purge(memfit_pool *pool);

/* ---- shadows.c: which idle pages are past, with one stream; old mappings ------------------------------------- */
static inline bool mf_pages_stamped(const memfit_pool *pool) /* are pages stamped just now? */
{
    return pool->frees_central < pool->pages.stamp_until;
}
void mf_pages_note_free(memfit_pool *pool); /* after a free: puts an event behind it when one is due */
uint64_t mf_pages_past(memfit_pool *pool);  /* pages stamped so or lower can be unmapped now */
bool mf_pages_wait(memfit_pool *pool);      /* waits until more are; false: nothing to wait for, or not possible */
/* A handle, all idle, is taken for use elsewhere before it is past: the mapping stays as a shadow. False: not possible
 * here. */
bool mf_shadow_leave(memfit_pool *pool, mf_handle *handle);
bool mf_shadow_room(memfit_pool *pool); /* for one more */
void mf_shadow_add(memfit_pool *pool, mf_handle *handle, uint64_t page, unsigned lane, uint64_t serial);
void mf_shadows_forget_lane(memfit_pool *pool, unsigned lane); /* its stream is past everything, and goes */
/* Undoes the shadows at [first, end), waiting when it must; the others as far as they are past. False: some are left
 * at [first, end). */
bool mf_shadows_clear(memfit_pool *pool, uint64_t first, uint64_t end);
void mf_shadows_sweep(memfit_pool *pool);                                     /* those that are past go */
bool mf_shadows_over(const memfit_pool *pool, uint64_t first, uint64_t past); /* is there one at [first, past)? */
bool mf_shadows_end(memfit_pool *pool);   /* when everything on the device is past; false: some are left */
bool mf_pages_settled(memfit_pool *pool); /* every idle page can be unmapped; waits when it must and may */

/* ---- place.c: finding a place ------------------------------------------------------------------------------- */
mf_block *mf_place(memfit_pool *pool, uint64_t bytes, uint64_t alignment, unsigned lane, mf_block_state state,
                   bool grow_soft, memfit_error *err);

/* ---- slab.c --------------------------------------------------------------------------------------------------- */
void mf_classes_init(memfit_pool *pool);
uint32_t mf_class_bytes(unsigned size_class);
/* A slot of the class, from a slab of the lane; NULL when no slab can be made. */
bool mf_slab_take(memfit_pool *pool, unsigned size_class, unsigned lane, bool may_grow, mf_slot_ref *ref,
                  memfit_error *err);
void mf_slab_give(memfit_pool *pool, mf_slot_ref ref);
static inline uint32_t mf_slab_index(const mf_slab *slab, uint64_t offset)
{
    return (uint32_t)((offset / MF_UNIT * mf_shapes[slab->size_class].inverse) >> 24);
}

/* ---- cache.c ---------------------------------------------------------------------------------------------------- */
void mf_caches_init(memfit_pool *pool);
mf_cache *mf_cache_attach(memfit_pool *pool); /* this thread's first; NULL: none to be had */
void mf_cache_detach(void *cache);
void mf_cache_meet_owners(memfit_pool *pool, mf_cache *cache); /* tallies for all there are; pool->lock held */
mf_cache *mf_cache_find(memfit_pool *pool);                    /* this thread's, or NULL */
/* This thread's, if it was among the last to be looked for in its place of the table; otherwise NULL. A cache that says
 * it is this thread's is: only this thread says so, and it takes it back when it ends. */
static inline mf_cache *mf_cache_peek(memfit_pool *pool)
{
    uintptr_t thread = (uintptr_t)__builtin_thread_pointer();
    uint64_t at = (thread >> 6) * 0x9e3779b97f4a7c15u >> (64 - 6);
    _Static_assert(MF_CACHE_AT == 1 << 6, "the shift above");
    mf_cache *cache = atomic_load_explicit(&pool->cache_at[at], memory_order_acquire);
    return cache && atomic_load_explicit(&cache->thread, memory_order_relaxed) == thread ? cache : NULL;
}
static inline mf_cache *mf_cache_mine(memfit_pool *pool) /* or NULL */
{
    mf_cache *cache = mf_cache_peek(pool);
    return cache ? cache : mf_cache_find(pool);
}
/* By its own thread. False: someone else wants it; take pool->lock instead. With pool->lock held it never is. */
static inline bool mf_cache_enter(const memfit_pool *pool, mf_cache *cache)
{
    atomic_store_explicit(&cache->busy, true, memory_order_relaxed);
    if (pool->fenced)
        atomic_thread_fence(memory_order_seq_cst);
    else
        atomic_signal_fence(memory_order_seq_cst);
    if (!atomic_load_explicit(&cache->wanted, memory_order_acquire))
        return true;
    atomic_store_explicit(&cache->busy, false, memory_order_release);
    return false;
}
static inline void mf_cache_leave(mf_cache *cache)
{
    atomic_store_explicit(&cache->busy, false, memory_order_release);
}
/* All of the following: pool->lock held. */
void mf_cache_settle(memfit_pool *pool,
                     uint32_t owner);         /* this thread's: gives back blocks, folds this owner's tallies */
bool mf_caches_keep(const memfit_pool *pool); /* does any thread keep a block? A hint */
bool mf_caches_settle(memfit_pool *pool);     /* gives back every thread's kept blocks; false: there were none */
void mf_caches_reclaim(memfit_pool *pool);    /* and the magazines, and folds everything */
void mf_caches_each(memfit_pool *pool, void (*fn)(memfit_pool *pool, mf_cache *cache, void *ctx), void *ctx);
uint64_t mf_caches_bytes(memfit_pool *pool); /* of slots */
/* When the pool is dead: caches go, but for those of threads that have not ended; they go with the shell. */
void mf_caches_drop_idle(memfit_pool *pool);
void mf_caches_end(memfit_pool *pool, const memfit_host *host);
void mf_cache_flush(memfit_pool *pool, mf_cache *cache, void *unused); /* inside it */

/* ---- ledger.c --------------------------------------------------------------------------------------------------- */
memfit_status mf_ledger_init(memfit_pool *pool, memfit_error *err);
void mf_ledger_end(memfit_pool *pool);
static inline mf_owner *mf_owner_at(const memfit_pool *pool, uint32_t owner)
{
    return &pool->owner_chunk[owner / MF_OWNER_CHUNK][owner % MF_OWNER_CHUNK];
}
void mf_ledger_add(memfit_pool *pool, uint32_t owner, uint64_t bytes); /* pool->lock held, this thread settled */
void mf_ledger_sub(memfit_pool *pool, uint32_t owner, uint64_t bytes);
void mf_ledger_fold(memfit_pool *pool, mf_cache *cache);                     /* all of a cache's, inside it */
void mf_ledger_fold_one(memfit_pool *pool, mf_cache *cache, uint32_t owner); /* this owner's, kind's and the total */
void mf_ledger_fold_all(memfit_pool *pool);                                  /* every cache's; pool->lock held */
void mf_ledger_report_leaks(memfit_pool *pool);
void mf_ledger_set_mark(memfit_pool *pool, uint64_t mark); /* for what is handed out from now on */

/* ---- lanes.c ---------------------------------------------------------------------------------------------------- */
memfit_status mf_lanes_init(memfit_pool *pool, memfit_error *err);
void mf_lanes_end(memfit_pool *pool);
/* The lane for a stream; makes it, and turns to several lanes when it is the second stream. */
memfit_status mf_lane_for(memfit_pool *pool, mf_stream stream, unsigned *lane, memfit_error *err);
static inline memfit_status mf_lane_of(memfit_pool *pool, mf_stream stream, unsigned *lane, memfit_error *err)
{
    *lane = 0;
    if (!pool->multi && atomic_load_explicit(&pool->home, memory_order_relaxed) == stream)
        return MEMFIT_OK;
    return mf_lane_for(pool, stream, lane, err);
}
/* What streams are past becomes everybody's. events: also put events behind what was freed so far. True: something
 * became free. */
bool mf_lanes_poll(memfit_pool *pool, bool events);
bool mf_lanes_poll_for(memfit_pool *pool,
                       unsigned lane); /* the same for a request on a lane, whose own holes stay its own */
void mf_lanes_look(memfit_pool *pool); /* how far streams are: nothing changes hands */
bool mf_lanes_wait(memfit_pool *pool); /* waits for every stream; true when something became free */
memfit_status mf_lane_for_graph(memfit_pool *pool, uint64_t graph, unsigned *lane, memfit_error *err);
void mf_lane_forget(memfit_pool *pool, unsigned lane); /* its stream is past everything: what it has is everybody's */
memfit_status mf_lane_wait_slot(memfit_pool *pool, unsigned lane, mf_slot_ref ref, memfit_error *err);
uint64_t mf_lanes_pending_bytes(const memfit_pool *pool);

/* ---- record.c --------------------------------------------------------------------------------------------------- */
memfit_status mf_trace_file_begin(memfit_pool *pool, memfit_error *err);
void mf_trace_file_end(memfit_pool *pool);

/* ---- settings.c ------------------------------------------------------------------------------------------------- */
/* Takes the caller's options, fills in what MEMFIT_* say, resolves fractions. */
memfit_status mf_settings_take(memfit_device *device, const memfit_pool_options *given, memfit_pool_options *options,
                               memfit_error *err);
memfit_status mf_fraction_sane(double fraction, memfit_error *err);
memfit_status mf_slack_sane(double slack, memfit_error *err);

/* ---- limits.c --------------------------------------------------------------------------------------------------- */
uint64_t mf_fixed_bytes(const memfit_pool *pool);
uint64_t mf_limit_room(const memfit_pool *pool, uint64_t limit_bytes); /* what a limit leaves beside the fixed cost */
/* A limit that makes sense on this device: not above it, not below the fixed cost and a page. */
memfit_status mf_limit_sane(mf_device *device, uint64_t limit_bytes, uint64_t fixed, uint64_t page, memfit_error *err);
/* A soft limit that makes sense beside this policy and the pool's limit. */
memfit_status mf_soft_limit_sane(const memfit_pool *pool, memfit_policy policy, uint64_t soft_limit_bytes,
                                 memfit_error *err);
/* Calls the pressure functions without the lock; true when any freed something. */
bool mf_pressure_call(memfit_pool *pool, uint64_t wanted, bool hard);

/* ---- explain.c -------------------------------------------------------------------------------------------------- */
/* Fills *err and returns its status. pool->lock held; nothing may be allocated. */
memfit_status mf_pool_explain_failure(memfit_pool *pool, const mf_request *request, memfit_error *err);
memfit_status mf_explain_init(memfit_pool *pool, memfit_error *err); /* sets memory aside for it */
void mf_explain_end(memfit_pool *pool);

/* ---- request.c, release.c: the ways with pool->lock -------------------------------------------------------------- */
memfit_status mf_pool_request(memfit_pool *pool, const mf_request *request, memfit_address *address, memfit_error *err);
memfit_status mf_pool_release(memfit_pool *pool, memfit_address address, memfit_stream stream, memfit_error *err);
void mf_block_give(memfit_pool *pool, mf_block *block, unsigned lane); /* it is nobody's any more: a hole again */
void mf_pool_now_and_then(memfit_pool *pool);
void mf_pool_decide_keeping(memfit_pool *pool);
/* What the debug mode puts into memory, and how much of it behind a block. */
enum { MF_POISON_NEW = 0xcd, MF_POISON_OLD = 0xdd, MF_GUARD_BYTE = 0xfd, MF_GUARD = 256 };

static inline uint64_t mf_slot_live(const memfit_pool *pool, uint32_t owner, uint64_t asked) /* its word */
{
    return atomic_load_explicit(&pool->slot_bits, memory_order_relaxed) | (uint64_t)owner << 17 | asked;
}
/* The block is live from here on; everything else about it is set. */
static inline void mf_block_hand_out(const memfit_pool *pool, mf_block *block, uint32_t owner, uint64_t asked)
{
    uint64_t bits = atomic_load_explicit(&pool->tag_bits, memory_order_relaxed);
    atomic_store_explicit(&block->tag, bits | (uint64_t)owner << 16 | (block->bytes - asked), memory_order_relaxed);
    atomic_store_explicit(&block->word, block->start | MF_WORD_LIVE, memory_order_release);
}
static inline uint64_t mf_slot_offset(mf_slot_ref ref)
{
    return ref.slab->start + (uint64_t)ref.index * ref.slab->slot_bytes;
}
static inline uintptr_t mf_slab_cell(const mf_slab *slab)
{
    return (uintptr_t)slab + slab->size_class + 1;
}
static inline mf_slab *mf_cell_slab(uintptr_t cell)
{
    return (mf_slab *)(cell & ~(uintptr_t)(MF_SLAB_ALIGN - 1));
}
static inline unsigned mf_cell_class(uintptr_t cell)
{
    return (unsigned)(cell & (MF_SLAB_ALIGN - 1)) - 1;
}
/* The slot that begins at an offset in the slab of a cell; false: none. The slab itself is not looked at. */
static inline bool mf_slot_at(uintptr_t cell, uint64_t offset, mf_slot_ref *ref)
{
    const mf_shape *shape = &mf_shapes[mf_cell_class(cell)];
    uint32_t inside = (uint32_t)offset & (MF_SLAB - 1);
    uint32_t index = (uint32_t)((uint64_t)(inside / MF_UNIT) * shape->inverse >> 24);
    *ref = (mf_slot_ref){mf_cell_slab(cell), index};
    return index < shape->slots && index * shape->slot_bytes == inside;
}
/* The slot of a magazine's item. */
static inline mf_slot_ref mf_slot_of(memfit_pool *pool, const mf_at_hand *item)
{
    mf_slot_ref ref;
    mf_slot_at(mf_cell_load(pool, item->offset), item->offset, &ref);
    return ref;
}

/* ---- walk.c ----------------------------------------------------------------------------------------------------- */
static inline void mf_pool_tell(memfit_pool *pool, const mf_pool_event *event) /* under the lock, or inside a cache */
{
    mf_pool_hook hook = atomic_load_explicit(&pool->hook, memory_order_acquire);
    if (hook)
        hook(pool->hook_ctx, event);
}
bool mf_pool_find_locked(memfit_pool *pool, memfit_address address, memfit_block_info *block);

static inline memfit_status mf_pool_enter(memfit_pool *pool, memfit_error *err);
memfit_status mf_pool_no_pool(memfit_pool *pool, memfit_error *err);
static inline memfit_status mf_pool_enter(memfit_pool *pool, memfit_error *err)
{
    if (!pool || atomic_load_explicit(&pool->magic, memory_order_acquire) != MF_POOL_ALIVE)
        return mf_pool_no_pool(pool, err);
    pthread_mutex_lock(&pool->lock);
    return MEMFIT_OK;
}

#endif
