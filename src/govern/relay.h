/*
 * relay.h: a program's standard error on its way through memfit: passed on byte for byte, its end kept.
 *
 * Where ours is a terminal the program gets one too, a pseudo-terminal of the same size and settings that changes no
 * byte (the real one behind it does what terminals do to lines). It is not the program's controlling terminal: that
 * stays the user's, with standard input and output, so that Control-C, Control-Z and job control are the kernel's
 * business as before. Otherwise the program gets a pipe.
 */
#ifndef MF_GOVERN_RELAY_H
#define MF_GOVERN_RELAY_H

#include "base/memory.h"

#include <poll.h>

enum { MF_RELAY_BLOCK = 1 << 16, MF_RELAY_MOST_KEPT = 8 << 20 };

typedef struct mf_relay {
    const memfit_host *host;
    int source; /* what the program writes comes from here; -1: nobody can write any more */
    int target; /* our own standard error; -1: its reader has gone */
    int child;  /* the program's end, until it has been started */
    bool terminal;
    char block[MF_RELAY_BLOCK];
    size_t begin, end;      /* of what was read and not yet passed on */
    uint64_t taken, enough; /* bytes read; no more are read than `enough` */
    char *kept;             /* the last part of it all */
    size_t kept_bytes, kept_room;
} mf_relay;

memfit_status mf_relay_open(mf_relay *relay, const memfit_host *host, int target, memfit_error *err);
/* The size of the terminal has changed. */
void mf_relay_resize(mf_relay *relay);
/* Reads and writes what can be without waiting. False: nothing happened. */
bool mf_relay_step(mf_relay *relay);
/* What to wait for: the source's events and the target's, as poll wants them; -1 where there is nothing. */
void mf_relay_poll(const mf_relay *relay, struct pollfd pair[2]);
/* Passes on what is there at this moment, and no more: whoever goes on writing must not keep us. Steps and polls do it;
 * drained says when. Undone by mf_relay_go_on. */
void mf_relay_drain(mf_relay *relay);
bool mf_relay_drained(const mf_relay *relay);
void mf_relay_go_on(mf_relay *relay);
void mf_relay_close(mf_relay *relay);
/* Somebody can still write (a process that lives on): a small process stays and passes on until nobody can. */
void mf_relay_leave(mf_relay *relay);

#endif
