/* footprint.c: see footprint.h. */
#include "train/footprint.h"

#include "base/memory.h"
#include "base/os.h"
#include "ops/cpu/cpu_fixed.h"

static uint64_t sample_process(void)
{
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

const mf_footprint mf_footprint_cpu = {sample_process, mf_host_trim, mf_os_counter_error_bytes, fixed_of_plan};
