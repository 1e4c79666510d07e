/*
 * conformance_cuda.c: the same calls on the fake driver and on the real one. Each check states what NVIDIA's driver
 * answers (seen on driver 580.159, CUDA 13.0, H200); on either driver every check must hold. A difference found on a
 * real driver changes the fake and the expectation here.
 *
 *     conformance_cuda [--real]     the fake is named by FAKE_CUDA_LIBRARY; --real takes the system's libcuda
 */
#include "device/cuda_driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB ((size_t)1 << 20)
enum { ANY = -1 };

static int failures, checks;

static void check(const char *what, int got, int want)
{
    checks++;
    bool good = got == want || (want == ANY && got != 0);
    if (!good)
        failures++;
    printf("%-72s %4d %s\n", what, got, good ? "" : want == ANY ? "(an error was expected)" : "(differs)");
}

static void memory_rules(const mf_cuda_driver *d, int device)
{
    cu_allocation_prop prop = {.type = CU_ALLOCATION_PINNED, .location = {CU_LOCATION_DEVICE, device}};
    cu_access_desc access = {{CU_LOCATION_DEVICE, device}, CU_ACCESS_READ_WRITE};
    cu_address range = 0;
    cu_handle one = 0, two = 0, big = 0, none = 0;
    size_t granularity = 0, before = 0, after = 0, total = 0;
    uint32_t word = 0xfeedface, back = 0;
    check("granularity is told", d->granularity(&granularity, &prop, CU_GRANULARITY_MINIMUM), 0);
    check("granularity is 2 MiB", granularity == 2 * MIB ? 0 : 1, 0);
    check("reserve 64 MiB", d->reserve(&range, 64 * MIB, 0, 0, 0), 0);
    check("reserve of a broken page is refused", d->reserve((cu_address[]){0}, 2 * MIB + 4096, 0, 0, 0), 1);
    check("create of a broken page is refused", d->create(&none, MIB, &prop, 0), 1);
    check("create of nothing is refused", d->create(&none, 0, &prop, 0), 1);
    d->memory_info(&before, &total);
    check("create more than the card holds: out of memory",
          d->create(&none, (total / (2 * MIB) + 64) * 2 * MIB, &prop, 0), 2);
    check("create 2 MiB", d->create(&one, 2 * MIB, &prop, 0), 0);
    check("create 2 MiB", d->create(&two, 2 * MIB, &prop, 0), 0);
    check("create 4 MiB", d->create(&big, 4 * MIB, &prop, 0), 0);
    check("map at the start", d->map(range, 2 * MIB, 0, one, 0), 0);
    check("map on what is mapped is refused", d->map(range, 2 * MIB, 0, two, 0), ANY);
    check("map outside the reservation is refused", d->map(range + 64 * MIB, 2 * MIB, 0, two, 0), ANY);
    check("map of a part of a handle is refused", d->map(range + 8 * MIB, 2 * MIB, 2 * MIB, big, 0), ANY);
    check("map of half a handle is refused", d->map(range + 8 * MIB, 2 * MIB, 0, big, 0), ANY);
    check("map beside it", d->map(range + 2 * MIB, 2 * MIB, 0, two, 0), 0);
    check("access over both at once", d->access(range, 4 * MIB, &access, 1), 0);
    check("access over a hole is refused", d->access(range, 8 * MIB, &access, 1), ANY);
    check("copy across both", d->copy_in(range + 2 * MIB - 2, &word, sizeof word, NULL), 0);
    check("copy back", d->copy_out(&back, range + 2 * MIB - 2, sizeof back, NULL), 0);
    check("sync", d->stream_sync(NULL), 0);
    check("the bytes are the same", back == word ? 0 : 1, 0);
    check("map a handle a second time elsewhere", d->map(range + 32 * MIB, 2 * MIB, 0, one, 0), 0);
    check("access there", d->access(range + 32 * MIB, 2 * MIB, &access, 1), 0);
    back = 0;
    check("the same memory is seen there",
          d->copy_out(&back, range + 34 * MIB - 2, 2, NULL) || d->stream_sync(NULL) ||
              (back & 0xffff) != (word & 0xffff),
          0);
    check("map a 4 MiB handle", d->map(range + 16 * MIB, 4 * MIB, 0, big, 0), 0);
    check("access to a part of it is refused", d->access(range + 16 * MIB, 2 * MIB, &access, 1), ANY);
    check("unmap of a part of it is refused", d->unmap(range + 16 * MIB, 2 * MIB), ANY);
    check("unmap of the whole", d->unmap(range + 16 * MIB, 4 * MIB), 0);
    check("unmap of two neighbours in one call", d->unmap(range, 4 * MIB), 0);
    check("unmap of what is not mapped is taken for done", d->unmap(range, 2 * MIB), 0);
    check("freeing addresses while something is mapped is refused", d->unreserve(range, 64 * MIB), ANY);
    check("release while mapped", d->release(one), 0);
    check("release again is refused", d->release(one), ANY);
    check("unmap the last mapping", d->unmap(range + 32 * MIB, 2 * MIB), 0);
    check("release", d->release(two), 0);
    check("release", d->release(big), 0);
    check("freeing a part of the addresses is refused", d->unreserve(range, 32 * MIB), ANY);
    check("freeing the addresses", d->unreserve(range, 64 * MIB), 0);
    d->memory_info(&after, &total);
    check("all memory is back", after + 2 * MIB >= before ? 0 : 1, 0);
}

