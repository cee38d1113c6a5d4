#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "layerpress/graph/facts/image_geometry.h"
#include "layerpress/model/families/families.h"
#include "layerpress/modifier/all_modifiers.h"
#include "layerpress/plan/run_plan.h"
#include "layerpress/setup/run_identity.h"
#include "tests/model/small_mllama.h"
#include "tests/modifier/quantizers.h"

namespace layerpress::plan {
namespace {

using graph::Rows;

model::TracedModel small_model() { return model::trace_mllama(test::small_mllama_config()); }

/// Samples of these many tokens, each with images that fill so many tiles.
data::CalibrationSet samples(const std::vector<std::pair<std::int64_t, std::vector<std::int64_t>>>& shapes,
                             std::int64_t most_tiles) {
  data::CalibrationSet set;
  for (const auto& [tokens, tiles] : shapes) {
    set.sample_offsets.push_back(set.sample_offsets.back() + tokens);
    set.tokens.resize(static_cast<std::size_t>(set.token_count()), 7);
    data::SampleImages& images = set.images.emplace_back();
    if (tiles.empty()) continue;
    for (const std::int64_t filled : tiles) {
      images.pixels.push_back(at::rand({filled, 3, 28, 28}));
      images.aspect_ratios.push_back(filled);
    }
    images.mask = at::zeros({tokens, images.count(), most_tiles}, at::kByte);
    images.mask.slice(2, 0, 1).fill_(1);
  }
  return set;
}

const data::CalibrationSet& mixed() {
  static const data::CalibrationSet kSet =
      samples({{40, {1}}, {33, {}}, {64, {2, 4}}, {50, {}}, {64, {4, 1, 3}}, {21, {4}}, {300, {2}}, {5, {}}}, 4);
  return kSet;
}

TEST(VisionPlan, PacksAsTheRunDoes) {
  const model::TracedModel model = small_model();
  for (const std::int64_t tokens : {50, 100, 200, 400, 1000}) {
    const auto planned = batches_of(shapes_of(mixed()), tokens, model.graph);
    const auto run = setup::make_batches(mixed(), tokens, model.graph);
    ASSERT_EQ(planned.size(), run.size()) << tokens;
    for (std::size_t b = 0; b < run.size(); ++b) {
      EXPECT_EQ(planned[b].offsets, run[b].offsets);
      EXPECT_EQ(planned[b].images.offsets, run[b].images.offsets);
      for (const Rows rows : {Rows::kTokens, Rows::kIllustrated, Rows::kPatches, Rows::kVision}) {
        EXPECT_EQ(planned[b].rows(rows), run[b].rows(rows));
        EXPECT_EQ(execution::count_of_counted_rows(planned[b], rows), execution::count_of_counted_rows(run[b], rows));
      }
    }
  }
}

TEST(VisionPlan, TextModelsHaveNoImages) {
  graph::Graph text;
  const auto batches = batches_of({{10}, {20}}, 100, text);
  ASSERT_EQ(batches.size(), 1u);
  EXPECT_EQ(batches[0].rows(Rows::kTokens), 30);
  EXPECT_EQ(batches[0].rows(Rows::kPatches) + batches[0].rows(Rows::kVision) + batches[0].rows(Rows::kIllustrated), 0);
}

TEST(VisionPlan, ChecksumKnowsTheImages) {
  const std::uint64_t before = setup::checksum_of_samples(mixed());
  data::CalibrationSet set = mixed();
  set.images[0].aspect_ratios[0] = 5;
  EXPECT_NE(setup::checksum_of_samples(set), before);
  set = mixed();
  set.images[2].mask = set.images[2].mask.clone();
  set.images[2].mask[63][1][3] = 1;
  EXPECT_NE(setup::checksum_of_samples(set), before);
  set = mixed();
  set.images[4].pixels[2] = set.images[4].pixels[2].clone();
  set.images[4].pixels[2][0][0][0][0] += 1;
  EXPECT_NE(setup::checksum_of_samples(set), before);
  set = mixed();
  set.images[4].pixels[2] = set.images[4].pixels[2].clone();
  EXPECT_EQ(setup::checksum_of_samples(set), before);
  std::swap(set.images[0], set.images[5]);  // the same parts, of other samples
  EXPECT_NE(setup::checksum_of_samples(set), before);
}

TEST(VisionPlan, ChecksumKnowsWhatImagesGive) {
  const auto with = [](const at::Tensor& values, const at::Tensor& added) {
    data::CalibrationSet set{{1, 2, 3}, {0, 3}};
    set.images.resize(1);
    set.images[0].embeddings = {at::tensor({0, 1}, at::kLong), values, at::Tensor(), added};
    return setup::checksum_of_samples(set);
  };
  const at::Tensor values = at::ones({2, 4}), other = values.clone();
  other[1][3] = 2;
  EXPECT_EQ(with(values, {}), with(values.clone(), {}));
  EXPECT_NE(with(values, {}), with(other, {}));
  EXPECT_NE(with(values, values.unsqueeze(1)), with(values, other.unsqueeze(1)));
  EXPECT_NE(with(values, values.unsqueeze(1)), with(values, {}));
}

/// All linears of the text compressed, as in the usual run.
class VisionSchedule : public ::testing::TestWithParam<std::vector<std::string>> {
 protected:
  void SetUp() override {
    const graph::Graph& graph = model_.graph;
    for (graph::NodeId n = 0; n < static_cast<graph::NodeId>(graph.nodes.size()); ++n) {
      const std::string& name = graph.module_name(graph.nodes[n]);
      if (name == "multi_modal_projector") states_ = graph.nodes[n].output;
      if (!std::holds_alternative<graph::Linear>(graph.nodes[n].operation)) continue;
      if (name.starts_with("language_model.model"))
        assignments_.linears[n] = {modifier_.get(), modifier_->scheme_for({name, {"Linear"}}), at::kBFloat16};
    }
    subgraphs_ = setup::cut_model(model_, GetParam());
    schedule_ = schedule::sequential_schedule({graph, subgraphs_, assignments_});
  }

