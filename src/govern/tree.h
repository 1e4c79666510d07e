/*
 * tree.h: the processes below this one, by /proc.
 *
 * memfit is the subreaper of what it starts: an orphan becomes its child, so everything the program started stays below
 * it. A daemon that made a session of its own is below it too, and is told apart by that session.
 */
#ifndef MF_GOVERN_TREE_H
#define MF_GOVERN_TREE_H

#include "base/memory.h"

typedef struct mf_tree_process {
    int pid, parent, session;
    char state;          /* R, S, Z, ... */
    bool below;          /* the root is among its ancestors */
    uint64_t start_tick; /* with the pid: who it is */
} mf_tree_process;

typedef struct mf_tree {
    const memfit_host *host;
    mf_tree_process *list; /* by pid */
    size_t count, capacity;
} mf_tree;

/* Every process of the machine; `below` marks the descendants of `root`. NO_HOST_MEMORY, or IO without /proc. */
memfit_status mf_tree_look(mf_tree *tree, int root, memfit_error *err);
void mf_tree_drop(mf_tree *tree);
/* Those that live on: below the root, in that session, no zombie. */
bool mf_tree_is_left(const mf_tree_process *process, int session);
/* Sends a signal to exactly that process: not to another one that has got its number meanwhile. */
bool mf_tree_signal(const mf_tree_process *process, int signal);

/* RssAnon + RssShmem; 0 when it is gone. */
uint64_t mf_process_memory(int pid);
/* It runs, and this library (at most 64 characters) is not in it, or it is another user's. False when it is gone or going. */
bool mf_process_is_without(int pid, const char *library);
/* "python train.py": the command line's first words without folders, else the kernel's name. */
void mf_process_name(int pid, char *name, size_t bytes);

#endif
