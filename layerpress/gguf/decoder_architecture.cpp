#include "layerpress/gguf/decoder_architecture.h"

#include <algorithm>
#include <cmath>

namespace layerpress::gguf {
namespace {

constexpr double kPi = 3.14159265358979323846;

/// The names that activations of the two kinds have in config.json.
bool is_activation(const std::string& name, const std::string& wanted) {
  if (wanted == "silu") return name == "silu" || name == "swish";
  return name == "gelu_pytorch_tanh" || name == "gelu_new" || name == "gelu_tanh";
}

}  // namespace

DecoderArchitecture::DecoderArchitecture(const ModelConfig& config, const DecoderTraits& traits)
    : config_(config), rope_(read_rope(config, traits.rope)) {
  result_.name = traits.name;
  result_.metadata = {{"general.architecture", traits.name}, {"general.type", std::string("model")}};
  read_sizes(traits);
  check_activation(traits);
  set("rope.freq_base", static_cast<float>(rope_.theta));
  if (rope_.local_theta > 0) set("rope.freq_base_swa", static_cast<float>(rope_.local_theta));
  const double epsilon = config.number(traits.epsilon_key, traits.epsilon);
  set(traits.layer_norm ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon",
      static_cast<float>(epsilon));
  set("attention.key_length", head_dim_);
  set("attention.value_length", head_dim_);
  end_names(traits);
}

void DecoderArchitecture::read_sizes(const DecoderTraits& traits) {
  hidden_size_ = config_.count("hidden_size");
  heads_ = config_.count("num_attention_heads");
  kv_heads_ = config_.count("num_key_value_heads", traits.kv_heads > 0 ? traits.kv_heads : heads_);
  const std::uint32_t even_share = hidden_size_ / heads_;
  head_dim_ = config_.count("head_dim", traits.head_dim > 0 ? traits.head_dim : std::max(even_share, 1U));
  if (!traits.own_head_dim)
    config_.require(head_dim_ == even_share && hidden_size_ % heads_ == 0, "head_dim",
                    "has heads of equal shares of hidden_size");
  result_.layers = config_.count("num_hidden_layers");
  result_.heads = heads_;
  result_.kv_heads = kv_heads_;
  result_.vocab_size = config_.count("vocab_size");
  set("block_count", static_cast<std::uint32_t>(result_.layers));
  set("context_length", config_.count("max_position_embeddings", traits.context));
  set("embedding_length", hidden_size_);
  set("feed_forward_length", config_.count(traits.width_key));
  set("attention.head_count", heads_);
  set("attention.head_count_kv", kv_heads_);
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

void DecoderArchitecture::attention_names(bool paired, bool output_bias) {
  const std::string prefix = "model.layers.#.self_attn.";
  names().add_with_bias(prefix + "q_proj", {.name = "blk.#.attn_q", .paired_heads = paired ? heads_ : 0});
  names().add_with_bias(prefix + "k_proj", {.name = "blk.#.attn_k", .paired_heads = paired ? kv_heads_ : 0});
  layer_with_bias("self_attn.v_proj", "attn_v");
  if (output_bias) {
    layer_with_bias("self_attn.o_proj", "attn_output");
  } else {
    layer("self_attn.o_proj", "attn_output");
  }
}

void DecoderArchitecture::mlp_names(bool bias) {
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
  if (kind == "default" || kind == "none") return;
  if (kind == "llama3") return llama3_factors();
  config_.require(kind == "linear" || kind == "yarn",
                  config_.has("rope_parameters") ? "rope_parameters" : "rope_scaling",
                  "stretches positions by linear, yarn or llama3 scaling");
  set("rope.scaling.type", kind);
  set("rope.scaling.factor", static_cast<float>(rope_.number("factor", 1)));
  if (kind == "linear") return;
  const double original =
      rope_.number("original_max_position_embeddings", config_.number("max_position_embeddings", 0));
  if (!(original >= 1 && original < 2147483648.0))
    throw CheckpointError("[gguf.config] config.json: original_max_position_embeddings {} is out of range", original);
  set("rope.scaling.original_context_length", static_cast<std::uint32_t>(original));
  for (const auto& [from, to] : {std::pair{"extrapolation_factor", "yarn_ext_factor"},
                                 {"attention_factor", "yarn_attn_factor"},
                                 {"beta_fast", "yarn_beta_fast"},
                                 {"beta_slow", "yarn_beta_slow"}}) {
    if (rope_.has(from)) set(std::string("rope.scaling.") + to, static_cast<float>(rope_.number(from, 0)));
  }
}

/// By what each frequency is divided: nothing for short wavelengths, `factor` for long ones, a blend between them.
void DecoderArchitecture::llama3_factors() {
  const double factor = rope_.number("factor", 8), low = rope_.number("low_freq_factor", 1);
  const double high = rope_.number("high_freq_factor", 4),
               original = rope_.number("original_max_position_embeddings", 8192);
  MadeTensor tensor{.name = "rope_freqs.weight", .values = {}};
  for (std::uint32_t i = 0; i < head_dim_; i += 2) {
    const double wavelength = 2 * kPi * std::pow(rope_.theta, static_cast<double>(i) / head_dim_);
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

void DecoderArchitecture::end_context_at_window() {
  const std::uint32_t window = config_.count_or_none("sliding_window");
  const auto* context = find_value<std::uint32_t>(result_.metadata, result_.name + ".context_length");
  if (window > 0 && context != nullptr && window < *context) set("context_length", window);
}

}  // namespace layerpress::gguf
