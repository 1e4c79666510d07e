/*
 * trace_sink.h: the file of a recorder that has one, and what its cells are made of.
 *
 *     | header, ring: mapped, events are put right here | cells: what the ring had no more room for, and names, by write |
 *
 * So an event is in the file as soon as it was put, without a system call: a process that is killed loses nothing. The ring
 * is emptied to the end of the file, a block at a time, under the shard's lock; each block names its first event's number,
 * so that a kill between writing it and noting so leaves nothing twice. A target that cannot be mapped (a pipe, a device)
 * gets the same cells by write, and the ring is memory.
 */
#ifndef MF_TRACE_TRACE_SINK_H
#define MF_TRACE_TRACE_SINK_H

#include "trace/trace.h"

enum { MF_TRACE_SINK_CELLS = 2048, MF_TRACE_NAME_CELLS = 1 + (MF_TRACE_MOST_NAME + MF_TRACE_CELL - 1) / MF_TRACE_CELL };

struct mf_trace_sink {
    uint32_t lock;
    int file;     /* -1: not open */
    long process; /* whose it is: a child of fork leaves it alone */
    bool failed, closed, in_order /* cannot be written at a place: a pipe */;
    uint32_t crc;
    uint64_t cells_at, cells; /* of the cells: where they begin in the file, how many are written */
    uint64_t lost;
    uint64_t mapped_bytes;
    uint64_t last_ticks, last_ns; /* the clock's line begins here */
    char path[1024];
    memfit_event buffer[MF_TRACE_SINK_CELLS];
};

/* What the recorder's names are, by number. */
struct mf_trace_names {
    uint32_t lock;
    uint32_t count;    /* numbers 1 to count are in use */
    uint32_t capacity; /* a power of two; at most this many names minus one */
    uint64_t used;     /* of text */
    uint64_t text_bytes;
    uint64_t *at;    /* by number: offset of the text, which is zero-terminated */
    uint32_t *slots; /* hash table of numbers, twice the capacity */
    char *text;
};

/* Ticks to nanoseconds since the start, by the line through (ticks0, ns0) and (ticks1, ns1). */
typedef struct mf_clock_line {
    uint64_t ticks0, ns0, ticks1, ns1;
} mf_clock_line;
uint64_t mf_clock_ns(const mf_clock_line *line, uint64_t ticks);

void mf_trace_lock(uint32_t *word);
void mf_trace_unlock(uint32_t *word);

/* The cells of a name; returns how many. */
size_t mf_trace_name_cells(uint32_t number, const char *text, memfit_event cells[MF_TRACE_NAME_CELLS]);
void mf_trace_header_fill(mf_trace_header *header, uint64_t cells_at, uint64_t unix_us);

memfit_status mf_trace_sink_init(memfit_recorder *recorder, const char *path, memfit_error *err);
/* A name that is new: written at once, before any event has its number. */
void mf_trace_sink_name(memfit_recorder *recorder, uint32_t number);
void mf_trace_sink_destroy(memfit_recorder *recorder);

#endif