  bool reads(const schedule::Step& step) const { return contains(step.stage.inputs, states_); }
  static bool contains(const std::vector<graph::ValueId>& values, graph::ValueId value) {
    return std::find(values.begin(), values.end(), value) != values.end();
  }

  model::TracedModel model_ = small_model();
  std::unique_ptr<compression::Quantizer> modifier_ =
      test::make_quantizer("GPTQModifier", {{"targets", {"Linear"}}, {"scheme", "W4A16"}}, "test");
  compression::Assignments assignments_;
  std::vector<graph::Subgraph> subgraphs_;
  std::vector<schedule::SubgraphSchedule> schedule_;
  graph::ValueId states_ = -1;
};

TEST_P(VisionSchedule, StatesAreStoredOnceAndFreedAfterTheLastLayerThatReadsThem) {
  int kept = 0, dropped = 0;
  bool read_after = false;
  for (const schedule::SubgraphSchedule& subgraph : schedule_) {
    for (const schedule::Step& step : subgraph.steps) {
      EXPECT_TRUE(!reads(step) || kept == 1) << subgraph.name << " reads what is not there";
      read_after = read_after || (dropped > 0 && reads(step));
      kept += contains(step.stage.keeps, states_) ? 1 : 0;
      if (!contains(step.drops, states_)) continue;
      ++dropped;
      EXPECT_NE(subgraph.name.find(".layers." + std::string(GetParam().empty() ? "3" : "2")), std::string::npos)
          << subgraph.name;
    }
    // Between its first reader and its last one the value waits at every cut.
    EXPECT_EQ(contains(subgraph.boundary, states_), kept == 1 && dropped == 0) << subgraph.name;
  }
  EXPECT_EQ(kept, 1);
  EXPECT_EQ(dropped, 1);
  EXPECT_FALSE(read_after);
}

TEST_P(VisionSchedule, KeysAndValuesOfImagesAreCompressedTogetherAndApartFromQueries) {
  int groups = 0;
  for (const schedule::SubgraphSchedule& subgraph : schedule_)
    for (const graph::LinearGroup& group : subgraph.groups()) {
      if (group.input != states_) continue;
      ++groups;
      ASSERT_EQ(group.linears.size(), 2u) << subgraph.name;
    }
  EXPECT_EQ(groups, 2);
}

// By decoder layers of all kinds, and by those that read no images: the others go with what stands before them.
INSTANTIATE_TEST_SUITE_P(Cuts, VisionSchedule,
                         ::testing::Values(std::vector<std::string>{},
                                           std::vector<std::string>{"MllamaSelfAttentionDecoderLayer"}));

}  // namespace
}  // namespace layerpress::plan
