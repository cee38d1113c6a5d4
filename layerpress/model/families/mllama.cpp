// Llama 3.2 Vision: an encoder of image tiles, and a Llama decoder in which some layers attend to the encoder's output.
#include <algorithm>
#include <cmath>

#include "layerpress/graph/facts/image_geometry.h"
#include "layerpress/model/blocks/decoder_blocks.h"
#include "layerpress/model/blocks/rope.h"
#include "layerpress/model/families/families.h"

namespace layerpress::model {
namespace {

using graph::Rows;
using graph::Symbol;
using graph::Tracer;

/// The part of config.json that describes the vision encoder.
struct VisionConfig {
  DecoderConfig layers;  ///< layers of the local encoder
  std::int64_t global_layers = 0;
  double norm_eps = 1e-5;
  std::vector<std::int64_t> intermediate_layers;
  graph::ImageGeometry geometry;
};

/// The object `key` of config.json, with `defaults` for missing members.
Json section(const Json& config, const char* key, Json defaults) {
  const auto found = config.find(key);
  if (found == config.end() || found->is_null()) return defaults;
  if (!found->is_object()) throw CheckpointError("[model.config] config.json: '{}' is not an object", key);
  for (const auto& [name, value] : found->items())
    if (!value.is_null()) defaults[name] = value;
  return defaults;
}

Json text_section(const Json& config) {
  Json text = section(config, "text_config",
                      {{"vocab_size", 128256},
                       {"hidden_size", 4096},
                       {"hidden_act", "silu"},
                       {"num_hidden_layers", 40},
                       {"num_attention_heads", 32},
                       {"num_key_value_heads", 8},
                       {"intermediate_size", 14336},
                       {"rope_theta", 500000.0},
                       {"rms_norm_eps", 1e-5},
                       {"max_position_embeddings", 131072},
                       {"cross_attention_layers", {3, 8, 13, 18, 23, 28, 33, 38}}});
  text.erase("head_dim");  // has no meaning for this class
  return text;
}

Json vision_section(const Json& config) {
  Json vision =
      section(config, "vision_config",
              {{"hidden_size", 1280},
               {"hidden_act", "gelu"},
               {"num_hidden_layers", 32},
               {"num_global_layers", 8},
               {"attention_heads", 16},
               {"num_channels", 3},
               {"intermediate_size", 5120},
               {"vision_output_dim", 7680},
               {"image_size", 448},
               {"patch_size", 14},
               {"norm_eps", 1e-5},
               {"max_num_tiles", 4},
               {"intermediate_layers_indices", {3, 7, 15, 23, 30}},
               {"supported_aspect_ratios", {{1, 1}, {1, 2}, {1, 3}, {1, 4}, {2, 1}, {2, 2}, {3, 1}, {4, 1}}}});
  vision["num_attention_heads"] = vision["attention_heads"];
  vision["vocab_size"] = 1;  // an encoder has no vocabulary
  return vision;
}

/// Indices of layers, each smaller than `layers`.
std::vector<std::int64_t> layer_indices(const Json& config, const char* key, std::int64_t layers) {
  auto indices = json_get<std::vector<std::int64_t>>(config, key, "config.json");
  for (const std::int64_t index : indices)
    if (index < 0 || index >= layers)
      throw CheckpointError("[model.config] config.json: '{}' names layer {}, but there are {} layers", key, index,
                            layers);
  return indices;
}

VisionConfig parse_vision(const Json& config) {
  VisionConfig parsed;
  parsed.layers = parse_decoder_config(config, {});
  parsed.global_layers = positive_number(config, "num_global_layers", 10'000);
  parsed.norm_eps = json_get<double>(config, "norm_eps", "config.json");
  parsed.intermediate_layers = layer_indices(config, "intermediate_layers_indices", parsed.layers.num_layers);
  graph::ImageGeometry& geometry = parsed.geometry;
  geometry.channels = positive_number(config, "num_channels", 64);
  geometry.image_size = positive_number(config, "image_size", 8192);
  geometry.patch_size = positive_number(config, "patch_size", geometry.image_size);
  geometry.tiles = positive_number(config, "max_num_tiles", 256);
  const Json& ratios = config.at("supported_aspect_ratios");
  if (!ratios.is_array() || ratios.empty() || ratios.size() > 100'000)
    throw CheckpointError("[model.config] config.json: 'supported_aspect_ratios' is not a list of pairs");
  geometry.aspect_ratios = static_cast<std::int64_t>(ratios.size());
  const std::int64_t features = parsed.layers.hidden_size;
  if (features != parsed.layers.head_dim * parsed.layers.num_heads)
    throw CheckpointError("[model.config] config.json: vision hidden_size {} is not a multiple of {} attention heads",
                          features, parsed.layers.num_heads);
  const auto stacked = static_cast<std::int64_t>(parsed.intermediate_layers.size()) + 1;
  const auto output = json_get<std::int64_t>(config, "vision_output_dim", "config.json");
  if (output != features * stacked)
    throw CheckpointError(
        "[model.config] config.json: vision_output_dim is {}; hidden_size {} of the last layer and {} intermediate "
        "ones make {}",
        output, features, stacked - 1, features * stacked);
  return parsed;
}

/// The vision encoder's forward pass.
class VisionEncoder {
 public:
  VisionEncoder(Tracer& tracer, const VisionConfig& config)
      : tracer_(tracer), config_(config), geometry_(config.geometry), features_(config.layers.hidden_size) {}

  Symbol trace(Symbol pixels) {
    const auto scope = tracer_.module("vision_model", "MllamaVisionModel");
    Symbol x = tile_embedding("pre_tile_positional_embedding", patch_embedding(pixels));
    const graph::ClassEmbedding first{tracer_.full_name("class_embedding"), geometry_.patches(), features_};
    x = patch_position(tracer_.operation(first, {x}, features_, Rows::kPatches));
    x = tracer_.layer_norm("layernorm_pre", "LayerNorm", x, 1e-5);
    x = tracer_.operation(graph::ZeroPadding{geometry_.patches()}, {x}, features_, Rows::kPatches);
    std::vector<Symbol> outputs = encoder("transformer", config_.layers.num_layers, false, x);
    std::vector<Symbol> read{{}};
    for (const std::int64_t index : config_.intermediate_layers) read.push_back(outputs[index]);
    x = tracer_.layer_norm("layernorm_post", "LayerNorm", outputs.back(), 1e-5);
    x = tile_embedding("post_tile_positional_embedding", x);
    read.front() = encoder("global_transformer", config_.global_layers, true, x).back();
    return tracer_.operation(graph::VisionFeatures{geometry_.patches()}, read,
                             features_ * static_cast<std::int64_t>(read.size()), Rows::kVision);
  }

 private:
  Symbol patch_embedding(Symbol pixels) {
    const auto scope = tracer_.module("patch_embedding", "Conv2d");
    const graph::PatchEmbedding operation{geometry_, tracer_.full_name("weight"), features_};
    return tracer_.operation(operation, {pixels}, features_, Rows::kPatches);
  }

  Symbol tile_embedding(const std::string& name, Symbol x) {
    const auto scope = tracer_.module(name, "MllamaPrecomputedAspectRatioEmbedding");
    const graph::TileEmbedding operation{tracer_.full_name("embedding.weight"),
                                         tracer_.full_name("gate"),
                                         geometry_.tiles,
                                         geometry_.patches(),
                                         geometry_.aspect_ratios,
                                         features_};
    return tracer_.operation(operation, {x}, features_, Rows::kPatches);
  }

  Symbol patch_position(Symbol x) {
    const auto scope = tracer_.module("gated_positional_embedding", "MllamaPrecomputedPositionEmbedding");
    const graph::PatchPosition operation{tracer_.full_name("embedding"),
                                         tracer_.full_name("tile_embedding.weight"),
                                         tracer_.full_name("gate"),
                                         geometry_.tiles,
                                         geometry_.patches(),
                                         geometry_.aspect_ratios,
                                         features_};
    return tracer_.operation(operation, {x}, features_, Rows::kPatches);
  }

  /// Returns the output of each layer.
  std::vector<Symbol> encoder(const std::string& name, std::int64_t layers, bool gated, Symbol x) {
    const auto scope = tracer_.module(name, "MllamaVisionEncoder");
    std::vector<Symbol> outputs;
    for (std::int64_t index = 0; index < layers; ++index) {
      const auto layer = tracer_.module(fmt::format("layers.{}", index), "MllamaVisionEncoderLayer");
      x = add(gated, "gate_attn", x,
              attention(tracer_.layer_norm("input_layernorm", "LayerNorm", x, config_.norm_eps)));
      const Symbol inner = tracer_.layer_norm("post_attention_layernorm", "LayerNorm", x, config_.norm_eps);
      x = add(gated, "gate_ffn", x, mlp(inner));
      outputs.push_back(x);
    }
    return outputs;
  }

  Symbol add(bool gated, const char* gate, Symbol a, Symbol b) {
    if (!gated) return tracer_.add(a, b);
    return tracer_.operation(graph::GatedAdd{tracer_.full_name(gate)}, {a, b}, a.features, a.rows);
  }

  Symbol attention(Symbol x) {
    const auto scope = tracer_.module("self_attn", "MllamaVisionAttention");
    const Symbol q = tracer_.linear("q_proj", x, features_);
    const Symbol k = tracer_.linear("k_proj", x, features_);
    const Symbol v = tracer_.linear("v_proj", x, features_);
    const std::int64_t head_dim = config_.layers.head_dim;
    const graph::VisionAttention operation{config_.layers.num_heads, head_dim,
                                           1.0 / std::sqrt(static_cast<double>(head_dim)), geometry_.tiles,
                                           geometry_.patches()};
    return tracer_.linear("o_proj", tracer_.operation(operation, {q, k, v}, features_, Rows::kPatches), features_);
  }

  Symbol mlp(Symbol x) {
    const auto scope = tracer_.module("mlp", "MllamaVisionMLP");
    x = tracer_.linear("fc1", x, config_.layers.intermediate_size, {.bias = true});
    x = tracer_.operation(graph::Activation{config_.layers.hidden_act}, {x}, x.features, Rows::kPatches);
    return tracer_.linear("fc2", x, features_, {.bias = true});
  }

  Tracer& tracer_;
  const VisionConfig& config_;
  const graph::ImageGeometry& geometry_;
  std::int64_t features_;
};

/// Module "cross_attn": text attends to the vision states.
Symbol cross_attention(Tracer& tracer, const DecoderConfig& config, const graph::ImageGeometry& geometry, Symbol x,
                       Symbol vision) {
  const auto scope = tracer.module("cross_attn", "MllamaTextCrossAttention");
  Symbol q = tracer.linear("q_proj", x, config.num_heads * config.head_dim);
  q = tracer.rms_norm("q_norm", "MllamaTextRMSNorm", q, config.rms_norm_eps, config.head_dim);
  Symbol k = tracer.linear("k_proj", vision, config.num_kv_heads * config.head_dim);
  const Symbol v = tracer.linear("v_proj", vision, config.num_kv_heads * config.head_dim);
  k = tracer.rms_norm("k_norm", "MllamaTextRMSNorm", k, config.rms_norm_eps, config.head_dim);
  const graph::CrossAttention operation{config.num_heads, config.num_kv_heads,
                                        config.head_dim,  1.0 / std::sqrt(static_cast<double>(config.head_dim)),
                                        geometry.tiles,   geometry.patches()};
  return tracer.linear("o_proj", tracer.operation(operation, {q, k, v}, q.features, q.rows), config.hidden_size);
}

/// x + tanh(gate) * attention to images, then x + tanh(gate) * mlp, for samples with images.
Symbol cross_attention_layer(Tracer& tracer, const DecoderConfig& config, const graph::ImageGeometry& geometry,
                             Symbol all, Symbol vision) {
  const std::int64_t features = config.hidden_size;
  const auto gated_add = [&](const char* gate, Symbol a, Symbol b) {
    return tracer.operation(graph::GatedAdd{tracer.full_name(gate)}, {a, b}, features, Rows::kIllustrated);
  };
  Symbol x = tracer.operation(graph::SelectIllustrated{}, {all}, features, Rows::kIllustrated);
  const Symbol inner = tracer.rms_norm("input_layernorm", "MllamaTextRMSNorm", x, config.rms_norm_eps);
  x = gated_add("cross_attn_attn_gate", x, cross_attention(tracer, config, geometry, inner, vision));
  Symbol mlp = tracer.rms_norm("post_attention_layernorm", "MllamaTextRMSNorm", x, config.rms_norm_eps);
  mlp = gated_mlp(tracer, config, "MllamaTextMLP", false, mlp);
  mlp = tracer.operation(graph::MaskUnattending{}, {mlp}, features, Rows::kIllustrated);
  x = gated_add("cross_attn_mlp_gate", x, mlp);
  return tracer.operation(graph::MergeIllustrated{}, {all, x}, features, Rows::kTokens);
}

/// Rows of the embedding beyond the head's vocabulary: the image token and reserved tokens.
constexpr std::int64_t kExtraTokens = 8;

/// Module "language_model". Returns the logits.
Symbol language_model(Tracer& tracer, const DecoderConfig& config, const std::vector<std::int64_t>& cross_layers,
                      const graph::ImageGeometry& geometry, Symbol vision) {
  const auto scope = tracer.module("language_model", "MllamaForCausalLM");
  const SelfAttention attention{.class_name = "MllamaTextSelfAttention"};
  Symbol x;
  {
    const auto body = tracer.module("model", "MllamaTextModel");
    x = tracer.embedding("embed_tokens", tracer.tokens(), config.vocab_size + kExtraTokens, config.hidden_size);
    for (std::int64_t index = 0; index < config.num_layers; ++index) {
      const bool crosses = std::find(cross_layers.begin(), cross_layers.end(), index) != cross_layers.end();
      const auto layer = tracer.module(fmt::format("layers.{}", index), crosses ? "MllamaCrossAttentionDecoderLayer"
                                                                                : "MllamaSelfAttentionDecoderLayer");
      x = crosses ? cross_attention_layer(tracer, config, geometry, x, vision)
                  : pre_norm_layer(tracer, config, "MllamaText", attention, /*mlp_bias=*/false, x);
    }
    x = tracer.rms_norm("norm", "MllamaTextRMSNorm", x, config.rms_norm_eps);
  }
  return tracer.linear("lm_head", x, config.vocab_size);
}

}  // namespace

TracedModel trace_mllama(const Json& config) {
  const Json text_json = text_section(config);
  const DecoderConfig text = parse_decoder_config(text_json, {});
  const std::vector<std::int64_t> cross_layers = layer_indices(text_json, "cross_attention_layers", text.num_layers);
  const VisionConfig vision = parse_vision(vision_section(config));
  const graph::ImageGeometry& geometry = vision.geometry;

  Tracer tracer;
  tracer.add_rope_table(parse_rope(text_json, text));
  const Symbol pixels = tracer.input(geometry.channels * geometry.patch_size * geometry.patch_size, Rows::kPatches);
  const Symbol states = tracer.linear("multi_modal_projector", VisionEncoder(tracer, vision).trace(pixels),
                                      text.hidden_size, {.bias = true});
  TracedModel model;
  model.graph = tracer.finish(language_model(tracer, text, cross_layers, geometry, states));
  model.vocab_size = text.vocab_size + kExtraTokens;
  model.max_position_embeddings = text.max_position_embeddings;
  for (const char* name :
       {"MllamaVisionEncoderLayer", "MllamaCrossAttentionDecoderLayer", "MllamaSelfAttentionDecoderLayer"})
    if (std::any_of(model.graph.modules.begin(), model.graph.modules.end(),
                    [&](const graph::Module& module) { return module.class_name == name; }))
      model.default_sequential_targets.emplace_back(name);
  model.fused_modules = {{"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"},
                         {"cross_attn.q_proj", "cross_attn.k_proj", "cross_attn.v_proj"},
                         {"mlp.gate_proj", "mlp.up_proj"}};
  return model;
}

}  // namespace layerpress::model
