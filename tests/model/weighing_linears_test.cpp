#include <gtest/gtest.h>

#include <set>
#include <string>

#include "layerpress/graph/facts/expert_inputs.h"
#include "layerpress/model/blocks/architecture.h"

namespace layerpress::model {
namespace {

std::set<std::string> weighing_linears_of(const Json& more) {
  Json config = {{"hidden_size", 64},
                 {"intermediate_size", 96},
                 {"num_hidden_layers", 2},
                 {"num_attention_heads", 4},
                 {"num_key_value_heads", 4},
                 {"vocab_size", 100},
                 {"num_experts_per_tok", 2},
                 {"moe_intermediate_size", 32},
                 {"qk_nope_head_dim", 16},
                 {"qk_rope_head_dim", 16},
                 {"v_head_dim", 16},
                 {"kv_lora_rank", 32},
                 {"q_lora_rank", nullptr},
                 {"first_k_dense_replace", 0},
                 {"n_group", 2},
                 {"topk_group", 1},
                 {"num_experts", 4},
                 {"num_local_experts", 4},
                 {"n_routed_experts", 4}};
  config.update(more);
  const TracedModel model = trace_model(config);
  std::set<std::string> names;
  for (const graph::NodeId node : graph::weighing_linears(model.graph))
    names.insert(model.graph.module_name(model.graph.nodes[node]));
  return names;
}

/// Every mixture of experts that is written by hand.
TEST(WeighingLinears, AreRoutersAndGates) {
  const std::set<std::string> routers{"model.layers.0.mlp.gate", "model.layers.1.mlp.gate"};
  EXPECT_EQ(weighing_linears_of({{"model_type", "mixtral"}}),
            (std::set<std::string>{"model.layers.0.block_sparse_moe.gate", "model.layers.1.block_sparse_moe.gate"}));
  for (const char* type : {"olmoe", "qwen3_moe", "deepseek_v2", "deepseek_v3"})
    EXPECT_EQ(weighing_linears_of({{"model_type", type}}), routers) << type;
  std::set<std::string> with_gates = routers;
  for (const char* layer : {"0", "1"})
    with_gates.insert(std::string("model.layers.") + layer + ".mlp.shared_expert_gate");
  EXPECT_EQ(weighing_linears_of({{"model_type", "qwen2_moe"}, {"shared_expert_intermediate_size", 32}}), with_gates);
  EXPECT_TRUE(weighing_linears_of({{"model_type", "llama"}}).empty());
}

}  // namespace
}  // namespace layerpress::model
