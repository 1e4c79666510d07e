/* count_alloc.h: how often memory was asked for while a training runs its steps. */
#ifndef MF_CLI_COUNT_ALLOC_H
#define MF_CLI_COUNT_ALLOC_H

#include <stdbool.h>
#include <stdint.h>

/* Calls of the malloc family and of mmap by all threads of this process so far that took memory from the system's
 * allocator; calls served from the reserve (see count_alloc.c) are counted apart. */
uint64_t cli_allocation_count(void *ctx);
uint64_t cli_reserve_count(void);
/* Whose calls those in steps were, by the file that holds the calling code. Returns how many there are, at most `room`. */
typedef struct cli_allocating {
    char name[96];
    uint64_t calls;
} cli_allocating;
unsigned cli_allocating_libraries(cli_allocating *list, unsigned room);
/* Takes the reserve for a run with so many threads and touches it, once. It serves while steps run: what is made before
 * or between them, and stays, must not take it up. */
void cli_reserve_begin(unsigned threads);
void cli_reserve_end(void);
void cli_in_steps(void *ctx, bool running);
/* False where the program's own definitions are not in force (sanitizers). */
int cli_allocations_are_counted(void);

#endif
