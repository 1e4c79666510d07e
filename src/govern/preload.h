/* preload.h: the inside of libmemfit-govern.so. C and libc only; nothing here allocates, prints, or
 * changes errno. */
#ifndef MF_GOVERN_PRELOAD_H
#define MF_GOVERN_PRELOAD_H

#include "govern/driver_names.h"
#include "govern/facts.h"
#include "govern/share.h"

#include <stddef.h>

#define EXPORT __attribute__((visibility("default")))
/* Of functions that run inside dlsym: a sanitizer's runtime calls that before it has begun, when nothing may be checked yet. */
#define EARLY            __attribute__((no_sanitize("address", "undefined", "thread")))
#define CALL(name, type) ((type)mf_govern_real(MF_NAME_##name))
enum { OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3 }; /* of the driver's answers */

/* The driver's own function, or NULL while there is no driver in the process. */
void *mf_govern_real(enum mf_driver_name name);
/* Another of the driver's functions, by name. */
void *mf_govern_driver(const char *name);
/* A function of a library that is in the process already, by the library's name; NULL: it is not. */
void *mf_govern_from(const char *library, const char *name);
/* Loads a library for good. */
bool mf_govern_load(const char *library);
/* Returns when no other thread is loading one: takes the loader's lock once. */
void mf_govern_wait_for_loader(void);
/* Ours for one of the driver's addresses, else that address. */
void *mf_govern_mapped(void *real);

/* Ours for something that a program imports by name: dlsym, dlvsym, a function of the list; NULL: none. */
void *mf_govern_ours(const char *name);
/* Whether this library came by preloading, so that imports find it by themselves. */
bool mf_govern_is_preloaded(void);
/* Libraries that came since the last look (preload_attach.c); in a child of fork. */
void mf_govern_look_again(void);
void mf_govern_attach_forget(void);
/* Writes `ours` for what a library imports, where that is not NULL; how many places. */
unsigned mf_govern_write_imports(const char *library, void *(*ours)(const char *name));

/* What the driver maps and fills in this process from now on is of huge pages, filled side by side (preload_huge.c). */
void mf_govern_huge_pages(void);

/* The job's limits; NULL: there are none, everything passes. */
mf_share *mf_govern_share(void);

/* Returns when this job may use the cards. */
void mf_govern_wait_turn(mf_share *share);
/* The share's number for one of the driver's, and for the one in use; MF_SHARE_CARDS: not to be had, the call passes. */
unsigned mf_govern_card_of(mf_share *share, int ordinal);
unsigned mf_govern_current_card(mf_share *share);
/* What the context of this process will be charged with on a card; 0: it is already. */
uint64_t mf_govern_fixed_due(unsigned card);

/* What this process got, by address or handle: so that a free knows its bytes. */
typedef struct mf_govern_block {
    uint64_t key;
    uint64_t bytes;
    uint32_t card, owner; /* owner: below; 0: not said */
    uint32_t references, maps;
} mf_govern_block;
void mf_govern_put(const mf_govern_block *block);
bool mf_govern_take(uint64_t key, mf_govern_block *block); /* finds and removes */
/* Changes the counts of a block; when both are 0 it is removed, and true returned with its last state. */
bool mf_govern_count(uint64_t key, int references, int maps, mf_govern_block *block);

/* Removes every block of a card; returns their bytes. */
uint64_t mf_govern_take_all(uint32_t card);
/* In a child of fork: it has no memory on any card yet, no owners, no trace. */
void mf_govern_forget(void);
void mf_govern_owner_forget(void);
void mf_govern_trace_forget(void);

/* Where nobody watches: what the driver shows for this process beyond what is charged is charged too, now and then. */
void mf_govern_look_beside(mf_share *share, unsigned card);
void mf_govern_look_forget(void);

/* ---- whose it is, and the story of a refusal (preload_owner.c) ---- */

/* The job's facts; NULL: nobody asks for them. */
mf_facts *mf_govern_facts(void);
/* A number for who asks now, from `caller`: never 0 unless there are no facts. Its name and class. */
uint32_t mf_govern_owner(unsigned card, unsigned memory_class, uint64_t bytes, uintptr_t caller);
const char *mf_govern_owner_name(uint32_t owner, unsigned *memory_class);
/* It has so many bytes and blocks more, or less; nothing of a card any more, but for the context. */
void mf_govern_owns(uint32_t owner, int64_t bytes, int64_t count);
void mf_govern_owns_nothing(unsigned card);
/* A request was refused; one was granted, which may be one that was refused before. */
void mf_govern_denied(mf_share *share, unsigned card, unsigned memory_class, uint64_t bytes, bool waited,
                      uintptr_t caller);
void mf_govern_granted(mf_share *share, unsigned card, uint64_t bytes);
/* Bytes that the driver's pools of this process have reserved and not handed out. */
uint64_t mf_govern_pool_unused(void);

/* The driver, CUDA's runtime or we: who called these is meant. */
bool mf_govern_passes(uintptr_t address);
/* Memory that graphs have reserved on the card in use. */
uint64_t mf_govern_graph_bytes(void);

/* ---- who called (preload_stack.c) ---- */

/* Return addresses, the innermost first, until it says false. */
typedef bool (*mf_govern_each)(uintptr_t address, void *ctx);
void mf_govern_walk(mf_govern_each each, void *ctx);
/* "at::native::empty_cuda (libtorch_cuda.so)", else "libtorch_cuda.so+0x12ab". */
void mf_govern_frame_name(uintptr_t address, char *to, size_t bytes);

/* ---- the trace (preload_trace.c): an event of memfit/trace.h, if a trace is wanted ---- */

bool mf_govern_traces(void);
void mf_govern_note(unsigned op, unsigned card, uint64_t key, uint64_t bytes, uint32_t owner);
/* The same of memory that the driver took by itself, when it has changed: `beside` of the share. */
void mf_govern_note_beside(mf_share *share, unsigned card);

#endif
