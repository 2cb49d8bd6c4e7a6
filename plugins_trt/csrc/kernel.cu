// The walk on the device: one warp per lane of the batch. The arithmetic is walk.h's; here is only who executes it.
#include "kernel.h"

namespace lilicorr
{

namespace
{

constexpr int kWarp = 32;
static_assert(kMaxCandidates == kWarp, "Warp gives each candidate one thread");

// The row is loaded by the whole warp (one transaction) and compared by every thread redundantly, from shared memory by broadcast:
// no shuffles, no divergence, and the comparisons are in the host's order.
class Warp
{
public:
    __device__ Warp(float* row, float* scratch)
        : mRow(row)
        , mScratch(scratch)
    {
    }

    __device__ float const* stage(float const* row, int count)
    {
        sync(); // nobody still reads the previous row
        each(count, [&](int j) { mRow[j] = row[j]; });
        return mRow;
    }

    template <class F>
    __device__ void each(int count, F f)
    {
        int const j = static_cast<int>(threadIdx.x);
        if (j < count)
        {
            f(j);
        }
        sync();
    }

    __device__ float* scratch()
    {
        return mScratch;
    }

    __device__ void sync()
    {
        __syncwarp();
    }

    __device__ bool leads() const
    {
        return threadIdx.x == 0;
    }

private:
    float* mRow;
    float* mScratch;
};

template <bool kSampled>
__global__ void __launch_bounds__(kWarp) walkKernel(Tensors batch, int slots, int candidates)
{
    __shared__ float row[kMaxCandidates];
    __shared__ float scratch[kMaxCandidates];
    Warp team{row, scratch};
    walk<kSampled>(team, laneOf<kSampled>(batch, blockIdx.x, slots, candidates), slots, candidates);
}

} // namespace

cudaError_t launchWalk(Tensors const& batch, int32_t lanes, int32_t slots, int32_t candidates, cudaStream_t stream)
{
    if (lanes == 0)
    {
        return cudaSuccess;
    }
    auto* const kernel = batch.temperature == nullptr ? walkKernel<false> : walkKernel<true>;
    // Not <<<>>> with cudaGetLastError: that would report, or swallow, another kernel's error.
    Tensors tensors = batch;
    void* arguments[] = {&tensors, &slots, &candidates};
    return cudaLaunchKernel(reinterpret_cast<void const*>(kernel), dim3(lanes), dim3(kWarp), arguments, 0, stream);
}

} // namespace lilicorr
