#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "layerpress/base/text.h"
#include "layerpress/checkpoint/safetensors.h"
#include "layerpress/graph/facts/image_geometry.h"
#include "layerpress/graph/partition.h"
#include "layerpress/graph/renaming.h"
#include "layerpress/graph/text.h"
#include "layerpress/model/blocks/weight_names.h"
#include "layerpress/model/families/families.h"
#include "tests/checkpoint/temporary_folder.h"
#include "tests/model/small_mllama.h"

namespace layerpress::model {
namespace {

using graph::Rows;
using test::expect_says;
using test::message_of;
using test::small_mllama_config;

std::vector<graph::Subgraph> cut(const TracedModel& model, const std::vector<std::string>& classes) {
  return graph::partition(model.graph, [&](const graph::Module& module) {
    return std::find(classes.begin(), classes.end(), module.class_name) != classes.end();
  });
}

const graph::Node& node_of(const graph::Graph& graph, const std::string& module) {
  for (const graph::Node& node : graph.nodes)
    if (graph.module_name(node) == module) return node;
  throw InternalError("no node in {}", module);
}

void expect_whole(const graph::Graph& graph, const std::vector<graph::Subgraph>& subgraphs) {
  std::vector<int> freed(graph.values.size(), 0);
  std::size_t nodes = 0;
  for (const auto& subgraph : subgraphs)
    for (const graph::NodeId n : subgraph.nodes) EXPECT_EQ(n, static_cast<graph::NodeId>(nodes++));
  EXPECT_EQ(nodes, graph.nodes.size());
  for (const auto& live : graph::liveness(graph, subgraphs))
    for (const graph::ValueId value : live.freed) ++freed[value];
  for (std::size_t v = 0; v < freed.size(); ++v)
    EXPECT_EQ(freed[v], static_cast<graph::ValueId>(v) == graph.output ? 0 : 1) << "value " << v;
}

TEST(Mllama, PartitionsIntoItsLayers) {
  const TracedModel model = trace_mllama(small_mllama_config());
  const auto subgraphs = cut(model, model.default_sequential_targets);
  ASSERT_EQ(subgraphs.size(), 1u + 3 + 2 + 5 + 1);
  EXPECT_EQ(subgraphs[1].name, "vision_model.transformer.layers.0");
  EXPECT_EQ(subgraphs[4].name, "vision_model.global_transformer.layers.0");
  EXPECT_EQ(subgraphs[6].name, "language_model.model.layers.0");
  expect_whole(model.graph, subgraphs);
}

TEST(Mllama, VisionStatesAreOneValueThatCrossesTheCuts) {
  const TracedModel model = trace_mllama(small_mllama_config());
  const auto subgraphs = cut(model, {"MllamaSelfAttentionDecoderLayer"});
  ASSERT_EQ(subgraphs.size(), 1u + 3 + 1);  // cross-attention layers go with what stands before them
  expect_whole(model.graph, subgraphs);
  const graph::ValueId states = node_of(model.graph, "multi_modal_projector").output;
  EXPECT_EQ(model.graph.values[states].rows, Rows::kVision);
  EXPECT_EQ(model.graph.values[states].features, 64);
  const auto live = graph::liveness(model.graph, subgraphs);
  const auto holds = [&](const std::vector<graph::ValueId>& values) {
    return std::find(values.begin(), values.end(), states) != values.end();
  };
  EXPECT_TRUE(holds(live[0].outputs));
  EXPECT_TRUE(holds(live[1].inputs) && holds(live[2].inputs));
  EXPECT_TRUE(holds(live[2].freed));  // layer 3 is the last one that reads them
  EXPECT_FALSE(holds(live[3].inputs));
}

TEST(Mllama, KeysAndValuesOfImagesAreALinearGroupOfTheirOwn) {
  const TracedModel model = trace_mllama(small_mllama_config());
  const auto subgraphs = cut(model, {"MllamaCrossAttentionDecoderLayer"});
  const auto groups = graph::linear_groups(model.graph, subgraphs[1], [](const graph::Node&) { return true; });
  std::vector<std::vector<std::string>> names;
  for (const graph::LinearGroup& group : groups) {
    names.emplace_back();
    for (const graph::NodeId n : group.linears) {
      const std::string& name = model.graph.module_name(model.graph.nodes[n]);
      names.back().push_back(last_part(name));
    }
  }
  using Names = std::vector<std::string>;
  ASSERT_GE(names.size(), 5u);
  EXPECT_EQ(names[0], (Names{"k_proj", "v_proj"}));
  EXPECT_EQ(names[1], (Names{"q_proj"}));
  EXPECT_EQ(names[2], (Names{"o_proj"}));
  EXPECT_EQ(names[3], (Names{"gate_proj", "up_proj"}));
  EXPECT_EQ(names[4], (Names{"down_proj"}));
}

TEST(Mllama, GraphSaysWhatImagesItTakes) {
  const TracedModel model = trace_mllama(small_mllama_config());
  const auto geometry = graph::image_geometry(model.graph);
  ASSERT_TRUE(geometry.has_value());
  EXPECT_EQ(*geometry, (graph::ImageGeometry{3, 28, 7, 4, 8}));
  EXPECT_EQ(geometry->patches(), 17);
  EXPECT_EQ(geometry->tile_rows(), 24);
  EXPECT_TRUE(model.graph.is_input(1));
  EXPECT_EQ(model.graph.values[1].features, 3 * 7 * 7);
  EXPECT_EQ(model.graph.values[1].rows, Rows::kPatches);
}

TEST(Mllama, GraphTextHasPatches) {
  const std::string text = graph::to_text(trace_mllama(small_mllama_config()).graph);
  EXPECT_NE(text.find("input %1 [147 patches]"), std::string::npos);
}

TEST(Mllama, MissingKeysAreThoseOfTheReleasedModel) {
  const TracedModel model = trace_mllama({{"model_type", "mllama"}});
  EXPECT_EQ(model.vocab_size, 128256 + 8);
  EXPECT_EQ(graph::image_geometry(model.graph), (graph::ImageGeometry{3, 448, 14, 4, 8}));
  std::map<std::string, int> layers;
  for (const graph::Module& module : model.graph.modules) ++layers[module.class_name];
  EXPECT_EQ(layers["MllamaCrossAttentionDecoderLayer"], 8);
  EXPECT_EQ(layers["MllamaSelfAttentionDecoderLayer"], 32);
  EXPECT_EQ(layers["MllamaVisionEncoderLayer"], 40);
}

TEST(Mllama, FaultsOfTheConfigAreNamed) {
  const auto fault = [](const char* section, const char* key, const Json& value) {
    Json config = small_mllama_config();
    config[section][key] = value;
    return message_of<CheckpointError>([&] { trace_mllama(config); });
  };
  expect_says(fault("text_config", "cross_attention_layers", {5}), {"cross_attention_layers", "5"});
  expect_says(fault("text_config", "cross_attention_layers", "all"), {"cross_attention_layers"});
  expect_says(fault("text_config", "hidden_size", -1), {"hidden_size"});
  expect_says(fault("vision_config", "patch_size", 29), {"patch_size"});
  expect_says(fault("vision_config", "patch_size", {7, 7}), {"patch_size"});
  expect_says(fault("vision_config", "vision_output_dim", 95), {"vision_output_dim", "96"});
  expect_says(fault("vision_config", "intermediate_layers_indices", {-1, 2}), {"intermediate_layers_indices"});
  expect_says(fault("vision_config", "supported_aspect_ratios", 3), {"supported_aspect_ratios"});
  expect_says(fault("vision_config", "max_num_tiles", 0), {"max_num_tiles"});
  expect_says(message_of<CheckpointError>([] {
                trace_mllama({{"text_config", {}}, {"vision_config", 3}});
              }),
              {"vision_config"});
}

/// A checkpoint of this model whose weights have the names that `rename` makes of the traced ones.
std::shared_ptr<const checkpoint::Checkpoint> stored_as(const test::TemporaryFolder& folder,
                                                        const graph::Renaming& renaming) {
  std::map<std::string, at::Tensor> tensors;
  for (const graph::Node& node : trace_mllama(small_mllama_config()).graph.nodes)
    for (const graph::WeightUse& use : graph::weights_of(node.operation))
      tensors[graph::renamed(use.name, renaming)] = at::zeros(use.shape);
  checkpoint::write_safetensors(folder / "model.safetensors", tensors);
  write_text_file(folder / "config.json", small_mllama_config().dump());
  return checkpoint::Checkpoint::open(folder.path());
}

const graph::Renaming kModules = {{"language_model.model", "model.language_model"},
                                  {"language_model.lm_head", "lm_head"},
                                  {"vision_model", "model.vision_model"},
                                  {"multi_modal_projector", "model.multi_modal_projector"}};

TEST(WeightNames, ThoseOfTheCheckpointAreUsed) {
  for (const graph::Renaming& renaming : {graph::Renaming(), kModules}) {
    const test::TemporaryFolder folder;
    const auto checkpoint = stored_as(folder, renaming);
    TracedModel model = trace_mllama(small_mllama_config());
    use_stored_names(model, *checkpoint);
    check_weights(model.graph, *checkpoint);
    graph::lint(model.graph);
    node_of(model.graph, graph::renamed("language_model.lm_head", renaming));
    node_of(model.graph, graph::renamed("language_model.model.layers.1.cross_attn.k_proj", renaming));
  }
}

TEST(WeightNames, EveryModuleHasItsOtherName) {
  TracedModel model = trace_mllama(small_mllama_config());
  using Names = std::vector<std::string>;
  const std::string traced = "vision_model.layernorm_pre", other = "model.vision_model.layernorm_pre";
  EXPECT_EQ(other_names(model, traced), Names{other});
  EXPECT_EQ(other_names(model, "language_model.lm_head"), Names{"lm_head"});
  TracedModel known = model;
  known.aliases["language_model.lm_head"] = {"lm_head"};
  EXPECT_EQ(other_names(known, "language_model.lm_head"), Names{"lm_head"}) << "once";
  graph::rename(model.graph, kModules);
  EXPECT_EQ(other_names(model, other), Names{traced});
  TracedModel plain;
  plain.graph.modules = {{"model", "LlamaModel", -1}, {"lm_head", "Linear", -1}};
  EXPECT_TRUE(other_names(plain, "lm_head").empty());
}

}  // namespace
}  // namespace layerpress::model
