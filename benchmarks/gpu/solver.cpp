// Times GPTQ's solver alone on a device and compares a part of its codes with the CPU's. One line of JSON per case.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "layerpress/kernels/products/gram.h"
#include "layerpress/kernels/solver/block_solver.h"
#include "layerpress/kernels/solver/factorize_together.h"
#include "layerpress/kernels/solver/gptq.h"

namespace {

using layerpress::kernels::GptqWeight;

struct Case {
  const char* name;
  std::int64_t columns, rows, weights;
  bool own_inputs = false;  ///< each weight with a Gram matrix of its own, all factorized and solved together
};

/// Waits for what is queued on the tensor's device.
void wait_for(const at::Tensor& tensor) { static_cast<void>(tensor.flatten()[0].item()); }

GptqWeight rows_on_cpu(const GptqWeight& weight, std::int64_t rows) {
  layerpress::kernels::ColumnScales scales = weight.scales;
  scales.scale = scales.scale.slice(0, 0, rows).cpu();
  return {weight.weight.slice(0, 0, rows).cpu(), scales};
}

at::Tensor random_gram(std::int64_t columns, const at::TensorOptions& options) {
  const at::Tensor x = at::randn({2 * columns, columns}, options) * at::rand({columns}, options);
  at::Tensor gram = at::zeros({columns, columns}, options.dtype(at::kFloat));
  layerpress::kernels::accumulate_gram(gram, x);
  return gram;
}

layerpress::kernels::HessianFactor on_cpu(const layerpress::kernels::HessianFactor& factor) {
  return {factor.order.cpu(), factor.feedback.cpu(), factor.pivots.cpu()};
}

/// Milliseconds of the fastest of three.
template <typename Function>
double fastest(const at::Tensor& last_input, Function&& function) {
  double best = 1e30;
  for (int repeat = 0; repeat < 3; ++repeat) {
    wait_for(last_input);
    const auto began = std::chrono::steady_clock::now();
    wait_for(function());
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count());
  }
  return 1e3 * best;
}

/// `codes`: of the last weight, solved with `factor`.
void print(const std::string& name, double milliseconds, double flops, const at::Tensor& codes,
           const GptqWeight& weight, const layerpress::kernels::HessianFactor& factor) {
  constexpr std::int64_t kCompared = 64;
  const auto expected = layerpress::kernels::gptq({rows_on_cpu(weight, kCompared)}, on_cpu(factor), {});
  const at::Tensor own = codes.slice(0, 0, kCompared).cpu();
  std::puts(fmt::format(R"({{"case": "{}", "milliseconds": {:.3f}, "flops": {:.6g}, "equal": {:.6f}}})", name,
                        milliseconds, flops, own.eq(expected.codes[0]).to(at::kDouble).mean().item<double>())
                .c_str());
  std::fflush(stdout);
}

/// All weights read one input.
void measure_one_input(const Case& sizes, const std::vector<GptqWeight>& weights, const at::TensorOptions& options,
                       double flops) {
  const at::Tensor gram = random_gram(sizes.columns, options);
  std::optional<layerpress::kernels::HessianFactor> factor;
  const double factorizing = fastest(gram, [&] {
    factor = layerpress::kernels::factorize(gram, {});
    if (!factor) throw std::runtime_error("the Gram matrix could not be factorized");
    return factor->feedback;
  });
  layerpress::kernels::GptqResult result;
  const double milliseconds = fastest(gram, [&] {
    result = layerpress::kernels::gptq(weights, *factor, {});
    return result.codes.back();
  });
  print(sizes.name, milliseconds, flops, result.codes.back(), weights.back(), *factor);
  const double cube = static_cast<double>(sizes.columns) * static_cast<double>(sizes.columns * sizes.columns) / 3;
  print(fmt::format("its factorization, {} columns", sizes.columns), factorizing, cube, result.codes.back(),
        weights.back(), *factor);
}

/// Each weight reads its own.
void measure_own_inputs(const Case& sizes, const std::vector<GptqWeight>& weights, const at::TensorOptions& options,
                        double flops) {
  const auto solver = layerpress::kernels::column_block_solver(options.device());
  if (solver == nullptr) return;  // the CPU solves one after the other
  std::vector<at::Tensor> grams;
  std::vector<std::vector<GptqWeight>> problems;
  for (const GptqWeight& weight : weights) {
    grams.push_back(random_gram(sizes.columns, options));
    problems.push_back({weight});
  }
  const auto at_once = static_cast<std::size_t>(layerpress::kernels::problems_at_once(sizes.rows, sizes.columns));
  layerpress::kernels::HessianFactors solved;
  at::Tensor codes;
  const double milliseconds = fastest(grams.back(), [&] {
    for (std::size_t first = 0; first < grams.size(); first += at_once) {
      const std::size_t last = std::min(first + at_once, grams.size());
      solved = layerpress::kernels::factorize_together({grams.data() + first, grams.data() + last}, {});
      codes = layerpress::kernels::gptq_together({problems.data() + first, problems.data() + last}, solved.factors, {},
                                                 128, {}, solver)
                  .back()
                  .codes[0];
    }
    return codes;
  });
  const auto cube = static_cast<double>(sizes.columns * sizes.columns) * static_cast<double>(sizes.columns) / 3;
  const layerpress::kernels::HessianFactor last{solved.factors.order[-1], solved.factors.feedback[-1],
                                                solved.factors.pivots[-1]};
  print(sizes.name, milliseconds, flops + static_cast<double>(sizes.weights) * cube, codes, weights.back(), last);
}

void measure(const Case& sizes, const at::Device& device) {
  constexpr std::int64_t kGroup = 128;
  at::manual_seed(1);
  const auto options = at::TensorOptions(device).dtype(at::kBFloat16);
  std::vector<GptqWeight> weights;
  for (std::int64_t i = 0; i < sizes.weights; ++i) {
    const at::Tensor weight = at::randn({sizes.rows, sizes.columns}, options);
    const at::Tensor largest = weight.view({sizes.rows, -1, kGroup}).abs().amax(-1).to(at::kFloat);
    weights.push_back({weight, {(largest / 7.5).to(at::kBFloat16).to(at::kFloat), {}, kGroup, 1}});
  }
  const double flops =
      static_cast<double>(sizes.weights * sizes.rows * sizes.columns) * static_cast<double>(sizes.columns);
  sizes.own_inputs ? measure_own_inputs(sizes, weights, options, flops)
                   : measure_one_input(sizes, weights, options, flops);
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
                                          {"128 experts of 768 x 2048", 2048, 768, 128},
                                          {"128 experts of 768 x 2048, factorized each", 2048, 768, 128, true}};
  try {
    for (const Case& sizes : cases) measure(sizes, device);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}
