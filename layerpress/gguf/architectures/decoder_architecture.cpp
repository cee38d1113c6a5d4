#include "layerpress/gguf/architectures/decoder_architecture.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "layerpress/gguf/architectures/rope_facts.h"

namespace layerpress::gguf {
namespace {

/// The names that activations of the two kinds have in config.json.
bool is_activation(const std::string& name, const std::string& wanted) {
  if (wanted == "silu") return name == "silu" || name == "swish";
  return name == "gelu_pytorch_tanh" || name == "gelu_new" || name == "gelu_tanh";
}

/// A file says it for all layers, or for each; layers without attention have none.
Json kv_heads_of(const FileFacts& file, std::uint32_t heads) {
  const Json given = file.value("attention.head_count_kv");
  if (given.is_null()) return heads;
  return given.is_array() && !given.empty() ? *std::max_element(given.begin(), given.end()) : given;
}

}  // namespace

DecoderArchitecture::DecoderArchitecture(ModelConfig& config, const DecoderTraits& traits) : config_(config) {
  result_.name = traits.name;
  result_.metadata = {{"general.architecture", traits.name}, {"general.type", std::string("model")}};
  read_sizes(traits);
  state_rope(config, head_dim_, traits.rope);
  rope_ = read_rope(config, traits.rope);
  config_.state(traits.activation_key, traits.activation);
  check_activation(traits);
  set("rope.freq_base", static_cast<float>(rope_.theta));
  if (rope_.local_theta > 0) set("rope.freq_base_swa", static_cast<float>(rope_.local_theta));
  number(traits.layer_norm ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon", traits.epsilon_key,
         traits.epsilon);
  set("attention.key_length", head_dim_);
  set("attention.value_length", head_dim_);
  end_names(traits);
}

void DecoderArchitecture::read_sizes(const DecoderTraits& traits) {
  constexpr std::int64_t kMostLayers = 10'000;
  if (const FileFacts* file = config_.file()) {
    const auto table = file->shapes.find("token_embd.weight");
    if (table == file->shapes.end() || table->second.size() != 2)
      throw CheckpointError("[gguf.config] the file has no table of embeddings, token_embd.weight");
    config_.state("vocab_size", table->second[0]);
    config_.state("tie_word_embeddings", !file->has_tensor("output.weight"));
  }
  result_.layers = count("block_count", "num_hidden_layers");
  config_.require(result_.layers <= kMostLayers, "num_hidden_layers", "has at most 10000");
  count("context_length", "max_position_embeddings", traits.context);
  hidden_size_ = count("embedding_length", "hidden_size");
  if (traits.width_key != nullptr) count("feed_forward_length", traits.width_key);
  read_heads(traits);
  result_.vocab_size = config_.count("vocab_size");
}

void DecoderArchitecture::read_heads(const DecoderTraits& traits) {
  constexpr std::uint32_t kWidestHead = 65'536;
  heads_ = count("attention.head_count", "num_attention_heads");
  if (config_.file() != nullptr) config_.state("num_key_value_heads", kv_heads_of(*config_.file(), heads_));
  kv_heads_ = config_.count("num_key_value_heads", traits.kv_heads > 0 ? traits.kv_heads : heads_);
  set("attention.head_count_kv", kv_heads_);
  const std::uint32_t even_share = hidden_size_ / heads_;
  if (traits.own_head_dim && reads("attention.key_length"))
    config_.take("head_dim", "attention.key_length");
  else
    config_.state("head_dim", even_share);
  head_dim_ = config_.count("head_dim", traits.head_dim > 0 ? traits.head_dim : std::max(even_share, 1U));
  config_.require(head_dim_ <= kWidestHead, "head_dim", "is at most 65536");
  if (!traits.own_head_dim)
    config_.require(head_dim_ == even_share && hidden_size_ % heads_ == 0, "head_dim",
                    "has heads of equal shares of hidden_size");
  result_.heads = heads_;
  result_.kv_heads = kv_heads_;
}

std::uint32_t DecoderArchitecture::count(const std::string& key, const char* entry) {
  config_.take(entry, key);
  const std::uint32_t value = config_.count(entry);
  set(key, value);
  return value;
}

std::uint32_t DecoderArchitecture::count(const std::string& key, const char* entry, std::uint32_t otherwise) {
  config_.take(entry, key);
  const std::uint32_t value = config_.count(entry, otherwise);
  set(key, value);
  return value;
}

void DecoderArchitecture::number(const std::string& key, const char* entry, double otherwise) {
  config_.take(entry, key);
  set(key, static_cast<float>(config_.number(entry, otherwise)));
}

void DecoderArchitecture::check_activation(const DecoderTraits& traits) const {
  const std::string name = config_.text(traits.activation_key, config_.text("hidden_act", traits.activation));
  config_.require(is_activation(name, traits.activation), traits.activation_key, "computes " + traits.activation);
}

void DecoderArchitecture::end_names(const DecoderTraits& traits) {
  TensorNames& names = result_.names;
  names.leave_out_layers_from(result_.layers);
  names.add("model.embed_tokens", "token_embd");
  names.add("model.norm", "output_norm");
  if (!config_.flag("tie_word_embeddings", traits.tied)) {
    names.add("lm_head", "output");
    names.add_scales({"output"});
    return;
  }
  names.leave_out("lm_head", "the head reads the embeddings");
  if (traits.needs_output) names.add("model.embed_tokens", "output");
}

void DecoderArchitecture::set(const std::string& key, Value value) {
  const std::string full = result_.name + "." + key;
  const auto found = std::find_if(result_.metadata.begin(), result_.metadata.end(),
                                  [&](const auto& entry) { return entry.first == full; });
  if (found == result_.metadata.end()) {
    result_.metadata.emplace_back(full, std::move(value));
  } else {
    found->second = std::move(value);
  }
}

void DecoderArchitecture::layer(const std::string& module, const std::string& tensor) {
  layer(module, TensorPlace{.name = tensor});
}

void DecoderArchitecture::layer(const std::string& module, TensorPlace place) {
  place.name = "blk.#." + place.name;
  names().add("model.layers.#." + module, std::move(place));
}

void DecoderArchitecture::layer_with_bias(const std::string& module, const std::string& tensor) {
  names().add_with_bias("model.layers.#." + module, TensorPlace{.name = "blk.#." + tensor});
}

void DecoderArchitecture::read_scales(const std::vector<std::string>& tensors) {
  for (const std::string& tensor : tensors) names().add_scales({"blk.#." + tensor});
}

void DecoderArchitecture::attention_names(bool paired, bool output_bias) {
  const std::string prefix = "model.layers.#.self_attn.";
  if (config_.file() != nullptr) config_.state("attention_bias", config_.file()->has_tensor("blk.0.attn_q.bias"));
  names().add_with_bias(prefix + "q_proj", {.name = "blk.#.attn_q", .paired_heads = paired ? heads_ : 0});
  names().add_with_bias(prefix + "k_proj", {.name = "blk.#.attn_k", .paired_heads = paired ? kv_heads_ : 0});
  layer_with_bias("self_attn.v_proj", "attn_v");
  read_scales({"attn_q", "attn_k", "attn_v", "attn_output"});
  if (output_bias) {
    layer_with_bias("self_attn.o_proj", "attn_output");
  } else {
    layer("self_attn.o_proj", "attn_output");
  }
}

void DecoderArchitecture::mlp_names(bool bias) {
  if (bias && config_.file() != nullptr) config_.state("mlp_bias", config_.file()->has_tensor("blk.0.ffn_up.bias"));
  for (const char* part : {"gate", "up", "down"}) {
    const std::string module = std::string("mlp.") + part + "_proj", tensor = std::string("ffn_") + part;
    if (bias) {
      layer_with_bias(module, tensor);
    } else {
      layer(module, tensor);
    }
  }
}

void DecoderArchitecture::expert_keys(const char* count_key, std::uint32_t otherwise_count,
                                      std::uint32_t otherwise_used) {
  config_.take(count_key, "expert_count");
  config_.take("num_experts_per_tok", "expert_used_count");
  config_.require(!config_.has("moe_sparsity_config"), "moe_sparsity_config",
                  "has equally many experts in every layer");
  const std::uint32_t count = config_.count(count_key, config_.count("num_local_experts", otherwise_count));
  const std::uint32_t used = config_.count("num_experts_per_tok", otherwise_used);
  config_.require(used <= count, "num_experts_per_tok", "chooses among num_experts");
  result_.experts = count;
  set("expert_count", count);
  set("expert_used_count", used);
}

void DecoderArchitecture::expert_names(const std::string& module, std::int64_t intermediate_size) {
  for (const char* part : {"gate", "up", "down"})
    layer(module + ".experts.#." + part + "_proj", std::string("ffn_") + part + "_exps");
  layer(module + ".experts.down_proj", TensorPlace{.name = "ffn_down_exps.weight"});
  layer(module + ".experts.gate_up_proj",
        TensorPlace{.name = "ffn_gate_exps.weight", .rows = {1, 0, intermediate_size}});
  layer(module + ".experts.gate_up_proj",
        TensorPlace{.name = "ffn_up_exps.weight", .rows = {1, intermediate_size, intermediate_size}});
}

void DecoderArchitecture::rope_scaling_keys() {
  const std::string& kind = rope_.kind;
  config_.require(rope_.local_kind.empty() || rope_.local_kind == "default", rope_.entry,
                  "does not stretch positions in layers with a window");
  if (kind == "default" || kind == "none" || kind == "mrope") return;  // which has axes and does not stretch them
  const bool takes_factors = result_.name == "llama" || result_.name == "granite";
  if (kind == "llama3" && takes_factors) return llama3_factors();
  config_.require(kind == "linear" || kind == "yarn", rope_.entry,
                  takes_factors ? "stretches positions by linear, yarn or llama3 scaling"
                                : "stretches positions by linear or yarn scaling");
  set("rope.scaling.type", kind);
  set("rope.scaling.factor", static_cast<float>(rope_.number("factor", 1)));
  if (kind == "linear") return;
  // llama.cpp rounds the range of features that yarn blends.
  config_.require(rope_.parameters.value("truncate", Json(true)) != Json(false) || result_.name == "gpt-oss",
                  rope_.entry, "rounds yarn's range to whole features (truncate)");
  const double original =
      rope_.number("original_max_position_embeddings", config_.number("max_position_embeddings", 0));
  set("rope.scaling.original_context_length", without_fraction(original, "original_max_position_embeddings"));
  yarn_range_keys();
  if (result_.name == "deepseek2") return;  // which has a key of its own for it
  const double usual = usual_yarn_magnitude(rope_.number("factor", 1)), magnitude = yarn_magnitude(rope_);
  if (std::abs(magnitude - usual) > 1e-6 * usual)
    set("rope.scaling.attn_factor", static_cast<float>(magnitude / usual));
}

/// llama.cpp has options for yarn's range, and takes 32 and 1 without them, whatever the file says.
void DecoderArchitecture::yarn_range_keys() {
  std::string options;
  for (const auto& [name, usual] : {std::pair{"beta_fast", 32.0}, {"beta_slow", 1.0}}) {
    if (!rope_.has(name)) continue;
    const double beta = rope_.number(name, usual);
    set(std::string("rope.scaling.yarn_") + name, static_cast<float>(beta));
    if (beta != 0 && beta != usual)
      options += fmt::format(" --yarn-{} {:g}", name == std::string("beta_fast") ? "beta-fast" : "beta-slow", beta);
  }
  if (!options.empty())
    result_.notes.push_back("llama.cpp does not read the range of yarn from the file; start it with" + options);
}

void DecoderArchitecture::rope_axes_key(const std::vector<std::int32_t>& otherwise, bool interleaved) {
  const auto axes = json_get_or<std::vector<std::int32_t>>(rope_.parameters, "mrope_section", rope_.entry, otherwise);
  const bool in_range = std::all_of(axes.begin(), axes.end(), [](std::int32_t axis) { return axis >= 0; });
  config_.require(axes.size() == 3 && in_range && std::int64_t{axes[0]} + axes[1] + axes[2] > 0, rope_.entry,
                  "divides the frequencies among three axes (mrope_section)");
  config_.require(
      rope_.parameters.value("mrope_interleaved", Json(interleaved)) == Json(interleaved), rope_.entry,
      interleaved ? "interleaves the frequencies of three axes" : "has the frequencies of an axis together");
  if (interleaved) check_axes_in_turn(axes);
  set("rope.dimension_sections", std::vector<std::int32_t>{axes[0], axes[1], axes[2], 0});
}

/// Where an axis has fewer frequencies than turns, llama.cpp rotates the others by nothing. Those are the slowest: of Qwen 3 VL's
/// (24, 20, 20) they turn by less than 0.11 in the whole context.
void DecoderArchitecture::check_axes_in_turn(const std::vector<std::int32_t>& axes) const {
  const std::int64_t features = rotated_features();
  const double positions = config_.number("max_position_embeddings", 0);
  for (std::int64_t i = 0; i < features / 2; ++i) {
    const double angle =
        positions * std::pow(rope_.theta, -2.0 * static_cast<double>(i) / static_cast<double>(features));
    const std::int64_t turn = i % (std::int64_t{axes[0]} + axes[1] + axes[2]);
    config_.require(turn / 3 < axes[static_cast<std::size_t>(turn % 3)] || angle < 0.25, rope_.entry,
                    "rotates by frequencies of three axes in turn (mrope_section)");
  }
}

std::uint32_t DecoderArchitecture::rotated_features() const {
  return without_fraction(head_dim_ * rope_.rotated_part, "partial_rotary_factor times head_dim");
}

void DecoderArchitecture::rotated_part_key() { set("rope.dimension_count", rotated_features()); }

/// By what each frequency is divided: nothing for short wavelengths, `factor` for long ones, a blend between them.
void DecoderArchitecture::llama3_factors() {
  const double factor = rope_.number("factor", 8), low = rope_.number("low_freq_factor", 1);
  const double high = rope_.number("high_freq_factor", 4),
               original = rope_.number("original_max_position_embeddings", 8192);
  MadeTensor tensor{.name = "rope_freqs.weight", .values = {}};
  for (std::uint32_t i = 0; i < head_dim_; i += 2) {
    const double wavelength = 2 * std::numbers::pi * std::pow(rope_.theta, static_cast<double>(i) / head_dim_);
    double divisor = 1;
    if (wavelength > original / low) {
      divisor = factor;
    } else if (wavelength >= original / high) {
      const double smooth = (original / wavelength - low) / (high - low);
      divisor = 1 / ((1 - smooth) / factor + smooth);
    }
    tensor.values.push_back(static_cast<float>(divisor));
  }
  set_made(std::move(tensor));
}

void DecoderArchitecture::window_pattern(bool (*otherwise)(std::int64_t layer)) {
  if (config_.file() != nullptr) state_layer_types(otherwise);
  std::vector<bool> slides, assumed;
  const std::vector<std::string> kinds = config_.texts("layer_types");
  config_.require(kinds.empty() || static_cast<std::int64_t>(kinds.size()) == layers(), "layer_types",
                  "has a kind for each layer");
  const std::uint32_t pattern = config_.count_or_none("sliding_window_pattern");
  for (std::int64_t i = 0; i < layers(); ++i) {
    assumed.push_back(otherwise(i));
    if (!kinds.empty()) {
      config_.require(kinds[i] == "sliding_attention" || kinds[i] == "full_attention", "layer_types",
                      "has no other kinds");
      slides.push_back(kinds[i] == "sliding_attention");
    } else {
      slides.push_back(pattern > 0 ? (i + 1) % pattern != 0 : otherwise(i));
    }
  }
  if (slides != assumed) set("attention.sliding_window_pattern", slides);
}

/// The kinds of layers, by the file's list or by what llama.cpp assumes without one.
void DecoderArchitecture::state_layer_types(bool (*otherwise)(std::int64_t layer)) {
  const Json pattern = config_.file()->value("attention.sliding_window_pattern");
  const bool windows = !config_.file()->value("attention.sliding_window").is_null();
  Json kinds = Json::array();
  for (std::int64_t i = 0; i < layers(); ++i) {
    const auto place = static_cast<std::size_t>(i);
    const bool listed = pattern.is_array() && place < pattern.size() && pattern[place].is_boolean();
    const bool slides = windows && (listed ? pattern[place].get<bool>() : otherwise(i));
    kinds.push_back(slides ? "sliding_attention" : "full_attention");
  }
  config_.state("layer_types", std::move(kinds));
}

void DecoderArchitecture::end_context_at_window() {
  const std::uint32_t window = config_.count_or_none("sliding_window");
  const auto* context = find_value<std::uint32_t>(result_.metadata, result_.name + ".context_length");
  if (window == 0 || context == nullptr || window >= *context) return;
  result_.notes.push_back(
      fmt::format("the file's context is {} tokens instead of {}, because llama.cpp computes {} without its sliding "
                  "window, whose length that is",
                  window, *context, result_.name));
  set("context_length", window);
}

}  // namespace layerpress::gguf
