#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "layerpress/kernels/products/gram.h"
#include "layerpress/modifier/all_modifiers.h"
#include "tests/base/heap_meter.h"
#include "tests/modifier/quantizers.h"

namespace layerpress::modifier {
namespace {

struct Case {
  const char* name;
  const char* type;
  Json arguments;
  std::vector<std::array<std::int64_t, 2>> shapes;
  Json edit{};  ///< arguments of a modifier before it; with "" as type, nothing follows the edit
  const char* editor = "SparseGPTModifier";
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

Json config(const Json& weights) { return {{"group_0", {{"targets", {"Linear"}}, {"weights", weights}}}}; }

Json propagating(Json arguments) {
  arguments["error_propagation"] = true;
  return arguments;
}

std::vector<Case> cases() {
  const Json asymmetric = {{"num_bits", 4}, {"symmetric", false}, {"strategy", "group"}, {"group_size", 32}};
  const Json block = {
      {"num_bits", 8}, {"type", "float"}, {"strategy", "block"}, {"block_structure", std::vector<int>{128, 128}}};
  const Json tensor = {{"num_bits", 8}, {"type", "float"}, {"strategy", "tensor"}};
  return {
      {"GptqOneChunk", "GPTQModifier", {{"scheme", "W4A16"}}, {{1024, 3072}, {2048, 3072}}},
      {"GptqManyRows", "GPTQModifier", {{"scheme", "W4A16"}}, {{6144, 3072}}},
      {"GptqAsymmetric", "GPTQModifier", {{"config_groups", config(asymmetric)}}, {{6144, 2048}, {6144, 2048}}},
      {"GptqSearching", "GPTQModifier", {{"scheme", "W4A16"}, {"observer", "gptq"}}, {{1024, 3072}, {2048, 3072}}},
      {"GptqSearchingAsymmetric",
       "GPTQModifier",
       {{"config_groups", config(asymmetric)}, {"observer", "gptq"}},
       {{2048, 2048}, {2048, 2048}}},
      {"PropagatingFewRows", "GPTQModifier", propagating({{"scheme", "W4A16"}}), {{1024, 3072}, {1536, 3072}}},
      {"PropagatingManyRows", "GPTQModifier", propagating({{"scheme", "W4A16"}}), {{4096, 3072}, {4096, 3072}}},
      {"NearestMse", "QuantizationModifier", {{"scheme", "W4A16"}}, {{6144, 3072}, {6144, 3072}}},
      {"NearestMinMax", "QuantizationModifier", {{"scheme", "FP8_DYNAMIC"}, {"observer", "minmax"}}, {{8192, 4096}}},
      {"NearestBlock", "QuantizationModifier", {{"config_groups", config(block)}}, {{12288, 3072}}},
      {"NearestTensor", "QuantizationModifier", {{"config_groups", config(tensor)}}, {{6144, 3072}}},
      {"Sensitivity", "sensitivity", {"FP8_DYNAMIC", "W4A16"}, {{2048, 2048}, {1024, 2048}}},
      {"SparseGpt", "", {}, {{4096, 2048}, {2048, 2048}}, {{"sparsity", 0.5}}},
      {"SparseGptGroups", "", {}, {{6144, 2048}}, {{"sparsity", 0.5}, {"mask_structure", "2:4"}}},
      {"Magnitude",
       "",
       {},
       {{4096, 2048}, {2048, 2048}},
       {{"targets", "Linear"}, {"final_sparsity", 0.5}},
       "MagnitudePruningModifier"},
      {"ConstantZeros", "", {}, {{4096, 2048}}, {{"targets", "Linear"}}, "ConstantPruningModifier"},
      {"SparseGptThenGptq", "GPTQModifier", {{"scheme", "W4A16"}}, {{4096, 2048}}, {{"sparsity", 0.5}}},
      {"SparseGptThenNearest", "QuantizationModifier", {{"scheme", "W8A16"}}, {{4096, 2048}}, {{"sparsity", 0.5}}},
  };
}

class CostTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    modifier_ = make();
    if (!GetParam().edit.is_null()) {
      encoding_ = std::move(modifier_);
      modifier_ = test::make_edited(GetParam().editor, GetParam().edit, GetParam().shapes[0][1], encoding_.get());
    }
    at::manual_seed(61);
    const quant::QuantizationScheme* scheme = modifier_->scheme_for({"m", {"Linear"}});
    for (const auto& [rows, columns] : GetParam().shapes) {
      at::Tensor weight = at::empty({rows, columns}, at::kBFloat16).normal_(0, 0.02);
      shapes_.push_back({rows, columns, at::kBFloat16, scheme});
      linears_.push_back({"m", weight, scheme, at::kBFloat16});
    }
    const std::int64_t columns = shapes_[0].columns;
    const at::Tensor x = at::randn({64, columns}, at::kBFloat16), reference = x + 0.1 * at::randn_like(x);
    statistics_.tokens = 64;
    for (const compression::StatisticPtr& statistic : modifier_->statistics_wanted({0, modifier_->wants_original()})) {
      at::Tensor figures = at::zeros({statistic->rows(columns), columns});
      statistic->add(figures, {{x, reference}}, statistic->all_rows(columns));
      statistics_.figures.emplace(statistic->name(), figures);
    }
  }

  std::vector<compression::CompressedModule> compress(PhaseTimes& times) const {
    return modifier_->compress(linears_, modifier_->needs_data() ? &statistics_ : nullptr, times);
  }

  static std::unique_ptr<compression::Quantizer> make() {
    const std::string type = GetParam().type;
    if (type.empty()) return nullptr;
    return type == "sensitivity" ? test::make_sensitivity(GetParam().arguments, /*asks_what_gptq_leaves=*/true)
                                 : test::make_quantizer(type, GetParam().arguments, "test");
  }

  std::unique_ptr<compression::Quantizer> encoding_, modifier_;
  std::vector<compression::LinearShape> shapes_;
  std::vector<compression::LinearWeight> linears_;
  compression::Statistics statistics_;
};

TEST_P(CostTest, PredictsMemoryAndArithmetic) {
  LAYERPRESS_SKIP_WITHOUT_HEAP_METER();
  const compression::CompressionCost cost = modifier_->cost(shapes_);
  PhaseTimes warm_up, times;
  compress(warm_up);  // buffers that the libraries keep
  const auto planned = static_cast<double>(cost.workspace_bytes), result = static_cast<double>(cost.result_bytes);
  const std::uint64_t before = heap_meter::held_bytes();
  heap_meter::restart_peak();
  const auto results = compress(times);
  const auto peak = static_cast<double>(heap_meter::peak_bytes() - before);
  const auto held = static_cast<double>(heap_meter::held_bytes() - before);
  std::map<std::string, double> flops;
  for (const auto& [name, phase] : times.phases())
    if (phase.flops > 0) flops[name] = phase.flops;
  constexpr double kSlack = 2 << 20;  // buffers of threads that did not take part in the warm-up
  EXPECT_NEAR(peak, planned, 0.10 * planned);
  EXPECT_LT(peak, 1.03 * planned + kSlack);
  EXPECT_NEAR(held, result, 0.05 * result + kSlack);
  EXPECT_EQ(flops, cost.flops);
}

INSTANTIATE_TEST_SUITE_P(Modifiers, CostTest, ::testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace layerpress::modifier
