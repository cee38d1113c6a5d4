#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "layerpress/gguf/architectures/architecture.h"
#include "layerpress/gguf/architectures/model_config.h"

namespace layerpress::gguf {

/// What families assume where config.json says nothing, and how they differ in the parts that they share.
struct DecoderTraits {
  std::string name;            ///< general.architecture
  std::uint32_t kv_heads = 0;  ///< 0: as many as heads
  std::uint32_t head_dim = 0;  ///< 0: hidden_size / num_attention_heads
  std::uint32_t context = 2048;
  const char* width_key = "intermediate_size";  ///< null: the model has experts only
  const char* epsilon_key = "rms_norm_eps";
  double epsilon = 1e-6;
  bool layer_norm = false;    ///< norms subtract the mean
  bool tied = false;          ///< tie_word_embeddings
  bool needs_output = false;  ///< llama.cpp wants output.weight even if it is the embeddings
  bool own_head_dim = true;   ///< llama.cpp takes a head_dim other than hidden_size / num_attention_heads
  const char* activation_key = "hidden_act";
  std::string activation = "silu";  ///< "silu" or "gelu_pytorch_tanh"
  RopeDefaults rope{};
};

/// Builds an architecture: keys and names that decoders share in the constructor, the others by its methods.
class DecoderArchitecture {
 public:
  /// `config` outlives it.
  DecoderArchitecture(ModelConfig& config, const DecoderTraits& traits);

  Architecture take() { return std::move(result_); }

  TensorNames& names() { return result_.names; }
  ModelConfig& config() const { return config_; }
  const RopeConfig& rope() const { return rope_; }
  std::int64_t layers() const { return result_.layers; }
  std::uint32_t heads() const { return heads_; }
  std::uint32_t kv_heads() const { return kv_heads_; }
  std::uint32_t head_dim() const { return head_dim_; }
  std::uint32_t hidden_size() const { return hidden_size_; }

  /// Sets `key` of the architecture, "attention.head_count"; a second time it changes the value.
  void set(const std::string& key, Value value);
  /// A number that a key and an entry of config.json have in common; see ModelConfig::take.
  std::uint32_t count(const std::string& key, const char* entry);
  std::uint32_t count(const std::string& key, const char* entry, std::uint32_t otherwise);
  void number(const std::string& key, const char* entry, double otherwise);
  /// Whether a GGUF is read that has the key.
  bool reads(const std::string& key) const {
    return config_.file() != nullptr && !config_.file()->value(key).is_null();
  }

  /// What llama.cpp does otherwise than the model.
  void note(std::string text) { result_.notes.push_back(std::move(text)); }
  void set_made(MadeTensor tensor) { result_.made.push_back(std::move(tensor)); }
  void set_first_kv_heads(std::int64_t heads) { result_.kv_heads = heads; }

  /// A module of every layer, and a tensor of every block: layer("mlp.up_proj", "ffn_up").
  void layer(const std::string& module, const std::string& tensor);
  void layer(const std::string& module, TensorPlace place);
  void layer_with_bias(const std::string& module, const std::string& tensor);

  /// The tensors of blocks, "ffn_up", whose scales llama.cpp reads (TensorNames::add_scales).
  void read_scales(const std::vector<std::string>& tensors);

  /// q, k, v and o projections, whose rows are in the order of transformers. `paired`: llama.cpp rotates neighbours, so rows of q and
  /// k change places.
  void attention_names(bool paired = false, bool output_bias = false);
  void mlp_names(bool bias = false);
  /// The keys and names of experts in module `module` with linears gate, up, down; also of stacked tensors.
  void expert_keys(const char* count_key, std::uint32_t otherwise_count, std::uint32_t otherwise_used);
  void expert_names(const std::string& module, std::int64_t intermediate_size);

  /// The keys of stretched positions: linear, yarn; llama3 becomes a tensor where llama.cpp takes one. Throws CheckpointError for other
  /// kinds.
  void rope_scaling_keys();
  /// How many frequencies belong to time, height and width of images, `otherwise` without a word in config.json; text has the same
  /// position in all of them. `interleaved`: the axes take turns.
  void rope_axes_key(const std::vector<std::int32_t>& otherwise, bool interleaved);
  /// How many features of a head are rotated.
  void rotated_part_key();
  /// Which layers have a sliding window, if llama.cpp would assume others. `otherwise(layer)` is what llama.cpp assumes and what
  /// config.json means without layer_types and sliding_window_pattern.
  void window_pattern(bool (*otherwise)(std::int64_t layer));
  /// For models with a window that llama.cpp does not compute: the context ends where the window would begin to matter.
  void end_context_at_window();

 private:
  void read_sizes(const DecoderTraits& traits);
  void read_heads(const DecoderTraits& traits);
  void end_names(const DecoderTraits& traits);
  void check_activation(const DecoderTraits& traits) const;
  void state_layer_types(bool (*otherwise)(std::int64_t layer));
  void llama3_factors();
  void yarn_range_keys();
  std::uint32_t rotated_features() const;
  void check_axes_in_turn(const std::vector<std::int32_t>& axes) const;

  ModelConfig& config_;
  RopeConfig rope_;
  Architecture result_;
  std::uint32_t heads_ = 0, kv_heads_ = 0, head_dim_ = 0, hidden_size_ = 0;
};

}  // namespace layerpress::gguf
