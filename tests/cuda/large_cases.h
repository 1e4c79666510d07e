/* large_cases.h: graphs of sizes at which kernels split, loop and cross blocks. */
#ifndef MF_TESTS_CUDA_LARGE_CASES_H
#define MF_TESTS_CUDA_LARGE_CASES_H
#include "opcheck.h"
extern const opcheck_case large_cases[];
extern const size_t large_case_count;
#endif
