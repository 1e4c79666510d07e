/*
 * offload.h: the optimizer's slots in host memory, streamed through the plan's windows (plan.h) while a step runs. Each
 * update is a turn: its slots arrive in its window, it runs, they leave. Two streams of their own carry them, one each way;
 * the run's stream waits only where an update's slots have not arrived yet.
 *
 *     arrive   [ 0 ][ 1 ]        [ 2 ]      [ 3 ]           in host memory the slots of a turn lie as in the window:
 *     run            [update 0] [update 1] [update 2]       one copy a turn each way
 *     leave                [ 0 ]      [ 1 ]      [ 2 ]
 *
 * All is queued in the run's order, so a record (execute_record.c) holds it as well. When the run's stream is done, so is
 * this: between steps the host may read and write the slots where they lie.
 */
#ifndef MF_TRAIN_OFFLOAD_H
#define MF_TRAIN_OFFLOAD_H

#include "device/device.h"
#include "plan/plan.h"

typedef struct mf_turn {
    const mf_op *op;
    uint32_t step, window; /* of the phase; from 0 */
    uint64_t place, bytes; /* in host memory */
} mf_turn;

typedef struct mf_turns {
    mf_turn *list; /* in the order of their steps */
    uint32_t count;
} mf_turns;

typedef struct mf_offload {
    const memfit_host *host;
    mf_device *device;
    mf_stream stream, arrive, leave; /* the run's; own */
    unsigned char *memory, *base;    /* host memory; the arena */
    const mf_plan *plan;
    uint64_t bytes, *places; /* by variable: in `memory` */
    mf_turns *turns;         /* by phase */
    mf_event begun, over, arrived[MF_WINDOWS], ran[MF_WINDOWS], left[MF_WINDOWS];
} mf_offload;

/* Takes the host memory and finds every turn; lists come from `arena`. Nothing where the plan offloads nothing. */
memfit_status mf_offload_create(mf_offload *offload, mf_arena *arena, const memfit_host *host, mf_device *device,
                                mf_stream stream, const mf_plan *plan, void *base, memfit_error *err);
void mf_offload_destroy(mf_offload *offload);
/* Where a variable lies in host memory; NULL: it does not. */
void *mf_offload_variable(const mf_offload *offload, uint32_t variable);
/* Is this an address that mf_offload_variable gave, or one behind it? */
bool mf_offload_holds(const mf_offload *offload, mf_address address);

/* Around the steps of a run. `due` says for each operation whether it has its turn in this run. */
typedef bool mf_offload_due(const mf_op *op, const void *ctx);
typedef struct mf_offload_run {
    mf_offload *offload;
    const mf_turns *turns;
    mf_offload_due *due;
    const void *ctx;
    uint32_t next; /* turn whose step comes next */
    bool any;
} mf_offload_run;
memfit_status mf_offload_begin(mf_offload_run *run, mf_offload *offload, uint32_t phase, mf_offload_due *due,
                               const void *ctx, memfit_error *err);
memfit_status mf_offload_before(mf_offload_run *run, uint32_t step, memfit_error *err);
memfit_status mf_offload_after(mf_offload_run *run, uint32_t step, memfit_error *err);
memfit_status mf_offload_end(mf_offload_run *run, memfit_error *err);

#endif
