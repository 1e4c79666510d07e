/* kernels_choose.c: which of the compiled kernel tables serves: the best this processor can run, or one by name. */
#include "ops/cpu/kernels/kernels.h"

#include "base/error.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

const mf_kernel_table *mf_k_table_generic(void);
#ifdef MEMFIT_X86_KERNELS
const mf_kernel_table *mf_k_table_avx2(void);
const mf_kernel_table *mf_k_table_avx512(void);
#endif

static bool runs_generic(void)
{
    return true;
}

#ifdef MEMFIT_X86_KERNELS
static bool runs_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

static bool runs_avx512(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#endif

static const struct {
    const char *name;
    bool (*runs)(void);
    const mf_kernel_table *(*table)(void);
} sets[] = {/* from the best down */
#ifdef MEMFIT_X86_KERNELS
            {"avx512", runs_avx512, mf_k_table_avx512},
            {"avx2", runs_avx2, mf_k_table_avx2},
#endif
            {"sse2", runs_generic, mf_k_table_generic}};

const char *mf_kernels_wanted(void)
{
    const char *name = getenv("MEMFIT_ISA");
    return name && *name ? name : NULL;
}

static const mf_kernel_table *choose(memfit_error *err)
{
    const char *name = mf_kernels_wanted();
#ifdef MEMFIT_X86_KERNELS
    __builtin_cpu_init();
#endif
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        if (name && strcmp(name, sets[i].name) != 0)
            continue;
        if (sets[i].runs())
            return sets[i].table();
        if (name)
            mf_fail(err, MEMFIT_INVALID, "MEMFIT_ISA=%s: this processor does not have these instructions", name);
        if (name)
            return NULL;
    }
    mf_fail(err, MEMFIT_INVALID, "MEMFIT_ISA=%s: must be sse2, avx2 or avx512", name);
    return NULL;
}

memfit_status mf_kernels_check(memfit_error *err)
{
    return choose(err) ? MEMFIT_OK : MEMFIT_INVALID;
}

/* Asked for often, so remembered: neither the processor nor the environment changes while a program runs. */
const mf_kernel_table *mf_kernels(void)
{
    static const mf_kernel_table *_Atomic chosen;
    const mf_kernel_table *table = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (!table) {
        table = choose(NULL);
        table = table ? table : mf_k_table_generic();
        atomic_store_explicit(&chosen, table, memory_order_relaxed);
    }
    return table;
}
