#include "layerpress/rewrite/rewrite.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "layerpress/graph/tracer.h"

namespace layerpress::rewrite {
namespace {

Model two_linears() {
  graph::Tracer tracer;
  const graph::Symbol x = tracer.embedding("embed", tracer.tokens(), 6, 4);
  Model model;
  model.traced.graph = tracer.finish(
      tracer.linear("head", x, 6, graph::Tracer::LinearOptions{.bias = false, .tied_weight = "embed.weight"}));
  model.checkpoint = checkpoint::Checkpoint::in_memory({{"tied", true}, {"size", 4}},
                                                       {{"embed.weight", at::ones({6, 4})}, {"other", at::zeros({2})}});
  return model;
}

TEST(Rewrite, ChangesTensorsConfigAndReaders) {
  const Model model = two_linears();
  Changes changes;
  changes.removed = {"other"};
  changes.copies = {{"head.weight", "embed.weight"}};
  int computed = 0;
  const auto original = model.checkpoint;
  changes.computed = {{.spec = {"head.weight", at::kFloat, {6, 4}},
                       .parts = {"head.weight"},
                       .compute = [&computed, original] { return ++computed, original->tensor("embed.weight") * 2; },
                       .workspace_bytes = 96}};
  graph::Linear reader = std::get<graph::Linear>(model.traced.graph.nodes[1].operation);
  reader.weight = "head.weight";
  changes.operations = {{1, reader}};
  changes.config = {{"tied", false}};
  const Model changed = rewritten(model, changes);
  EXPECT_EQ(computed, 0);  // until it is loaded
  EXPECT_EQ(changed.checkpoint->names(), (std::vector<std::string>{"embed.weight", "head.weight"}));
  EXPECT_TRUE(at::equal(changed.checkpoint->tensor("embed.weight"), at::ones({6, 4})));
  EXPECT_TRUE(at::equal(changed.checkpoint->tensor("head.weight"), at::full({6, 4}, 2.0)));
  EXPECT_EQ(changed.checkpoint->workspace_bytes("head.weight"), 96u);
  EXPECT_EQ(changed.checkpoint->stored_bytes("head.weight"), 96u);
  EXPECT_EQ(std::get<graph::Linear>(changed.traced.graph.nodes[1].operation).weight, "head.weight");
  EXPECT_EQ(changed.checkpoint->config(), (Json{{"tied", false}, {"size", 4}}));
  EXPECT_EQ(model.checkpoint->config(), (Json{{"tied", true}, {"size", 4}}));
}

/// What one rewrite computes is a part of what the next one computes.
TEST(Rewrite, FollowsAnother) {
  Model model = two_linears();
  for (int step = 0; step < 2; ++step) {
    Changes changes;
    changes.computed = {{.spec = {"embed.weight", at::kFloat, {6, 4}},
                         .parts = {"embed.weight"},
                         .compute = [before = model.checkpoint] { return before->tensor("embed.weight") + 1; }}};
    model = rewritten(model, changes);
  }
  EXPECT_TRUE(at::equal(model.checkpoint->tensor("embed.weight"), at::full({6, 4}, 3.0)));
  EXPECT_EQ(model.checkpoint->stored_bytes("embed.weight"), 96u);
  const auto parts = model.checkpoint->stored_parts("embed.weight");
  ASSERT_EQ(parts.size(), 1u);
  EXPECT_EQ(parts[0].name, "embed.weight");
}

}  // namespace
}  // namespace layerpress::rewrite
