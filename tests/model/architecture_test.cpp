#include "layerpress/model/blocks/architecture.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "layerpress/graph/facts/expert_inputs.h"
#include "layerpress/graph/partition.h"

namespace layerpress::model {
namespace {

/// What some architectures have beside the usual: a config's keys, and how many linears read each value of a layer.
struct Peculiarity {
  Json keys = Json::object();
  std::vector<std::size_t> group_sizes = {3, 1, 2, 1};  ///< q/k/v, o, gate/up, down
};

/// Eight tokens more than vocab_size have embeddings.
Json small_vision_model() {
  const Json text = {
      {"hidden_size", 64},        {"intermediate_size", 96}, {"num_hidden_layers", 3},       {"num_attention_heads", 4},
      {"num_key_value_heads", 2}, {"vocab_size", 120},       {"cross_attention_layers", {1}}};
  const Json vision = {{"hidden_size", 32},      {"intermediate_size", 48},
                       {"num_hidden_layers", 2}, {"num_global_layers", 1},
                       {"attention_heads", 4},   {"vision_output_dim", 64},
                       {"image_size", 28},       {"intermediate_layers_indices", {0}}};
  return {{"text_config", text}, {"vision_config", vision}};
}

Peculiarity peculiarity(const std::string& model_type) {
  const std::vector<std::size_t> latent_sizes = {2, 1, 1, 1, 2, 1};  // q_a/kv_a, q_b, kv_b, o, gate/up, down
  const Json few_experts = {{"n_routed_experts", 4}, {"num_experts_per_tok", 2}, {"n_group", 2},
                            {"topk_group", 1},       {"q_lora_rank", 24},        {"first_k_dense_replace", 1}};
  // q/k/v, o, router, gate/up and down of two experts
  const std::vector<std::size_t> sparse_sizes = {3, 1, 1, 2, 1, 2, 1};
  const Json two_experts = {{"num_experts", 2}, {"num_local_experts", 2}, {"num_experts_per_tok", 2}};
  if (model_type == "mixtral" || model_type == "olmoe" || model_type == "qwen3_moe")
    return {.keys = two_experts, .group_sizes = sparse_sizes};
  if (model_type == "qwen2_moe")  // the shared expert and its gate read what the router reads
    return {.keys = two_experts, .group_sizes = {3, 1, 4, 2, 1, 2, 1, 1}};
  if (model_type == "mllama")  // cut into its three vision layers: q/k/v, o, fc1, fc2
    return {.keys = small_vision_model(), .group_sizes = {3, 1, 1, 1}};
  if (model_type == "phi3") return {.group_sizes = {1, 1, 1, 1}};
  if (model_type == "cohere2") return {.group_sizes = {5, 1, 1}};  // attention and MLP read one value
  if (model_type == "deepseek_v2" || model_type == "deepseek_v3")
    return {.keys = few_experts, .group_sizes = latent_sizes};
  return {};
}

Json small_config(const Architecture& architecture) {
  Json config = {{"architectures", {architecture.class_name}},
                 {"model_type", architecture.model_type},
                 {"hidden_size", 64},
                 {"intermediate_size", 96},
                 {"num_hidden_layers", 3},
                 {"num_attention_heads", 4},
                 {"num_key_value_heads", 2},
                 {"vocab_size", 128}};
  config.update(peculiarity(architecture.model_type).keys);
  return config;
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
  std::vector<std::size_t> sizes;
  for (const auto& group : groups) sizes.push_back(group.linears.size());
  EXPECT_EQ(sizes, peculiarity(GetParam().model_type).group_sizes);
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
  EXPECT_NE(with("partial_rotary_factor", 0.5).find("ignores partial_rotary_factor 0.5"), std::string::npos);
  EXPECT_NE(with("architectures", 7).find("architectures"), std::string::npos);
  Json config = small_config(llama());
  config.erase("vocab_size");
  EXPECT_NE(trace_error(config).find("vocab_size"), std::string::npos);
}

TEST(TraceModel, NamesTheKeyAtFaultOfAFamily) {
  const auto with = [](const char* model_type, const char* key, const Json& value) {
    const auto found = std::find_if(architectures().begin(), architectures().end(),
                                    [&](const Architecture& one) { return one.model_type == model_type; });
    ASSERT_NE(found, architectures().end()) << model_type;
    Json config = small_config(*found);
    config[key] = value;
    const std::string message = trace_error(config);
    EXPECT_NE(message.find(key), std::string::npos) << model_type << ": " << message;
  };
  with("gemma2", "hidden_activation", "relu7");
  with("gemma2", "query_pre_attn_scalar", 0);
  with("gemma3_text", "use_bidirectional_attention", true);
  with("gemma3_text", "sliding_window_pattern", 0);
  with("gemma3_text", "layer_types", {"full_attention"});
  with("smollm3", "no_rope_layers", {1, 0});
  with("smollm3", "no_rope_layer_interval", 0);
  with("granite", "logits_scaling", 0);
  with("cohere2", "sliding_window_pattern", -1);
  with("phi3", "rope_scaling", 7);
  with("deepseek_v2", "topk_method", "noaux_tc");
  with("deepseek_v2", "norm_topk_prob", true);
  with("deepseek_v3", "n_routed_experts", 5);
  with("deepseek_v3", "kv_lora_rank", 0);
  with("deepseek_v3", "moe_layer_freq", 2);
}

/// Whether subgraphs are disjoint, cover all nodes in order, and free every value but the output exactly once, where it is
/// last needed.
void expect_sound(const graph::Graph& graph, const std::vector<graph::Subgraph>& subgraphs) {
  std::vector<graph::NodeId> nodes;
  for (const graph::Subgraph& subgraph : subgraphs)
    nodes.insert(nodes.end(), subgraph.nodes.begin(), subgraph.nodes.end());
  ASSERT_EQ(nodes.size(), graph.nodes.size());
  for (std::size_t n = 0; n < nodes.size(); ++n) ASSERT_EQ(nodes[n], static_cast<graph::NodeId>(n));
  std::vector<int> freed(graph.values.size(), 0);
  const auto live = graph::liveness(graph, subgraphs);
  for (std::size_t s = 0; s < subgraphs.size(); ++s) {
    for (const graph::NodeId n : subgraphs[s].nodes)
      for (const graph::ValueId input : graph.nodes[n].inputs)
        ASSERT_EQ(freed[input], 0) << "value " << input << " is read after it is freed";
    for (const graph::ValueId value : live[s].freed) ++freed[value];
  }
  for (std::size_t v = 0; v < freed.size(); ++v)
    ASSERT_EQ(freed[v], static_cast<graph::ValueId>(v) == graph.output ? 0 : 1) << "value " << v;
}

TEST_P(ArchitectureTest, EveryCutIsSound) {
  const TracedModel model = trace_model(small_config(GetParam()));
  const auto is_layer = [&](const graph::Module& module) {
    const auto& targets = model.default_sequential_targets;
    return std::find(targets.begin(), targets.end(), module.class_name) != targets.end();
  };
  const auto is_linear = [](const graph::Module& module) { return module.class_name == "Linear"; };
  for (const graph::Graph& graph : {model.graph, graph::without_selection(model.graph)}) {
    const std::size_t layers = graph::partition(graph, is_layer).size();
    EXPECT_GE(layers, 3u);
    EXPECT_LT(graph::partition(graph, is_layer, 2).size(), layers);
    EXPECT_GT(graph::partition(graph, is_linear).size(), layers);
    expect_sound(graph, graph::partition(graph, is_layer));
    expect_sound(graph, graph::partition(graph, is_layer, 2));
    expect_sound(graph, graph::partition(graph, is_linear));
  }
}

TEST_P(ArchitectureTest, SaysWhatIsSpecial) {
  EXPECT_FALSE(GetParam().special.empty());
  EXPECT_LE(GetParam().special.size(), 60u);  // so that a line of the list fits a terminal
}

}  // namespace
}  // namespace layerpress::model
