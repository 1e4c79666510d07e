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

#include "base/bytes.h"
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
    MF_TIERS = 10, /* sizes of handles: 1 to 512 pages */
    MF_PRESSURES = 8,
    MF_MAGAZINE = 64,
    MF_KEPT = 8,      /* blocks a thread keeps */
    MF_CACHE_AT = 64, /* a power of two */
    MF_DRIFT = 65536, /* bytes a thread's tally may rise before it is folded */
    MF_OWNER_CHUNK = 256,
    MF_OWNERS_MOST = 65536,
    MF_MOVE_SHARE = 100,       /* of the elapsed time, one part may go into moving pages */
    MF_MOVE_WINDOW = 10000000, /* microseconds over which this holds; */
    MF_MOVE_FIRST = 2,         /* so many times as much at the beginning, */
    MF_MOVE_EARLY = 20000,     /* which ends when so much has gone into it */
    MF_MOVE_PAUSE = 100000,    /* microseconds between requests; longer is not the program's time */
};

/* ---- blocks ----------------------------------------------------------------------------------------------- */

typedef enum mf_block_state {
    MF_HOLE,
    MF_LIVE,
    MF_SPAN,
    MF_HELD, /* freed, but a further stream may still use it (fence.c) */
} mf_block_state;

typedef struct mf_span mf_span;
typedef struct mf_repeat mf_repeat;

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
    uint64_t
        serial : 48;   /* hole in a lane: that lane's count of frees when it last grew; live: its number on the tape of
                              repeat.c, 0: none */
    uint64_t lane : 8; /* hole: whose it is; live: the lane it was asked on */
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
typedef struct mf_slab_shape {
    uint32_t slot_bytes, inverse; /* index = offset / MF_UNIT * inverse >> 24 */
    uint32_t slots;
} mf_slab_shape;
extern const mf_slab_shape mf_slab_shapes[MF_CLASSES];

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
    mf_bins bins, apart; /* holes below and above pool->apart */
    mf_slab *partial[MF_CLASSES];
    mf_span *spans;
    mf_clock clock;
    uint64_t asked; /* bytes of blocks, of late */
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
    uint64_t credit_at_us;         /* when it was last added to, less pauses */
    uint64_t asked_at_us;          /* when the last request came */
    bool from_seats;               /* pages are taken from where steps have their places, too */
    bool invest;                   /* pages go to stay (repeat.c): as much again may be spent ahead */
    uint64_t owed_us;              /* time spent while the device had work: lost only if it falls idle later */
    uint64_t owed_at_us;           /* when that was last spent, */
    uint64_t owed_all_us;          /* and how much in all */
    uint64_t lost_now_us;          /* of it, found by the look at work */
    uint64_t settled_us;           /* until then it is known when the device had nothing to do, */
    const mf_clock *settled_by;    /* by this clock */
    uint64_t looked_us, lead_us;   /* when the device was last looked at, and how far behind the program it was */
    uint64_t made_now;             /* pages created by the request at work, */
    uint64_t making_us;            /* and the time that took, or waiting for a device with enough to do */
    uint32_t tier_pages[MF_TIERS]; /* the sizes of handles, smallest first: one page, ... */
    unsigned tiers;
    uint64_t
        part; /* no handle is made that is more than one part in so many of what is reserved, nor than a third of the stretch
                          it is made for; 0: no matter */
    uint64_t idle_top;    /* no word of idle above this has a bit */
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
    uint16_t *alias;      /* of a page with a shadow: which, and one */
    uint64_t past_age;    /* pages stamped so or lower were past when last looked at */
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
    mf_stream main;         /* with several: the one whose blocks lie together; how many were asked for of late */
    uint64_t asked;
    uint64_t apart; /* from here on lies what is not to lie among the main stream's blocks (apart.c) */
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
    mf_repeat *repeat; /* NULL: no pages have been missing of late */
    uint64_t noted;    /* requests that earlier tapes of it have noted */

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
    uint64_t moving_us; /* time that went into moving pages, */
    uint64_t lost_us;   /* and of it what the device waited for; */
    uint64_t waited_us; /* time that went into waiting for a device with enough to do */
    uint64_t central_calls;
    uint64_t remaps_seen, remaps_at; /* the central call when they last became more; 0: never */
    uint64_t settles;                /* times all threads gave back what they kept, since we last looked */
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

static inline uintptr_t mf_cell_load(memfit_pool *pool, uint64_t offset)
{
    uintptr_t *leaf = atomic_load_explicit(&pool->leaf[offset >> MF_LEAF_SHIFT], memory_order_acquire);
    if (!leaf)
        return 0;
    _Atomic uintptr_t *cell = (_Atomic uintptr_t *)&leaf[offset >> MF_CELL_SHIFT & (MF_LEAF_CELLS - 1)];
    return atomic_load_explicit(cell, memory_order_acquire);
}

#endif
