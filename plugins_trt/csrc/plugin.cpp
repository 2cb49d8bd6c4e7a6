#include "plugin.h"

#include "kernel.h"
#include "log.h"
#include "shapes.h"

#include <new>

namespace lilicorr
{

using namespace nvinfer1;

namespace
{

constexpr int32_t kOk = 0;
constexpr int32_t kFailed = 1;
constexpr int32_t kPath = 0; // output 0; output 1 is q

DataType outputType(int32_t output)
{
    return output == kPath ? DataType::kINT32 : DataType::kFLOAT;
}

} // namespace

IPluginCapability* GreedyWalk::getCapabilityInterface(PluginCapabilityType type) noexcept
{
    switch (type)
    {
    case PluginCapabilityType::kCORE: return static_cast<IPluginV3OneCore*>(this);
    case PluginCapabilityType::kBUILD: return static_cast<IPluginV3OneBuild*>(this);
    case PluginCapabilityType::kRUNTIME: return static_cast<IPluginV3OneRuntime*>(this);
    }
    return nullptr;
}

IPluginV3* GreedyWalk::clone() noexcept
{
    return new (std::nothrow) GreedyWalk(mSampled != 0);
}

AsciiChar const* GreedyWalk::getPluginName() const noexcept
{
    return kName;
}

AsciiChar const* GreedyWalk::getPluginVersion() const noexcept
{
    return kVersion;
}

AsciiChar const* GreedyWalk::getPluginNamespace() const noexcept
{
    return kNamespace;
}

int32_t GreedyWalk::getNbOutputs() const noexcept
{
    return outputCountOf(mSampled != 0);
}

int32_t GreedyWalk::getOutputDataTypes(
    DataType* outputTypes, int32_t nbOutputs, DataType const* inputTypes, int32_t nbInputs) const noexcept
{
    for (int32_t i = 0; i < nbInputs; ++i)
    {
        if (inputTypes[i] != DataType::kFLOAT)
        {
            logError("input %d has data type %d, expected float32 (0)", i, static_cast<int32_t>(inputTypes[i]));
            return kFailed;
        }
    }
    for (int32_t i = 0; i < nbOutputs; ++i)
    {
        outputTypes[i] = outputType(i);
    }
    return kOk;
}

int32_t GreedyWalk::getOutputShapes(DimsExprs const* inputs, int32_t nbInputs, DimsExprs const* /*shapeInputs*/,
    int32_t /*nbShapeInputs*/, DimsExprs* outputs, int32_t nbOutputs, IExprBuilder& exprBuilder) noexcept
{
    int32_t ranks[inputCountOf(true)];
    for (int32_t i = 0; i < nbInputs && i < inputCountOf(true); ++i)
    {
        ranks[i] = inputs[i].nbDims;
    }
    if (!checkRanks(ranks, nbInputs, mSampled != 0))
    {
        return kFailed;
    }
    IDimensionExpr const* const lanes = inputs[0].d[0];
    IDimensionExpr const* const candidates = inputs[0].d[1];
    IDimensionExpr const* const slots
        = exprBuilder.operation(DimensionOperation::kSUM, *inputs[1].d[1], *exprBuilder.constant(1));
    for (int32_t i = 0; i < nbOutputs; ++i)
    {
        outputs[i].nbDims = i == kPath ? 2 : 3;
        outputs[i].d[0] = lanes;
        outputs[i].d[1] = slots;
        outputs[i].d[2] = candidates; // beyond path's rank, and ignored there
    }
    return kOk;
}

bool GreedyWalk::supportsFormatCombination(
    int32_t pos, DynamicPluginTensorDesc const* inOut, int32_t nbInputs, int32_t /*nbOutputs*/) noexcept
{
    DataType const expected = pos < nbInputs ? DataType::kFLOAT : outputType(pos - nbInputs);
    return inOut[pos].desc.format == TensorFormat::kLINEAR && inOut[pos].desc.type == expected;
}

int32_t GreedyWalk::configurePlugin(DynamicPluginTensorDesc const* in, int32_t nbInputs,
    DynamicPluginTensorDesc const* /*out*/, int32_t /*nbOutputs*/) noexcept
{
    Dims dims[inputCountOf(true)];
    for (int32_t i = 0; i < nbInputs && i < inputCountOf(true); ++i)
    {
        dims[i] = in[i].desc.dims;
    }
    Sizes sizes;
    return readSizes(dims, nbInputs, mSampled != 0, sizes) ? kOk : kFailed;
}

int32_t GreedyWalk::onShapeChange(PluginTensorDesc const* in, int32_t nbInputs, PluginTensorDesc const* /*out*/,
    int32_t /*nbOutputs*/) noexcept
{
    Dims dims[inputCountOf(true)];
    for (int32_t i = 0; i < nbInputs && i < inputCountOf(true); ++i)
    {
        dims[i] = in[i].dims;
    }
    Sizes sizes;
    return readSizes(dims, nbInputs, mSampled != 0, sizes) ? kOk : kFailed;
}

int32_t GreedyWalk::enqueue(PluginTensorDesc const* inputDesc, PluginTensorDesc const* /*outputDesc*/,
    void const* const* inputs, void* const* outputs, void* /*workspace*/, cudaStream_t stream) noexcept
{
    Tensors batch{};
    batch.start = static_cast<float const*>(inputs[0]);
    batch.pair = static_cast<float const*>(inputs[1]);
    batch.path = static_cast<int32_t*>(outputs[kPath]);
    if (mSampled != 0)
    {
        batch.temperature = static_cast<float const*>(inputs[2]);
        batch.uniforms = static_cast<float const*>(inputs[3]);
        batch.q = static_cast<float*>(outputs[1]);
    }
    Dims const& start = inputDesc[0].dims; // validated by onShapeChange
    auto const lanes = static_cast<int32_t>(start.d[0]);
    auto const candidates = static_cast<int32_t>(start.d[1]);
    auto const slots = static_cast<int32_t>(inputDesc[1].dims.d[1]) + 1;
    cudaError_t const error = launchWalk(batch, lanes, slots, candidates, stream);
    if (error != cudaSuccess)
    {
        logError("the kernel was not launched: %s (N=%d, S=%d, K=%d)", cudaGetErrorString(error), lanes, slots, candidates);
        return kFailed;
    }
    return kOk;
}

IPluginV3* GreedyWalk::attachToContext(IPluginResourceContext* /*context*/) noexcept
{
    return clone();
}

PluginFieldCollection const* GreedyWalk::getFieldsToSerialize() noexcept
{
    mField = {kSampledField, &mSampled, PluginFieldType::kINT32, 1};
    mFields = {1, &mField};
    return &mFields;
}

} // namespace lilicorr
