// Times GPTQ's solver alone on a device and compares a part of its codes with the CPU's. One line of JSON per case.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "layerpress/kernels/gptq.h"
#include "layerpress/kernels/gram.h"

namespace {

using layerpress::kernels::GptqWeight;

struct Case {
  const char* name;
  std::int64_t columns, rows, weights;
};

/// Waits for what is queued on the tensor's device.
void wait_for(const at::Tensor& tensor) { static_cast<void>(tensor.flatten()[0].item()); }

GptqWeight rows_on_cpu(const GptqWeight& weight, std::int64_t rows) {
  layerpress::kernels::ColumnScales scales = weight.scales;
  scales.scale = scales.scale.slice(0, 0, rows).cpu();
  return {weight.weight.slice(0, 0, rows).cpu(), scales};
}

void measure(const Case& sizes, const at::Device& device) {
  constexpr std::int64_t kGroup = 128, kCompared = 64;
  at::manual_seed(1);
  const auto options = at::TensorOptions(device).dtype(at::kBFloat16);
  const at::Tensor x = at::randn({2 * sizes.columns, sizes.columns}, options) * at::rand({sizes.columns}, options);
  at::Tensor gram = at::zeros({sizes.columns, sizes.columns}, options.dtype(at::kFloat));
  layerpress::kernels::accumulate_gram(gram, x);
  const auto factor = layerpress::kernels::factorize(gram, {});
  if (!factor) throw std::runtime_error("the Gram matrix could not be factorized");
  std::vector<GptqWeight> weights;
  for (std::int64_t i = 0; i < sizes.weights; ++i) {
    const at::Tensor weight = at::randn({sizes.rows, sizes.columns}, options);
    const at::Tensor largest = weight.view({sizes.rows, -1, kGroup}).abs().amax(-1).to(at::kFloat);
    weights.push_back({weight, {(largest / 7.5).to(at::kBFloat16).to(at::kFloat), {}, kGroup, 1}});
  }
  layerpress::kernels::GptqResult result;
  double best = 1e30;
  for (int repeat = 0; repeat < 3; ++repeat) {
    wait_for(gram);
    const auto began = std::chrono::steady_clock::now();
    result = layerpress::kernels::gptq(weights, *factor, {});
    wait_for(result.codes.back());
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count());
  }
  const layerpress::kernels::HessianFactor on_cpu{factor->order.cpu(), factor->feedback.cpu(), factor->pivots.cpu()};
  const auto expected = layerpress::kernels::gptq({rows_on_cpu(weights.back(), kCompared)}, on_cpu, {});
  const at::Tensor own = result.codes.back().slice(0, 0, kCompared).cpu();
  const double flops =
      static_cast<double>(sizes.weights * sizes.rows * sizes.columns) * static_cast<double>(sizes.columns);
  std::puts(fmt::format(R"({{"case": "{}", "milliseconds": {:.3f}, "flops": {:.6g}, "equal": {:.6f}}})", sizes.name,
                        best * 1e3, flops, own.eq(expected.codes[0]).to(at::kDouble).mean().item<double>())
                .c_str());
  std::fflush(stdout);
}

}  // namespace

int main(int count, char** arguments) {
  const c10::InferenceMode inference;
  const at::Device device(count > 1 ? arguments[1] : "cuda");
  // The CPU only shows that the program works.
  const std::vector<Case> cases =
      device.is_cpu() ? std::vector<Case>{{"512 x 512", 512, 512, 1}, {"4 experts of 96 x 256", 256, 96, 4}}
                      : std::vector<Case>{{"K 4096, N 4096", 4096, 4096, 1},
                                          {"K 4096, N 28672", 4096, 28672, 1},
                                          {"K 14336, N 4096", 14336, 4096, 1},
                                          {"K 14336, N 28672", 14336, 28672, 1},
                                          {"128 experts of 768 x 2048", 2048, 768, 128}};
  try {
    for (const Case& sizes : cases) measure(sizes, device);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}
