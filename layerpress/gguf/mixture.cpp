#include "layerpress/gguf/mixture.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <numeric>
#include <string_view>

#include "layerpress/base/text.h"
#include "layerpress/gguf/blocks/block_type.h"

namespace layerpress::gguf {
namespace {

struct Mixture {
  std::string name;
  std::string base;  ///< the type of most tensors
  std::uint32_t file_type = 0;
};

const std::vector<Mixture>& mixtures() {
  static const std::vector<Mixture> kAll = {
      {"F32", "F32", 0},        {"F16", "F16", 1},        {"Q4_0", "Q4_0", 2},    {"Q4_1", "Q4_1", 3},
      {"Q8_0", "Q8_0", 7},      {"Q5_0", "Q5_0", 8},      {"Q5_1", "Q5_1", 9},    {"Q2_K", "Q2_K", 10},
      {"Q3_K_S", "Q3_K", 11},   {"Q3_K_M", "Q3_K", 12},   {"Q3_K_L", "Q3_K", 13}, {"Q4_K_S", "Q4_K", 14},
      {"Q4_K_M", "Q4_K", 15},   {"Q5_K_S", "Q5_K", 16},   {"Q5_K_M", "Q5_K", 17}, {"Q6_K", "Q6_K", 18},
      {"IQ4_NL", "IQ4_NL", 25}, {"IQ4_XS", "IQ4_XS", 30}, {"BF16", "BF16", 32},   {"MXFP4_MOE", "MXFP4", 38},
      {"NVFP4", "NVFP4", 39},
  };
  return kAll;
}

const Mixture& mixture_named(const std::string& name) {
  for (const Mixture& mixture : mixtures())
    if (mixture.name == name) return mixture;
  throw UsageError("[gguf.mixture] '{}' is not one of llama.cpp's file types; {}", name,
                   nearest_or_all(name, mixture_names()));
}

/// What a tensor is for, by its name; the first that fits.
enum class Role { kOutput, kEmbedding, kFusedValues, kValues, kKeys, kAttentionOutput, kDown, kOther };

bool contains(const std::string& name, std::string_view part) { return name.find(part) != std::string::npos; }

Role role_of(const std::string& name) {
  if (name == "output.weight") return Role::kOutput;
  if (name == "token_embd.weight") return Role::kEmbedding;
  if (contains(name, "attn_qkv.weight") || contains(name, "attn_kv_b.weight")) return Role::kFusedValues;
  if (contains(name, "attn_v.weight")) return Role::kValues;
  if (contains(name, "attn_k.weight")) return Role::kKeys;
  if (contains(name, "attn_output.weight")) return Role::kAttentionOutput;
  if (contains(name, "ffn_down")) return Role::kDown;
  return Role::kOther;
}

/// The number in "blk.7.attn_v.weight"; -1 for tensors outside of layers.
std::int64_t layer_of(std::string_view name) {
  if (!name.starts_with("blk.")) return -1;
  std::int64_t layer = -1;
  std::from_chars(name.data() + 4, name.data() + name.size(), layer);
  return layer;
}

/// The layers that get more bits where not all can: the first and last eighth, and every third between.
bool gets_more(std::int64_t index, std::int64_t count) {
  return index < count / 8 || index >= 7 * count / 8 || (index - count / 8) % 3 == 2;
}

std::int64_t block_values_of(const std::string& type) {
  const BlockType* found = find_block_type(type);
  if (found == nullptr) throw InternalError("[gguf.mixture] no block type {}", type);
  return found->block_values();
}

bool is_float(const std::string& type) { return type == "F32" || type == "F16" || type == "BF16"; }

/// Chooses types tensor by tensor, in llama-quantize's order: its rules count the tensors of a role.
class TypeChooser {
 public:
  TypeChooser(const Mixture& mixture, const Architecture& architecture, const std::vector<TensorShape>& tensors,
              bool has_importance)
      : mixture_(mixture), architecture_(architecture), has_importance_(has_importance) {
    for (const TensorShape& tensor : tensors) {
      const Role role = role_of(tensor.name);
      if (role == Role::kValues || role == Role::kFusedValues) ++value_tensors_;
      if (role == Role::kOutput) tied_ = false;
    }
  }

