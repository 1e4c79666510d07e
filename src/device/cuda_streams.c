/*
 * cuda_streams.c: the streams, events, copies and graphs of an NVIDIA card.
 *
 * graphs: while a stream is captured into a CUDA graph the driver refuses many calls to every thread, and a refused call
 * can end the capture. None of ours ends one, so each call is made in the relaxed mode. record_begin to record_end
 * capture a stream of our own; a recording is an instantiated graph, uploaded, so that launching it takes nothing.
 */
#include "base/error.h"
#include "device/cuda_inner.h"

static cu_stream to_stream(mf_stream stream)
{
    return (cu_stream)(uintptr_t)stream;
}

static cu_event to_event(mf_event event)
{
    return (cu_event)(uintptr_t)event;
}

static memfit_status cuda_stream_create(mf_device *device, mf_stream *stream, memfit_error *err)
{
    cuda *c = (cuda *)device;
    cu_stream s = NULL;
    cu_result code = CU_SUCCESS;
    mf_cuda_call state = mf_cuda_begin(c, &code);
    if (code == CU_SUCCESS)
        code = c->driver.stream_create(&s, CU_STREAM_NON_BLOCKING);
    mf_cuda_end(c, state);
    if (code != CU_SUCCESS)
        return mf_cuda_fail(&c->driver, code, "making a stream", err);
    *stream = (mf_stream)(uintptr_t)s;
    return MEMFIT_OK;
}

static memfit_status cuda_stream_destroy(mf_device *device, mf_stream stream, memfit_error *err)
{
    cuda *c = (cuda *)device;
    IN_CONTEXT(c, "ending a stream", c->driver.stream_destroy(to_stream(stream)));
}

static memfit_status cuda_stream_wait(mf_device *device, mf_stream stream, mf_event event, memfit_error *err)
{
    cuda *c = (cuda *)device;
    IN_CONTEXT(c, "making a stream wait", c->driver.stream_wait(to_stream(stream), to_event(event), 0));
}

/* No external event here, other than in cuda_event_record: in a capture it becomes an edge of the graph. */
static memfit_status cuda_stream_follow(mf_device *device, mf_stream stream, mf_stream before, mf_event event,
                                        memfit_error *err)
{
    cuda *c = (cuda *)device;
    cu_result code = CU_SUCCESS;
    mf_cuda_call state = mf_cuda_begin(c, &code);
    if (code == CU_SUCCESS)
        code = c->driver.event_record(to_event(event), to_stream(before));
    if (code == CU_SUCCESS)
        code = c->driver.stream_wait(to_stream(stream), to_event(event), 0);
    mf_cuda_end(c, state);
    return code == CU_SUCCESS ? MEMFIT_OK : mf_cuda_fail(&c->driver, code, "making a stream follow another", err);
}

static memfit_status cuda_stream_sync(mf_device *device, mf_stream stream, memfit_error *err)
{
    cuda *c = (cuda *)device;
    IN_CONTEXT(c, "waiting for a stream", c->driver.stream_sync(to_stream(stream)));
}

static memfit_status make_event(cuda *c, unsigned flags, mf_event *event, memfit_error *err)
{
    cu_event e = NULL;
    cu_result code = CU_SUCCESS;
    mf_cuda_call state = mf_cuda_begin(c, &code);
    if (code == CU_SUCCESS)
        code = c->driver.event_create(&e, flags);
    mf_cuda_end(c, state);
    if (code != CU_SUCCESS)
        return mf_cuda_fail(&c->driver, code, "making an event", err);
    *event = (mf_event)(uintptr_t)e;
    return MEMFIT_OK;
}

static memfit_status cuda_event_create(mf_device *device, mf_event *event, memfit_error *err)
{
    return make_event((cuda *)device, CU_EVENT_DISABLE_TIMING, event, err);
}

static memfit_status cuda_timer_create(mf_device *device, mf_event *event, memfit_error *err)
{
    return make_event((cuda *)device, 0, event, err);
}

static memfit_status cuda_timer_between(mf_device *device, mf_event from, mf_event to, double *us, memfit_error *err)
{
    cuda *c = (cuda *)device;
    float ms = 0;
    cu_result code = c->driver.event_elapsed ? CU_SUCCESS : CU_ERROR_NOT_SUPPORTED;
    mf_cuda_call state = mf_cuda_begin(c, &code);
    if (code == CU_SUCCESS)
        code = c->driver.event_elapsed(&ms, to_event(from), to_event(to));
    mf_cuda_end(c, state);
    if (code != CU_SUCCESS)
        return mf_cuda_fail(&c->driver, code, "reading the time between two events", err);
    *us = (double)ms * 1e3;
    return MEMFIT_OK;
}

