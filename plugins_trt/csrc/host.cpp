// The walk on the host: one C function for ctypes. Shapes are validated by its caller (host.py).
#include "walk.h"

namespace
{

using lilicorr::Lane;

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

} // namespace

// start (n,k), pair (n,slots-1,k,k), temperature (n), uniforms (n,slots) -> path (n,slots), q (n,slots,k).
// Greedy when `temperature` is null; `uniforms` and `q` are then unused.
extern "C" void lilicorr_host_walk(float const* start, float const* pair, float const* temperature, float const* uniforms,
    int64_t n, int slots, int k, int32_t* path, float* q)
{
    Solo team;
    for (int64_t i = 0; i < n; ++i)
    {
        Lane lane{start + i * k, pair + i * (slots - 1) * k * k, nullptr, nullptr, path + i * slots, nullptr};
        if (temperature == nullptr)
        {
            lilicorr::walk<false>(team, lane, slots, k);
            continue;
        }
        lane.temperature = temperature + i;
        lane.uniforms = uniforms + i * slots;
        lane.q = q + i * slots * k;
        lilicorr::walk<true>(team, lane, slots, k);
    }
}
