#include "layerpress/gguf/architectures/architecture.h"

#include <gtest/gtest.h>

#include <cmath>

#include "layerpress/base/error.h"
#include "layerpress/gguf/architectures/model_config.h"

namespace layerpress::gguf {
namespace {

Json config_of(const std::string& model_type, const Json& more = Json::object()) {
  Json config = {{"model_type", model_type},    {"hidden_size", 64},
                 {"intermediate_size", 96},     {"num_hidden_layers", 2},
                 {"num_attention_heads", 4},    {"num_key_value_heads", 2},
                 {"vocab_size", 100},           {"max_position_embeddings", 512},
                 {"tie_word_embeddings", false}};
  config.update(more);
  return config;
}

/// The only place of a tensor.
TensorPlace only_place(const Architecture& architecture, const std::string& name) {
  const Placement placement = architecture.place(name);
  EXPECT_EQ(placement.places.size(), 1) << name;
  return placement.places.at(0);
}

template <typename T>
T value_of(const Architecture& architecture, const std::string& key) {
  const T* value = find_value<T>(architecture.metadata, key);
  EXPECT_NE(value, nullptr) << key;
  return value == nullptr ? T() : *value;
}

/// The message of the CheckpointError that `act` throws.
template <typename Act>
std::string refusal(Act act) {
  try {
    act();
  } catch (const CheckpointError& error) {
    return error.what();
  }
  return "";
}

TEST(Architecture, GivesLlamaItsKeysAndPlaces) {
  const Architecture llama = architecture_for(config_of("llama", {{"rope_theta", 5e5}, {"rms_norm_eps", 1e-5}}));
  EXPECT_EQ(value_of<std::string>(llama, "general.architecture"), "llama");
  EXPECT_EQ(value_of<std::uint32_t>(llama, "llama.block_count"), 2);
  EXPECT_EQ(value_of<std::uint32_t>(llama, "llama.attention.head_count_kv"), 2);
  EXPECT_EQ(value_of<std::uint32_t>(llama, "llama.rope.dimension_count"), 16);
  EXPECT_EQ(value_of<float>(llama, "llama.rope.freq_base"), 5e5F);
  EXPECT_EQ(value_of<float>(llama, "llama.attention.layer_norm_rms_epsilon"), 1e-5F);
  EXPECT_EQ(only_place(llama, "model.embed_tokens.weight").name, "token_embd.weight");
  EXPECT_EQ(only_place(llama, "lm_head.weight").name, "output.weight");
  const TensorPlace query = only_place(llama, "model.layers.1.self_attn.q_proj.bias");
  EXPECT_EQ(query.name, "blk.1.attn_q.bias");
  EXPECT_EQ(query.paired_heads, 4);
  EXPECT_EQ(only_place(llama, "model.layers.1.self_attn.k_proj.weight").paired_heads, 2);
  EXPECT_EQ(only_place(llama, "model.layers.1.self_attn.v_proj.weight").paired_heads, 0);
}

TEST(Architecture, LeavesOutWhatReadersDoNotWantWithAReason) {
  const Architecture tied = architecture_for(config_of("llama", {{"tie_word_embeddings", true}}));
  for (const char* name :
       {"lm_head.weight", "model.layers.0.self_attn.rotary_emb.inv_freq", "model.layers.2.mlp.up_proj.weight",
        "mtp.fc.weight", "vision_tower.blocks.0.norm.weight", "model.visual.merger.weight", "model.image_newline",
        "model.connector.modality_projection.proj.weight"}) {
    const Placement placement = tied.place(name);
    EXPECT_TRUE(placement.places.empty()) << name;
    EXPECT_FALSE(placement.left_out.empty()) << name;
  }
}

TEST(Architecture, RefusesTensorsWithoutAPlace) {
  const Architecture qwen = architecture_for(config_of("qwen2"));
  for (const char* name :
       {"model.layers.0.self_attn.o_proj.bias", "model.layers.0.mlp.extra.weight", "model.layers.x.mlp.up_proj.weight",
        "", ".", "model.layers.0", "model.layers.18446744073709551616.mlp.up_proj.weight"})
    EXPECT_NE(refusal([&] { qwen.place(name); }).find("llama.cpp has no tensor for it"), std::string::npos) << name;
}

TEST(Architecture, WritesTiedHeadsWhereLlamaCppWantsThem) {
  const Architecture olmo = architecture_for(config_of("olmo2", {{"tie_word_embeddings", true}}));
  const Placement placement = olmo.place("model.embed_tokens.weight");
  ASSERT_EQ(placement.places.size(), 2);
  EXPECT_EQ(placement.places[1].name, "output.weight");
}

TEST(Architecture, KnowsExpertsByNumberAndInStacks) {
  const Json experts = {{"num_experts", 8}, {"moe_intermediate_size", 32}, {"norm_topk_prob", true}};
  const Architecture moe = architecture_for(config_of("qwen3_moe", experts));
  EXPECT_EQ(moe.experts, 8);
  const TensorPlace one = only_place(moe, "model.layers.0.mlp.experts.7.up_proj.weight");
  EXPECT_EQ(one.name, "blk.0.ffn_up_exps.weight");
  EXPECT_EQ(one.expert, 7);
  const Placement stacked = moe.place("model.layers.0.mlp.experts.gate_up_proj");
  ASSERT_EQ(stacked.places.size(), 2);
  EXPECT_EQ(stacked.places[0].name, "blk.0.ffn_gate_exps.weight");
  EXPECT_EQ(stacked.places[1].rows, (RowRange{1, 32, 32}));
  EXPECT_EQ(stacked.places[1].expert, std::nullopt);
}

TEST(Architecture, AddsOneToGemmasNorms) {
  const Architecture gemma = architecture_for(
      config_of("gemma3_text", {{"head_dim", 16}, {"query_pre_attn_scalar", 16}, {"tie_word_embeddings", true}}));
  EXPECT_EQ(only_place(gemma, "model.norm.weight").added, 1);
  EXPECT_EQ(only_place(gemma, "language_model.model.layers.0.self_attn.q_norm.weight").added, 1);
  EXPECT_EQ(only_place(gemma, "model.language_model.layers.0.mlp.up_proj.weight").added, 0);
}

TEST(Architecture, DividesFrequenciesAsLlama3Does) {
  const Json rope = {{"rope_type", "llama3"},
                     {"factor", 8.0},
                     {"low_freq_factor", 1.0},
                     {"high_freq_factor", 4.0},
                     {"original_max_position_embeddings", 64}};
  const Architecture llama = architecture_for(config_of("llama", {{"rope_scaling", rope}, {"rope_theta", 10000.0}}));
  ASSERT_EQ(llama.made.size(), 1);
  EXPECT_EQ(llama.made[0].name, "rope_freqs.weight");
  const std::vector<float>& divisors = llama.made[0].values;
  ASSERT_EQ(divisors.size(), 8);
  EXPECT_EQ(divisors.front(), 1);  // 2 pi, shorter than 64 / 4
  EXPECT_EQ(divisors.back(), 8);   // longer than 64 / 1
  const double wavelength = 2 * 3.14159265358979 * std::pow(10000.0, 1.0 / 8), smooth = (64 / wavelength - 1) / 3;
  EXPECT_NEAR(divisors[1], 1 / ((1 - smooth) / 8 + smooth), 1e-6);
}

TEST(Architecture, EndsTheContextWhereAWindowWouldMatter) {
  const Architecture mistral = architecture_for(config_of("mistral", {{"sliding_window", 128}}));
  EXPECT_EQ(value_of<std::uint32_t>(mistral, "llama.context_length"), 128);
  ASSERT_EQ(mistral.notes.size(), 1);
  EXPECT_NE(mistral.notes[0].find("128 tokens instead of 512"), std::string::npos);
  const Architecture without = architecture_for(config_of("mistral", {{"sliding_window", nullptr}}));
  EXPECT_EQ(value_of<std::uint32_t>(without, "llama.context_length"), 512);
  EXPECT_TRUE(without.notes.empty());
}

TEST(Architecture, ReadsTheLanguageModelOfSeveralModalities) {
  const Json text = config_of("mistral", {{"sliding_window", nullptr}});
  const Architecture found =
      architecture_for({{"model_type", "mistral3"}, {"text_config", text}, {"vision_config", Json::object()}});
  EXPECT_EQ(found.name, "llama");
  EXPECT_EQ(only_place(found, "model.text_model.layers.0.mlp.up_proj.weight").name, "blk.0.ffn_up.weight");
}

TEST(Architecture, WritesTheAxesOfModelsForImages) {
  const auto sections = [](const Architecture& found) {
    return value_of<std::vector<std::int32_t>>(found, found.name + ".rope.dimension_sections");
  };
  // As on the hub: flat, and before transformers 5.
  const Json stretched = {{"type", "mrope"}, {"mrope_section", {2, 3, 3}}};
  const Architecture flat = architecture_for(
      config_of("qwen2_vl", {{"rope_scaling", stretched}, {"head_dim", nullptr}, {"vision_config", Json::object()}}));
  EXPECT_EQ(flat.name, "qwen2vl");
  EXPECT_EQ(sections(flat), (std::vector<std::int32_t>{2, 3, 3, 0}));
  const auto deep = [](Json axes, bool tied) {
    const Json rope = {{"rope_type", "default"}, {"rope_theta", 1e4}, {"mrope_section", std::move(axes)}};
    return architecture_for(
        {{"model_type", "qwen3_vl"},
         {"text_config",
          config_of("qwen3_vl_text", {{"rope_parameters", rope}, {"head_dim", 16}, {"tie_word_embeddings", true}})},
         {"vision_config", {{"deepstack_visual_indexes", {1, 3}}}},
         {"tie_word_embeddings", tied}});
  };
  EXPECT_EQ(sections(deep({3, 3, 2}, true)), (std::vector<std::int32_t>{3, 3, 2, 0}));
  EXPECT_EQ(value_of<std::uint32_t>(deep({3, 3, 2}, true), "qwen3vl.n_deepstack_layers"), 2);
  EXPECT_EQ(deep({3, 3, 2}, false).place("lm_head.weight").places.size(), 1);  // the whole model's word
  EXPECT_TRUE(deep({3, 3, 2}, true).place("lm_head.weight").places.empty());
  for (const Json& axes : {Json{2, 3, 3}, Json{3, 3}, Json{0, 0, 0}, Json{9, -4, 3}})
    EXPECT_NE(refusal([&] { deep(axes, true); }).find("mrope_section"), std::string::npos) << axes;
}

TEST(Architecture, ScalesYarnAsTransformersDoes) {
  const auto with = [](const char* type, const Json& more) {
    Json scaling = {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 16}};
    scaling.update(more);
    return config_of(type, {{"rope_scaling", scaling}});
  };
  const double usual = 1 + 0.1 * std::log(4.0);  // llama.cpp's
  const auto factor_of = [](const Json& config) {
    const Architecture found = architecture_for(config);
    return static_cast<double>(value_of<float>(found, found.name + ".rope.scaling.attn_factor"));
  };
  EXPECT_NEAR(factor_of(with("llama", {{"attention_factor", 1.3}})), 1.3 / usual, 1e-6);
  EXPECT_NEAR(factor_of(with("mistral", {{"mscale", 1.0}, {"mscale_all_dim", 1.0}})), 1 / usual, 1e-6);
  for (const Json& more : {Json::object(), Json{{"attention_factor", usual}}, Json{{"mscale", 0.7}}}) {
    const Architecture found = architecture_for(with("llama", more));
    EXPECT_EQ(find_value<float>(found.metadata, "llama.rope.scaling.attn_factor"), nullptr) << more;
  }
  const Architecture ranged = architecture_for(with("llama", {{"beta_fast", 20.0}, {"beta_slow", 1.5}}));
  ASSERT_EQ(ranged.notes.size(), 1);
  EXPECT_TRUE(ranged.notes[0].ends_with("start it with --yarn-beta-fast 20 --yarn-beta-slow 1.5")) << ranged.notes[0];
  EXPECT_TRUE(architecture_for(with("llama", {{"beta_fast", 32.0}, {"beta_slow", 1.0}})).notes.empty());
}

TEST(Architecture, RefusesPositionsThatLayersStretchInOtherWays) {
  const auto layers = [](Json full, Json windows) {
    return Json{{"rope_parameters", {{"full_attention", std::move(full)}, {"sliding_attention", std::move(windows)}}}};
  };
  const Json plain = {{"rope_type", "default"}, {"rope_theta", 1e4}},
             far = {{"rope_type", "default"}, {"rope_theta", 1e6}};
  const Json linear = {{"rope_type", "linear"}, {"rope_theta", 1e4}, {"factor", 2.0}};
  EXPECT_EQ(architecture_for(config_of("olmo3", layers(linear, plain))).name, "olmo2");
  const std::vector<std::pair<Json, std::string>> cases = {
      {config_of("olmo3", layers(far, plain)), "one rope_theta"},
      {config_of("olmo3", {{"rope_theta", 1e4}}), "one rope_theta"},
      {config_of("olmo3", layers(linear, linear)), "layers with a window"},
      {config_of("gemma3_text", layers(linear, linear)), "layers with a window"},
      {config_of("qwen3", {{"rope_scaling", {{"rope_type", "llama3"}, {"factor", 8.0}}}}),
       "by linear or yarn scaling"}};
  for (const auto& [config, named] : cases)
    EXPECT_NE(refusal([&, &config = config] { architecture_for(config); }).find(named), std::string::npos) << config;
}

TEST(Architecture, RefusesUnknownModelsAndWhatLlamaCppDoesNotCompute) {
  const std::vector<std::pair<Json, std::string>> cases = {
      {config_of("rwkv6"), "rwkv6"},
      {config_of("llama", {{"hidden_act", "relu"}}), "hidden_act"},
      {config_of("llama", {{"rope_scaling", {{"rope_type", "dynamic"}, {"factor", 2.0}}}}), "rope_scaling"},
      {config_of(
           "llama",
           {{"rope_scaling",
             {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 16}, {"truncate", false}}}}),
       "truncate"},
      {config_of("qwen2", {{"head_dim", 32}}), "head_dim"},
      {config_of("gemma2", {{"head_dim", 16}, {"query_pre_attn_scalar", 100}, {"tie_word_embeddings", true}}),
       "query_pre_attn_scalar"},
      {config_of("smollm3", {{"no_rope_layers", {0, 1}}}), "no_rope_layers"},
      {config_of("qwen3_moe", {{"moe_intermediate_size", 32}, {"norm_topk_prob", false}}), "norm_topk_prob"},
      {config_of("llama", {{"num_hidden_layers", -1}}), "num_hidden_layers"},
      {config_of("llama", {{"num_hidden_layers", "many"}}), "num_hidden_layers"},
      {config_of("llama", {{"vocab_size", 3000000000}}), "vocab_size"},
      {config_of("llama", {{"rope_theta", -5}}), "rope_theta"},
      {config_of("llama", {{"text_config", 7}}), "text_config"},
      {Json::array(), "config.json"}};
  for (const auto& [config, named] : cases)
    EXPECT_NE(refusal([&, &config = config] { architecture_for(config); }).find(named), std::string::npos) << named;
}

}  // namespace
}  // namespace layerpress::gguf