static memfit_status cuda_event_destroy(mf_device *device, mf_event event, memfit_error *err)
{
    cuda *c = (cuda *)device;
    IN_CONTEXT(c, "ending an event", c->driver.event_destroy(to_event(event)));
}

static memfit_status cuda_event_record(mf_device *device, mf_event event, mf_stream stream, memfit_error *err)
{
    cuda *c = (cuda *)device;
    if (atomic_load(&c->recorded) == stream)
        IN_CONTEXT(c, "recording an event in a graph",
                   c->driver.event_record_external(to_event(event), to_stream(stream), CU_EVENT_RECORD_EXTERNAL));
    IN_CONTEXT(c, "recording an event", c->driver.event_record(to_event(event), to_stream(stream)));
}

static memfit_status cuda_event_done(mf_device *device, mf_event event, bool *done, memfit_error *err)
{
    cuda *c = (cuda *)device;
    cu_result code = CU_SUCCESS;
    mf_cuda_call state = mf_cuda_begin(c, &code);
    if (code == CU_SUCCESS)
        code = c->driver.event_query(to_event(event));
    mf_cuda_end(c, state);
    if (code != CU_SUCCESS && code != CU_ERROR_NOT_READY)
        return mf_cuda_fail(&c->driver, code, "asking for an event", err);
    *done = code == CU_SUCCESS;
    return MEMFIT_OK;
}

static memfit_status cuda_event_sync(mf_device *device, mf_event event, memfit_error *err)
{
    cuda *c = (cuda *)device;
    IN_CONTEXT(c, "waiting for an event", c->driver.event_sync(to_event(event)));
}

static memfit_status cuda_device_sync(mf_device *device, memfit_error *err)
{
    cuda *c = (cuda *)device;
    IN_CONTEXT(c, "waiting for the card", c->driver.ctx_sync());
}

/* Asked for every event and for every request on a stream of its own. The default stream cannot be captured, so the driver
 * is not asked about it: PyTorch makes hundreds of requests a step there. */
static memfit_status cuda_capturing(mf_device *device, mf_stream stream, bool *yes, memfit_error *err)
{
    cuda *c = (cuda *)device;
    int status = CU_CAPTURE_STATUS_NONE;
    if (stream && c->driver.stream_capturing) {
        cu_result code = CU_SUCCESS;
        cu_context now = NULL;
        bool current = c->driver.ctx_get_current(&now) == CU_SUCCESS && now == c->context;
        mf_cuda_call state = current ? (mf_cuda_call){.mode = -1} : mf_cuda_begin(c, &code);
        if (code == CU_SUCCESS)
            code = c->driver.stream_capturing(to_stream(stream), &status);
        mf_cuda_end(c, state);
        if (code != CU_SUCCESS)
            return mf_cuda_fail(&c->driver, code, "asking whether a stream is captured", err);
    }
    *yes = status != CU_CAPTURE_STATUS_NONE;
    return MEMFIT_OK;
}

/* ---- bytes ------------------------------------------------------------------------------------------------ */

static memfit_status cuda_copy_in(mf_device *device, mf_address to, const void *from, uint64_t bytes, mf_stream stream,
                                  memfit_error *err)
{
    cuda *c = (cuda *)device;
    IN_CONTEXT(c, "copying to the device", c->driver.copy_in(to, from, bytes, to_stream(stream)));
}

static memfit_status cuda_copy_out(mf_device *device, void *to, mf_address from, uint64_t bytes, mf_stream stream,
                                   memfit_error *err)
{
    cuda *c = (cuda *)device;
    IN_CONTEXT(c, "copying from the device", c->driver.copy_out(to, from, bytes, to_stream(stream)));
}

static memfit_status cuda_copy(mf_device *device, mf_address to, mf_address from, uint64_t bytes, mf_stream stream,
                               memfit_error *err)
{
    cuda *c = (cuda *)device;
    IN_CONTEXT(c, "copying on the device", c->driver.copy(to, from, bytes, to_stream(stream)));
}

static memfit_status cuda_fill(mf_device *device, mf_address to, unsigned char byte, uint64_t bytes, mf_stream stream,
                               memfit_error *err)
{
    cuda *c = (cuda *)device;
    IN_CONTEXT(c, "filling device memory", c->driver.fill(to, byte, bytes, to_stream(stream)));
}

