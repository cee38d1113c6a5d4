#include "layerpress/model/architecture.h"

#include <gtest/gtest.h>

#include "layerpress/graph/partition.h"
#include "layerpress/graph/text.h"

namespace layerpress::model {
namespace {

Json small_config(const Architecture& architecture) {
  return {{"architectures", {architecture.class_name}},
          {"model_type", architecture.model_type},
          {"hidden_size", 64},
          {"intermediate_size", 96},
          {"num_hidden_layers", 3},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"vocab_size", 128}};
}

const Architecture& llama() { return architectures().front(); }

/// The message of the error that tracing `config` gives.
std::string trace_error(const Json& config) {
  try {
    trace_model(config);
  } catch (const CheckpointError& error) {
    return error.what();
  }
  return "no error";
}

class ArchitectureTest : public ::testing::TestWithParam<Architecture> {};

TEST_P(ArchitectureTest, PartitionsIntoItsLayers) {
  const TracedModel model = trace_model(small_config(GetParam()));
  const auto subgraphs = graph::partition(model.graph, [&](const graph::Module& module) {
    return module.class_name == model.default_sequential_targets.at(0);
  });
  ASSERT_EQ(subgraphs.size(), 5u);  // head, three layers, tail
  std::vector<int> freed(model.graph.values.size(), 0);
  std::size_t nodes = 0;
  for (const auto& subgraph : subgraphs) {
    for (const graph::NodeId n : subgraph.nodes) EXPECT_EQ(n, static_cast<graph::NodeId>(nodes++));
  }
  EXPECT_EQ(nodes, model.graph.nodes.size());
  for (const auto& live : graph::liveness(model.graph, subgraphs))
    for (const graph::ValueId value : live.freed) ++freed[value];
  for (std::size_t v = 0; v < freed.size(); ++v)
    EXPECT_EQ(freed[v], static_cast<graph::ValueId>(v) == model.graph.output ? 0 : 1);
  const auto groups = graph::linear_groups(model.graph, subgraphs[1], [](const graph::Node&) { return true; });
  ASSERT_EQ(groups.size(), 4u);  // q/k/v, o, gate/up, down
  EXPECT_EQ(groups[0].linears.size(), 3u);
  EXPECT_EQ(groups[2].linears.size(), 2u);
}

TEST_P(ArchitectureTest, GraphTextRoundTrips) {
  const std::string text = graph::to_text(trace_model(small_config(GetParam())).graph);
  EXPECT_EQ(graph::to_text(graph::parse_text(text)), text);
}

TEST_P(ArchitectureTest, IsFoundByModelTypeAlone) {
  Json config = small_config(GetParam());
  config.erase("architectures");
  EXPECT_EQ(trace_model(config).vocab_size, 128);
}

INSTANTIATE_TEST_SUITE_P(All, ArchitectureTest, ::testing::ValuesIn(architectures()),
                         [](const auto& info) { return info.param.model_type; });

TEST(TraceModel, NamesAnUnknownArchitectureAndTheNearestOne) {
  Json config = small_config(llama());
  config["architectures"] = {"LlamaForCausalLN"};
  const std::string message = trace_error(config);
  EXPECT_NE(message.find("'LlamaForCausalLN' is not supported (nearest: LlamaForCausalLM)"), std::string::npos)
      << message;
  EXPECT_NE(message.find("Qwen3ForCausalLM"), std::string::npos) << message;
}

TEST(TraceModel, NamesTheKeyAtFault) {
  const auto with = [](const char* key, const Json& value) {
    Json config = small_config(llama());
    config[key] = value;
    return trace_error(config);
  };
  EXPECT_NE(with("hidden_size", "wide").find("hidden_size"), std::string::npos);
  EXPECT_NE(with("hidden_size", -4).find("hidden_size"), std::string::npos);
  EXPECT_NE(with("num_hidden_layers", 1e9).find("num_hidden_layers"), std::string::npos);
  EXPECT_NE(with("num_key_value_heads", 3).find("multiple"), std::string::npos);
  EXPECT_NE(with("hidden_act", "relu7").find("relu7"), std::string::npos);
  EXPECT_NE(with("rope_scaling", {{"rope_type", "spiral"}, {"factor", 2}}).find("spiral"), std::string::npos);
  EXPECT_NE(with("rope_scaling", {{"rope_type", "linear"}}).find("factor"), std::string::npos);
  EXPECT_NE(with("rope_scaling", 7).find("rope_scaling"), std::string::npos);
  EXPECT_NE(with("architectures", 7).find("architectures"), std::string::npos);
  Json config = small_config(llama());
  config.erase("vocab_size");
  EXPECT_NE(trace_error(config).find("vocab_size"), std::string::npos);
}

}  // namespace
}  // namespace layerpress::model
