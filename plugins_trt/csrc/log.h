// Errors reach the user through TensorRT's logger, or stderr when the library was loaded without one or by another major version.
#pragma once

#include <NvInferRuntime.h>

namespace lilicorr
{

// printf-style; the message names the plugin.
void logError(char const* format, ...) noexcept __attribute__((format(printf, 1, 2)));

void setLogger(nvinfer1::ILoggerFinder* finder) noexcept;

} // namespace lilicorr
