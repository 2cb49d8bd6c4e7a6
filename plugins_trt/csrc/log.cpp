#include "log.h"

#include <dlfcn.h>

#include <cstdarg>
#include <cstdio>

namespace lilicorr
{

namespace
{

nvinfer1::ILoggerFinder* gFinder = nullptr;

// Whether the finder is of the TensorRT that this file was compiled for. TensorRT 11 gave ILogger and ILoggerFinder a base class, so
// their methods are elsewhere in the vtable than in 10: compiled for 11, the first message in 10.15 or 10.16 was a segmentation fault.
// The finder's vtable lies in the library that made it; one without a version is an application's own.
bool isOfThisMajor(nvinfer1::ILoggerFinder* finder) noexcept
{
    Dl_info owner{};
    if (dladdr(*reinterpret_cast<void**>(finder), &owner) == 0)
    {
        return false;
    }
    void* const library = dlopen(owner.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    if (library == nullptr)
    {
        return true; // the program itself
    }
    // 110400 is 11.4. Declared since 10.0, unlike a symbol for the major version alone.
    auto* const version = reinterpret_cast<int32_t (*)()>(dlsym(library, "getInferLibVersion"));
    bool const same = version == nullptr || version() / 10000 == NV_TENSORRT_MAJOR;
    dlclose(library); // gives back what dlopen counted
    return same;
}

} // namespace

void setLogger(nvinfer1::ILoggerFinder* finder) noexcept
{
    gFinder = finder != nullptr && isOfThisMajor(finder) ? finder : nullptr;
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
