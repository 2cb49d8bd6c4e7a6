// The walk, once for both worlds: nvcc compiles these functions for the device only, a plain C++17 compiler for the host only.
// So what the host tests prove (order of comparison, ties, NaN, order of summation) is the text that runs on the device.
// This file does no indexing by batch, launches nothing and knows neither CUDA nor TensorRT.
#pragma once

#include <cmath>
#include <cstdint>

#ifdef __CUDACC__
#define LILICORR_CORE __device__ __forceinline__
#else
#define LILICORR_CORE inline
#endif

namespace lilicorr
{

constexpr int kMaxCandidates = 32; // one per thread of a warp
constexpr int kMaxSlots = 63;

// The tensors of a batch (shapes below, dense), or of one lane of it (the same without N).
// `temperature`, `uniforms` and `q` are null in the greedy form.
struct Tensors
{
    float const* start;       // (N, K)
    float const* pair;        // (N, S-1, K, K): slot, candidate, next slot's candidate; unused when S is 1
    float const* temperature; // (N)
    float const* uniforms;    // (N, S) in [0, 1)
    int32_t* path;            // (N, S)
    float* q;                 // (N, S, K)
};

template <bool kSampled>
LILICORR_CORE Tensors laneOf(Tensors const& batch, int64_t lane, int slots, int count)
{
    Tensors one{};
    one.start = batch.start + lane * count;
    one.pair = batch.pair + lane * (slots - 1) * count * count;
    one.path = batch.path + lane * slots;
    if constexpr (kSampled)
    {
        one.temperature = batch.temperature + lane;
        one.uniforms = batch.uniforms + lane * slots;
        one.q = batch.q + lane * slots * count;
    }
    return one;
}

// Lowest index of the largest entry that is not NaN; 0 when nothing is above -inf.
LILICORR_CORE int firstBest(float const* row, int count)
{
    int best = 0;
    float score = -INFINITY;
    for (int j = 0; j < count; ++j)
    {
        if (row[j] > score)
        {
            best = j;
            score = row[j];
        }
    }
    return best;
}

// Unnormalised softmax weight of `score`. Equality is tested first because inf - inf is NaN; NaN scores weigh 0.
LILICORR_CORE float weight(float score, float top, float temperature)
{
    float const w = score == top ? 1.0F : expf((score - top) / temperature);
    return w > 0.0F ? w : 0.0F;
}

// Smallest j with q_0 + ... + q_j > uniform; the last candidate with q > 0 when rounding leaves none.
LILICORR_CORE int draw(float const* q, int count, float uniform)
{
    float sum = 0.0F;
    int last = 0;
    for (int j = 0; j < count; ++j)
    {
        sum += q[j];
        if (sum > uniform)
        {
            return j;
        }
        if (q[j] > 0.0F)
        {
            last = j;
        }
    }
    return last;
}

// Turns `row` into the proposal q (in `team.scratch()`): softmax(row / T), or one-hot at the greedy choice when T is 0 or
// nothing in the row is above -inf.
template <class Team>
LILICORR_CORE float const* propose(Team& team, float const* row, int count, float temperature)
{
    float* const q = team.scratch();
    int const best = firstBest(row, count);
    float const top = row[best];
    bool const soft = temperature > 0.0F && top > -INFINITY;
    team.each(count, [&](int j) { q[j] = soft ? weight(row[j], top, temperature) : static_cast<float>(j == best); });
    float total = 0.0F;
    for (int j = 0; j < count; ++j)
    {
        total += q[j];
    }
    team.sync(); // every thread has read all weights before any of them is divided
    team.each(count, [&](int j) { q[j] /= total; });
    return q;
}

// Follows the best (or the drawn) candidate of one lane from slot to slot.
//
// `Team` is who executes: stage(row, count) makes a row readable by all of it, each(count, f) calls f(0..count-1) and
// synchronises, scratch() is room for kMaxCandidates floats shared by all of it, leads() is true for one member.
template <bool kSampled, class Team>
LILICORR_CORE void walk(Team& team, Tensors const& lane, int slots, int count)
{
    int choice = 0;
    for (int s = 0; s < slots; ++s)
    {
        float const* const scores
            = s == 0 ? lane.start : lane.pair + (static_cast<int64_t>(s - 1) * count + choice) * count;
        float const* const row = team.stage(scores, count);
        if constexpr (kSampled)
        {
            float const* const q = propose(team, row, count, *lane.temperature);
            team.each(count, [&](int j) { lane.q[s * count + j] = q[j]; });
            choice = draw(q, count, lane.uniforms[s]);
        }
        else
        {
            choice = firstBest(row, count);
        }
        if (team.leads())
        {
            lane.path[s] = choice;
        }
    }
}

} // namespace lilicorr
