// The launch of the walk, seen from plain C++.
#pragma once

#include "walk.h"

#include <cuda_runtime_api.h>

namespace lilicorr
{

// Enqueues the whole walk of `lanes` lanes on `stream` as one kernel: no allocation, no synchronisation, so it can be captured.
// Sampled when `batch.temperature` is not null. Returns the error of this very launch.
cudaError_t launchWalk(Tensors const& batch, int32_t lanes, int32_t slots, int32_t candidates, cudaStream_t stream);

} // namespace lilicorr
