/*
 * stage.h: how scalars and inputs get to a device whose memory the host cannot write: through host memory that the
 * device copies from while the host goes on (pinned, where the device has such memory).
 *
 *     set 0 [ scalars | input | input | ... ]     one piece of a batch fills a set and sends it; the next one takes the
 *     set 1 [ scalars | input | input | ... ]     other set, and waits only for copies that were sent two pieces ago
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
} mf_stage;

/* `bytes`: the most that one piece sends, each part rounded up to MF_STAGE_ALIGN. */
enum { MF_STAGE_ALIGN = 256 };
memfit_status mf_stage_create(mf_stage *stage, const memfit_host *host, mf_device *device, mf_stream stream,
                              uint64_t bytes, memfit_error *err);
void mf_stage_destroy(mf_stage *stage);
/* Takes the other set in hand, as soon as what was sent from it has arrived. */
memfit_status mf_stage_begin(mf_stage *stage, memfit_error *err);
/* Room in the set in hand; NULL when it has none left. */
void *mf_stage_room(mf_stage *stage, uint64_t bytes);
memfit_status mf_stage_send(mf_stage *stage, mf_address to, const void *room, uint64_t bytes, memfit_error *err);
/* What was sent from the set in hand was only recorded. */
void mf_stage_forget(mf_stage *stage);
/* All of this piece is sent, by mf_stage_send or by a record that was launched. */
memfit_status mf_stage_end(mf_stage *stage, memfit_error *err);

#endif
