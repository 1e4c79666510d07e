/*
 * stage.h: how scalars and inputs get to a device whose memory the host cannot write: through host memory that the
 * device copies from while the host goes on (pinned, where the device has such memory).
 *
 *     set 0 [ scalars | input | input | ... ]     one piece of a batch fills a set and sends it; the next one takes the
 *     set 1 [ scalars | input | input | ... ]     other set, and waits only for copies that were sent two pieces ago
 *
 * Where the device has room, recorded runs also have a slot: device memory of one set. A set is copied there as a whole
 * on a stream of its own, while the piece before still runs. The record copies from the slot to the place of each input
 * and says when it has done so (`taken`): then the next set may come. A set that the slot already holds is not sent
 * again: a data set of one batch stays on the device.
 *
 *     copies' stream   wait taken | set -> slot | sent
 *     the run's                            wait sent | launch: slot -> scalars, slot -> inputs, taken, ... the step ...
 */
#ifndef MF_TRAIN_STAGE_H
#define MF_TRAIN_STAGE_H

#include "device/device.h"

enum { MF_STAGE_SETS = 2 };

typedef struct mf_stage {
    const memfit_host *host;
    mf_device *device;
    mf_stream stream;
    unsigned char *memory;
    uint64_t set_bytes, used; /* of the set in hand */
    mf_event sent[MF_STAGE_SETS];
    bool pending[MF_STAGE_SETS];
    unsigned set;

    mf_address slot; /* 0: none */
    mf_physical slot_memory;
    uint64_t slot_bytes; /* whole granules */
    mf_stream copies;
    mf_event taken;
    uint64_t slot_key; /* of the inputs it holds; 0: none that could be used again */
    unsigned left;     /* while a record is made: what it still has to take from the slot */
} mf_stage;

/* `bytes`: the most that one piece sends, each part rounded up to MF_STAGE_ALIGN. */
enum { MF_STAGE_ALIGN = 256 };
memfit_status mf_stage_create(mf_stage *stage, const memfit_host *host, mf_device *device, mf_stream stream,
                              uint64_t bytes, memfit_error *err);
void mf_stage_destroy(mf_stage *stage);
/* Device memory for a slot, when no more than `most` bytes are needed for it; OK without one where they are, or where the
 * device cannot. */
memfit_status mf_stage_take_slot(mf_stage *stage, uint64_t most, memfit_error *err);
/* Takes the other set in hand, as soon as what was sent from it has arrived. */
memfit_status mf_stage_begin(mf_stage *stage, memfit_error *err);
/* Room in the set in hand; NULL when it has none left. */
void *mf_stage_room(mf_stage *stage, uint64_t bytes);
memfit_status mf_stage_send(mf_stage *stage, mf_address to, const void *room, uint64_t bytes, memfit_error *err);
/* A record begins, in which `sends` calls of mf_stage_send follow; they copy from the slot where there is one. */
void mf_stage_record(mf_stage *stage, unsigned sends);
/* The record is made: what was sent from the set in hand was only recorded. */
void mf_stage_recorded(mf_stage *stage);
/* The first `bytes` of the set in hand are on their way to the slot, and the run's stream waits for them. */
memfit_status mf_stage_ship(mf_stage *stage, uint64_t bytes, memfit_error *err);
/* The same in parts: parts of the set in hand to the slot, at the same place; parts of the slot from or to other memory of
 * the device. The end lets the run's stream wait for them. */
memfit_status mf_stage_ship_begin(mf_stage *stage, memfit_error *err);
memfit_status mf_stage_ship_part(mf_stage *stage, const void *room, uint64_t bytes, memfit_error *err);
memfit_status mf_stage_ship_move(mf_stage *stage, mf_address to, mf_address from, uint64_t bytes, memfit_error *err);
memfit_status mf_stage_ship_end(mf_stage *stage, memfit_error *err);
/* Where in the slot this part of the set in hand comes to lie. */
mf_address mf_stage_slot_at(const mf_stage *stage, const void *room);
/* All of this piece is sent, by mf_stage_send or by a record that was launched. */
memfit_status mf_stage_end(mf_stage *stage, memfit_error *err);

#endif