/* ---- host memory, recordings ------------------------------------------------------------------------------ */

/* ---- recordings ------------------------------------------------------------------------------------------- */

static memfit_status cuda_record_begin(mf_device *device, mf_stream stream, memfit_error *err)
{
    cuda *c = (cuda *)device;
    mf_stream none = NO_STREAM;
    if (!atomic_compare_exchange_strong(&c->recorded, &none, stream))
        return mf_fail(err, MEMFIT_CONFLICT, "a stream is being recorded already");
    cu_result code = CU_SUCCESS;
    mf_cuda_call state = mf_cuda_begin(c, &code);
    if (code == CU_SUCCESS)
        code = c->driver.capture_begin(to_stream(stream), CU_CAPTURE_MODE_RELAXED);
    mf_cuda_end(c, state);
    if (code == CU_SUCCESS)
        return MEMFIT_OK;
    atomic_store(&c->recorded, NO_STREAM);
    return mf_cuda_fail(&c->driver, code, "beginning to record a stream", err);
}

static memfit_status cuda_record_end(mf_device *device, mf_stream stream, mf_recording *record, memfit_error *err)
{
    cuda *c = (cuda *)device;
    cu_graph graph = NULL;
    cu_graph_exec exec = NULL;
    cu_result code = CU_SUCCESS;
    mf_cuda_call state = mf_cuda_begin(c, &code);
    cu_result ended = c->driver.capture_end(to_stream(stream), &graph);
    int captured = 0;
    if (ended != CU_SUCCESS && !graph && c->driver.stream_capturing &&
        c->driver.stream_capturing(to_stream(stream), &captured) == CU_SUCCESS && captured) /* it was refused */
        c->driver.capture_end(to_stream(stream), &graph);
    code = code == CU_SUCCESS ? ended : code;
    atomic_store(&c->recorded, NO_STREAM);
    if (code == CU_SUCCESS)
        code = c->driver.graph_make(&exec, graph, 0);
    if (code == CU_SUCCESS && c->driver.graph_upload)
        code = c->driver.graph_upload(exec, to_stream(stream));
    if (code == CU_SUCCESS)
        code = c->driver.stream_sync(to_stream(stream));
    if (graph)
        c->driver.graph_destroy(graph);
    if (code != CU_SUCCESS && exec)
        c->driver.graph_exec_destroy(exec);
    mf_cuda_end(c, state);
    if (code != CU_SUCCESS)
        return mf_cuda_fail(&c->driver, code, "making a graph of a stream", err);
    *record = (mf_recording)(uintptr_t)exec;
    return MEMFIT_OK;
}

static memfit_status cuda_record_launch(mf_device *device, mf_recording record, mf_stream stream, memfit_error *err)
{
    cuda *c = (cuda *)device;
    IN_CONTEXT(c, "launching a graph", c->driver.graph_launch((cu_graph_exec)(uintptr_t)record, to_stream(stream)));
}

static void cuda_record_destroy(mf_device *device, mf_recording record)
{
    cuda *c = (cuda *)device;
    cu_result code = CU_SUCCESS;
    if (!record)
        return;
    mf_cuda_call state = mf_cuda_begin(c, &code);
    if (code == CU_SUCCESS)
        c->driver.graph_exec_destroy((cu_graph_exec)(uintptr_t)record);
    mf_cuda_end(c, state);
}

void mf_cuda_stream_table(mf_device_table *table)
{
    table->stream_create = cuda_stream_create;
    table->stream_destroy = cuda_stream_destroy;
    table->stream_wait = cuda_stream_wait;
    table->stream_sync = cuda_stream_sync;
    table->stream_follow = cuda_stream_follow;
    table->event_create = cuda_event_create;
    table->event_destroy = cuda_event_destroy;
    table->event_record = cuda_event_record;
    table->event_done = cuda_event_done;
    table->event_sync = cuda_event_sync;
    table->timer_create = cuda_timer_create;
    table->timer_between = cuda_timer_between;
    table->record_begin = cuda_record_begin;
    table->record_end = cuda_record_end;
    table->record_launch = cuda_record_launch;
    table->record_destroy = cuda_record_destroy;
    table->device_sync = cuda_device_sync;
    table->capturing = cuda_capturing;
    table->copy_in = cuda_copy_in;
    table->copy_out = cuda_copy_out;
    table->copy = cuda_copy;
    table->fill = cuda_fill;
}
