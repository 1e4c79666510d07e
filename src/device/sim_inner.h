/*
 * sim_inner.h: what the files of the simulated device share: its state, and how every call begins and ends.
 */
#ifndef MF_DEVICE_SIM_INNER_H
#define MF_DEVICE_SIM_INNER_H

#include "device/sim.h"
#include "device/sim_flight.h"

typedef struct reservation {
    mf_address base;
    uint64_t bytes;
    uint64_t leaf_count;
    uint32_t **leaf; /* NULL leaf: nothing mapped there yet */
} reservation;

typedef struct handle {
    uint64_t bytes; /* 0: this entry is free */
    uint32_t maps;
    uint32_t next_free;
} handle;

typedef struct sim_stream {
    uint64_t submitted, done;
    uint64_t lag_ns; /* held, but so long only */
    bool alive, held, captured;
} sim_stream;

typedef struct sim_event {
    uint32_t stream;
    bool alive, captured;
    uint64_t at;     /* done when the stream's done reaches this, */
    uint64_t due_ns; /* or on a stream that lags when it is this late */
} sim_event;

typedef struct sim {
    mf_device base;
    pthread_mutex_t lock;
    uint64_t capacity, foreign, handle_ns; /* the last: of an access or an unmap, for each handle */
    mf_address next_address;
    uint64_t fail_at[MF_CALL_COUNT];
    bool fail_for_ever[MF_CALL_COUNT];
    mf_sim_counts counts;
    reservation *reservations;
    size_t reservation_count, reservation_capacity;
    handle *handles; /* [0] unused */
    size_t handle_count, handle_capacity;
    uint32_t free_handle;
    sim_stream *streams; /* [0] is the default stream */
    size_t stream_count, stream_capacity;
    sim_event *events; /* [0] unused */
    size_t event_count, event_capacity;
    mf_flights flights;
} sim;

/* Enters a call: locks, counts, charges time, fails on demand. When it fails the lock is not held. */
memfit_status mf_sim_enter(sim *s, mf_call call, uint64_t bytes, memfit_error *err);
memfit_status mf_sim_leave(sim *s, memfit_status status);
sim_stream *mf_sim_stream(sim *s, mf_stream id); /* NULL: there is none of that number */

/* The table's functions for streams and events. */
memfit_status mf_sim_stream_create(mf_device *device, mf_stream *id, memfit_error *err);
memfit_status mf_sim_stream_destroy(mf_device *device, mf_stream id, memfit_error *err);
memfit_status mf_sim_stream_wait(mf_device *device, mf_stream id, mf_event event_id, memfit_error *err);
memfit_status mf_sim_stream_sync(mf_device *device, mf_stream id, memfit_error *err);
memfit_status mf_sim_device_sync(mf_device *device, memfit_error *err);
memfit_status mf_sim_capturing(mf_device *device, mf_stream id, bool *yes, memfit_error *err);
memfit_status mf_sim_event_create(mf_device *device, mf_event *id, memfit_error *err);
memfit_status mf_sim_event_destroy(mf_device *device, mf_event id, memfit_error *err);
memfit_status mf_sim_event_record(mf_device *device, mf_event id, mf_stream stream_id, memfit_error *err);
memfit_status mf_sim_timer_between(mf_device *device, mf_event from, mf_event to, double *us, memfit_error *err);
memfit_status mf_sim_event_done(mf_device *device, mf_event id, bool *done, memfit_error *err);
memfit_status mf_sim_event_sync(mf_device *device, mf_event id, memfit_error *err);

#endif
