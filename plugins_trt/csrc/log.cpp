#include "log.h"

#include <cstdarg>
#include <cstdio>

namespace lilicorr
{

namespace
{

nvinfer1::ILoggerFinder* gFinder = nullptr;

} // namespace

void setLogger(nvinfer1::ILoggerFinder* finder) noexcept
{
    gFinder = finder;
}

void logError(char const* format, ...) noexcept
{
    char message[512];
    int const prefix = std::snprintf(message, sizeof message, "lilicorr::GreedyWalk: ");
    std::va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(message + prefix, sizeof message - prefix, format, arguments);
    va_end(arguments);
    nvinfer1::ILogger* const logger = gFinder == nullptr ? nullptr : gFinder->findLogger();
    if (logger == nullptr)
    {
        std::fprintf(stderr, "%s\n", message);
        return;
    }
    logger->log(nvinfer1::ILogger::Severity::kERROR, message);
}

} // namespace lilicorr
