// Drives the plugin library as TensorRT's builder and runtime would, without libnvinfer and without a GPU.
//
//   harness liblilicorr_plugin.so [libnvinfer_lean.so.N | FINDER]
//
// With libnvinfer_lean the creator comes from its real plugin registry (N, 10 or 11, tells the registry's layout), and a serialised plugin
// is created again by the creator found there. With FINDER, a library that has getFinder, an error is provoked while its finder is set.
// Prints each check that fails; exit code 1 then.
#include <NvInferImpl.h>
#include <NvInferRuntime.h>

#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <deque>
#include <memory>
#include <string>

using namespace nvinfer1;

namespace
{

int gFailures = 0;
std::string gLog; // what the plugin logged since the last clear

void check(bool ok, char const* what, int line)
{
    if (!ok)
    {
        std::printf("line %d: %s\n  plugin's log: %s\n", line, what, gLog.c_str());
        ++gFailures;
    }
}
#define CHECK(condition) check(condition, #condition, __LINE__)

bool rejected(int32_t code, char const* words)
{
    bool const ok = code != 0 && gLog.find(words) != std::string::npos;
    if (ok)
    {
        gLog.clear();
    }
    return ok;
}

class Logger : public ILogger, public ILoggerFinder
{
public:
    void log(Severity severity, AsciiChar const* message) noexcept override
    {
        if (severity <= Severity::kERROR)
        {
            gLog += message;
        }
    }
    ILogger* findLogger() override { return this; }
};

// A dimension that is a number, or unknown (-1), with TensorRT's expression classes around it.
class Dimension : public IDimensionExpr, public apiv::VDimensionExpr
{
public:
    explicit Dimension(int64_t value)
        : mValue(value)
    {
        IDimensionExpr::mImpl = this;
    }
    bool isConstant() const override { return mValue >= 0; }
    int64_t getConstantValue() const override { return mValue; }
    bool isSizeTensor() const override { return false; }

private:
    int64_t mValue;
};

class Expressions : public IExprBuilder, public apiv::VExprBuilder
{
public:
    Expressions() { IExprBuilder::mImpl = this; }
    IDimensionExpr const* constant(int64_t value) override { return &mAll.emplace_back(value); }
    IDimensionExpr const* operation(
        DimensionOperation op, IDimensionExpr const& first, IDimensionExpr const& second) override
    {
        CHECK(op == DimensionOperation::kSUM);
        return constant(first.getConstantValue() + second.getConstantValue());
    }
    IDimensionExpr const* declareSizeTensor(int32_t, IDimensionExpr const&, IDimensionExpr const&) override
    {
        return nullptr;
    }

private:
    std::deque<Dimension> mAll;
};

struct Shape
{
    std::initializer_list<int64_t> dims;