  std::string choose(const TensorShape& tensor) {
    if (!may_be_quantized(tensor)) return "F32";
    if (is_float(mixture_.base)) return mixture_.base;
    return type_for_columns(wanted(tensor), tensor.columns);
  }

 private:
  bool is(std::string_view name) const { return mixture_.name == name; }
  bool shares_heads() const { return architecture_.kv_heads > 0 && architecture_.heads / architecture_.kv_heads >= 4; }

  std::string wanted(const TensorShape& tensor) {
    const Role role = role_of(tensor.name);
    if (role == Role::kOutput || (tied_ && role == Role::kEmbedding)) return output_type(tensor);
    if (is("MXFP4_MOE")) return tensor.matrices > 1 ? "MXFP4" : "Q8_0";
    if (is("NVFP4")) return nvfp4_or_more(tensor);
    switch (role) {
      case Role::kValues:
      case Role::kFusedValues:
        return values_type(value_index_++);
      case Role::kKeys:
        return architecture_.experts == 8 ? "Q8_0" : mixture_.base;
      case Role::kDown:
        return down_type(architecture_.experts > 1 ? layer_of(tensor.name) : down_index_++);
      case Role::kAttentionOutput:
        return attention_output_type();
      default:
        return mixture_.base;
    }
  }

  /// NVFP4 is of little use without a number for the whole weight. llama-quantize has no such mixture.
  std::string nvfp4_or_more(const TensorShape& tensor) const {
    const bool fits = tensor.columns % block_values_of("NVFP4") == 0;
    return fits && architecture_.names.has_scale(tensor.name) ? "NVFP4" : "Q8_0";
  }

  std::string output_type(const TensorShape& tensor) const {
    if (is("MXFP4_MOE") || is("NVFP4") || tensor.columns % block_values_of(mixture_.base) != 0 ||
        mixture_.base == "Q8_0")
      return "Q8_0";
    return "Q6_K";
  }

  std::string values_type(std::int64_t index) const {
    std::string type = mixture_.base;
    if (is("Q2_K")) type = shares_heads() ? "Q4_K" : "Q3_K";
    if (is("Q3_K_M")) type = index < 2 ? "Q5_K" : "Q4_K";
    if (is("Q3_K_L")) type = "Q5_K";
    if ((is("IQ4_NL") || is("IQ4_XS")) && shares_heads()) type = "Q5_K";
    if ((is("Q4_K_M") || is("Q5_K_M")) && gets_more(index, value_tensors_)) type = "Q6_K";
    if (is("Q4_K_S") && index < 4) type = "Q5_K";
    if (is_seventy_billion() && (type == "Q3_K" || type == "Q4_K")) type = "Q5_K";
    return architecture_.experts == 8 ? "Q8_0" : type;
  }

  /// Models in which many heads share keys and values, so that these cost little.
  bool is_seventy_billion() const {
    if (architecture_.layers != 80) return false;
    return architecture_.name == "qwen2" || architecture_.name == "qwen2vl" ||
           (architecture_.name == "llama" && architecture_.experts != 8 &&
            architecture_.heads != architecture_.kv_heads);
  }

  std::string down_type(std::int64_t index) const {
    const std::int64_t count = architecture_.layers;
    const bool early = index < count / 8;
    if (is("Q2_K")) return "Q3_K";
    if (is("Q3_K_M")) return index < count / 16 ? "Q5_K" : "Q4_K";
    if (is("Q3_K_L")) return "Q5_K";
    if ((is("Q4_K_M") || is("Q5_K_M")) && gets_more(index, count)) return "Q6_K";
    if ((is("IQ4_NL") || is("IQ4_XS")) && early && !has_importance_) return "Q5_K";
    if (is("Q4_K_S") && early) return "Q5_K";
    if (is("Q4_0") && early && has_importance_) return "Q4_1";
    if (is("Q5_0") && early && has_importance_) return "Q5_1";
    return mixture_.base;
  }

