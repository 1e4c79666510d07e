/* shim.h: CUDA's words for a C++ compiler on the host: a block has one thread, the grid is a loop; or, with
 * MF_SHIM_THREADS, the block's threads are real ones, which meet where a kernel says so. */
#ifndef MF_TESTS_CUDA_SHIM_H
#define MF_TESTS_CUDA_SHIM_H
#include <math.h>
#include <stdint.h>
#include <string.h>
#define __device__
#define __global__
#define __shared__ static
#define __launch_bounds__(...)
#define __grid_constant__
struct shim_index {
    unsigned x, y, z;
};
#ifdef MF_SHIM_THREADS
#include <pthread.h>
static thread_local shim_index blockIdx, threadIdx;
static pthread_mutex_t shim_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t shim_cond = PTHREAD_COND_INITIALIZER;
static unsigned shim_alive, shim_waiting, shim_round;
static inline void shim_pass()
{
    shim_waiting = 0;
    shim_round++;
    pthread_cond_broadcast(&shim_cond);
}
/* Threads that have ended are not waited for. */
static inline void __syncthreads()
{
    pthread_mutex_lock(&shim_mutex);
    unsigned round = shim_round;
    if (++shim_waiting == shim_alive)
        shim_pass();
    while (round == shim_round)
        pthread_cond_wait(&shim_cond, &shim_mutex);
    pthread_mutex_unlock(&shim_mutex);
}
extern "C" void shim_begin(unsigned threads)
{
    shim_alive = threads;
    shim_waiting = 0;
}
extern "C" void shim_thread(unsigned x)
{
    threadIdx = {x, 0, 0};
}
extern "C" void shim_leave()
{
    pthread_mutex_lock(&shim_mutex);
    if (--shim_alive > 0 && shim_waiting == shim_alive)
        shim_pass();
    pthread_mutex_unlock(&shim_mutex);
}
#else
static shim_index blockIdx, threadIdx;
static inline void __syncthreads()
{
}
#endif
/* What shuffles within a warp do, for a team of the block's threads. */
template <class T, class F> static inline T shim_over_team(T v, F f, unsigned team)
{
    static double box[1024];
    __syncthreads();
    box[threadIdx.x] = (double)v;
    __syncthreads();
    unsigned first = threadIdx.x / team * team;
    T result = (T)box[first];
    for (unsigned k = 1; k < team; k++)
        result = f(result, (T)box[first + k]);
    return result;
}
static inline int atomicAdd(int *at, int n)
{
    return __atomic_fetch_add(at, n, __ATOMIC_SEQ_CST);
}
static inline int __syncthreads_or(int x)
{
    static int any;
    __syncthreads();
    any = 0;
    __syncthreads();
    if (x)
        __atomic_store_n(&any, 1, __ATOMIC_SEQ_CST);
    __syncthreads();
    return any;
}
extern "C" void shim_at(unsigned x, unsigned y)
{
    blockIdx = {x, y, 0};
}
#endif
