// The kernel on CPU threads against the host build, bit for bit. Prints the case that differs; exit code 1 then.
// Built with -fsanitize=thread, so that a missing synchronisation is found even where the numbers come out right.
#include "kernel.h"

#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

extern "C" void lilicorr_host_walk(float const*, float const*, float const*, float const*, int64_t, int, int, int32_t*, float*);

namespace
{

bool agrees(int n, int slots, int k, bool sampled)
{
    std::mt19937 random(n * 10000 + slots * 100 + k);
    auto const draw = [&](std::size_t size) {
        std::vector<float> values(size);
        for (float& value : values)
        {
            unsigned const number = random() % 40;
            value = number == 0 ? NAN : static_cast<float>(number % 9) / 2.0F; // many ties
        }
        return values;
    };
    std::vector<float> const start = draw(n * k), pair = draw(n * (slots - 1) * k * k);
    std::vector<float> temperature(n), uniforms(n * slots);
    for (int i = 0; i < n; ++i)
    {
        temperature[i] = static_cast<float>(i); // lane 0 is greedy
    }
    for (float& uniform : uniforms)
    {
        uniform = static_cast<float>(random() >> 8) / 16777216.0F;
    }
    std::vector<int32_t> path(n * slots, -1), expectedPath(n * slots, -1);
    std::vector<float> q(n * slots * k, -1.0F), expectedQ(n * slots * k, -1.0F);
    lilicorr::Tensors const batch{start.data(), pair.data(), sampled ? temperature.data() : nullptr, uniforms.data(),
        path.data(), q.data()};
    lilicorr::launchWalk(batch, n, slots, k, nullptr);
    lilicorr_host_walk(batch.start, batch.pair, batch.temperature, batch.uniforms, n, slots, k, expectedPath.data(),
        expectedQ.data());
    bool const same = path == expectedPath && std::memcmp(q.data(), expectedQ.data(), q.size() * sizeof(float)) == 0;
    if (!same)
    {
        std::printf("differs: N=%d S=%d K=%d sampled=%d\n", n, slots, k, sampled);
    }
    return same;
}

} // namespace

int main()
{
    bool same = true;
    for (bool sampled : {false, true})
    {
        for (int k : {1, 3, 8, 32})
        {
            for (int slots : {1, 2, 4})
            {
                same = agrees(2, slots, k, sampled) && same;
            }
        }
        same = agrees(1, 20, 32, sampled) && same;
        same = agrees(0, 4, 8, sampled) && same;
    }
    return same ? 0 : 1;
}