    operator Dims() const
    {
        Dims result{};
        result.nbDims = static_cast<int32_t>(dims.size());
        std::copy(dims.begin(), dims.end(), result.d);
        return result;
    }
};

IPluginV3* create(IPluginCreatorV3One* creator, int32_t sampled)
{
    PluginField field{"sampled", &sampled, PluginFieldType::kINT32, 1};
    PluginFieldCollection fields{1, &field};
    return creator->createPlugin("walk", &fields, TensorRTPhase::kBUILD);
}

template <class Capability>
Capability* capability(IPluginV3* plugin, PluginCapabilityType type)
{
    return static_cast<Capability*>(plugin->getCapabilityInterface(type));
}

struct Inputs
{
    Dims start, pair, temperature, uniforms;
};

int32_t configure(IPluginV3OneBuild* build, Inputs const& inputs, int32_t count)
{
    DynamicPluginTensorDesc in[4]{};
    in[0].desc.dims = inputs.start;
    in[1].desc.dims = inputs.pair;
    in[2].desc.dims = inputs.temperature;
    in[3].desc.dims = inputs.uniforms;
    return build->configurePlugin(in, count, nullptr, 0);
}

int32_t changeShape(IPluginV3OneRuntime* runtime, Inputs const& inputs, int32_t count)
{
    PluginTensorDesc in[4]{};
    in[0].dims = inputs.start;
    in[1].dims = inputs.pair;
    in[2].dims = inputs.temperature;
    in[3].dims = inputs.uniforms;
    return runtime->onShapeChange(in, count, nullptr, 0);
}

void checkCreator(IPluginCreatorV3One* creator)
{
    CHECK(std::string(creator->getPluginName()) == "GreedyWalk");
    CHECK(std::string(creator->getPluginVersion()) == "1");
    CHECK(std::string(creator->getPluginNamespace()) == "lilicorr");
    PluginFieldCollection const* const names = creator->getFieldNames();
    CHECK(names->nbFields == 1 && std::string(names->fields[0].name) == "sampled");
    CHECK(create(creator, 2) == nullptr && rejected(1, "sampled is 2, expected 0 or 1"));
    float const wrong = 1.0F;
    PluginField const field{"sampled", &wrong, PluginFieldType::kFLOAT32, 1};
    PluginFieldCollection const fields{1, &field};
    CHECK(creator->createPlugin("walk", &fields, TensorRTPhase::kBUILD) == nullptr);
    CHECK(rejected(1, "expected one int32"));
    PluginFieldCollection const none{0, nullptr};
    std::unique_ptr<IPluginV3> plain{creator->createPlugin("walk", &none, TensorRTPhase::kBUILD)};
    CHECK(capability<IPluginV3OneBuild>(plain.get(), PluginCapabilityType::kBUILD)->getNbOutputs() == 1);
}

void checkTypes(IPluginV3OneBuild* build, bool sampled)
{
    int32_t const inputs = sampled ? 4 : 2, outputs = sampled ? 2 : 1;
    CHECK(build->getNbOutputs() == outputs);
    DataType in[4] = {DataType::kFLOAT, DataType::kFLOAT, DataType::kFLOAT, DataType::kFLOAT}, out[2];
    CHECK(build->getOutputDataTypes(out, outputs, in, inputs) == 0);
    CHECK(out[0] == DataType::kINT32 && (!sampled || out[1] == DataType::kFLOAT));
    in[1] = DataType::kHALF;
    CHECK(rejected(build->getOutputDataTypes(out, outputs, in, inputs), "input 1"));

    for (int32_t pos = 0; pos < inputs + outputs; ++pos)
    {
        DynamicPluginTensorDesc tensors[6]{};
        DataType const right = pos == inputs ? DataType::kINT32 : DataType::kFLOAT;
        for (DataType type : {DataType::kFLOAT, DataType::kHALF, DataType::kINT32, DataType::kINT64, DataType::kBF16})
        {
            tensors[pos].desc.type = type;
            tensors[pos].desc.format = TensorFormat::kLINEAR;
            CHECK(build->supportsFormatCombination(pos, tensors, inputs, outputs) == (type == right));
        }
        tensors[pos].desc.type = right;
        tensors[pos].desc.format = TensorFormat::kCHW32;
        CHECK(!build->supportsFormatCombination(pos, tensors, inputs, outputs));
    }
}

void checkOutputShapes(IPluginV3OneBuild* build, bool sampled)
{
    Expressions expressions;
    Dimension n(-1), k(8), steps(14), slots(15);
    DimsExprs in[4]{}, out[2]{};
    in[0] = {2, {&n, &k}};
    in[1] = {4, {&n, &steps, &k, &k}};
    in[2] = {1, {&n}};
    in[3] = {2, {&n, &slots}};
    int32_t const inputs = sampled ? 4 : 2, outputs = sampled ? 2 : 1;
    CHECK(build->getOutputShapes(in, inputs, nullptr, 0, out, outputs, expressions) == 0);
    CHECK(out[0].nbDims == 2 && out[0].d[0] == &n && out[0].d[1]->getConstantValue() == 15);
    CHECK(!sampled || (out[1].nbDims == 3 && out[1].d[0] == &n && out[1].d[1]->getConstantValue() == 15));
    CHECK(!sampled || out[1].d[2] == &k);
    in[1].nbDims = 3;
    CHECK(rejected(build->getOutputShapes(in, inputs, nullptr, 0, out, outputs, expressions), "pair has rank 3"));
    CHECK(rejected(build->getOutputShapes(in, 3, nullptr, 0, out, outputs, expressions), "found 3 inputs"));
}

void checkSizes(IPluginV3* plugin, bool sampled)
{
    auto* const build = capability<IPluginV3OneBuild>(plugin, PluginCapabilityType::kBUILD);
    auto* const runtime = capability<IPluginV3OneRuntime>(plugin, PluginCapabilityType::kRUNTIME);
    int32_t const count = sampled ? 4 : 2;
    auto const inputs = [](int64_t n, int64_t s, int64_t k) {
        return Inputs{Shape{{n, k}}, Shape{{n, s - 1, k, k}}, Shape{{n}}, Shape{{n, s}}};
    };
    CHECK(configure(build, inputs(-1, 15, 8), count) == 0);
    CHECK(configure(build, inputs(-1, 63, 32), count) == 0);
    CHECK(configure(build, inputs(-1, 1, 1), count) == 0);
    CHECK(rejected(configure(build, inputs(-1, 15, 33), count), "K is 33, expected 1 to 32"));
    CHECK(rejected(configure(build, inputs(-1, 15, 0), count), "K is 0, expected 1 to 32"));
    CHECK(rejected(configure(build, inputs(-1, 64, 8), count), "S is 64, expected 1 to 63"));
    CHECK(rejected(configure(build, inputs(-1, 15, -1), count), "K (dimension 1 of start) is dynamic"));
    CHECK(rejected(configure(build, inputs(-1, 0, 8), count), "S-1 (dimension 1 of pair) is dynamic"));
    CHECK(rejected(configure(build, inputs(-1, 15, 8), 3), "found 3 inputs"));
    Inputs odd = inputs(-1, 15, 8);
    odd.pair.d[3] = 7;
    CHECK(rejected(configure(build, odd, count), "pair has 7 in dimension 3, expected 8"));
    CHECK(changeShape(runtime, inputs(4, 15, 8), count) == 0);
    odd = inputs(4, 15, 8);
    odd.pair.d[0] = 3;
    CHECK(rejected(changeShape(runtime, odd, count), "pair has 3 in dimension 0, expected 4"));
    odd = inputs(4, 15, 8);
    odd.uniforms.d[1] = 14;
    int32_t const code = changeShape(runtime, odd, count);
    CHECK(sampled ? rejected(code, "uniforms has 14 in dimension 1, expected 15") : code == 0);
}

void checkCopies(IPluginCreatorV3One* creator, IPluginV3* plugin, bool sampled)
{
    auto* const runtime = capability<IPluginV3OneRuntime>(plugin, PluginCapabilityType::kRUNTIME);
    std::unique_ptr<IPluginV3> const copies[] = {
        std::unique_ptr<IPluginV3>(plugin->clone()),
        std::unique_ptr<IPluginV3>(runtime->attachToContext(nullptr)),
        std::unique_ptr<IPluginV3>(
            creator->createPlugin("walk", runtime->getFieldsToSerialize(), TensorRTPhase::kRUNTIME)),
    };
    for (auto const& copy : copies)
    {
        CHECK(copy != nullptr);
        auto* const core = capability<IPluginV3OneCore>(copy.get(), PluginCapabilityType::kCORE);
        CHECK(std::string(core->getPluginName()) == "GreedyWalk");
        CHECK(std::string(core->getPluginVersion()) == "1");
        CHECK(std::string(core->getPluginNamespace()) == "lilicorr");
        auto* const build = capability<IPluginV3OneBuild>(copy.get(), PluginCapabilityType::kBUILD);
        CHECK(build->getNbOutputs() == (sampled ? 2 : 1));
    }
}

// An empty batch launches nothing; a grid no GPU takes (and any launch without a GPU) is reported, not swallowed.
void checkEnqueue(IPluginV3* plugin)
{
    auto* const runtime = capability<IPluginV3OneRuntime>(plugin, PluginCapabilityType::kRUNTIME);
    PluginTensorDesc in[4]{};
    in[0].dims = Shape{{0, 8}};
    in[1].dims = Shape{{0, 14, 8, 8}};
    void const* inputs[4]{};
    void* outputs[2]{};
    CHECK(runtime->enqueue(in, nullptr, inputs, outputs, nullptr, nullptr) == 0);
    in[0].dims.d[0] = -1;
    CHECK(rejected(runtime->enqueue(in, nullptr, inputs, outputs, nullptr, nullptr), "the kernel was not launched"));
}

IPluginCreatorInterface* fromLibrary(void* library)
{
    using GetCreators = IPluginCreatorInterface* const* (*) (int32_t&);
    int32_t count = 0;
    auto* const creators = reinterpret_cast<GetCreators>(dlsym(library, "getCreators"))(count);
    CHECK(count == 1);
    return creators[0];
}

// IPluginRegistry of TensorRT 10 and 11, up to the last member called. The order is the ABI, and headers of one major know one of the two:
// 11 removed the members that take an IPluginCreator, which 10.0 had deprecated.
class Registry10
{
public:
    virtual bool registerOldCreator(void* creator, AsciiChar const* space) noexcept = 0;
    virtual void* getOldCreators(int32_t* count) const noexcept = 0;
    virtual void* getOldCreator(AsciiChar const* name, AsciiChar const* version, AsciiChar const* space) noexcept = 0;

protected:
    virtual ~Registry10() noexcept = default;

public:
    virtual void setErrorRecorder(IErrorRecorder* recorder) noexcept = 0;
    virtual IErrorRecorder* getErrorRecorder() const noexcept = 0;
    virtual bool deregisterOldCreator(void const* creator) noexcept = 0;
    virtual bool isParentSearchEnabled() const = 0;
    virtual void setParentSearchEnabled(bool enabled) = 0;
    virtual void* loadLibrary(AsciiChar const* path) noexcept = 0;
    virtual void deregisterLibrary(void* handle) noexcept = 0;
    virtual bool registerCreator(IPluginCreatorInterface& creator, AsciiChar const* space) noexcept = 0;
    virtual IPluginCreatorInterface* const* getAllCreators(int32_t* count) const noexcept = 0;
    virtual IPluginCreatorInterface* getCreator(
        AsciiChar const* name, AsciiChar const* version, AsciiChar const* space) noexcept = 0;
};

class Registry11
{
protected:
    virtual ~Registry11() noexcept = default;

public:
    virtual void setErrorRecorder(IErrorRecorder* recorder) noexcept = 0;
    virtual IErrorRecorder* getErrorRecorder() const noexcept = 0;
    virtual bool isParentSearchEnabled() const = 0;
    virtual void setParentSearchEnabled(bool enabled) = 0;
    virtual void* loadLibrary(AsciiChar const* path) noexcept = 0;
    virtual void deregisterLibrary(void* handle) noexcept = 0;
    virtual bool registerCreator(IPluginCreatorInterface& creator, AsciiChar const* space) noexcept = 0;
    virtual IPluginCreatorInterface* const* getAllCreators(int32_t* count) const noexcept = 0;
    virtual IPluginCreatorInterface* getCreator(
        AsciiChar const* name, AsciiChar const* version, AsciiChar const* space) noexcept = 0;
};

template <class Registry>
IPluginCreatorInterface* loadInto(void* registry, char const* path)
{
    auto* const typed = static_cast<Registry*>(registry);
    CHECK(typed->getCreator("GreedyWalk", "1", "lilicorr") == nullptr);
    CHECK(typed->loadLibrary(path) != nullptr);
    CHECK(typed->getCreator("GreedyWalk", "2", "lilicorr") == nullptr);
    CHECK(typed->getCreator("GreedyWalk", "1", "") == nullptr);
    return typed->getCreator("GreedyWalk", "1", "lilicorr");
}

IPluginCreatorInterface* fromRegistry(char const* path, char const* nvinfer)
{
    void* const library = dlopen(nvinfer, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr)
    {
        std::printf("%s\n", dlerror());
        return nullptr;
    }
    void* const registry = reinterpret_cast<void* (*) ()>(dlsym(library, "getPluginRegistry"))();
    bool const eleven = std::strstr(nvinfer, ".so.11") != nullptr;
    return eleven ? loadInto<Registry11>(registry, path) : loadInto<Registry10>(registry, path);
}

void setFinder(void* library, ILoggerFinder* finder)
{
    reinterpret_cast<void (*)(ILoggerFinder*)>(dlsym(library, "setLoggerFinder"))(finder);
}

// Whether the library at `path` provides a finder, which has then been checked.
bool checkWithFinder(void* library, char const* path)
{
    void* const other = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    void* const getFinder = other == nullptr ? nullptr : dlsym(other, "getFinder");
    if (getFinder == nullptr)
    {
        return false;
    }
    setFinder(library, reinterpret_cast<ILoggerFinder* (*) ()>(getFinder)());
    CHECK(create(static_cast<IPluginCreatorV3One*>(fromLibrary(library)), 2) == nullptr);
    return true;
}

} // namespace

