/* count_alloc.h: how often memory was asked for while a training runs its steps. */
#ifndef MF_CLI_COUNT_ALLOC_H
#define MF_CLI_COUNT_ALLOC_H

#include <stdint.h>

/* The first call after cli_reserve_begin marks the first step: only from then on is the reserve used, so that what is
 * made before, and stays, does not take it up.
 * Calls of the malloc family and of mmap by all threads of this process so far that took memory from the system's
 * allocator; calls served from the reserve (see count_alloc.c) are counted apart. */
uint64_t cli_allocation_count(void);
uint64_t cli_reserve_count(void);
/* Takes the reserve and touches it, once; see cli_allocation_count for when it serves. */
void cli_reserve_begin(void);
void cli_reserve_end(void);
/* False where the program's own definitions are not in force (sanitizers). */
int cli_allocations_are_counted(void);

#endif
