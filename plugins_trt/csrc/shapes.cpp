#include "shapes.h"

#include "log.h"
#include "walk.h"

namespace lilicorr
{

namespace
{

constexpr char const* kNames[] = {"start", "pair", "temperature", "uniforms"};
constexpr char const* kShapes[] = {"(N,K)", "(N,S-1,K,K)", "(N)", "(N,S)"};
constexpr int32_t kRanks[] = {2, 4, 1, 2};

// Every input agrees with the sizes read from start and pair; a dynamic N (-1) agrees with any.
bool agrees(nvinfer1::Dims const& dims, int32_t input, Sizes const& sizes) noexcept
{
    int64_t const n = sizes.lanes, s = sizes.slots, k = sizes.candidates;
    int64_t const expected[][4] = {{n, k}, {n, s - 1, k, k}, {n}, {n, s}};
    for (int32_t d = 0; d < dims.nbDims; ++d)
    {
        bool const dynamic = d == 0 && (dims.d[0] == -1 || n == -1);
        if (!dynamic && dims.d[d] != expected[input][d])
        {
            logError("%s has %lld in dimension %d, expected %lld: the inputs' shapes must be %s with N=%d, S=%d, K=%d",
                kNames[input], static_cast<long long>(dims.d[d]), d, static_cast<long long>(expected[input][d]),
                kShapes[input], sizes.lanes, sizes.slots, sizes.candidates);
            return false;
        }
    }
    return true;
}

} // namespace

bool checkRanks(int32_t const* ranks, int32_t inputCount, bool sampled) noexcept
{
    if (inputCount != inputCountOf(sampled))
    {
        logError("found %d inputs, expected %d for sampled=%d: start, pair%s", inputCount, inputCountOf(sampled), sampled,
            sampled ? ", temperature, uniforms" : "");
        return false;
    }
    for (int32_t i = 0; i < inputCount; ++i)
    {
        if (ranks[i] != kRanks[i])
        {
            logError("%s has rank %d, expected %d: %s", kNames[i], ranks[i], kRanks[i], kShapes[i]);
            return false;
        }
    }
    return true;
}

bool readSizes(nvinfer1::Dims const* inputs, int32_t inputCount, bool sampled, Sizes& sizes) noexcept
{
    int32_t ranks[inputCountOf(true)];
    for (int32_t i = 0; i < inputCount && i < inputCountOf(true); ++i)
    {
        ranks[i] = inputs[i].nbDims;
    }
    if (!checkRanks(ranks, inputCount, sampled))
    {
        return false;
    }
    int64_t const lanes = inputs[0].d[0], candidates = inputs[0].d[1], steps = inputs[1].d[1];
    if (candidates == -1 || steps == -1)
    {
        logError("%s is dynamic, expected a static size: only the batch N may be dynamic",
            candidates == -1 ? "K (dimension 1 of start)" : "S-1 (dimension 1 of pair)");
        return false;
    }
    if (candidates < 1 || candidates > kMaxCandidates)
    {
        logError("K is %lld, expected 1 to %d candidates", static_cast<long long>(candidates), kMaxCandidates);
        return false;
    }
    if (steps < 0 || steps + 1 > kMaxSlots)
    {
        logError("S is %lld, expected 1 to %d slots", static_cast<long long>(steps + 1), kMaxSlots);
        return false;
    }
    sizes = {static_cast<int32_t>(lanes), static_cast<int32_t>(steps + 1), static_cast<int32_t>(candidates)};
    for (int32_t i = 0; i < inputCount; ++i)
    {
        if (!agrees(inputs[i], i, sizes))
        {
            return false;
        }
    }
    return true;
}

} // namespace lilicorr
