/* kernels_choose.c: which of the compiled kernel tables this processor can run. */
#include "ops/cpu/kernels/kernels.h"

const mf_kernel_table *mf_k_table_generic(void);
#ifdef MEMFIT_X86_KERNELS
const mf_kernel_table *mf_k_table_avx2(void);
const mf_kernel_table *mf_k_table_avx512(void);
#endif

const mf_kernel_table *mf_kernels(void)
{
#ifdef MEMFIT_X86_KERNELS
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        return mf_k_table_avx512();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return mf_k_table_avx2();
#endif
    return mf_k_table_generic();
}
