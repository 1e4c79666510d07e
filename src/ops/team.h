/*
 * team.h: the settings of the processor and of OpenMP that operations run under, taken for a while and given back.
 *
 * Denormals are flushed in the calling thread and in those that help it: they cost a hundredfold and carry nothing in
 * training. Both belong to the caller, whose own arithmetic must not change because it trained a model.
 */
#ifndef MF_OPS_TEAM_H
#define MF_OPS_TEAM_H

#include <stdbool.h>

typedef struct mf_team {
    bool entered;
    int threads, dynamic; /* OpenMP's, as they were */
    unsigned control;     /* the calling thread's MXCSR, as it was */
} mf_team;

/* From here until mf_team_leave, in the same thread: regions have `threads` threads, denormals are zero. */
void mf_team_enter(mf_team *team, unsigned threads);
void mf_team_leave(mf_team *team);

#endif
