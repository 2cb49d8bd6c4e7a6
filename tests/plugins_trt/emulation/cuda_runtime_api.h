// As much of CUDA as csrc/kernel.cu uses, on CPU threads: a block is its threads, __syncwarp a barrier, shared memory a static.
// Blocks run one after another. In its place on the include path, the kernel's very text compiles with a C++ compiler.
#pragma once

#include <pthread.h>

#include <cstdint>
#include <thread>
#include <vector>

#define __global__
#define __device__
#define __launch_bounds__(threads)
#define __shared__ static

struct dim3
{
    unsigned x;
    explicit dim3(unsigned size) : x(size) {}
};

struct Index
{
    unsigned x;
};

inline thread_local Index threadIdx, blockIdx;
inline pthread_barrier_t warpBarrier;

inline void __syncwarp()
{
    pthread_barrier_wait(&warpBarrier);
}

using cudaStream_t = void*;
enum cudaError_t
{
    cudaSuccess
};

#include "walk.h"

// For kernels of (Tensors, int, int), the only ones there are.
inline cudaError_t cudaLaunchKernel(void const* kernel, dim3 grid, dim3 block, void** arguments, std::size_t, cudaStream_t)
{
    auto* const run = reinterpret_cast<void (*)(lilicorr::Tensors, int, int)>(const_cast<void*>(kernel));
    pthread_barrier_init(&warpBarrier, nullptr, block.x);
    for (unsigned b = 0; b < grid.x; ++b)
    {
        std::vector<std::thread> threads;
        for (unsigned t = 0; t < block.x; ++t)
        {
            threads.emplace_back([=] {
                blockIdx.x = b;
                threadIdx.x = t;
                run(*static_cast<lilicorr::Tensors*>(arguments[0]), *static_cast<int*>(arguments[1]),
                    *static_cast<int*>(arguments[2]));
            });
        }
        for (std::thread& thread : threads)
        {
            thread.join();
        }
    }
    pthread_barrier_destroy(&warpBarrier);
    return cudaSuccess;
}