  std::string attention_output_type() const {
    if (architecture_.experts == 8) {
      for (const char* name : {"Q2_K", "Q3_K_S", "Q3_K_M", "IQ4_NL", "Q4_K_S", "Q4_K_M", "IQ4_XS"})
        if (is(name)) return "Q5_K";
      return mixture_.base;
    }
    if (is("Q2_K")) return "Q3_K";
    if (is("Q3_K_M")) return "Q4_K";
    if (is("Q3_K_L")) return "Q5_K";
    return mixture_.base;
  }

  const Mixture& mixture_;
  const Architecture& architecture_;
  bool has_importance_;
  bool tied_ = true;
  std::int64_t value_tensors_ = 0, value_index_ = 0, down_index_ = 0;
};

/// The order in which llama-quantize goes through tensors: by layer, then by name.
std::vector<std::size_t> quantizer_order(const std::vector<TensorShape>& tensors) {
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](std::size_t one, std::size_t other) {
    const std::string &a = tensors[one].name, &b = tensors[other].name;
    return std::pair(layer_of(a), a) < std::pair(layer_of(b), b);
  });
  return order;
}

}  // namespace

std::vector<std::string> mixture_names() {
  std::vector<std::string> names;
  for (const Mixture& mixture : mixtures()) names.push_back(mixture.name);
  return names;
}

bool is_mixture(const std::string& name) {
  return std::any_of(mixtures().begin(), mixtures().end(),
                     [&](const Mixture& mixture) { return mixture.name == name; });
}

std::vector<std::string> mixtures_of(const std::string& type) {
  std::vector<std::string> names;
  for (const Mixture& mixture : mixtures())
    if (mixture.base == type && mixture.name.starts_with(type + "_")) names.push_back(mixture.name);
  return names;
}

bool is_float_mixture(const std::string& name) { return is_mixture(name) && is_float(mixture_named(name).base); }

std::uint32_t mixture_file_type(const std::string& mixture) { return mixture_named(mixture).file_type; }

std::vector<std::string> mixture_types(const std::string& mixture, const Architecture& architecture,
                                       const std::vector<TensorShape>& tensors, bool has_importance) {
  std::vector<std::string> types(tensors.size());
  TypeChooser chooser(mixture_named(mixture), architecture, tensors, has_importance);
  for (const std::size_t index : quantizer_order(tensors)) types[index] = chooser.choose(tensors[index]);
  return types;
}

bool may_be_quantized(const TensorShape& tensor) {
  if (tensor.rows == 1 && tensor.matrices == 1) return false;
  if (!tensor.name.ends_with("weight")) return false;
  for (const char* part : {"_norm.weight", "ffn_gate_inp.weight", "ssm_conv1d", "shortconv.conv.weight"})
    if (contains(tensor.name, part)) return false;
  return true;
}

std::string type_for_columns(const std::string& type, std::int64_t columns) {
  static const std::map<std::string, std::string> kFallbacks = {
      {"Q2_K", "Q4_0"}, {"Q3_K", "Q4_0"}, {"Q4_K", "Q5_0"}, {"Q5_K", "Q5_1"}, {"Q6_K", "Q8_0"}, {"IQ4_XS", "IQ4_NL"}};
  if (columns % block_values_of(type) == 0) return type;
  const auto fallback = kFallbacks.find(type);
  const std::string& next = fallback == kFallbacks.end() ? type : fallback->second;
  return columns % block_values_of(next) == 0 ? next : "F16";
}

}  // namespace layerpress::gguf