static void stream_rules(const mf_cuda_driver *d)
{
    cu_stream stream = NULL;
    cu_event event = NULL;
    cu_address plain = 0;
    float ms = 0;
    check("make a stream", d->stream_create(&stream, CU_STREAM_NON_BLOCKING), 0);
    check("make an event", d->event_create(&event, CU_EVENT_DISABLE_TIMING), 0);
    check("an event never recorded is done", d->event_query(event), 0);
    check("waiting for an event never recorded returns", d->event_sync(event), 0);
    check("record it", d->event_record(event, stream), 0);
    check("wait for the event", d->event_sync(event), 0);
    check("wait for the stream", d->stream_sync(stream), 0);
    check("the event is done", d->event_query(event), 0);
    check("it keeps no time", d->event_elapsed ? d->event_elapsed(&ms, event, event) : CU_ERROR_INVALID_HANDLE,
          CU_ERROR_INVALID_HANDLE);
    check("another stream waits for it", d->stream_wait(NULL, event, 0), 0);
    check("plain allocation", d->mem_alloc(&plain, 1000), 0);
    check("fill it", d->fill(plain, 7, 1000, stream), 0);
    check("wait", d->stream_sync(stream), 0);
    check("free it", d->mem_free(plain), 0);
    check("plain allocation of 6 MiB", d->mem_alloc(&plain, 6 * MIB), 0);
    check("it begins at a page of 2 MiB", plain % (2 * MIB) ? 1 : 0, 0);
    check("the second free is refused", d->mem_free(plain) ? -1 : d->mem_free(plain), 1);
    check("an empty plain allocation is refused", d->mem_alloc(&plain, 0), 1);
    check("end the event", d->event_destroy(event), 0);
    check("end the stream", d->stream_destroy(stream), 0);
}

static void graph_rules(const mf_cuda_driver *d)
{
    cu_stream stream = NULL;
    cu_event event = NULL, from = NULL, to = NULL;
    cu_address place = 0;
    cu_graph graph = NULL, none = NULL;
    cu_graph_exec exec = NULL;
    uint32_t *pinned = NULL, back = 0;
    float ms = -1;
    check("pinned memory", d->host_alloc((void **)&pinned, 4096, 0), 0);
    check("pinned memory of no bytes is no error", d->host_alloc((void *[]){NULL}, 0, 0), 0);
    check("a stream, an event, memory",
          d->stream_create(&stream, CU_STREAM_NON_BLOCKING) || d->event_create(&event, CU_EVENT_DISABLE_TIMING) ||
              d->mem_alloc(&place, 4096),
          0);
    check("ending a capture that was not begun is refused", d->capture_end(stream, &none), CU_ERROR_ILLEGAL_STATE);
    check("capturing the default stream is refused", d->capture_begin(NULL, CU_CAPTURE_MODE_RELAXED), 900);
    check("begin to capture", d->capture_begin(stream, CU_CAPTURE_MODE_RELAXED), 0);
    check("beginning again is refused", d->capture_begin(stream, CU_CAPTURE_MODE_RELAXED), CU_ERROR_ILLEGAL_STATE);
    pinned[0] = 1;
    pinned[1] = 0;
    check("a fill, captured", d->fill(place, 7, 4096, stream), 0);
    check("a copy in, captured", d->copy_in(place, pinned, 4, stream), 0);
    check("an event, captured", d->event_record_external(event, stream, CU_EVENT_RECORD_EXTERNAL), 0);
    check("a copy out, captured", d->copy_out(pinned + 1, place, 8, stream), 0);
    check("end the capture", d->capture_end(stream, &graph), 0);
    check("instantiate it", d->graph_make(&exec, graph, 0), 0);
    check("end the graph, what is instantiated stays", d->graph_destroy(graph), 0);
    check("upload it", d->graph_upload(exec, stream), 0);
    check("nothing has run", d->stream_sync(stream) || pinned[1] != 0 ? 1 : 0, 0);
    for (uint32_t i = 2; i < 5; i++) {
        pinned[0] = i;
        check("launch it", d->graph_launch(exec, stream), 0);
        check("its event can be waited for", d->event_sync(event), 0);
        check("wait", d->stream_sync(stream), 0);
        check("each launch copies what is there then", pinned[1] == i && pinned[2] == 0x07070707 ? 0 : 1, 0);
    }
    check("end what is instantiated", d->graph_exec_destroy(exec), 0);
    check("events that keep the time", d->event_create(&from, 0) || d->event_create(&to, 0), 0);
    check("record them", d->event_record(from, stream) || d->event_record(to, stream) || d->event_sync(to), 0);
    check("the time between them", d->event_elapsed(&ms, from, to) || ms < 0, 0);
    check("copy back", d->copy_out(&back, place, 4, stream) || d->stream_sync(stream) || back != 4, 0);
    d->event_destroy(from);
    d->event_destroy(to);
    d->event_destroy(event);
    d->mem_free(place);
    d->stream_destroy(stream);
    check("pinned memory is given back", d->host_free(pinned), 0);
}

