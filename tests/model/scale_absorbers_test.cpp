// Where per-channel scales can be hidden in models of every family.
#include "layerpress/graph/facts/scale_absorbers.h"

#include <gtest/gtest.h>

#include "layerpress/model/blocks/architecture.h"
#include "tests/graph/absorber_text.h"

namespace layerpress::model {
namespace {

/// One layer of every family: no grouped heads unless `more` says so.
std::string scaled_places(const std::string& model_type, const Json& more = Json::object()) {
  Json config = {{"model_type", model_type}, {"hidden_size", 64},           {"intermediate_size", 96},
                 {"num_hidden_layers", 1},   {"num_attention_heads", 4},    {"num_key_value_heads", 4},
                 {"vocab_size", 128},        {"tie_word_embeddings", false}};
  config.update(more);
  const graph::Graph graph = trace_model(config).graph;
  std::string text = graph::to_text(graph, graph::scale_absorbers(graph));
  for (const std::string name : {"model.layers.0.", "self_attn."})  // of every line's names
    for (auto at = text.find(name); at != std::string::npos; at = text.find(name)) text.erase(at, name.size());
  return text;
}

constexpr const char* kAttention = "input_layernorm -> q_proj, k_proj, v_proj\n";
constexpr const char* kMlp = "post_attention_layernorm -> mlp.gate_proj, mlp.up_proj\n";
constexpr const char* kDown = "mlp.up_proj -> mlp.down_proj\n";
constexpr const char* kHead = "model.norm -> lm_head\n";

TEST(ScaledPlaces, OfLlama) {
  EXPECT_EQ(scaled_places("llama"), std::string(kAttention) + "v_proj -> o_proj\n" + kMlp + kDown + kHead);
  EXPECT_EQ(scaled_places("llama", {{"num_key_value_heads", 2}, {"tie_word_embeddings", true}}),
            std::string(kAttention) + kMlp + kDown);
}

TEST(ScaledPlaces, BeforeNormsOfQueriesAndKeys) {
  EXPECT_EQ(scaled_places("qwen3", {{"num_key_value_heads", 2}, {"head_dim", 16}}),
            std::string(kAttention) + kMlp + kDown + kHead);
}

TEST(ScaledPlaces, OfFusedProjections) {
  EXPECT_EQ(scaled_places("phi3"),
            "input_layernorm -> qkv_proj\n"
            "qkv_proj[128:192] -> o_proj\n"
            "post_attention_layernorm -> mlp.gate_up_proj\n"
            "mlp.gate_up_proj[96:192] -> mlp.down_proj\n" +
                std::string(kHead));
}

TEST(ScaledPlaces, OfParallelBranches) {
  EXPECT_EQ(scaled_places("cohere2"),
            "input_layernorm -> q_proj, k_proj, v_proj, mlp.gate_proj, mlp.up_proj\n"
            "v_proj -> o_proj\n" +
                std::string(kDown) + kHead);
}

/// The norms behind attention and MLP give what is added to the stream.
TEST(ScaledPlaces, BetweenNormsOnBothSides) {
  EXPECT_EQ(scaled_places("gemma2", {{"head_dim", 16}}),
            std::string(kAttention) + "v_proj -> o_proj\n" +
                "pre_feedforward_layernorm -> mlp.gate_proj, mlp.up_proj\n" + kDown + kHead);
  EXPECT_EQ(scaled_places("olmo2"), "v_proj -> o_proj\n" + std::string(kDown) + kHead);
}

TEST(ScaledPlaces, OfMixturesOfExperts) {
  const Json experts = {
      {"num_experts", 2},         {"num_experts_per_tok", 1}, {"moe_intermediate_size", 32},
      {"num_key_value_heads", 2}, {"head_dim", 16},           {"shared_expert_intermediate_size", 32}};
  EXPECT_EQ(scaled_places("qwen3_moe", experts),
            std::string(kAttention) +
                "post_attention_layernorm -> mlp.gate, mlp.experts.0.gate_proj, mlp.experts.0.up_proj, "
                "mlp.experts.1.gate_proj, mlp.experts.1.up_proj\n"
                "mlp.experts.0.up_proj -> mlp.experts.0.down_proj\n"
                "mlp.experts.1.up_proj -> mlp.experts.1.down_proj\n" +
                kHead);
  const std::string shared = scaled_places("qwen2_moe", experts);
  EXPECT_NE(shared.find("mlp.shared_expert.up_proj, mlp.shared_expert_gate\n"), std::string::npos) << shared;
  EXPECT_NE(shared.find("mlp.shared_expert.up_proj -> mlp.shared_expert.down_proj\n"), std::string::npos) << shared;
}

/// Latents have norms of their own; a head's values stand behind its keys in one weight.
TEST(ScaledPlaces, OfLatentAttention) {
  const Json latent = {{"q_lora_rank", 24},     {"kv_lora_rank", 32},       {"qk_nope_head_dim", 16},
                       {"qk_rope_head_dim", 8}, {"v_head_dim", 16},         {"first_k_dense_replace", 1},
                       {"n_routed_experts", 4}, {"num_experts_per_tok", 2}, {"n_group", 2},
                       {"topk_group", 1}};
  EXPECT_EQ(scaled_places("deepseek_v3", latent),
            "input_layernorm -> q_a_proj, kv_a_proj_with_mqa\n"
            "q_a_layernorm -> q_b_proj\n"
            "kv_a_layernorm -> kv_b_proj\n"
            "kv_b_proj[16:32, 48:64, 80:96, 112:128] -> o_proj\n" +
                std::string(kMlp) + kDown + kHead);
}

}  // namespace
}  // namespace layerpress::model
