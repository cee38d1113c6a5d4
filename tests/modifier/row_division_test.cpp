#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "layerpress/modifier/all_modifiers.h"
#include "layerpress/schedule/group_division.h"
#include "tests/modifier/quantizers.h"

namespace layerpress::modifier {
namespace {

constexpr std::int64_t kDividedColumns = 640;

/// Codes of rows that were compressed in the parts of `ranks` ranks, put together again.
struct Divided {
  at::Tensor codes, scales;
};

Divided compress(const compression::Quantizer& modifier, const at::Tensor& weight, const at::Tensor& gram, int ranks) {
  const compression::Statistics statistics{{{"gram", gram}}, 100};
  const auto* scheme = modifier.scheme_for({"m", {"Linear"}});
  const compression::LinearShape shape{weight.size(0), weight.size(1), weight.scalar_type(), scheme};
  std::vector<at::Tensor> codes, scales;
  for (const auto& parts : schedule::split_rows({weight.size(0)}, {modifier.row_step(shape)}, ranks))
    for (const schedule::RowPart& part : parts) {
      PhaseTimes times;
      const auto result = modifier.compress({{"m", weight.narrow(0, part.first, part.rows()), scheme, at::kBFloat16}},
                                            &statistics, times);
      codes.push_back(result.at(0).weight.codes.view(at::kChar));
      scales.push_back(result.at(0).weight.scale);
    }
  return {at::cat(codes), at::cat(scales)};
}

Json arguments(const Json& weights) {
  return {{"config_groups", {{"group_0", {{"targets", {"Linear"}}, {"weights", weights}}}}}};
}

/// What Modifier::row_step promises, with which ranks divide the rows.
TEST(RowDivision, ChangesNoCode) {
  at::manual_seed(5);
  const at::Tensor weight = at::randn({400, kDividedColumns}).to(at::kBFloat16);
  const at::Tensor x = at::randn({1500, kDividedColumns}) * (0.2 + at::rand({kDividedColumns}));
  const at::Tensor gram = at::mm(x.t(), x);
  const std::vector<std::pair<std::string, Json>> cases = {
      {"GPTQModifier", {{"num_bits", 4}, {"strategy", "group"}, {"group_size", 64}}},
      {"GPTQModifier", {{"num_bits", 4}, {"strategy", "group"}, {"group_size", 64}, {"symmetric", false}}},
      {"GPTQModifier", {{"num_bits", 4}, {"strategy", "group"}, {"group_size", 64}, {"observer", "gptq"}}},
      {"GPTQModifier", {{"num_bits", 8}, {"strategy", "channel"}}},
      {"QuantizationModifier", {{"num_bits", 4}, {"strategy", "group"}, {"group_size", 128}}},
      {"QuantizationModifier",
       {{"num_bits", 8}, {"type", "float"}, {"strategy", "block"}, {"block_structure", {128, 128}}}}};
  for (const auto& [type, weights] : cases) {
    const auto modifier = test::make_quantizer(type, arguments(weights), "test");
    const Divided whole = compress(*modifier, weight, gram, 1);
    for (const int ranks : {2, 3, 5}) {
      const Divided divided = compress(*modifier, weight, gram, ranks);
      EXPECT_TRUE(at::equal(whole.codes, divided.codes))
          << type << weights << ranks << ": " << (whole.codes != divided.codes).sum().item<std::int64_t>();
      EXPECT_TRUE(at::equal(whole.scales, divided.scales)) << type << weights << ranks;
    }
  }
}

TEST(RowDivision, LeavesOneScaleForAllRowsWhole) {
  const auto modifier =
      test::make_quantizer("QuantizationModifier", arguments({{"num_bits", 8}, {"strategy", "tensor"}}), "test");
  const auto* scheme = modifier->scheme_for({"m", {"Linear"}});
  EXPECT_EQ(modifier->row_step({400, kDividedColumns, at::kBFloat16, scheme}), 0);
}

}  // namespace
}  // namespace layerpress::modifier