int main(int argc, char** argv)
{
    void* const library = argc < 2 ? nullptr : dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr)
    {
        std::printf("usage: harness PLUGIN [NVINFER | FINDER]: %s\n", dlerror());
        return 2;
    }
    if (argc > 2 && checkWithFinder(library, argv[2]))
    {
        return gFailures == 0 ? 0 : 1;
    }
    IPluginCreatorInterface* const found = argc > 2 ? fromRegistry(argv[1], argv[2]) : fromLibrary(library);
    CHECK(found != nullptr);
    if (found == nullptr)
    {
        return 1;
    }
    Logger logger;
    setFinder(library, &logger);
    CHECK(std::string(found->getInterfaceInfo().kind) == "PLUGIN CREATOR_V3ONE");
    auto* const creator = static_cast<IPluginCreatorV3One*>(found);
    checkCreator(creator);
    for (bool sampled : {false, true})
    {
        std::unique_ptr<IPluginV3> const plugin{create(creator, sampled)};
        auto* const build = capability<IPluginV3OneBuild>(plugin.get(), PluginCapabilityType::kBUILD);
        checkTypes(build, sampled);
        checkOutputShapes(build, sampled);
        checkSizes(plugin.get(), sampled);
        checkCopies(creator, plugin.get(), sampled);
        checkEnqueue(plugin.get());
    }
    CHECK(gLog.empty());
    return gFailures == 0 ? 0 : 1;
}
