/*
 * share.h: one limit for several processes: who holds how much of each card, in one mapped file.
 *
 * No lock, no daemon, no sum that two must keep right. Every process has a slot of its own with two numbers a card, and
 * only it writes them:
 *
 *     held     bytes it has                      in use on a card = held + asking + beside, over all slots
 *     asking   bytes it is about to take
 *     (beside  what the driver shows for it beyond what it holds, written by who watches the job)
 *
 * To take n bytes a process adds n to its own `asking` first, and then adds up all slots. Below the limit it goes on (asks
 * the driver, then moves n from asking to held); above it takes its n back. Of two that ask at once the one that adds up
 * later sees the other, so the limit is never passed, whatever the interleaving. If both see each other both may step
 * back: then what is missing is only being asked for, and they try again at moments of their own.
 *
 * A process that dies takes nothing along but its slot: whoever would be refused looks whether the holders live (number
 * and start time) and clears the slots of those that do not. One that is stopped amid a request holds what it asked for,
 * no more. A child of fork has no slot until it takes memory itself.
 *
 * Several jobs may have one share (named.h): each has a row of `jobs`, and its processes' slots name it. Of jobs that take
 * turns (turns.h) one runs at a time; the slots of the others are `away`: their memory is not on the card.
 *
 * C and libc only: this file is part of the library that is loaded into other people's programs.
 */
#ifndef MF_GOVERN_SHARE_H
#define MF_GOVERN_SHARE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum { MF_SHARE_VERSION = 2, MF_SHARE_CARDS = 16, MF_SHARE_SLOTS = 512, MF_SHARE_JOBS = 64 };

typedef struct mf_share_slot {
    uint64_t owner; /* process number and the low part of its start time; 0: free */
    uint32_t job;   /* number of its job + 1; 0: not said */
    uint32_t away;  /* its memory is not on the card now */
    struct {
        uint64_t held, asking;
        uint64_t beside; /* what it holds besides, as the driver shows it: written by who watches, and by nobody else */
    } card[MF_SHARE_CARDS];
} mf_share_slot;

/* A job: one `memfit run`, which lives as long as its program. */
typedef struct mf_share_job {
    uint64_t owner;   /* as of a slot; 0: free */
    uint32_t turns_s; /* it takes turns of so many seconds; 0: it does not */
    uint32_t wants;   /* it takes turns, and has something to do */
} mf_share_job;

/* The file. */
typedef struct mf_share_file {
    char magic[8];
    uint32_t version, slot_count;
    uint64_t bytes;                       /* of the whole file */
    uint64_t limit_bytes[MF_SHARE_CARDS]; /* UINT64_MAX: none. May be changed at any time */
    uint64_t refused[MF_SHARE_CARDS];     /* requests, ever */
    uint64_t peak_bytes[MF_SHARE_CARDS];  /* largest sum any process has seen */
    uint64_t card_id[MF_SHARE_CARDS];     /* which card a number means: a hash of its UUID; 0: not given yet */
    uint32_t slots_ever;                  /* slots from here on were never used */
    uint32_t turn;                        /* job + 1 that may use the cards now; 0: nobody takes turns */
    uint64_t turn_since_us;               /* monotonic */
    mf_share_job jobs[MF_SHARE_JOBS];
    mf_share_slot slots[MF_SHARE_SLOTS];
} mf_share_file;

typedef struct mf_share {
    mf_share_file *file;
    int slot;     /* ours; -1: not joined */
    uint32_t job; /* ours + 1; 0: not said */
    pid_t process;
    uint64_t swept_us; /* when we last looked thoroughly for the dead */
} mf_share;

typedef enum {
    MF_SHARE_OK = 0,
    MF_SHARE_REFUSED, /* over the limit */
    MF_SHARE_BUSY,    /* others were asking for the same bytes all the time: one of them is stopped amid a request */
    MF_SHARE_FULL,    /* more processes than there are slots */
    MF_SHARE_MISSING, /* no such file, or no right to it */
    MF_SHARE_FOREIGN, /* not a plain file of ours alone: another owner, readable by others, a link */
    MF_SHARE_DAMAGED, /* not a share */
    MF_SHARE_VERSION_DIFFERS, /* a share of another version of memfit */
    MF_SHARE_NO_SPACE,        /* the file cannot be made */
} mf_share_result;
const char *mf_share_words(mf_share_result result);

/* The number of the card with this identity, the same in every process; MF_SHARE_CARDS when there are more. */
unsigned mf_share_card(mf_share *share, uint64_t id);

/* The identity of a card, from its UUID: 16 bytes, or as NVML writes it, "GPU-0011..."; 0: that is none. */
uint64_t mf_share_id_of(const unsigned char uuid[16]);
uint64_t mf_share_id(const char *text);

/* Makes the file, for this user alone; it must not exist. No limit on any card yet. */
mf_share_result mf_share_create(const char *path, mf_share *share);
mf_share_result mf_share_open(const char *path, mf_share *share);
mf_share_result mf_share_open_file(int fd, mf_share *share); /* the same; fd stays the caller's */
void mf_share_leave(mf_share *share);                        /* gives up the slot, if there is one */
void mf_share_close(mf_share *share);                        /* and the file */

/* Asks for bytes of a card: OK, REFUSED, BUSY (after `wait_us`) or FULL. What was granted is to be ended by one of the two
 * below. Any thread. */
mf_share_result mf_share_ask(mf_share *share, unsigned card, uint64_t bytes, unsigned wait_us);
/* The driver gave it: `held` bytes of it now, which may differ from what was asked. */
void mf_share_take(mf_share *share, unsigned card, uint64_t asked, uint64_t held);
void mf_share_drop(mf_share *share, unsigned card, uint64_t asked); /* it did not */
void mf_share_give_back(mf_share *share, unsigned card, uint64_t bytes);
/* Bytes of all live processes, asked for included, and of this process. */
uint64_t mf_share_in_use(const mf_share *share, unsigned card);
uint64_t mf_share_own(const mf_share *share, unsigned card);
/* What a slot has told of a card: held, and what it is asking for beside. */
typedef struct mf_share_told {
    uint64_t held, asking;
} mf_share_told;
mf_share_told mf_share_tells(const mf_share *share, uint32_t slot, unsigned card);
/* The driver shows `shown` bytes for a slot that had told of `before` when the driver was asked: sets `beside`. A request that
 * was on its way meanwhile may be in what is shown or not: then beside only grows, by what no request explains. */
void mf_share_show(mf_share *share, uint32_t slot, unsigned card, mf_share_told before, uint64_t shown);
/* Clears the slots of the dead; returns how many there were. */
unsigned mf_share_sweep(mf_share *share);
/* There is no such process, or it is a zombie. */
bool mf_share_gone(pid_t pid);
/* The same, cheaply: zombies and numbers that were given again only now and then. */
void mf_share_tidy(mf_share *share);
/* True while any process or job in it lives. */
bool mf_share_is_used(mf_share *share);
/* This process's mark in a slot or a job; whether the process of such a mark lives. */
uint64_t mf_share_self(void);
bool mf_share_lives(uint64_t owner);
/* In a child of fork, before anything else: it is another process. */
void mf_share_after_fork(mf_share *share);

#endif
