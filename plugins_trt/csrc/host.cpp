// The walk on the host: one C function for ctypes. Shapes are validated by its caller (host.py).
#include "walk.h"

namespace
{

class Solo
{
public:
    float const* stage(float const* row, int) { return row; }
    float* scratch() { return mScratch; }
    void sync() {}
    bool leads() const { return true; }

    template <class F>
    void each(int count, F f)
    {
        for (int j = 0; j < count; ++j)
        {
            f(j);
        }
    }

private:
    float mScratch[lilicorr::kMaxCandidates];
};

template <bool kSampled>
void walkBatch(lilicorr::Tensors const& batch, int64_t n, int slots, int k)
{
    Solo team;
    for (int64_t i = 0; i < n; ++i)
    {
        lilicorr::walk<kSampled>(team, lilicorr::laneOf<kSampled>(batch, i, slots, k), slots, k);
    }
}

} // namespace

// start (n,k), pair (n,slots-1,k,k), temperature (n), uniforms (n,slots) -> path (n,slots), q (n,slots,k).
// Greedy when `temperature` is null; `uniforms` and `q` are then unused.
extern "C" void lilicorr_host_walk(float const* start, float const* pair, float const* temperature, float const* uniforms,
    int64_t n, int slots, int k, int32_t* path, float* q)
{
    lilicorr::Tensors const batch{start, pair, temperature, uniforms, path, q};
    temperature == nullptr ? walkBatch<false>(batch, n, slots, k) : walkBatch<true>(batch, n, slots, k);
}