/* A second stream that joins a capture, and one that does so and is not waited for. */
static void fork_rules(const mf_cuda_driver *d)
{
    cu_stream stream = NULL, other = NULL;
    cu_event out = NULL, back = NULL;
    cu_address place = 0;
    cu_graph graph = NULL;
    cu_graph_exec exec = NULL;
    uint32_t *pinned = NULL;
    check("two streams, two events, memory",
          d->stream_create(&stream, CU_STREAM_NON_BLOCKING) || d->stream_create(&other, CU_STREAM_NON_BLOCKING) ||
              d->event_create(&out, CU_EVENT_DISABLE_TIMING) || d->event_create(&back, CU_EVENT_DISABLE_TIMING) ||
              d->mem_alloc(&place, 4096) || d->host_alloc((void **)&pinned, 4096, 0),
          0);
    check("begin to capture", d->capture_begin(stream, CU_CAPTURE_MODE_RELAXED), 0);
    check("the other stream joins", d->event_record(out, stream) || d->stream_wait(other, out, 0), 0);
    check("a copy on it, captured", d->copy_in(place, pinned, 4, other), 0);
    check("the first waits for it", d->event_record(back, other) || d->stream_wait(stream, back, 0), 0);
    check("a copy behind it, captured", d->copy_out(pinned + 1, place, 4, stream), 0);
    check("end the capture", d->capture_end(stream, &graph), 0);
    check("instantiate it", d->graph_make(&exec, graph, 0) || d->graph_destroy(graph), 0);
    pinned[0] = 5;
    pinned[1] = 0;
    check("the other stream is free again", d->stream_sync(other), 0);
    check("launch it", d->graph_launch(exec, stream) || d->stream_sync(stream), 0);
    check("one stream's copy came before the other's", pinned[1] == 5 ? 0 : 1, 0);
    check("end what is instantiated", d->graph_exec_destroy(exec), 0);
    check("begin to capture again", d->capture_begin(stream, CU_CAPTURE_MODE_RELAXED), 0);
    check("the other stream joins", d->event_record(out, stream) || d->stream_wait(other, out, 0), 0);
    check("a copy on it, captured", d->copy_in(place, pinned, 4, other), 0);
    check("ending without having waited for it is refused", d->capture_end(stream, &graph), 904);
    check("both streams are free again", d->stream_sync(stream) || d->stream_sync(other), 0);
    d->event_destroy(out);
    d->event_destroy(back);
    d->mem_free(place);
    d->stream_destroy(stream);
    d->stream_destroy(other);
    check("pinned memory is given back", d->host_free(pinned), 0);
}

int main(int argc, char **argv)
{
    bool real = argc > 1 && strcmp(argv[1], "--real") == 0;
    const char *fake = getenv("FAKE_CUDA_LIBRARY");
    if (!real && fake)
        setenv("MEMFIT_LIB_CUDA", fake, 1);
    mf_cuda_driver d;
    memfit_error err;
    if (mf_cuda_open(mf_finder_default(), &d, &err)) {
        printf("%s\n", err.message);
        return real ? 77 : 1; /* 77: skipped */
    }
    int count = 0;
    cu_device device = 0;
    cu_context context = NULL, old = NULL;
    check("cards are counted", d.device_count(&count), 0);
    check("a card that is not there is refused", d.device_get(&device, count), 101);
    check("the first card", d.device_get(&device, 0), 0);
    check("no context: memory is not told", d.memory_info((size_t[]){0}, (size_t[]){0}), 201);
    check("retain the primary context", d.primary_retain(&context, device), 0);
    check("push it", d.ctx_push(context), 0);
    memory_rules(&d, device);
    stream_rules(&d);
    if (d.capture_begin && d.host_alloc && d.event_record_external && d.event_elapsed) {
        graph_rules(&d);
        fork_rules(&d);
    }
    check("pop it", d.ctx_pop(&old), 0);
    check("release the context", d.primary_release(device), 0);
    printf("%s, CUDA %d.%d: %d checks, %d differ\n", d.library.path, d.version / 1000, d.version % 1000 / 10, checks,
           failures);
    return failures > 0;
}
