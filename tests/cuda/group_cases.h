/* group_cases.h: graphs whose operations the CUDA backend runs as groups. */
#ifndef MF_TESTS_CUDA_GROUP_CASES_H
#define MF_TESTS_CUDA_GROUP_CASES_H
#include "opcheck.h"
extern const opcheck_case group_cases[];
extern const size_t group_case_count;
#endif
