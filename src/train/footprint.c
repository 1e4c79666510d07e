/* footprint.c: see footprint.h. */
#include "train/footprint.h"

#include "base/memory.h"
#include "base/os.h"
#include "ops/cpu/cpu_fixed.h"

enum { OTHERS_BYTES = 32 << 20 };

static uint64_t sample_process(mf_device *device)
{
    (void)device;
    mf_os_memory m;
    return mf_os_process_memory(&m, NULL) == MEMFIT_OK ? m.rss_anon + m.rss_shmem : 0;
}

static uint64_t fixed_of_plan(const mf_plan *plan)
{
    mf_cpu_seen seen = {{0}};
    uint64_t bytes = 0;
    for (uint32_t p = 0; p < plan->phase_count; p++)
        bytes += mf_cpu_graph_bytes(plan->phases[p].graph, &seen);
    return bytes;
}

const mf_footprint mf_footprint_cpu = {sample_process, mf_host_trim, mf_os_counter_error_bytes,
                                       fixed_of_plan,  .host = true, .every_us = 5000};

/* ---- a card's memory ------------------------------------------------------------------------------------------ */

/* Where the device has no figure for this process (NVML in some containers, a part of a card): what all hold. */
static uint64_t sample_device(mf_device *device)
{
    uint64_t own = device && device->table->own_bytes ? device->table->own_bytes(device) : 0, total, free_bytes;
    if (own || !device || device->table->memory(device, &total, &free_bytes, NULL) != MEMFIT_OK)
        return own;
    return total - free_bytes;
}

/* Modules, library code and captured steps, from above. On an H200 2 MiB (S1) to 17 (ResNet50), 8 to 15 KiB a step. */
uint64_t mf_footprint_card_bytes(uint64_t steps)
{
    enum { LEAST_BYTES = 4 << 20, STEP_BYTES = 16 << 10 };
    return LEAST_BYTES + steps * STEP_BYTES;
}

static uint64_t fixed_on_card(const mf_plan *plan)
{
    uint64_t steps = 0;
    for (uint32_t p = 0; p < plan->phase_count; p++)
        steps += plan->phases[p].step_count;
    return mf_footprint_card_bytes(steps);
}

/* A driver takes its memory in pieces of 2 MiB, some of them long after the start: after everything had run once, up to
 * three more were seen. We plan for them. */
static uint64_t late_pieces(void)
{
    enum { PIECES = 3, PIECE_BYTES = 2 << 20 };
    return PIECES * PIECE_BYTES;
}

/* Asking NVML takes a millisecond. */
const mf_footprint mf_footprint_device = {sample_device, mf_host_trim,  late_pieces,
                                          fixed_on_card, .host = false, .every_us = 200000};

uint64_t mf_footprint_most(const mf_footprint *f, mf_device *device)
{
    uint64_t total, available = 0;
    if (f->host)
        available = mf_os_available_memory();
    else if (device->table->memory(device, &total, &available, NULL) != MEMFIT_OK)
        available = 0;
    uint64_t most = available + f->sample(device), polite = f->host ? mf_os_soft_limit() : UINT64_MAX;
    most = most > 2 * OTHERS_BYTES ? most - OTHERS_BYTES : most;
    return most < polite ? most : polite;
}
