/*
 * facts.h: what happened to memory in one job, in one mapped file. The library inside the program writes it; `memfit
 * run` reads it when the program has ended, however it ended.
 *
 *     processes   one row for each that took memory: who holds how much of which card, by owner: a library (whose
 *                 code made the call) and a class of memory. Every call updates the numbers, so a refusal needs no
 *                 walk.
 *     denials     requests that the limit refused, each with the owners of that moment. Tries of one thread for the
 *                 same bytes that follow each other are one denial: refused, freed its cache, tried again, got it
 *                 (or not).
 *
 * Only a process itself writes its own rows; a denial is whole when its `state` says so. C and libc only.
 */
#ifndef MF_GOVERN_FACTS_H
#define MF_GOVERN_FACTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What kind of memory: number, name in JSON, words. */
#define MF_MEMORY_CLASSES(X)                                                                                           \
    X(CONTEXT, "context", "CUDA context, libraries, kernels")                                                          \
    X(LINEAR, "linear", "cuMemAlloc")                                                                                  \
    X(MANAGED, "managed", "managed memory")                                                                            \
    X(POOL, "pool", "the driver's memory pool")                                                                        \
    X(VIRTUAL, "virtual", "mapped pages")                                                                              \
    X(ARRAY, "array", "arrays")                                                                                        \
    X(GRAPH, "graph", "memory of CUDA graphs")                                                                         \
    X(PROCESS, "process", "another process")                                                                           \
    X(MODULE, "module", "the driver's own beyond the context: kernels")
typedef enum mf_memory_class {
#define X(name, key, words) MF_MEMORY_##name,
    MF_MEMORY_CLASSES(X)
#undef X
        MF_MEMORY_CLASS_COUNT
} mf_memory_class;
const char *mf_memory_class_key(unsigned memory_class);
const char *mf_memory_class_words(unsigned memory_class);

enum {
    MF_FACTS_VERSION = 1,
    MF_FACTS_PROCESSES = 64,
    MF_FACTS_OWNERS = 64,  /* of a process */
    MF_FACTS_DENIALS = 32, /* the first so many are kept with their owners */
    MF_FACTS_NAMED = 24,   /* owners of a denial, largest first; the last is what remains */
    MF_FACTS_LIBRARY = 48,
};

typedef struct mf_facts_owner {
    uint64_t bytes, count; /* now */
    uint32_t pid;
    uint16_t card;
    uint8_t memory_class;
    uint8_t used; /* written last: the row is whole */
    char library[MF_FACTS_LIBRARY];
} mf_facts_owner;

typedef struct mf_facts_process {
    uint64_t owner; /* as of a share's slot; 0: free */
    uint32_t owner_count;
    uint32_t padding;
    mf_facts_owner owners[MF_FACTS_OWNERS]; /* the last one takes what finds no row of its own */
} mf_facts_process;

typedef enum { MF_DENIAL_NONE, MF_DENIAL_BEING_WRITTEN, MF_DENIAL_REFUSED, MF_DENIAL_GRANTED_LATER } mf_denial_state;

typedef struct mf_facts_denial {
    uint32_t state; /* mf_denial_state */
    uint32_t pid, thread;
    uint16_t card;
    uint8_t memory_class, waited; /* waited: refused because others were asking for the same bytes all the time */
    uint32_t tries;
    uint32_t named;   /* owners in the list */
    uint64_t unix_us; /* of the first refusal */
    uint64_t request_bytes, limit_bytes, in_use_bytes;
    uint64_t unused_bytes; /* of the driver's pools of this process: reserved, and not handed out */
    uint64_t held_bytes;   /* what this process held at the first refusal */
    uint64_t freed_bytes;  /* between that and the last try */
    uint64_t took_ns;      /* to write this */
    char library[MF_FACTS_LIBRARY];
    mf_facts_owner owners[MF_FACTS_NAMED];
} mf_facts_denial;

typedef struct mf_facts {
    char magic[8];
    uint32_t version;
    uint32_t denial_count; /* ever; those above MF_FACTS_DENIALS have no row */
    uint64_t bytes;
    mf_facts_process processes[MF_FACTS_PROCESSES];
    mf_facts_denial denials[MF_FACTS_DENIALS];
} mf_facts;

/* A row as it is now: its process goes on counting while it is read. */
mf_facts_owner mf_facts_owner_now(const mf_facts_owner *row);

/* Makes the file, for this user alone, whole or not at all; NULL: errno says why. Opens one; NULL: it is none. */
mf_facts *mf_facts_create(const char *path);
mf_facts *mf_facts_open(const char *path);
void mf_facts_close(mf_facts *facts);

#endif
