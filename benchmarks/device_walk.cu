// The walk of plugins_trt/csrc/kernel.cu driven from Python: once over host arrays, and timed, launched and from a CUDA graph.
// Every function returns a cudaError_t; `lilicorr_error` words it.
#include "kernel.h"

#include <vector>

namespace
{

using lilicorr::Tensors;

// Device copies of one batch.
struct Batch
{
    Tensors device{};
    std::vector<void*> memory;
    cudaError_t status = cudaSuccess;
    int lanes, slots, count;

    Batch(float const* start, float const* pair, float const* temperature, float const* uniforms, int n, int s, int k)
        : lanes(n)
        , slots(s)
        , count(k)
    {
        int64_t const rows = static_cast<int64_t>(n) * s;
        device.start = upload(start, static_cast<int64_t>(n) * k);
        device.pair = upload(pair, static_cast<int64_t>(n) * (s - 1) * k * k);
        device.path = static_cast<int32_t*>(allocate(rows * sizeof(int32_t)));
        if (temperature != nullptr)
        {
            device.temperature = upload(temperature, n);
            device.uniforms = upload(uniforms, rows);
            device.q = static_cast<float*>(allocate(rows * k * sizeof(float)));
        }
    }

    ~Batch()
    {
        for (void* part : memory)
        {
            cudaFree(part);
        }
    }

    void* allocate(int64_t bytes)
    {
        void* part = nullptr;
        check(cudaMalloc(&part, bytes > 0 ? bytes : 1));
        memory.push_back(part);
        return part;
    }

    float* upload(float const* values, int64_t size)
    {
        auto* const part = static_cast<float*>(allocate(size * sizeof(float)));
        if (status == cudaSuccess && size > 0)
        {
            check(cudaMemcpy(part, values, size * sizeof(float), cudaMemcpyHostToDevice));
        }
        return part;
    }

    void check(cudaError_t error)
    {
        status = status == cudaSuccess ? error : status;
    }

    void launch(cudaStream_t stream)
    {
        check(lilicorr::launchWalk(device, lanes, slots, count, stream));
    }

    void download(int32_t* path, float* q)
    {
        int64_t const rows = static_cast<int64_t>(lanes) * slots;
        check(cudaMemcpy(path, device.path, rows * sizeof(int32_t), cudaMemcpyDeviceToHost));
        if (device.q != nullptr)
        {
            check(cudaMemcpy(q, device.q, rows * count * sizeof(float), cudaMemcpyDeviceToHost));
        }
    }
};

} // namespace

extern "C" char const* lilicorr_error(int status)
{
    return cudaGetErrorString(static_cast<cudaError_t>(status));
}

extern "C" int lilicorr_walk(float const* start, float const* pair, float const* temperature, float const* uniforms,
    int lanes, int slots, int count, int32_t* path, float* q)
{
    Batch batch(start, pair, temperature, uniforms, lanes, slots, count);
    if (batch.status == cudaSuccess)
    {
        batch.launch(nullptr);
        batch.download(path, q);
    }
    return batch.status;
}

// On device pointers of the caller's, for use beside another library in one process.
extern "C" int lilicorr_launch(float const* start, float const* pair, int lanes, int slots, int count, int32_t* path, void* stream)
{
    Tensors tensors{};
    tensors.start = start;
    tensors.pair = pair;
    tensors.path = path;
    return lilicorr::launchWalk(tensors, lanes, slots, count, static_cast<cudaStream_t>(stream));
}

// Microseconds per walk over `repeats` launches, and over as many captured in one CUDA graph; `path` is what the graph computed.
extern "C" int lilicorr_time(float const* start, float const* pair, float const* temperature, float const* uniforms,
    int lanes, int slots, int count, int repeats, float* launched_us, float* captured_us, int32_t* path, float* q)
{
    Batch batch(start, pair, temperature, uniforms, lanes, slots, count);
    cudaStream_t stream = nullptr;
    cudaEvent_t begin = nullptr;
    cudaEvent_t end = nullptr;
    batch.check(cudaStreamCreate(&stream));
    batch.check(cudaEventCreate(&begin));
    batch.check(cudaEventCreate(&end));
    auto const timed = [&](auto work) {
        float ms = 0.0F;
        batch.check(cudaEventRecord(begin, stream));
        work();
        batch.check(cudaEventRecord(end, stream));
        batch.check(cudaEventSynchronize(end));
        if (batch.status == cudaSuccess)
        {
            batch.check(cudaEventElapsedTime(&ms, begin, end));
        }
        return ms * 1000.0F / static_cast<float>(repeats);
    };
    auto const launches = [&] {
        for (int i = 0; i < repeats && batch.status == cudaSuccess; ++i)
        {
            batch.launch(stream);
        }
    };
    if (batch.status == cudaSuccess)
    {
        launches();
        *launched_us = timed(launches);
    }
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    if (batch.status == cudaSuccess)
    {
        // Thread-local capture, as TensorRT's: a launch that allocated or synchronised would end it with an error.
        batch.check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
        launches();
        batch.check(cudaStreamEndCapture(stream, &graph));
    }
    if (batch.status == cudaSuccess)
    {
        batch.check(cudaGraphInstantiate(&executable, graph, 0));
        batch.check(cudaMemset(batch.device.path, 0xff, static_cast<int64_t>(lanes) * slots * sizeof(int32_t)));
        auto const replay = [&] { batch.check(cudaGraphLaunch(executable, stream)); };
        replay();
        *captured_us = timed(replay);
        batch.download(path, q);
    }
    return batch.status;
}
