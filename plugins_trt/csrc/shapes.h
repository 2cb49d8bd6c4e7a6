// The interface in shapes: start (N,K), pair (N,S-1,K,K) and, sampled, temperature (N), uniforms (N,S).
// N may be dynamic, S and K may not: they are compared with kMaxSlots and kMaxCandidates when an engine is built.
#pragma once

#include <NvInferRuntime.h>

namespace lilicorr
{

struct Sizes
{
    int32_t lanes; // -1 while it is dynamic
    int32_t slots;
    int32_t candidates;
};

// Reads the sizes from the inputs' dimensions. Logs what is wrong, found against expected, and returns false.
bool readSizes(nvinfer1::Dims const* inputs, int32_t inputCount, bool sampled, Sizes& sizes) noexcept;

// Whether there are as many inputs as the form has, each of the rank it must have. Logs the first that is not so.
bool checkRanks(int32_t const* ranks, int32_t inputCount, bool sampled) noexcept;

constexpr int32_t inputCountOf(bool sampled)
{
    return sampled ? 4 : 2;
}

constexpr int32_t outputCountOf(bool sampled)
{
    return sampled ? 2 : 1;
}

} // namespace lilicorr
