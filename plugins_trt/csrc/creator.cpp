// What the library exports: TensorRT's registry calls setLoggerFinder and getCreators when it loads a plugin library.
#include "log.h"
#include "plugin.h"

#include <cstring>
#include <new>

// Found in the file by loader.py without loading it. CMakeLists.txt defines the hash.
extern "C" __attribute__((used)) char const lilicorr_build[]
    = "lilicorr-plugin name=GreedyWalk namespace=lilicorr version=1 source=" LILICORR_SOURCE_HASH ";";

namespace lilicorr
{

using namespace nvinfer1;

namespace
{

class GreedyWalkCreator final : public IPluginCreatorV3One
{
public:
    AsciiChar const* getPluginName() const noexcept override
    {
        return kName;
    }

    AsciiChar const* getPluginVersion() const noexcept override
    {
        return kVersion;
    }

    AsciiChar const* getPluginNamespace() const noexcept override
    {
        return kNamespace;
    }

    PluginFieldCollection const* getFieldNames() noexcept override
    {
        return &mFields;
    }

    IPluginV3* createPlugin(AsciiChar const* /*name*/, PluginFieldCollection const* fields, TensorRTPhase) noexcept override
    {
        int32_t sampled = 0;
        for (int32_t i = 0; i < fields->nbFields; ++i)
        {
            if (!readSampled(fields->fields[i], sampled))
            {
                return nullptr;
            }
        }
        return new (std::nothrow) GreedyWalk(sampled != 0);
    }

private:
    // Fields of other names are the parser's own (plugin_version, plugin_namespace) and none of ours.
    static bool readSampled(PluginField const& field, int32_t& sampled) noexcept
    {
        if (std::strcmp(field.name, kSampledField) != 0)
        {
            return true;
        }
        if (field.type != PluginFieldType::kINT32 || field.length != 1 || field.data == nullptr)
        {
            logError("attribute sampled has type %d and length %d, expected one int32 (%d)",
                static_cast<int32_t>(field.type), field.length, static_cast<int32_t>(PluginFieldType::kINT32));
            return false;
        }
        std::memcpy(&sampled, field.data, sizeof sampled);
        if (sampled != 0 && sampled != 1)
        {
            logError("attribute sampled is %d, expected 0 or 1", sampled);
            return false;
        }
        return true;
    }

    PluginField mField{kSampledField, nullptr, PluginFieldType::kINT32, 1};
    PluginFieldCollection mFields{1, &mField};
};

} // namespace

} // namespace lilicorr

extern "C" __attribute__((visibility("default"))) void setLoggerFinder(nvinfer1::ILoggerFinder* finder)
{
    lilicorr::setLogger(finder);
}

extern "C" __attribute__((visibility("default"))) nvinfer1::IPluginCreatorInterface* const* getCreators(int32_t& count)
{
    static lilicorr::GreedyWalkCreator creator;
    static nvinfer1::IPluginCreatorInterface* const creators[] = {&creator};
    count = 1;
    return creators;
}
