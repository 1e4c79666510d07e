/* team.c: OpenMP's thread number and the treatment of denormals, taken and given back. */
#include "ops/team.h"

#ifdef _OPENMP
#include <omp.h>
#endif
#if defined(__SSE2__)
#include <immintrin.h>
#endif

#ifdef MF_SERIAL_REGIONS
/* The linker leads every region of ours here (--wrap). What its `if` gives to one thread alone is a call: GCC's library
 * would take memory for a team and make a system call at its end, a dozen of them in a step of a small model. */
void __real_GOMP_parallel(void (*region)(void *), void *data, unsigned threads, unsigned flags);
void __wrap_GOMP_parallel(void (*region)(void *), void *data, unsigned threads, unsigned flags);

void __wrap_GOMP_parallel(void (*region)(void *), void *data, unsigned threads, unsigned flags)
{
    if (threads == 1 && omp_get_level() == 0)
        region(data);
    else
        __real_GOMP_parallel(region, data, threads, flags);
}
#endif

enum { FLUSH = 0x8040 }; /* MXCSR: flush to zero, denormals are zero */

/* Every thread of the team gets these bits of its own control register. */
static void set_flush(unsigned bits, int threads)
{
#if defined(__SSE2__)
#pragma omp parallel num_threads(threads)
    _mm_setcsr((_mm_getcsr() & ~(unsigned)FLUSH) | bits);
#endif
    (void)bits, (void)threads;
}

void mf_team_enter(mf_team *team, unsigned threads)
{
    *team = (mf_team){.entered = true};
#ifdef _OPENMP
    team->threads = omp_get_max_threads();
    team->dynamic = omp_get_dynamic();
    omp_set_dynamic(0);
    omp_set_num_threads((int)threads);
#endif
#if defined(__SSE2__)
    team->control = _mm_getcsr();
    _mm_setcsr(team->control | FLUSH); /* threads that are started now inherit it */
#endif
    set_flush(FLUSH, (int)threads);
}

void mf_team_leave(mf_team *team)
{
    if (!team->entered)
        return;
    team->entered = false;
#ifdef _OPENMP
    set_flush(team->control & FLUSH, omp_get_max_threads());
    omp_set_num_threads(team->threads);
    omp_set_dynamic(team->dynamic);
#endif
#if defined(__SSE2__)
    _mm_setcsr(team->control);
#endif
}
